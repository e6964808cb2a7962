package consort.grid;

import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;

import org.infinispan.AdvancedCache;
import org.infinispan.CacheStream;
import org.infinispan.commons.util.Version;
import org.infinispan.context.Flag;
import org.infinispan.distribution.DistributionManager;
import org.infinispan.distribution.LocalizedCacheTopology;
import org.infinispan.manager.DefaultCacheManager;

/** Infinispan's embedded cache over its own TCP stack. */
final class Infinispan implements Grid {
    private static final String CONFIGURATION = """
        <infinispan>
          <cache-container name="bench" statistics="false">
            <transport cluster="bench" stack="tcp" node-name="%s"/>
            <distributed-cache name="perf" mode="SYNC" owners="2"/>
          </cache-container>
        </infinispan>
        """;

    private final AdvancedCache<Integer, byte[]> cache;
    private final AdvancedCache<Integer, byte[]> writing;

    Infinispan(String name) throws Exception {
        byte[] configuration = CONFIGURATION.formatted(name).getBytes(StandardCharsets.UTF_8);
        DefaultCacheManager manager = new DefaultCacheManager(new ByteArrayInputStream(configuration));
        cache = manager.<Integer, byte[]>getCache("perf").getAdvancedCache();
        writing = cache.withFlags(Flag.IGNORE_RETURN_VALUES);
    }

    @Override
    public byte[] get(Integer key) {
        return cache.get(key);
    }

    @Override
    public void put(Integer key, byte[] value) {
        writing.put(key, value);
    }

    @Override
    public int settledMembers() {
        DistributionManager distribution = cache.getDistributionManager();
        LocalizedCacheTopology topology = distribution.getCacheTopology();
        return topology.getPendingCH() == null ? topology.getActualMembers().size() : 0;
    }

    @Override
    public int size() {
        return cache.size();
    }

    @Override
    public void clear() {
        cache.clear();
    }

    @Override
    public long[] iterate(Way way, int batch) {
        CacheStream<Map.Entry<Integer, byte[]>> stream = cache.entrySet().stream();
        if (way == Way.SEQUENTIAL) {
            stream = stream.sequentialDistribution();
        } else if (way == Way.AT_MOST_ONCE) {
            stream = stream.disableRehashAware();
        }
        if (batch > 0) {
            stream = stream.distributedBatchSize(batch);
        }
        long entries = 0;
        long bytes = 0;
        for (Iterator<Map.Entry<Integer, byte[]>> all = stream.iterator(); all.hasNext();) {
            entries++;
            bytes += all.next().getValue().length;
        }
        stream.close();
        return new long[] {entries, bytes};
    }

    @Override
    public String version() {
        return "Infinispan " + Version.getVersion() + ", JGroups " + org.jgroups.Version.description;
    }
}
