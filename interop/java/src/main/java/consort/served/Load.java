package consort.served;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Map;

import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.marshall.BytesOnlyMarshaller;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.util.Version;

import consort.bench.Requests;
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
        Load load = new Load(connect(args[0]));
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

    /** Makes the cache unless it is there, and says the releases of client and Java. */
    static RemoteCache<byte[], byte[]> connect(String servers) {
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.addServers(servers).marshaller(BytesOnlyMarshaller.INSTANCE).statistics().disable();
        RemoteCacheManager manager = new RemoteCacheManager(builder.build());
        manager.administration().getOrCreateCache(CACHE, new StringConfiguration(SETTINGS));
        RemoteCache<byte[], byte[]> cache = manager.getCache(CACHE);
        Json.say(OUT, Json.object("product", "Hot Rod client " + Version.getVersion(),
            "java", System.getProperty("java.version"), "vm", System.getProperty("java.vm.name")));
        return cache;
    }

    private static byte[][] keys(Slice slice) {
        return keys(slice.number("keys", 10_000));
    }

    static byte[][] keys(int count) {
        byte[][] keys = new byte[count][];
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
        Requests<byte[]> requests = new Requests<>(slice, keys(slice), cache::get, cache::put);
        String server = slice.word("server", "self");
        double[] served = new double[2];
        Map<String, Object> taken = requests.run(() -> served[0] = Slice.cpuSeconds(server),
            () -> served[1] = Slice.cpuSeconds(server));
        taken.put("server_cpu_s", served[1] - served[0]);
        return taken;
    }
}
