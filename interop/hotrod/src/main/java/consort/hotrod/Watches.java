package consort.hotrod;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryCreated;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryModified;
import org.infinispan.client.hotrod.annotation.ClientListener;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.event.ClientCacheEntryCustomEvent;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.client.hotrod.filter.Filters;
import org.infinispan.commons.api.query.ContinuousQuery;
import org.infinispan.commons.api.query.ContinuousQueryListener;
import org.infinispan.commons.marshall.ProtoStreamMarshaller;
import org.infinispan.protostream.ProtobufUtil;
import org.infinispan.protostream.SerializationContext;
import org.infinispan.query.remote.client.FilterResult;

/** Tells what queries tell that go on: SERVERS INTELLIGENCE VERSION CACHE. */
public final class Watches {
    private static final BlockingQueue<String> TOLD = new LinkedBlockingQueue<>();

    private static SerializationContext context;

    public static void main(String[] args) throws Exception {
        ProtoStreamMarshaller marshaller = new ProtoStreamMarshaller();
        context = marshaller.getSerializationContext();
        Items.register(context);
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.marshaller(marshaller).build())) {
            RemoteCache<Object, Object> cache = Queries.opened(manager, args[3]);
            continuous(cache);
            filtered(cache);
        }
        Application.done();
    }

    private static void continuous(RemoteCache<Object, Object> cache) throws Exception {
        cache.put("a", item("Emma", 12));
        cache.put("b", item("Alien", 30));
        cache.put("text", "Emma");
        ContinuousQuery<Object, Object> query = cache.continuousQuery();
        Listener listener = new Listener();
        query.addContinuousQueryListener("FROM shop.Item WHERE price > :p", Map.of("p", 20), listener);
        say("what is there", 1);
        cache.put("c", item("Go", 40));
        say("one more", 1);
        cache.put("a", item("Emma", 21));
        say("one that joins", 1);
        cache.put("a", item("Emma", 22));
        cache.put("b", item("Alien", 3));
        say("one that changes and one that leaves", 1);
        cache.remove("c");
        cache.remove("b");
        say("one that is removed and one that was not found", 1);
        cache.put("d", item("Chess", 50), 300, TimeUnit.MILLISECONDS);
        Thread.sleep(500);
        cache.get("d");
        say("one that expires", 2);
        cache.put("a", "no item any more");
        say("what is something else", 1);
        query.removeContinuousQueryListener(listener);
        cache.put("e", item("Go", 99));
        query.addContinuousQueryListener("SELECT name, price FROM shop.Item WHERE name LIKE 'G%'", listener);
        say("fields", 1);
        query.removeAllListeners();
        for (String wrong : List.of("FROM shop.Item WHERE", "SELECT SUM(price) FROM shop.Item", "FROM shop.Nothing")) {
            try {
                query.addContinuousQueryListener(wrong, listener);
                System.out.println(wrong + " is taken");
            } catch (HotRodClientException refused) {
                System.out.println(wrong + " is refused");
            }
        }
        say("nothing more", 0);
        cache.clear();
    }

    private static void filtered(RemoteCache<Object, Object> cache) throws Exception {
        Filtered listener = new Filtered();
        cache.put("a", item("Emma", 30));
        cache.addClientListener(listener, Filters.makeFactoryParams("FROM shop.Item WHERE price > 20", null), null);
        say("what is there", 1);
        cache.put("b", item("Go", 40));
        cache.put("c", item("Alien", 4));
        cache.put("c", item("Alien", 44));
        say("what is new", 2);
        cache.remove("b");
        cache.removeClientListener(listener);
        String fields = "SELECT name, price FROM shop.Item WHERE price > 20 ORDER BY price";
        cache.addClientListener(listener, Filters.makeFactoryParams(fields, null), null);
        say("fields", 2);
        cache.removeClientListener(listener);
        say("nothing more", 0);
    }

    private static Items.Item item(String name, int price) {
        return Items.item(name, price, Items.Kind.BOOK, null, List.of(), List.of());
    }

    private static void say(String what, int expected) throws InterruptedException {
        System.out.println(what);
        List<String> told = new java.util.ArrayList<>();
        for (int i = 0; i < expected; i++) {
            String one = TOLD.poll(20, TimeUnit.SECONDS);
            told.add(one == null ? "nothing" : one);
        }
        // What is too much comes soon.
        for (String one = TOLD.poll(200, TimeUnit.MILLISECONDS); one != null; one = TOLD.poll()) {
            told.add(one);
        }
        told.stream().sorted().forEach(one -> System.out.println("    " + one));
    }

    private static String told(Object value) {
        return value instanceof Object[] all ? Arrays.toString(all) : String.valueOf(value);
    }

    private static final class Listener implements ContinuousQueryListener<Object, Object> {
        @Override
        public void resultJoining(Object key, Object value) {
            TOLD.add(key + " joins with " + told(value));
        }

        @Override
        public void resultUpdated(Object key, Object value) {
            TOLD.add(key + " is changed to " + told(value));
        }

        @Override
        public void resultLeaving(Object key) {
            TOLD.add(key + " leaves");
        }
    }

    /** A listener whose events have what a query selects. */
    @ClientListener(filterFactoryName = Filters.QUERY_DSL_FILTER_FACTORY_NAME,
        converterFactoryName = Filters.QUERY_DSL_FILTER_FACTORY_NAME, useRawData = true, includeCurrentState = true)
    public static final class Filtered {
        @ClientCacheEntryCreated
        @ClientCacheEntryModified
        public void handle(ClientCacheEntryCustomEvent<byte[]> event) throws Exception {
            FilterResult found = (FilterResult) ProtobufUtil.fromWrappedByteArray(context, event.getEventData());
            Object instance = found.getInstance() instanceof byte[] bytes
                ? ProtobufUtil.fromWrappedByteArray(context, bytes) : found.getInstance();
            // Fields that are not selected come as none.
            Object[] fields = found.getProjection() == null ? new Object[0] : found.getProjection();
            TOLD.add(event.getType() + " " + told(fields.length == 0 ? instance : fields)
                + " by " + told(found.getSortProjection()));
        }
    }
}
