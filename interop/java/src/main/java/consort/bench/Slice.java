package consort.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;

import consort.interop.Json;

/**
 * A stretch of load as a line asks for it: {@code key=value} words, and the threads that make it. With {@code start_ms}, milliseconds since
 * 1970, processes that are told the same work and count at the same time: threads that are busy in one would otherwise hold up their
 * making in another, and what each does alone would count as done at once.
 */
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
    private final CountDownLatch begun = new CountDownLatch(1);
    private final List<Thread> running = new ArrayList<>();
    private volatile int phase = STARTING;
    private volatile long countFrom;
    private volatile long countUntil;
    private Runnable atStart;
    private Runnable atEnd;
    private long start;
    private long end;
    private double cpuBefore;
    private double cpuAfter;

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
        return phase == OVER;
    }

    /** A call has ended: it counts as an error, or with its time if it has ended in the time that counts. */
    public void note(long start, boolean isGood, Histogram latencies, LongAdder errors) {
        long end = System.nanoTime();
        phaseAt(end);
        if (!isGood) {
            errors.increment();
        } else if (end >= countFrom && end < countUntil) {
            latencies.record(end - start);
        }
    }

    /**
     * The phase at this time. Whoever sees first that another one has begun begins it: the thread that waits for it may have to wait for
     * a CPU, too.
     */
    private int phaseAt(long now) {
        boolean isDue = phase == STARTING ? now >= countFrom : phase == COUNTING && now >= countUntil;
        if (isDue) {
            synchronized (this) {
                if (phase == STARTING) {
                    cpuBefore = cpuSeconds("self");
                    start = System.nanoTime();
                    atStart.run();
                    phase = COUNTING;
                } else if (phase == COUNTING && now >= countUntil) {
                    atEnd.run();
                    end = System.nanoTime();
                    cpuAfter = cpuSeconds("self");
                    phase = OVER;
                }
            }
        }
        return phase;
    }

    /** A call has failed: the first few are shown. */
    public static void show(Throwable failure) {
        if (FAILURES.incrementAndGet() <= FAILURES_SHOWN) {
            failure.printStackTrace();
        }
    }

    /** Starts a thread of the load, of the kind that the slice asks for: it works when all of them are there. */
    public void start(String name, Runnable work) {
        Thread thread;
        Runnable afterAll = () -> {
            try {
                begun.await();
                work.run();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        };
        if (virtual) {
            thread = virtualThread(afterAll);
        } else {
            thread = new Thread(afterAll, name);
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

    /** What a slice took while it counted, and how long that was. */
    public record Taken(double seconds, double cpuSeconds) {
        /** What an answer says of it. */
        public Map<String, Object> with(Object... more) {
            Map<String, Object> answer = Json.object(more);
            answer.put("seconds", seconds);
            answer.put("cpu_s", cpuSeconds);
            return answer;
        }

        /** The same of the time in which calls count, where it was looked at a little later at either end. */
        Taken of(double counted) {
            return new Taken(counted, cpuSeconds * counted / seconds);
        }
    }

    /** The same for calls that are noted one by one. */
    public Taken passOfCalls(Runnable atStart, Runnable atEnd) throws Exception {
        return pass(atStart, atEnd).of(timeMillis / 1e3);
    }

    /** Lets the threads run through the warm-up, calls what has to be read at either end of the time, and ends them. */
    public Taken pass(Runnable atStart, Runnable atEnd) throws Exception {
        this.atStart = atStart;
        this.atEnd = atEnd;
        long now = System.currentTimeMillis();
        long wait = words.containsKey("start_ms") ? Long.parseLong(words.get("start_ms")) - now : 0;
        // What this is late, or others are busy when this one gets a CPU again, the warm-up is shorter.
        if (wait + warmupMillis < 0) {
            throw new IllegalStateException("it was to count " + -(wait + warmupMillis) + " ms ago: it takes so long to make "
                + threads + " threads");
        }
        countFrom = System.nanoTime() + (wait + warmupMillis) * 1_000_000;
        countUntil = countFrom + timeMillis * 1_000_000;
        Thread.sleep(Math.max(0, wait));
        begun.countDown();
        while (phaseAt(System.nanoTime()) != OVER) {
            long next = phase == STARTING ? countFrom : countUntil;
            Thread.sleep(Math.max(0, (next - System.nanoTime()) / 1_000_000) + 1);
        }
        for (Thread thread : running) {
            thread.join(30_000);
        }
        return new Taken((end - start) / 1e9, cpuAfter - cpuBefore);
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
