package consort.hotrod;

import static consort.hotrod.Application.check;

import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.Flag;
import org.infinispan.client.hotrod.MetadataValue;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;

/** What an application does with maps: SERVERS INTELLIGENCE VERSION HOW_MANY_SERVERS. Ends with 0 if all of it is right. */
public final class Maps {
    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            String name = "maps-" + args[1] + "-" + args[2];
            administration(manager, name);
            RemoteCache<String, String> cache = manager.getCache(name);
            oneKey(cache);
            versions(cache);
            previous(cache);
            lifespans(cache);
            manyKeys(cache);
            pipelined(cache);
            if (args[1].equals("HASH_DISTRIBUTION_AWARE")) {
                owners(cache, Integer.parseInt(args[3]));
            }
            cache.clear();
            check(cache.size(), 0, "size after clear");
            manager.administration().removeCache(name);
            check(manager.getCacheNames().contains(name), false, "names after removal");
        }
        Application.done();
    }

    private static void administration(RemoteCacheManager manager, String name) {
        check(manager.getCache(name), null, "a cache that is not there");
        manager.administration().createCache(name, DefaultTemplate.DIST_SYNC);
        check(manager.getCacheNames().contains(name), true, "names");
        try {
            manager.administration().createCache(name, DefaultTemplate.DIST_SYNC);
            throw new AssertionError("created twice");
        } catch (HotRodClientException expected) {
            check(expected.getMessage().contains("ISPN000507"), true, expected.getMessage());
        }
        manager.administration().getOrCreateCache(name, DefaultTemplate.DIST_SYNC);
        manager.administration().updateConfigurationAttribute(name, "expiration.lifespan", "1h");
        manager.administration().updateConfigurationAttribute(name, "expiration.lifespan", "-1");
        try {
            manager.administration().updateConfigurationAttribute(name, "segments", "7");
            throw new AssertionError("segments of a cache that is there");
        } catch (HotRodClientException expected) {
            check(expected.getMessage().contains("segments"), true, expected.getMessage());
        }
    }

    private static void oneKey(RemoteCache<String, String> cache) {
        check(cache.get("k"), null, "get of nothing");
        check(cache.replace("k", "v"), null, "replace of nothing");
        check(cache.containsKey("k"), false, "containsKey of nothing");
        cache.put("k", "v");
        check(cache.get("k"), "v", "get");
        check(cache.containsKey("k"), true, "containsKey");
        cache.putIfAbsent("k", "other");
        check(cache.get("k"), "v", "get after putIfAbsent");
        cache.replace("k", "w");
        check(cache.get("k"), "w", "get after replace");
        cache.remove("k");
        check(cache.get("k"), null, "get after remove");
        cache.putIfAbsent("k", "new");
        check(cache.get("k"), "new", "get after putIfAbsent of nothing");
    }

    private static void versions(RemoteCache<String, String> cache) {
        cache.put("v", "1");
        MetadataValue<String> first = cache.getWithMetadata("v");
        check(first.getValue(), "1", "getWithMetadata");
        check(first.getLifespan(), -1, "lifespan of what lives for ever");
        check(cache.replaceWithVersion("v", "2", first.getVersion()), true, "replaceWithVersion");
        check(cache.replaceWithVersion("v", "3", first.getVersion()), false, "replaceWithVersion of an old version");
        check(cache.get("v"), "2", "get after replaceWithVersion");
        check(cache.removeWithVersion("v", first.getVersion()), false, "removeWithVersion of an old version");
        check(cache.removeWithVersion("v", cache.getWithMetadata("v").getVersion()), true, "removeWithVersion");
        check(cache.replaceWithVersion("v", "4", first.getVersion()), false, "replaceWithVersion of nothing");
        check(cache.getWithMetadata("v"), null, "getWithMetadata of nothing");
    }

    private static void previous(RemoteCache<String, String> plain) {
        RemoteCache<String, String> cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.put("p", "1"), null, "previous of nothing");
        cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.put("p", "2"), "1", "previous of put");
        cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.putIfAbsent("p", "3"), "2", "existing value of putIfAbsent");
        cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.replace("p", "4"), "2", "previous of replace");
        cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.remove("p"), "4", "previous of remove");
        cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.remove("p"), null, "previous of remove of nothing");
        cache = plain.withFlags(Flag.FORCE_RETURN_VALUE);
        check(cache.putIfAbsent("p", "5"), null, "existing value of nothing");
    }

    private static void lifespans(RemoteCache<String, String> cache) {
        cache.put("l", "v", 1, TimeUnit.HOURS, 30, TimeUnit.MINUTES);
        MetadataValue<String> entry = cache.getWithMetadata("l");
        check(entry.getLifespan(), 3_600, "lifespan");
        check(entry.getMaxIdle(), 1_800, "max idle");
        check(Math.abs(entry.getCreated() - System.currentTimeMillis()) < 60_000, true, "created");
    }

    private static void manyKeys(RemoteCache<String, String> cache) {
        cache.clear();
        Map<String, String> entries = new HashMap<>();
        for (int at = 0; at < 1_000; at++) {
            entries.put("key-" + at, "value-" + at);
        }
        cache.putAll(entries);
        check(cache.size(), 1_000, "size");
        check(cache.getAll(entries.keySet()), entries, "getAll");
        check(cache.getAll(Set.of("key-1", "nothing")), Map.of("key-1", "value-1"), "getAll with a key that is not there");
        check(cache.serverStatistics().getIntStatistic("stores") > 0, true, "stores");
        String large = "x".repeat(5_000_000);
        cache.put("large", large);
        check(cache.get("large"), large, "a large value");
    }

    private static void pipelined(RemoteCache<String, String> cache) {
        List<CompletableFuture<?>> running = new ArrayList<>();
        for (int at = 0; at < 5_000; at++) {
            running.add(cache.putAsync("key-" + at % 500, "value-" + at));
        }
        CompletableFuture.allOf(running.toArray(CompletableFuture[]::new)).join();
        running.clear();
        for (int at = 0; at < 500; at++) {
            String key = "key-" + at;
            running.add(cache.getAsync(key).thenAccept(value -> check(value == null, false, key)));
        }
        CompletableFuture.allOf(running.toArray(CompletableFuture[]::new)).join();
    }

    /** The client knows all servers, each with segments, and every segment's owner. */
    private static void owners(RemoteCache<String, String> cache, int servers) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        Map<SocketAddress, Set<Integer>> segments;
        do {
            cache.get("key-1");
            segments = cache.getCacheTopologyInfo().getSegmentsPerServer();
        } while (segments.size() < servers && System.nanoTime() < end);
        check(segments.size(), servers, "servers that the client knows");
        int owned = 0;
        for (Set<Integer> own : segments.values()) {
            check(own.isEmpty(), false, "a server without segments");
            owned += own.size();
        }
        check(cache.getCacheTopologyInfo().getNumSegments(), 256, "segments");
        check(owned >= 256, true, "owned segments");
        for (int at = 0; at < 1_000; at++) {
            check(cache.get("key-" + at % 500) == null, false, "a key after the topology has changed");
        }
    }
}
