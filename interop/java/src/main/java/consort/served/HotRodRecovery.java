package consort.served;

import org.infinispan.client.hotrod.RemoteCache;

import consort.bench.Recovery;

/** The official client while servers are killed: {@code HotRodRecovery SERVERS}. See {@link Recovery}. */
public final class HotRodRecovery {
    private HotRodRecovery() {
    }

    public static void main(String[] args) throws Exception {
        RemoteCache<byte[], byte[]> cache = Load.connect(args[0]);
        new Recovery<>(cache::get, cache::put, Load::keys, () -> owners(cache)).work();
    }

    private static int owners(RemoteCache<?, ?> cache) {
        return (int) cache.getCacheTopologyInfo().getSegmentsPerServer().values().stream()
            .filter(segments -> !segments.isEmpty()).count();
    }
}
