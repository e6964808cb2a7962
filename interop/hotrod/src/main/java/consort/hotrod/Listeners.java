package consort.hotrod;

import static consort.hotrod.Application.check;

import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.ProtocolVersion;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryCreated;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryExpired;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryModified;
import org.infinispan.client.hotrod.annotation.ClientCacheEntryRemoved;
import org.infinispan.client.hotrod.annotation.ClientListener;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.configuration.NearCacheMode;
import org.infinispan.client.hotrod.event.ClientCacheEntryCreatedEvent;
import org.infinispan.client.hotrod.event.ClientCacheEntryCustomEvent;
import org.infinispan.client.hotrod.event.ClientCacheEntryExpiredEvent;
import org.infinispan.client.hotrod.event.ClientCacheEntryModifiedEvent;
import org.infinispan.client.hotrod.event.ClientCacheEntryRemovedEvent;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.commons.io.UnsignedNumeric;
import org.infinispan.commons.marshall.Marshaller;

/**
 * Listeners, with converters, too, and near caches: SERVERS INTELLIGENCE VERSION. With one argument more, two listeners are told of changes until
 * something can be read, and it says so each time.
 */
public final class Listeners {
    /** What has been told, in order. */
    @ClientListener
    public static class Changes {
        final BlockingQueue<String> told = new LinkedBlockingQueue<>();

        @ClientCacheEntryCreated
        public void created(ClientCacheEntryCreatedEvent<String> event) {
            told.add("created " + event.getKey() + " " + event.getVersion());
        }

        @ClientCacheEntryModified
        public void modified(ClientCacheEntryModifiedEvent<String> event) {
            told.add("modified " + event.getKey() + " " + event.getVersion());
        }

        @ClientCacheEntryRemoved
        public void removed(ClientCacheEntryRemovedEvent<String> event) {
            told.add("removed " + event.getKey());
        }

        @ClientCacheEntryExpired
        public void expired(ClientCacheEntryExpiredEvent<String> event) {
            told.add("expired " + event.getKey());
        }

        String next() throws InterruptedException {
            return told.poll(60, TimeUnit.SECONDS);
        }
    }

    @ClientListener(includeCurrentState = true)
    public static final class State extends Changes {
    }

    @ClientListener(filterFactoryName = "consort-key-prefix")
    public static final class Some extends Changes {
    }

    @ClientListener(converterFactoryName = "mine")
    public static final class Converted extends Changes {
    }

    /** What servers say with values: key, and value with version if there is one, with lengths before them. */
    @ClientListener(converterFactoryName = "___eager-key-value-version-converter", useRawData = true,
        includeCurrentState = true)
    public static final class Values {
        final BlockingQueue<ClientCacheEntryCustomEvent<byte[]>> told = new LinkedBlockingQueue<>();

        @ClientCacheEntryCreated
        @ClientCacheEntryModified
        @ClientCacheEntryRemoved
        @ClientCacheEntryExpired
        public void changed(ClientCacheEntryCustomEvent<byte[]> event) {
            told.add(event);
        }

        /** Kind and key, and value and version if there are. */
        String next(RemoteCache<String, String> cache) throws Exception {
            ClientCacheEntryCustomEvent<byte[]> event = told.poll(60, TimeUnit.SECONDS);
            Marshaller marshaller = cache.getRemoteCacheContainer().getMarshaller();
            ByteBuffer bytes = ByteBuffer.wrap(event.getEventData());
            String kind = event.getType().name().substring("CLIENT_CACHE_ENTRY_".length());
            String key = kind + " " + marshaller.objectFromByteBuffer(array(bytes));
            return bytes.hasRemaining()
                ? key + " " + marshaller.objectFromByteBuffer(array(bytes)) + " " + bytes.getLong() : key;
        }

        private static byte[] array(ByteBuffer from) {
            byte[] bytes = new byte[UnsignedNumeric.readUnsignedInt(from)];
            from.get(bytes);
            return bytes;
        }
    }

