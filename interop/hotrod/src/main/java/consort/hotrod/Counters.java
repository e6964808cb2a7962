package consort.hotrod;

import static consort.hotrod.Application.check;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.RemoteCounterManagerFactory;
import org.infinispan.counter.api.CounterConfiguration;
import org.infinispan.counter.api.CounterManager;
import org.infinispan.counter.api.CounterState;
import org.infinispan.counter.api.CounterType;
import org.infinispan.counter.api.Handle;
import org.infinispan.counter.api.StrongCounter;
import org.infinispan.counter.api.WeakCounter;
import org.infinispan.counter.exception.CounterOutOfBoundsException;

/**
 * Counters: SERVERS INTELLIGENCE VERSION. With one argument more it adds to a counter until something can be read, says so
 * each time, and looks in the end whether all additions have been counted.
 */
public final class Counters {
    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            CounterManager counters = RemoteCounterManagerFactory.asCounterManager(manager);
            if (args.length > 3) {
                again(counters);
            } else {
                String suffix = "-" + args[1] + "-" + args[2];
                definitions(counters, suffix);
                strong(counters, suffix);
                bounded(counters, suffix);
                weak(counters, suffix);
                events(counters, suffix);
            }
        }
        Application.done();
    }

    private static CounterConfiguration strong(long initial) {
        return CounterConfiguration.builder(CounterType.UNBOUNDED_STRONG).initialValue(initial).build();
    }

    private static void definitions(CounterManager counters, String suffix) {
        String name = "defined" + suffix;
        check(counters.isDefined(name), false, "isDefined of nothing");
        check(counters.getConfiguration(name), null, "getConfiguration of nothing");
        CounterConfiguration configuration = CounterConfiguration.builder(CounterType.BOUNDED_STRONG)
            .initialValue(3).lowerBound(-5).upperBound(10).build();
        check(counters.defineCounter(name, configuration), true, "defineCounter");
        check(counters.defineCounter(name, strong(0)), false, "defineCounter again");
        check(counters.isDefined(name), true, "isDefined");
        check(counters.getConfiguration(name), configuration, "getConfiguration");
        CounterConfiguration weak =
            CounterConfiguration.builder(CounterType.WEAK).initialValue(7).concurrencyLevel(32).build();
        check(counters.defineCounter("weakly-" + name, weak), true, "defineCounter of a weak one");
        check(counters.getConfiguration("weakly-" + name), weak, "getConfiguration of a weak one");
        check(counters.getCounterNames().containsAll(List.of(name, "weakly-" + name)), true, "getCounterNames");
    }

    private static void strong(CounterManager counters, String suffix) throws Exception {
        String name = "strong" + suffix;
        counters.defineCounter(name, strong(5));
        StrongCounter counter = counters.getStrongCounter(name);
        check(counter.getValue().get(), 5L, "getValue");
        check(counter.addAndGet(3).get(), 8L, "addAndGet");
        check(counter.incrementAndGet().get(), 9L, "incrementAndGet");
        check(counter.decrementAndGet().get(), 8L, "decrementAndGet");
        check(counter.compareAndSet(8, 20).get(), true, "compareAndSet");
        check(counter.compareAndSet(8, 21).get(), false, "compareAndSet of another value");
        check(counter.compareAndSwap(20, 30).get(), 20L, "compareAndSwap");
        check(counter.compareAndSwap(20, 31).get(), 30L, "compareAndSwap of another value");
        check(counter.getAndSet(40).get(), 30L, "getAndSet");
        counter.reset().get();
        check(counter.getValue().get(), 5L, "getValue after reset");
        List<CompletableFuture<Long>> running = new ArrayList<>();
        for (int at = 0; at < 1_000; at++) {
            running.add(counter.incrementAndGet());
        }
        CompletableFuture.allOf(running.toArray(CompletableFuture[]::new)).get();
        check(running.stream().map(CompletableFuture::join).distinct().count(), 1_000L, "answers of their own");
        check(counter.getValue().get(), 1_005L, "getValue after many additions");
        counters.remove(name);
        check(counters.getStrongCounter(name).getValue().get(), 5L, "getValue after removal");
    }

    private static void bounded(CounterManager counters, String suffix) throws Exception {
        String name = "bounded" + suffix;
        counters.defineCounter(name, CounterConfiguration.builder(CounterType.BOUNDED_STRONG)
            .initialValue(0).lowerBound(0).upperBound(10).build());
        StrongCounter counter = counters.getStrongCounter(name);
        check(counter.addAndGet(10).get(), 10L, "addAndGet to the bound");
        outOfBounds(() -> counter.addAndGet(1).get(), "beyond the upper bound");
        check(counter.getValue().get(), 10L, "getValue at the bound");
        outOfBounds(() -> counter.addAndGet(-11).get(), "beyond the lower bound");
        outOfBounds(() -> counter.compareAndSet(0, 11).get(), "compareAndSet beyond the bound");
        outOfBounds(() -> counter.getAndSet(-1).get(), "getAndSet beyond the bound");
        check(counter.getValue().get(), 0L, "getValue at the other bound");
    }

    private interface Attempt {
        void run() throws Exception;
    }

    private static void outOfBounds(Attempt attempt, String what) {
        try {
            attempt.run();
        } catch (Exception error) {
            check(error.getCause() instanceof CounterOutOfBoundsException, true, what + ": " + error);
            return;
        }
        throw new AssertionError(what);
    }

    private static void weak(CounterManager counters, String suffix) throws Exception {
        String name = "weak" + suffix;
        counters.defineCounter(name,
            CounterConfiguration.builder(CounterType.WEAK).initialValue(1).concurrencyLevel(16).build());
        WeakCounter counter = counters.getWeakCounter(name);
        counter.add(5).get();
        counter.increment().get();
        counter.decrement().get();
        check(counter.getValue(), 6L, "getValue of a weak one");
        counter.reset().get();
        check(counter.getValue(), 1L, "getValue of a weak one after reset");
    }

    private static void events(CounterManager counters, String suffix) throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        String first = "bounded" + suffix;
        String second = "strong" + suffix;
        StrongCounter bounded = counters.getStrongCounter(first);
        StrongCounter strong = counters.getStrongCounter(second);
        bounded.reset().get();
        Handle<?> ofBounded = bounded.addListener(event -> told.add("bounded " + event.getOldValue() + " "
            + event.getNewValue() + " " + (event.getNewState() == CounterState.UPPER_BOUND_REACHED)));
        Handle<?> ofStrong =
            strong.addListener(event -> told.add("strong " + event.getOldValue() + " " + event.getNewValue()));
        bounded.addAndGet(4).get();
        check(told.poll(60, TimeUnit.SECONDS), "bounded 0 4 false", "an event");
        outOfBounds(() -> bounded.addAndGet(40).get(), "beyond the upper bound");
        check(told.poll(60, TimeUnit.SECONDS), "bounded 4 10 true", "an event at the bound");
        strong.addAndGet(1).get();
        check(told.poll(60, TimeUnit.SECONDS), "strong 5 6", "an event of another counter");
        ofBounded.remove();
        bounded.reset().get();
        strong.addAndGet(1).get();
        check(told.poll(60, TimeUnit.SECONDS), "strong 6 7", "an event after the other has ended");
        ofStrong.remove();
        check(told.size(), 0, "events that nobody wants");
    }

    private static void again(CounterManager counters) throws Exception {
        counters.defineCounter("again", strong(0));
        StrongCounter counter = counters.getStrongCounter("again");
        long acknowledged = 0;
        long failed = 0;
        boolean goesOn = true;
        for (int round = 0; goesOn; round++) {
            goesOn = System.in.available() == 0;
            for (int at = 0; at < 100; at++) {
                try {
                    counter.incrementAndGet().get();
                    acknowledged++;
                } catch (Exception error) {
                    // It may have been counted or not: clients do not ask again.
                    failed++;
                }
            }
            System.out.println("added");
        }
        long value = counter.getValue().get();
        check(value >= acknowledged && value <= acknowledged + failed, true,
            value + " of " + acknowledged + " additions, and " + failed + " that failed");
    }
}
