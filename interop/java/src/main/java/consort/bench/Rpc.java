package consort.bench;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.LongAdder;

import org.jgroups.Address;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.blocks.MethodCall;
import org.jgroups.blocks.RequestOptions;
import org.jgroups.blocks.ResponseMode;
import org.jgroups.blocks.RpcDispatcher;
import org.jgroups.tests.perf.PerfUtil;
import org.jgroups.util.Util;

/**
 * Synchronous calls: four of five fetch a value from one other member, the fifth writes one to two others at once.
 * The calls are those that JGroups' UPerf makes, with its compact encoding. The class is public because the dispatcher calls it by reflection.
 */
public final class Rpc implements Bench.Test {
    private static final short GET = 0;
    private static final short PUT = 1;
    private static final double READS = 0.8;
    private static final int COPIES = 2;
    private static final long TIMEOUT_MILLIS = 30_000;

    private final JChannel channel;
    private final RpcDispatcher dispatcher;
    private final Views views = new Views();
    private volatile byte[] value = new byte[1000];

    Rpc(JChannel channel) throws Exception {
        PerfUtil.init();
        this.channel = channel;
        dispatcher = new RpcDispatcher(channel, this);
        dispatcher.setReceiver(views);
        Method get = Rpc.class.getMethod("get", long.class);
        Method put = Rpc.class.getMethod("put", long.class, byte[].class);
        dispatcher.setMethodLookup(id -> id == GET ? get : put);
        // As UPerf chooses by default.
        dispatcher.asyncRspHandling(!Util.virtualThreadsAvailable());
    }

    @Override
    public Views views() {
        return views;
    }

    /** Called by other members. */
    public byte[] get(long key) {
        return value;
    }

    /** Called by other members. */
    public void put(long key, byte[] newValue) {
    }

    @Override
    public Map<String, Object> run(Slice slice) throws Exception {
        value = new byte[slice.size];
        List<Address> others = new ArrayList<>(channel.getView().getMembers());
        others.remove(channel.getAddress());
        LongAdder errors = new LongAdder();
        List<Histogram> latencies = new ArrayList<>();
        for (int nth = 0; nth < slice.threads; nth++) {
            Histogram own = new Histogram();
            latencies.add(own);
            slice.start("caller-" + nth, () -> call(slice, others, own, errors));
        }
        Slice.Taken taken = slice.passOfCalls(() -> { }, () -> { });
        Histogram all = new Histogram();
        latencies.forEach(all::add);
        return taken.with("operations", all.count(), "errors", errors.sum(), "latencies", all.counts());
    }

    private void call(Slice slice, List<Address> others, Histogram latencies, LongAdder errors) {
        RequestOptions one = new RequestOptions(ResponseMode.GET_ALL, TIMEOUT_MILLIS, false, null);
        RequestOptions several = new RequestOptions(ResponseMode.GET_ALL, TIMEOUT_MILLIS, true, null);
        if (slice.isOob()) {
            one.flags(Message.Flag.OOB);
            several.flags(Message.Flag.OOB);
        }
        // The compact encoding takes the key for an int.
        MethodCall get = new PerfUtil.GetCall(GET, 0);
        MethodCall put = new PerfUtil.PutCall(PUT, 0, value);
        ThreadLocalRandom random = ThreadLocalRandom.current();
        while (!slice.isOver()) {
            int first = random.nextInt(others.size());
            boolean isRead = random.nextDouble() < READS;
            long start = System.nanoTime();
            boolean isGood;
            try {
                isGood = isRead ? read(others.get(first), get, one, slice.size)
                    : write(others, first, put, several);
            } catch (Throwable error) {
                isGood = false;
                Slice.show(error);
            }
            slice.note(start, isGood, latencies, errors);
        }
    }

    private boolean read(Address from, MethodCall get, RequestOptions options, int size) throws Exception {
        byte[] answer = dispatcher.callRemoteMethod(from, get, options);
        return answer != null && answer.length == size;
    }

    private boolean write(List<Address> others, int first, MethodCall put, RequestOptions options) throws Exception {
        Collection<Address> targets = new ArrayList<>(COPIES);
        for (int step = 0; step < Math.min(COPIES, others.size()); step++) {
            targets.add(others.get((first + step) % others.size()));
        }
        return dispatcher.callRemoteMethods(targets, put, options).values().stream().allMatch(
            answer -> answer.wasReceived() && !answer.hasException());
    }
}
