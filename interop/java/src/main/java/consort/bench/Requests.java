package consort.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.BiConsumer;
import java.util.function.Function;

/** The load of a map: threads that read or write a key drawn from {@code keys}, and wait for each answer. */
public final class Requests<K> {
    private final Slice slice;
    private final K[] keys;
    private final Function<K, byte[]> get;
    private final BiConsumer<K, byte[]> put;
    private final double reads;
    private final LongAdder errors = new LongAdder();

    public Requests(Slice slice, K[] keys, Function<K, byte[]> get, BiConsumer<K, byte[]> put) {
        this.slice = slice;
        this.keys = keys;
        this.get = get;
        this.put = put;
        reads = Double.parseDouble(slice.word("reads", "1"));
    }

    /** What was done and what it took. {@code atStart} and {@code atEnd} are called at either end of the time that counts. */
    public Map<String, Object> run(Runnable atStart, Runnable atEnd) throws Exception {
        List<Histogram> latencies = new ArrayList<>();
        for (int nth = 0; nth < slice.threads; nth++) {
            Histogram own = new Histogram();
            latencies.add(own);
            slice.start("invoker-" + nth, () -> invoke(own));
        }
        Slice.Taken taken = slice.passOfCalls(atStart, atEnd);
        Histogram all = new Histogram();
        latencies.forEach(all::add);
        return taken.with("operations", all.count(), "errors", errors.sum(), "latencies", all.counts());
    }

    private void invoke(Histogram latencies) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        while (!slice.isOver()) {
            K key = keys[random.nextInt(keys.length)];
            boolean isRead = reads >= 1 || random.nextDouble() < reads;
            byte[] value = isRead ? null : new byte[slice.size];
            long start = System.nanoTime();
            boolean isGood = true;
            try {
                if (isRead) {
                    byte[] read = get.apply(key);
                    isGood = read != null && read.length == slice.size;
                } else {
                    put.accept(key, value);
                }
            } catch (RuntimeException error) {
                isGood = false;
                Slice.show(error);
            }
            slice.note(start, isGood, latencies, errors);
            if (slice.isVirtual() && reads >= 1) {
                // Reads of what is here never wait: let the others run.
                Thread.yield();
            }
        }
    }
}
