package consort.grid;

import com.hazelcast.config.Config;
import com.hazelcast.config.JoinConfig;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.instance.BuildInfoProvider;
import com.hazelcast.map.IMap;

/** Hazelcast's map with one backup, which is read too, as IspnPerfTest configures it. */
final class Hazelcast implements Grid {
    static final String CLUSTER = "bench";
    static final String MAP = "perf";
    private static final int FIRST_PORT = 5701;

    private final HazelcastInstance instance;
    private final IMap<Integer, byte[]> map;

    Hazelcast(String name, int members) {
        Config config = new Config(name).setClusterName(CLUSTER);
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.logging.type", "jdk");
        NetworkConfig network = config.getNetworkConfig().setPort(FIRST_PORT).setPortAutoIncrement(true);
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        JoinConfig join = network.getJoin();
        join.getAutoDetectionConfig().setEnabled(false);
        join.getMulticastConfig().setEnabled(false);
        join.getTcpIpConfig().setEnabled(true);
        for (int nth = 0; nth < members; nth++) {
            join.getTcpIpConfig().addMember("127.0.0.1:" + (FIRST_PORT + nth));
        }
        config.getMapConfig(MAP).setBackupCount(1).setReadBackupData(true);
        instance = com.hazelcast.core.Hazelcast.newHazelcastInstance(config);
        map = instance.getMap(MAP);
    }

    @Override
    public byte[] get(Integer key) {
        return map.get(key);
    }

    @Override
    public void put(Integer key, byte[] value) {
        map.set(key, value);
    }

    @Override
    public int settledMembers() {
        return instance.getPartitionService().isClusterSafe() ? instance.getCluster().getMembers().size() : 0;
    }

    @Override
    public int size() {
        return map.size();
    }

    @Override
    public void clear() {
        map.clear();
    }

    @Override
    public String version() {
        return "Hazelcast " + BuildInfoProvider.getBuildInfo().getVersion();
    }
}
