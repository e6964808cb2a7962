package consort.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.function.IntSupplier;

import consort.interop.Json;

/**
 * Requests of a client while servers are killed, counted each millisecond. It works for the lines on its standard input, each
 * answered by a line {@code @@ {json}}; {@code interop/README.md} lists them.
 */
public final class Recovery<K> {
    private static final PrintStream OUT = System.out;
    private static final long INTERVAL_NANOS = 1_000_000;
    /** Longer than any measurement: the process ends before. */
    private static final String TIME = " warmup_ms=0 time_ms=100000000";

    private final Function<K, byte[]> get;
    private final BiConsumer<K, byte[]> put;
    private final Function<Integer, K[]> keys;
    private final IntSupplier servers;
    private final LongAdder answered = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final List<long[]> samples = new ArrayList<>();

    /** {@code keys} makes so many keys; {@code servers} counts the servers that own their share, as the client knows. */
    public Recovery(Function<K, byte[]> get, BiConsumer<K, byte[]> put, Function<Integer, K[]> keys, IntSupplier servers) {
        this.get = get;
        this.put = put;
        this.keys = keys;
        this.servers = servers;
    }

    /** Reads lines until standard input ends. */
    public void work() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                Json.say(OUT, carryOut(line));
            } catch (Exception error) {
                error.printStackTrace();
                Json.say(OUT, Json.object("error", error.toString()));
            }
        }
        System.exit(0);
    }

    private Map<String, Object> carryOut(String line) {
        return switch (line.split(" ", 2)[0]) {
            case "begin" -> begin(line);
            case "samples" -> newSamples();
            case "now" -> Json.object("now_us", now());
            case "servers" -> Json.object("servers", servers.getAsInt());
            case "failed" -> Json.object("failed", failed.sum());
            default -> throw new IllegalArgumentException("unknown: " + line);
        };
    }

    private Map<String, Object> begin(String line) {
        Slice slice = Slice.parse(line + TIME);
        K[] all = keys.apply(slice.number("keys", 20_000));
        for (K key : all) {
            put.accept(key, new byte[slice.size]);
        }
        Requests<K> requests = new Requests<>(slice, all, this::counted, (key, value) -> {
            try {
                put.accept(key, value);
                answered.increment();
            } catch (RuntimeException error) {
                failed.increment();
                throw error;
            }
        });
        daemon("load", () -> {
            try {
                requests.run(() -> { }, () -> { });
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        daemon("samples", this::sample);
        return Json.object();
    }

    private byte[] counted(K key) {
        byte[] value = null;
        try {
            value = get.apply(key);
            return value;
        } finally {
            (value == null ? failed : answered).increment();
        }
    }

    private void sample() {
        while (true) {
            long[] sample = {now(), answered.sum()};
            synchronized (samples) {
                samples.add(sample);
            }
            LockSupport.parkNanos(INTERVAL_NANOS);
        }
    }

    /** The samples since the last call. */
    private Map<String, Object> newSamples() {
        List<Long> at = new ArrayList<>();
        List<Long> counts = new ArrayList<>();
        synchronized (samples) {
            for (long[] sample : samples) {
                at.add(sample[0]);
                counts.add(sample[1]);
            }
            samples.clear();
        }
        return Json.object("at_us", at, "answered", counts);
    }

    /** Microseconds of a clock that nothing sets. */
    private static long now() {
        return System.nanoTime() / 1_000;
    }

    private static void daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }
}
