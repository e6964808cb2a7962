package consort.hotrod;

import static consort.hotrod.Application.check;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.ProtocolVersion;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.multimap.MetadataCollection;
import org.infinispan.client.hotrod.multimap.MultimapCacheManager;
import org.infinispan.client.hotrod.multimap.RemoteMultimapCache;
import org.infinispan.client.hotrod.multimap.RemoteMultimapCacheManagerFactory;

/** Multimaps: SERVERS INTELLIGENCE VERSION. */
public final class Multimaps {
    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            String name = "multimap-" + args[1] + "-" + args[2];
            manager.administration().getOrCreateCache(name, DefaultTemplate.DIST_SYNC);
            MultimapCacheManager<String, String> multimaps = RemoteMultimapCacheManagerFactory.from(manager);
            sets(multimaps.get(name));
            many(multimaps.get(name));
            ProtocolVersion version = ProtocolVersion.valueOf(args[2]);
            if (version == ProtocolVersion.PROTOCOL_VERSION_AUTO
                    || version.compareTo(ProtocolVersion.PROTOCOL_VERSION_40) >= 0) {
                duplicates(multimaps.get(name, true));
            }
        }
        Application.done();
    }

    private static void sets(RemoteMultimapCache<String, String> map) throws Exception {
        check(map.supportsDuplicates(), false, "supportsDuplicates");
        check(map.get("key").get().size(), 0, "get of nothing");
        check(map.containsKey("key").get(), false, "containsKey of nothing");
        check(map.containsEntry("key", "a").get(), false, "containsEntry of nothing");
        check(map.remove("key").get(), false, "remove of nothing");
        check(map.remove("key", "a").get(), false, "remove of an entry of nothing");
        check(map.size().get(), 0L, "size of nothing");
        map.put("key", "a").get();
        map.put("key", "b").get();
        map.put("key", "a").get();
        map.put("other", "c").get();
        check(new HashSet<>(map.get("key").get()), Set.of("a", "b"), "get");
        check(map.get("key").get().size(), 2, "each value once");
        check(map.size().get(), 3L, "size");
        check(map.containsKey("key").get(), true, "containsKey");
        check(map.containsEntry("key", "b").get(), true, "containsEntry");
        check(map.containsEntry("key", "c").get(), false, "containsEntry of another key");
        check(map.containsValue("c").get(), true, "containsValue");
        check(map.containsValue("d").get(), false, "containsValue of nothing");
        MetadataCollection<String> known = map.getWithMetadata("key").get();
        check(new HashSet<>(known.getCollection()), Set.of("a", "b"), "getWithMetadata");
        check(known.getLifespan(), -1, "lifespan");
        check(map.remove("key", "a").get(), true, "remove of an entry");
        check(map.remove("key", "a").get(), false, "remove of an entry again");
        check(map.getWithMetadata("key").get().getVersion() != known.getVersion(), true, "another version");
        check(new HashSet<>(map.get("key").get()), Set.of("b"), "get after a removal");
        check(map.remove("key", "b").get(), true, "remove of the last entry");
        check(map.containsKey("key").get(), false, "containsKey without values");
        check(map.remove("other").get(), true, "remove");
        check(map.size().get(), 0L, "size after all");
    }

    private static void many(RemoteMultimapCache<String, String> map) throws Exception {
        List<CompletableFuture<Void>> running = new ArrayList<>();
        for (int at = 0; at < 1_000; at++) {
            running.add(map.put("key-" + at % 10, "value-" + at));
        }
        CompletableFuture.allOf(running.toArray(CompletableFuture[]::new)).get();
        check(map.size().get(), 1_000L, "size of many");
        Set<String> expected =
            IntStream.range(0, 100).mapToObj(at -> "value-" + (at * 10 + 3)).collect(Collectors.toSet());
        check(new HashSet<>(map.get("key-3").get()), expected, "values of one key of many");
        for (int at = 0; at < 10; at++) {
            check(map.remove("key-" + at).get(), true, "remove of many");
        }
        check(map.size().get(), 0L, "size after many");
    }

    private static void duplicates(RemoteMultimapCache<String, String> map) throws Exception {
        check(map.supportsDuplicates(), true, "supportsDuplicates");
        for (String value : List.of("a", "b", "a", "a")) {
            map.put("key", value).get();
        }
        check(map.get("key").get().stream().sorted().collect(Collectors.toList()), List.of("a", "a", "a", "b"),
            "get with duplicates");
        check(map.size().get(), 4L, "size with duplicates");
        check(map.remove("key", "a").get(), true, "remove of duplicates");
        check(new ArrayList<>(map.get("key").get()), List.of("b"), "get after removal of duplicates");
        check(map.remove("key").get(), true, "remove with duplicates");
    }
}
