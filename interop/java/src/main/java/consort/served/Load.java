package consort.served;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.LongAdder;

import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.marshall.BytesOnlyMarshaller;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.util.Version;

import consort.bench.Histogram;
import consort.bench.Slice;
import consort.interop.Json;

/**
 * A client that is measured: {@code Load SERVERS}. It makes the cache {@code load} unless it is there, and then works
 * for the lines on its standard input, each answered by a line {@code @@ {json}}. {@code interop/README.md} lists them.
 */
public final class Load {
    private static final PrintStream OUT = System.out;
    private static final String CACHE = "load";
    private static final String SETTINGS = "<distributed-cache name=\"" + CACHE + "\" mode=\"SYNC\" owners=\"2\">"
        + "<encoding media-type=\"application/octet-stream\"/></distributed-cache>";

    private final RemoteCache<byte[], byte[]> cache;

    private Load(RemoteCache<byte[], byte[]> cache) {
        this.cache = cache;
    }

    public static void main(String[] args) throws Exception {
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.addServers(args[0]).marshaller(BytesOnlyMarshaller.INSTANCE).statistics().disable();
        RemoteCacheManager manager = new RemoteCacheManager(builder.build());
        manager.administration().getOrCreateCache(CACHE, new StringConfiguration(SETTINGS));
        RemoteCache<byte[], byte[]> cache = manager.getCache(CACHE);
        Json.say(OUT, Json.object("product", "Hot Rod client " + Version.getVersion(),
            "java", System.getProperty("java.version"), "vm", System.getProperty("java.vm.name")));
        Load load = new Load(cache);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                Slice slice = Slice.parse(line);
                Json.say(OUT, line.startsWith("populate") ? load.populate(slice) : load.run(slice));
            } catch (Exception error) {
                error.printStackTrace();
                Json.say(OUT, Json.object("error", error.toString()));
            }
        }
        // Whoever measures is done.
        System.exit(0);
    }

    private static byte[][] keys(Slice slice) {
        byte[][] keys = new byte[slice.number("keys", 10_000)][];
        for (int nth = 0; nth < keys.length; nth++) {
            keys[nth] = String.format(Locale.ROOT, "key-%08d", nth).getBytes(StandardCharsets.US_ASCII);
        }
        return keys;
    }

    private Map<String, Object> populate(Slice slice) {
        for (byte[] key : keys(slice)) {
            cache.put(key, new byte[slice.size]);
        }
        return Json.object("size", cache.size());
    }

    private Map<String, Object> run(Slice slice) throws Exception {
        byte[][] keys = keys(slice);
        double reads = Double.parseDouble(slice.word("reads", "1"));
        String server = slice.word("server", "self");
        LongAdder errors = new LongAdder();
        List<Histogram> latencies = new ArrayList<>();
        for (int nth = 0; nth < slice.threads; nth++) {
            Histogram own = new Histogram();
            latencies.add(own);
            slice.start("caller-" + nth, () -> call(slice, keys, reads, own, errors));
        }
        double[] served = new double[2];
        Slice.Taken taken = slice.pass(() -> served[0] = Slice.cpuSeconds(server),
            () -> served[1] = Slice.cpuSeconds(server));
        Histogram all = new Histogram();
        latencies.forEach(all::add);
        return Json.object("operations", all.count(), "errors", errors.sum(), "seconds", taken.seconds(),
            "cpu_s", taken.cpuSeconds(), "server_cpu_s", served[1] - served[0], "latencies", all.counts());
    }

    private void call(Slice slice, byte[][] keys, double reads, Histogram latencies, LongAdder errors) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        while (!slice.isOver()) {
            byte[] key = keys[random.nextInt(keys.length)];
            boolean isRead = random.nextDouble() < reads;
            byte[] value = isRead ? null : new byte[slice.size];
            long start = System.nanoTime();
            boolean isGood = true;
            try {
                if (isRead) {
                    byte[] read = cache.get(key);
                    isGood = read != null && read.length == slice.size;
                } else {
                    cache.put(key, value);
                }
            } catch (RuntimeException error) {
                isGood = false;
                Slice.show(error);
            }
            slice.note(start, isGood, latencies, errors);
        }
    }
}
