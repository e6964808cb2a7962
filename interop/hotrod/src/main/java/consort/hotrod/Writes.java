package consort.hotrod;

import static consort.hotrod.Application.check;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;

/**
 * Writes that are acknowledged while servers come and go: SERVERS INTELLIGENCE VERSION. Until something can be read, each
 * of some threads writes growing numbers to keys of its own and reads each back, and it says again and again how many
 * servers the client knows. In the end every key has the number that was acknowledged last, or one that was tried later.
 */
public final class Writes {
    private static final int THREADS = 4;
    private static final int KEYS = 50;
    /** Which may have been lost with a server, in a row. */
    private static final int FAILURES_MAX = 1_000;

    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            RemoteCache<String, Integer> cache =
                manager.administration().getOrCreateCache("writes-" + args[1], DefaultTemplate.DIST_SYNC);
            write(cache);
        }
        Application.done();
    }

    private static void write(RemoteCache<String, Integer> cache) throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<Future<long[]>> writing = new ArrayList<>();
        for (int thread = 0; thread < THREADS; thread++) {
            Writer writer = new Writer(cache, "writer-" + thread + "-");
            writing.add(threads.submit(() -> writer.write(end)));
        }
        while (System.in.available() == 0 && writing.stream().noneMatch(Future::isDone)) {
            System.out.println("written " + cache.getCacheTopologyInfo().getSegmentsPerServer().size());
            TimeUnit.MILLISECONDS.sleep(50);
        }
        end.countDown();
        long acknowledged = 0;
        long failed = 0;
        for (Future<long[]> writer : writing) {
            acknowledged += writer.get()[0];
            failed += writer.get()[1];
        }
        threads.shutdown();
        System.out.println(acknowledged + " writes acknowledged, " + failed + " failed");
    }

    private static final class Writer {
        private final RemoteCache<String, Integer> cache;
        private final String prefix;
        private final int[] acknowledged = new int[KEYS];
        private final int[] tried = new int[KEYS];

        Writer(RemoteCache<String, Integer> cache, String prefix) {
            this.cache = cache;
            this.prefix = prefix;
        }

        /** How many were acknowledged, and how many were not. */
        long[] write(CountDownLatch end) {
            long written = 0;
            long failed = 0;
            int failures = 0;
            for (int at = 0; end.getCount() > 0; at = (at + 1) % KEYS) {
                try {
                    tried[at]++;
                    cache.put(prefix + at, tried[at]);
                    acknowledged[at] = tried[at];
                    written++;
                    failures = 0;
                } catch (RuntimeException error) {
                    // It may be there or not.
                    failed++;
                    failures++;
                    check(failures < FAILURES_MAX, true, "something succeeds: " + error);
                    continue;
                }
                Integer found;
                try {
                    found = cache.get(prefix + at);
                } catch (RuntimeException error) {
                    failed++;
                    continue;
                }
                right(at, found);
            }
            for (int at = 0; at < KEYS; at++) {
                right(at, cache.get(prefix + at));
            }
            return new long[] {written, failed};
        }

        private void right(int at, Integer found) {
            int value = found == null ? 0 : found;
            check(value >= acknowledged[at] && value <= tried[at], true,
                prefix + at + " is " + found + ", " + acknowledged[at] + " was acknowledged, " + tried[at] + " tried");
        }
    }
}