    public static void main(String[] args) throws Exception {
        String name = "listeners-" + args[1] + "-" + args[2];
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            RemoteCache<String, String> cache =
                manager.administration().getOrCreateCache(name, DefaultTemplate.DIST_SYNC);
            if (args.length > 3) {
                again(cache);
            } else {
                changes(cache);
                state(cache);
                filters(cache);
                converters(cache);
                nearCache(cache, args, false);
                // Their order is that of the versions.
                if (ProtocolVersion.valueOf(args[2]).compareTo(ProtocolVersion.PROTOCOL_VERSION_31) >= 0) {
                    nearCache(cache, args, true);
                }
            }
            cache.clear();
        }
        Application.done();
    }

    private static void changes(RemoteCache<String, String> cache) throws Exception {
        Changes listener = new Changes();
        cache.addClientListener(listener);
        cache.put("k", "1");
        check(listener.next(), "created k " + cache.getWithMetadata("k").getVersion(), "a new key");
        cache.put("k", "2");
        check(listener.next(), "modified k " + cache.getWithMetadata("k").getVersion(), "a key with another value");
        cache.remove("k");
        check(listener.next(), "removed k", "a key that is gone");
        cache.put("t", "1", 10, TimeUnit.MILLISECONDS);
        check(listener.next().startsWith("created t "), true, "a key that lives for a moment");
        check(listener.next(), "expired t", "a key whose time is over");
        cache.removeClientListener(listener);
        cache.put("k", "3");
        check(listener.told.size(), 0, "events after its removal");
        cache.clear();
    }

    private static void state(RemoteCache<String, String> cache) throws Exception {
        Set<String> keys = new HashSet<>();
        for (int at = 0; at < 2_000; at++) {
            keys.add("key-" + at);
        }
        keys.forEach(key -> cache.put(key, "1"));
        State listener = new State();
        cache.addClientListener(listener);
        Set<String> found = new HashSet<>();
        for (int at = 0; at < 2_000; at++) {
            String[] told = listener.next().split(" ");
            check(told[0], "created", "what was there");
            check(found.add(told[1]), true, "a first time " + told[1]);
        }
        check(found, keys, "all that was there");
        cache.put("key-1", "2");
        check(listener.next().startsWith("modified key-1 "), true, "a change after what was there");
        cache.removeClientListener(listener);
        cache.clear();
    }

    private static void filters(RemoteCache<String, String> cache) throws Exception {
        Some listener = new Some();
        cache.addClientListener(listener, new Object[] {"key-2"}, null);
        cache.put("key-1", "1");
        cache.put("key-21", "1");
        check(listener.next().startsWith("created key-21 "), true, "an event by its key");
        check(listener.told.size(), 0, "events that are not wanted");
        cache.removeClientListener(listener);
        try {
            cache.addClientListener(new Converted());
            throw new AssertionError("a converter that is not there");
        } catch (HotRodClientException expected) {
            check(expected.getMessage().contains("'mine'"), true, expected.getMessage());
        }
        cache.clear();
    }

    private static void converters(RemoteCache<String, String> cache) throws Exception {
        cache.put("there", "0");
        long there = cache.getWithMetadata("there").getVersion();
        for (Object[] gone : new Object[][] {null, {"gone"}}) {
            Values listener = new Values();
            cache.addClientListener(listener, null, gone);
            check(listener.next(cache), "CREATED there 0 " + there, "what was there");
            cache.put("k", "1");
            check(listener.next(cache), "CREATED k 1 " + cache.getWithMetadata("k").getVersion(), "a new key");
            cache.put("k", "2");
            String value = " 2 " + cache.getWithMetadata("k").getVersion();
            check(listener.next(cache), "MODIFIED k" + value, "a key with another value");
            cache.remove("k");
            check(listener.next(cache), "REMOVED k" + (gone == null ? "" : value), "a key that is gone");
            cache.put("t", "3", 10, TimeUnit.MILLISECONDS);
            String[] created = listener.next(cache).split(" ", 2);
            check(created[0], "CREATED", "a key that lives for a moment");
            check(listener.next(cache), "EXPIRED " + (gone == null ? "t" : created[1]), "a key whose time is over");
            cache.removeClientListener(listener);
        }
        cache.clear();
    }

    private static void nearCache(RemoteCache<String, String> writer, String[] args, boolean bloom) throws Exception {
        ConfigurationBuilder settings = Application.settings(args[0], args[1], args[2]);
        settings.statistics().enable();
        settings.remoteCache(writer.getName()).nearCacheMode(NearCacheMode.INVALIDATED).nearCacheMaxEntries(64)
            .nearCacheUseBloomFilter(bloom);
        try (RemoteCacheManager manager = new RemoteCacheManager(settings.build())) {
            RemoteCache<String, String> cache = manager.getCache(writer.getName());
            for (int at = 0; at < 40; at++) {
                writer.put("near-" + at, "1");
                check(cache.get("near-" + at), "1", "a first read");
                check(cache.get("near-" + at), "1", "a second read");
            }
            check(cache.clientStatistics().getNearCacheHits() >= 40, true, "reads that were near");
            for (int at = 0; at < 40; at++) {
                String key = "near-" + at;
                writer.put(key, "2");
                long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
                while (!cache.get(key).equals("2") && System.nanoTime() < end) {
                    Thread.onSpinWait();
                }
                check(cache.get(key), "2", "a value that others have changed");
            }
            check(cache.clientStatistics().getNearCacheInvalidations() > 0, true, "invalidations");
            writer.clear();
        }
    }

    /** An event that was lost with a server comes no more: the next one does. */
    private static void again(RemoteCache<String, String> cache) throws Exception {
        List<Changes> listeners = List.of(new Changes(), new Changes());
        listeners.forEach(cache::addClientListener);
        boolean goesOn = true;
        for (int at = 0; goesOn; at++) {
            goesOn = System.in.available() == 0;
            for (Changes listener : listeners) {
                String told = null;
                for (int attempt = 0; told == null && attempt < 120; attempt++) {
                    cache.put("key-" + at + "-" + attempt, "1");
                    told = listener.told.poll(500, TimeUnit.MILLISECONDS);
                }
                check(told == null, false, "an event");
            }
            System.out.println("told");
        }
    }
}
