package consort.hotrod;

import static consort.hotrod.Application.check;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.MetadataValue;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.commons.util.CloseableIterator;

/**
 * Walks over entries: SERVERS INTELLIGENCE VERSION. With a number of entries as well, it walks over that many until
 * nothing can be read from it any more, and says so after each time.
 */
public final class Walks {
    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            String name = "walks-" + args[1] + "-" + args[2];
            RemoteCache<String, String> cache =
                manager.administration().getOrCreateCache(name, DefaultTemplate.DIST_SYNC);
            if (args.length > 3) {
                again(cache, Integer.parseInt(args[3]));
            } else {
                once(cache);
            }
        }
        Application.done();
    }

    private static Map<String, String> filled(RemoteCache<String, String> cache, int count) {
        Map<String, String> entries = new HashMap<>();
        for (int at = 0; at < count; at++) {
            entries.put("key-" + at, "value-" + at);
        }
        cache.putAll(entries);
        return entries;
    }

    private static <V> Map<Object, V> walked(CloseableIterator<Map.Entry<Object, V>> walk, String what) {
        Map<Object, V> found = new HashMap<>();
        try (walk) {
            while (walk.hasNext()) {
                Map.Entry<Object, V> entry = walk.next();
                check(found.put(entry.getKey(), entry.getValue()), null, what + ": a second time " + entry.getKey());
            }
        }
        return found;
    }

    private static void once(RemoteCache<String, String> cache) {
        check(walked(cache.retrieveEntries(null, 10), "nothing").size(), 0, "a walk over nothing");
        Map<String, String> entries = filled(cache, 2_000);
        check(walked(cache.retrieveEntries(null, 100), "walk"), entries, "entries");
        check(walked(cache.retrieveEntries(null, 1), "one at a time"), entries, "entries one at a time");
        check(new HashSet<>(cache.keySet()), entries.keySet(), "keySet");
        List<String> values = new ArrayList<>(cache.values());
        check(values.size(), entries.size(), "how many values");
        Map<String, String> pairs = new HashMap<>();
        cache.entrySet().forEach(entry -> pairs.put(entry.getKey(), entry.getValue()));
        check(pairs, entries, "entrySet");
        metadata(cache);
        segments(cache, entries);
        filters(cache, entries);
        cache.clear();
    }

    private static void metadata(RemoteCache<String, String> cache) {
        cache.put("key-7", "timed", 1, TimeUnit.HOURS, 30, TimeUnit.MINUTES);
        Map<Object, MetadataValue<Object>> found = walked(cache.retrieveEntriesWithMetadata(null, 100), "metadata");
        check(found.size(), 2_000, "entries with metadata");
        MetadataValue<Object> timed = found.get("key-7");
        check(timed.getValue(), "timed", "value with metadata");
        check(timed.getLifespan(), 3_600, "lifespan");
        check(timed.getMaxIdle(), 1_800, "max idle");
        check(Math.abs(timed.getCreated() - System.currentTimeMillis()) < 60_000, true, "created");
        check(timed.getVersion(), cache.getWithMetadata("key-7").getVersion(), "version");
        check(found.get("key-8").getLifespan(), -1, "lifespan of what lives for ever");
        cache.put("key-7", "value-7");
    }

    private static void segments(RemoteCache<String, String> cache, Map<String, String> entries) {
        Set<Object> found = new HashSet<>();
        for (int from = 0; from < 256; from += 64) {
            Set<Integer> part = new HashSet<>();
            for (int segment = from; segment < from + 64; segment++) {
                part.add(segment);
            }
            Map<Object, Object> of = walked(cache.retrieveEntries(null, part, 50), "segments");
            check(of.isEmpty(), false, "a quarter without entries");
            of.keySet().forEach(key -> check(found.add(key), true, "a key in two segments"));
        }
        check(found, entries.keySet(), "all segments");
    }

    private static void filters(RemoteCache<String, String> cache, Map<String, String> entries) {
        Map<String, String> expected = new HashMap<>(entries);
        expected.keySet().removeIf(key -> !key.startsWith("key-12"));
        check(walked(cache.retrieveEntries("consort-key-prefix", new Object[] {"key-12"}, null, 10), "keys"),
            expected, "entries by their keys");
        expected = new HashMap<>(entries);
        expected.values().removeIf(value -> !value.startsWith("value-3"));
        check(walked(cache.retrieveEntries("consort-value-prefix", new Object[] {"value-3"}, null, 10), "values"),
            expected, "entries by their values");
        try {
            walked(cache.retrieveEntries("mine", 10), "unknown");
            throw new AssertionError("a filter that is not there");
        } catch (HotRodClientException expectedToo) {
            check(expectedToo.getMessage().contains("'mine'"), true, expectedToo.getMessage());
        }
    }

    private static void again(RemoteCache<String, String> cache, int count) throws Exception {
        Map<String, String> entries = filled(cache, count);
        boolean goesOn = true;
        while (goesOn) {
            goesOn = System.in.available() == 0;
            check(walked(cache.retrieveEntries(null, 500), "while servers change"), entries, "entries");
            System.out.println("walked");
        }
    }
}
