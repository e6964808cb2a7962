package consort.hotrod;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryCreated;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryExpired;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryModified;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryRemoved;
import org.infinispan.client.hotrod.annotation.ClientListener;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.event.ClientCacheEntryCustomEvent;
import org.infinispan.commons.GlobalContextInitializerImpl;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.marshall.ProtoStreamMarshaller;
import org.infinispan.commons.util.KeyValueWithPrevious;

/** Tells what a listener is told that is to know the values before, too: SERVERS INTELLIGENCE VERSION. */
public final class Before {
    private static final BlockingQueue<String> TOLD = new LinkedBlockingQueue<>();

    @ClientListener(converterFactoryName = "key-value-with-previous-converter-factory", includeCurrentState = true)
    public static final class Changes {
        @ClientCacheEntryCreated
        @ClientCacheEntryModified
        @ClientCacheEntryRemoved
        @ClientCacheEntryExpired
        public void changed(ClientCacheEntryCustomEvent<KeyValueWithPrevious<Object, Object>> event) {
            TOLD.add(event.getType() + " " + event.getEventData());
        }
    }

    public static void main(String[] args) throws Exception {
        ProtoStreamMarshaller marshaller = new ProtoStreamMarshaller();
        marshaller.register(new GlobalContextInitializerImpl());
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.marshaller(marshaller).build())) {
            String[] encodings = {"", "<encoding media-type=\"application/x-protostream\"/>"};
            for (int at = 0; at < encodings.length; at++) {
                StringConfiguration configuration =
                    new StringConfiguration("<distributed-cache>" + encodings[at] + "</distributed-cache>");
                changes(manager.administration().getOrCreateCache("before-" + at, configuration));
            }
        }
        Application.done();
    }

    private static void changes(RemoteCache<Object, Object> cache) throws InterruptedException {
        cache.put("there", 7);
        Changes listener = new Changes();
        cache.addClientListener(listener);
        say();
        cache.put("k", "1");
        cache.put("k", 2L);
        cache.remove("k");
        cache.put("t", "3", 10, TimeUnit.MILLISECONDS);
        // Infinispan looks for what has expired once a minute, and where it is read.
        while (cache.get("t") != null) {
            Thread.onSpinWait();
        }
        for (int event = 0; event < 5; event++) {
            say();
        }
        cache.removeClientListener(listener);
        cache.clear();
    }

    private static void say() throws InterruptedException {
        System.out.println(TOLD.poll(60, TimeUnit.SECONDS));
    }
}
