package consort.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;

/** A stretch of load as a line asks for it: {@code key=value} words, and the threads that make it. */
public final class Slice {
    /** Before the load counts, while it counts, and after. */
    private static final int STARTING = 0;
    private static final int COUNTING = 1;
    private static final int OVER = 2;

    private static final int FAILURES_SHOWN = 5;
    private static final AtomicInteger FAILURES = new AtomicInteger();

    public final int threads;
    public final int size;
    private final Map<String, String> words;
    private final boolean virtual;
    private final boolean oob;
    private final long warmupMillis;
    private final long timeMillis;
    private final AtomicInteger phase = new AtomicInteger(STARTING);
    private final List<Thread> running = new ArrayList<>();

    private Slice(Map<String, String> words) {
        this.words = words;
        threads = Integer.parseInt(words.getOrDefault("threads", "100"));
        size = Integer.parseInt(words.getOrDefault("size", "1000"));
        virtual = Boolean.parseBoolean(words.get("virtual"));
        oob = Boolean.parseBoolean(words.get("oob"));
        warmupMillis = Long.parseLong(words.getOrDefault("warmup_ms", "500"));
        timeMillis = Long.parseLong(words.getOrDefault("time_ms", "3000"));
    }

    public static Slice parse(String line) {
        Map<String, String> words = new HashMap<>();
        for (String word : line.trim().split(" +")) {
            int equals = word.indexOf('=');
            if (equals > 0) {
                words.put(word.substring(0, equals), word.substring(equals + 1));
            }
        }
        return new Slice(words);
    }

    /** What a word says that not every test has. */
    public String word(String name, String otherwise) {
        return words.getOrDefault(name, otherwise);
    }

    /** The same of a number. */
    public int number(String name, int otherwise) {
        return words.containsKey(name) ? Integer.parseInt(words.get(name)) : otherwise;
    }

    public boolean isVirtual() {
        return virtual;
    }

    boolean isOob() {
        return oob;
    }

    public boolean isOver() {
        return phase.get() == OVER;
    }

    public boolean isCounting() {
        return phase.get() == COUNTING;
    }

    /** A call has ended: it counts as an error, or with its time if times count now. */
    public void note(long start, boolean isGood, Histogram latencies, LongAdder errors) {
        long taken = System.nanoTime() - start;
        if (!isGood) {
            errors.increment();
        } else if (isCounting()) {
            latencies.record(taken);
        }
    }

    /** A call has failed: the first few are shown. */
    public static void show(Throwable failure) {
        if (FAILURES.incrementAndGet() <= FAILURES_SHOWN) {
            failure.printStackTrace();
        }
    }

    /** Starts a thread of the load, of the kind that the slice asks for. */
    public void start(String name, Runnable work) {
        Thread thread;
        if (virtual) {
            thread = virtualThread(work);
        } else {
            thread = new Thread(work, name);
            thread.setDaemon(true);
            thread.start();
        }
        running.add(thread);
    }

    /** By reflection, so that the class loads on a JDK without them. */
    private static Thread virtualThread(Runnable work) {
        try {
            return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work);
        } catch (ReflectiveOperationException missing) {
            throw new UnsupportedOperationException("this JVM has no virtual threads", missing);
        }
    }

    /** What a slice took while it counted. */
    public record Taken(double seconds, double cpuSeconds) {
    }

    /** Lets the threads run through the warm-up, calls what has to be read at either end of the time, and ends them. */
    public Taken pass(Runnable atStart, Runnable atEnd) throws Exception {
        Thread.sleep(warmupMillis);
        double cpu = cpuSeconds("self");
        long start = System.nanoTime();
        atStart.run();
        phase.set(COUNTING);
        Thread.sleep(timeMillis);
        atEnd.run();
        phase.set(OVER);
        double seconds = (System.nanoTime() - start) / 1e9;
        Taken taken = new Taken(seconds, cpuSeconds("self") - cpu);
        for (Thread thread : running) {
            thread.join(30_000);
        }
        return taken;
    }

    /** CPU time of a process, user and system, in seconds: of this one, {@code self}, or of one by its number. */
    public static double cpuSeconds(String process) {
        String stat;
        try {
            stat = Files.readString(Path.of("/proc", process, "stat"));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        // The name in brackets may hold blanks; after it come fields 3 and up, and ticks of 10 ms are 14 and 15.
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
    }
}
