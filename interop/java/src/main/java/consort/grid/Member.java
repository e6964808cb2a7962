package consort.grid;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

import consort.bench.Requests;
import consort.bench.Slice;
import consort.interop.Json;

/**
 * A member of a data grid that is measured: {@code Member infinispan|hazelcast NAME MEMBERS}. It joins, waits for all
 * members, and then works for the lines on its standard input, each answered by a line {@code @@ {json}}.
 * {@code interop/README.md} lists them.
 */
public final class Member {
    private static final PrintStream OUT = System.out;
    private static final long JOIN_MILLIS_MAX = 60_000;
    private static final int LOADERS = 50;

    private final Grid grid;

    private Member(Grid grid) {
        this.grid = grid;
    }

    public static void main(String[] args) throws Exception {
        int members = Integer.parseInt(args[2]);
        Grid grid = args[0].equals("hazelcast") ? new Hazelcast(args[1], members) : new Infinispan(args[1]);
        // Until then the others would not find it.
        Json.say(OUT, Json.object("event", "connected"));
        long end = System.nanoTime() + JOIN_MILLIS_MAX * 1_000_000;
        while (grid.settledMembers() < members) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("only " + grid.settledMembers() + " members have settled");
            }
            Thread.sleep(50);
        }
        Json.say(OUT, Json.object("product", grid.version(), "java", System.getProperty("java.version"),
            "vm", System.getProperty("java.vm.name")));
        Member member = new Member(grid);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                Json.say(OUT, member.carryOut(line));
            } catch (Exception error) {
                error.printStackTrace();
                Json.say(OUT, Json.object("error", error.toString()));
            }
        }
        // Whoever measures is done.
        System.exit(0);
    }

    private Map<String, Object> carryOut(String line) throws Exception {
        Slice slice = Slice.parse(line);
        return switch (line.split(" ", 2)[0]) {
            case "populate" -> populate(slice);
            case "iterate" -> iterate(slice);
            default -> run(slice);
        };
    }

    /** Makes these keys, 1 to {@code keys}, the only ones. */
    private Map<String, Object> populate(Slice slice) throws Exception {
        grid.clear();
        int keys = slice.number("keys", 100_000);
        AtomicInteger next = new AtomicInteger();
        List<Thread> loaders = new ArrayList<>();
        for (int nth = 0; nth < LOADERS; nth++) {
            Thread loader = new Thread(() -> {
                for (int key = next.incrementAndGet(); key <= keys; key = next.incrementAndGet()) {
                    grid.put(key, new byte[slice.size]);
                }
            });
            loader.start();
            loaders.add(loader);
        }
        for (Thread loader : loaders) {
            loader.join();
        }
        return Json.object("size", grid.size());
    }

    private Map<String, Object> run(Slice slice) throws Exception {
        // Objects as a program has them that keeps its keys.
        Integer[] keys = new Integer[slice.number("keys", 100_000)];
        for (int nth = 0; nth < keys.length; nth++) {
            keys[nth] = nth + 1;
        }
        return new Requests<>(slice, keys, grid::get, grid::put).run(() -> { }, () -> { });
    }

    /** Goes through everything again and again until the time is over, and ends the pass that has begun. */
    private Map<String, Object> iterate(Slice slice) {
        Grid.Way way = Grid.Way.valueOf(slice.word("way", "parallel").toUpperCase(Locale.ROOT).replace('-', '_'));
        int batch = slice.number("batch", 0);
        long start = System.nanoTime();
        long end = start + slice.number("time_ms", 1000) * 1_000_000L;
        long entries = 0;
        long bytes = 0;
        int passes = 0;
        do {
            long[] pass = grid.iterate(way, batch);
            entries += pass[0];
            bytes += pass[1];
            passes++;
        } while (System.nanoTime() < end);
        return Json.object("entries", entries, "bytes", bytes, "passes", passes, "seconds",
            (System.nanoTime() - start) / 1e9);
    }
}
