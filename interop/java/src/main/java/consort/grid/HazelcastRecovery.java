package consort.grid;

import java.util.HashMap;
import java.util.Map;
import java.util.UUID;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.cluster.Member;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.instance.BuildInfoProvider;
import com.hazelcast.map.IMap;
import com.hazelcast.partition.Partition;

import consort.bench.Recovery;
import consort.interop.Json;

/** Hazelcast's client while members are killed: {@code HazelcastRecovery ADDRESS,...}. See {@link Recovery}. */
public final class HazelcastRecovery {
    private HazelcastRecovery() {
    }

    public static void main(String[] args) throws Exception {
        ClientConfig config = new ClientConfig().setClusterName(Hazelcast.CLUSTER);
        config.setProperty("hazelcast.logging.type", "jdk");
        config.getNetworkConfig().addAddress(args[0].split(","));
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        IMap<Integer, byte[]> map = client.getMap(Hazelcast.MAP);
        Json.say(System.out, Json.object("product", "Hazelcast client " + BuildInfoProvider.getBuildInfo().getVersion(),
            "java", System.getProperty("java.version"), "vm", System.getProperty("java.vm.name")));
        new Recovery<>(map::get, map::set, HazelcastRecovery::keys, () -> owners(client)).work();
    }

    private static Integer[] keys(int count) {
        Integer[] keys = new Integer[count];
        for (int nth = 0; nth < count; nth++) {
            keys[nth] = nth + 1;
        }
        return keys;
    }

    /** The members with at least half of an even share of the partitions: others still receive theirs. */
    private static int owners(HazelcastInstance client) {
        Map<UUID, Integer> partitions = new HashMap<>();
        int all = 0;
        for (Partition partition : client.getPartitionService().getPartitions()) {
            Member owner = partition.getOwner();
            if (owner != null) {
                partitions.merge(owner.getUuid(), 1, Integer::sum);
            }
            all++;
        }
        int members = client.getCluster().getMembers().size();
        int half = all / Math.max(1, members) / 2;
        return (int) partitions.values().stream().filter(owned -> owned >= half).count();
    }
}
