package consort.hotrod;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.Month;
import java.time.MonthDay;
import java.time.OffsetTime;
import java.time.Period;
import java.time.Year;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.infinispan.client.hotrod.DataFormat;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.RemoteCacheManagerAdmin;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;
import org.infinispan.commons.configuration.StringConfiguration;
import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.commons.marshall.UTF8StringMarshaller;
import org.infinispan.counter.api.CounterConfiguration;
import org.infinispan.counter.api.CounterType;

/**
 * Prints the responses of a server, of which the first argument is HOST:PORT, to requests to which servers could respond differently.
 * Of an error it prints the exception's class and number. With a second argument it asks the server's default cache.
 */
public final class Behaviours {
    private static final Pattern CLASS = Pattern.compile("([a-z]+\\.[\\w.$]+)(?::|$)");
    private static final Pattern NUMBER = Pattern.compile("ISPN\\d{6}");

    private interface Action {
        Object run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], "BASIC", "PROTOCOL_VERSION_AUTO")) {
            if (args.length > 1) {
                defaultCache(manager);
            } else {
                errors(manager);
                values(cache(manager, "values", "application/x-protostream"));
            }
        }
        if (args.length == 1) {
            String[] at = args[0].split(":");
            bytes(at[0], Integer.parseInt(at[1]));
        }
        Application.done();
    }

    private static void defaultCache(RemoteCacheManager manager) {
        RemoteCache<String, String> cache = manager.getCache();
        cache.put("k", "v");
        Application.check(cache.get("k"), "v", "the value");
        Application.check(manager.getCache("default").get("k"), "v", "the value by the cache's name");
        Application.check(cache.size(), 1, "its size");
        Application.check(cache.keySet().iterator().next(), "k", "its keys");
        Application.check(manager.getCacheNames().contains("default"), true, "the names of caches");
        Application.check(manager.getCacheNames().contains("___protobuf_metadata"), true, "the names of caches");
    }

    private static RemoteCache<Object, Object> cache(RemoteCacheManager manager, String name, String mediaType) {
        String settings = "<distributed-cache><encoding media-type=\"" + mediaType + "\"/></distributed-cache>";
        return manager.administration().getOrCreateCache(name, new StringConfiguration(settings));
    }

    private static void errors(RemoteCacheManager manager) {
        RemoteCacheManagerAdmin admin = manager.administration();
        RemoteCache<Object, Object> cache = cache(manager, "c", "application/x-protostream");
        say("a cache that is there", () -> admin.createCache("c", "org.infinispan.DIST_SYNC"));
        say("no template", () -> admin.createCache("d", "mine"));
        say("a wrong value", () -> admin.createCache("d", configuration("<distributed-cache owners=\"many\"/>")));
        say("a wrong attribute", () -> admin.createCache("d", configuration("<distributed-cache mine=\"1\"/>")));
        // Infinispan keeps the definition of this one.
        say("a media type that nothing is converted to", () -> admin.createCache("opaque",
            configuration("<distributed-cache><encoding media-type=\"image/png\"/></distributed-cache>")));
        say("no XML", () -> admin.createCache("d", configuration("<distributed-cache")));
        say("an attribute of no cache", () -> {
            admin.updateConfigurationAttribute("d", "memory.max-count", "5");
            return null;
        });
        say("no cache to index", () -> {
            admin.reindexCache("d");
            return null;
        });
        say("no index", () -> {
            admin.reindexCache("c");
            return null;
        });
        say("an alias of no cache", () -> {
            admin.assignAlias("alias", "d");
            return null;
        });
        say("no task", () -> cache.execute("mine", Map.of()));
        say("no default cache", () -> manager.getCache().get("k"));
        say("no transcoder", () -> as(cache, "image/png").get("k"));
        say("a schema without the ending", () -> {
            manager.getCache("___protobuf_metadata").put("mine", "syntax = \"proto3\";");
            return null;
        });
        say("options of files in messages", () -> {
            RemoteCache<String, String> schemas = manager.getCache("___protobuf_metadata");
            schemas.put("o.proto", "syntax = \"proto3\"; message A { option java_package = \"a\"; option mine = 1; string x = 1; }");
            String error = schemas.get("o.proto.errors");
            schemas.remove("o.proto");
            return error;
        });
        say("wrong bounds", () -> org.infinispan.client.hotrod.RemoteCounterManagerFactory.asCounterManager(manager)
            .defineCounter("wrong", CounterConfiguration.builder(CounterType.BOUNDED_STRONG).initialValue(0).lowerBound(5).upperBound(9).build()));
        say("no Ickle", () -> cache.query("FRO x").list());
        admin.removeCache("c");
    }

    private static StringConfiguration configuration(String text) {
        return new StringConfiguration(text);
    }

    private static RemoteCache<String, String> as(RemoteCache<Object, Object> cache, String mediaType) {
        return cache.withDataFormat(DataFormat.builder().keyType(MediaType.TEXT_PLAIN)
            .keyMarshaller(new UTF8StringMarshaller()).valueType(MediaType.fromString(mediaType))
            .valueMarshaller(new UTF8StringMarshaller()).build());
    }

    /** Protostream's own types, as JSON, back from it, and as text. */
    private static void values(RemoteCache<Object, Object> cache) {
        Map<String, Object> values = new LinkedHashMap<>();
        values.put("date", new Date(1700000000123L));
        values.put("instant", Instant.ofEpochSecond(1700000000L, 123456789));
        values.put("an instant without nanoseconds", Instant.ofEpochSecond(-1700000000L));
        values.put("uuid", UUID.fromString("01234567-89ab-cdef-8123-456789abcdef"));
        for (String number : List.of("123.4500", "-0.5", "5E-7", "5E+2", "0.00", "-123456789012345678901234567890.5")) {
            values.put("decimal " + number, new BigDecimal(number));
        }
        for (String number : List.of("0", "-1", "-128", "123456789012345678901234567890")) {
            values.put("integer " + number, new BigInteger(number));
        }
        for (LocalDate date : List.of(LocalDate.of(2023, 11, 14), LocalDate.of(1900, 2, 28), LocalDate.of(2000, 2, 29))) {
            values.put("date " + date, date);
        }
        for (LocalTime time : List.of(LocalTime.MIDNIGHT, LocalTime.of(1, 2, 3), LocalTime.of(22, 13, 20, 120_000_000))) {
            values.put("time " + time, time);
        }
        values.put("date and time", LocalDateTime.of(2023, 11, 14, 22, 13, 20, 5));
        values.put("offset time", OffsetTime.of(LocalTime.of(1, 2, 3), ZoneOffset.ofHours(2)));
        values.put("month", Month.MARCH);
        values.put("month and day", MonthDay.of(2, 29));
        values.put("year", Year.of(2023));
        values.put("period", Period.of(1, -2, 3));
        values.put("zone", ZoneId.of("Europe/Berlin"));
        values.put("offset", ZoneOffset.ofHours(-2));
        values.put("bits", BitSet.valueOf(new long[] { 5 }));
        values.put("list", new ArrayList<>(List.of("a", 1, true, 1.5, 7L)));
        values.put("set", new LinkedHashSet<>(List.of("a", "b")));
        values.put("ordered", new TreeSet<>(List.of("b", "a")));
        values.put("linked", new LinkedList<>(List.of("x")));
        values.put("mixed", new ArrayList<>(List.of(new ArrayList<>(List.of(1L)), new Date(5), new UUID(1, 2))));
        // Java's text of an array is its address.
        Map<String, Object> arrays = new LinkedHashMap<>();
        arrays.put("ints", new int[] { 1, 2, -3 });
        arrays.put("strings", new String[] { "a", "b" });
        arrays.put("objects", new Object[] { "a", 1 });
        arrays.put("doubles", new double[] { 1.5, -1e30 });
        arrays.put("booleans", new boolean[] { true, false });
        RemoteCache<String, String> documents = as(cache, "application/json");
        RemoteCache<String, String> texts = as(cache, "text/plain");
        values.forEach((name, value) -> {
            value(cache, documents, name, value);
            say(name + " as text", () -> texts.get(name));
        });
        arrays.forEach((name, value) -> value(cache, documents, name, value));
    }

    private static void value(RemoteCache<Object, Object> cache, RemoteCache<String, String> documents, String name, Object value) {
        cache.put(name, value);
        say(name + " as JSON", () -> documents.get(name));
        // What protostream cannot read of its own JSON is not compared.
        if (!name.equals("mixed")) {
            say(name + " back", () -> {
                documents.put("back", documents.get(name));
                Object back = cache.get("back");
                return back.equals(value) || back.getClass().isArray() && same(back, value);
            });
        }
    }

    private static boolean same(Object one, Object other) {
        return Arrays.deepEquals(new Object[] { one }, new Object[] { other });
    }

    /** Requests that no client sends. */
    private static void bytes(String host, int port) throws IOException {
        try (Socket socket = new Socket(host, port)) {
            socket.setSoTimeout(30_000);
            OutputStream out = socket.getOutputStream();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            byte[] none = {};
            out.write(request(1, 41, 0x02, "", none));
            System.out.println("an unknown operation: " + error(in));
            out.write(request(2, 42, 0x17, "", none));
            System.out.println("a ping of a later version: " + ping(in));
            out.write(request(3, 32, 0x17, "", none));
            System.out.println("a ping of version 3.2: " + ping(in));
            for (int unit : new int[] { 0x08, 0x18, 0x80, 0x81 }) {
                byte[] put = { 1, 'k', (byte) unit, 0, 1, 'v' };
                out.write(request(4, 41, 0x01, "values", put));
                header(in);
                // It ends with its millisecond.
                int status = 0;
                for (int tries = 0; status == 0 && tries < 1_000; tries++) {
                    out.write(request(5, 41, 0x03, "values", new byte[] { 1, 'k' }));
                    status = header(in)[1];
                    in.readFully(new byte[status == 0 ? 2 : 0]);
                }
                System.out.println("a span of zero, in " + unit + ": " + status);
            }
            out.write(request(6, 41, 0xe7, "values", new byte[] { 0, 0, 0, 7 }));
            System.out.println("an unknown stream: " + error(in));
        }
    }

    private static byte[] request(int id, int version, int operation, String cache, byte[] body) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.write(new byte[] { (byte) 0xa0, (byte) id, (byte) version, (byte) operation, (byte) cache.length() });
        out.write(cache.getBytes(StandardCharsets.UTF_8));
        // No flags, basic intelligence, no topology, no media types, and from 4.0 on no parameters.
        out.write(new byte[] { 0, 1, 0, 0, 0 });
        if (version >= 40) {
            out.write(0);
        }
        out.write(body);
        return out.toByteArray();
    }

    /** Operation and status. */
    private static int[] header(DataInputStream in) throws IOException {
        in.readByte();
        in.readByte();
        int[] header = { in.readUnsignedByte(), in.readUnsignedByte() };
        in.readByte();
        return header;
    }

    private static String error(DataInputStream in) throws IOException {
        int[] header = header(in);
        int length = in.readUnsignedByte();
        if (length >= 128) {
            length = length - 128 + in.readUnsignedByte() * 128;
        }
        byte[] text = new byte[length];
        in.readFully(text);
        return header[0] + " " + header[1] + " " + kind(new String(text, StandardCharsets.UTF_8));
    }

    private static String ping(DataInputStream in) throws IOException {
        int[] header = header(in);
        for (int type = 0; type < 2; type++) {
            if (in.readByte() == 1) {
                in.readShort();
            }
        }
        int newest = in.readUnsignedByte();
        in.readFully(new byte[2 * in.readUnsignedByte()]);
        return header[0] + " " + header[1] + ", the newest is " + newest;
    }

    /** Class and number of the exception, the first ones in its text. */
    private static String kind(String text) {
        Matcher name = CLASS.matcher(text);
        Matcher number = NUMBER.matcher(text);
        return (name.find() ? name.group(1) : "no class") + (number.find() ? " " + number.group() : "");
    }

    private static void say(String what, Action action) {
        String told;
        try {
            told = String.valueOf(action.run());
        } catch (HotRodClientException refused) {
            String text = refused.getMessage();
            told = "refused " + kind(text.substring(text.indexOf("): ") + 1));
            if (System.getenv("WHY") != null) {
                told += " WHY " + text;
            }
        } catch (Exception other) {
            told = other.getClass().getName();
        }
        System.out.println(what + ": " + told);
    }
}
