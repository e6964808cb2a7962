package consort.hotrod;

import static consort.hotrod.Application.check;

import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.TimeUnit;

import org.infinispan.client.hotrod.DataFormat;
import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.StreamingRemoteCache;
import org.infinispan.client.hotrod.VersionedMetadata;
import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.commons.marshall.IdentityMarshaller;

/** Values in pieces: SERVERS INTELLIGENCE VERSION. */
public final class Streams {
    public static void main(String[] args) throws Exception {
        try (RemoteCacheManager manager = Application.connect(args[0], args[1], args[2])) {
            String name = "streams-" + args[1] + "-" + args[2];
            RemoteCache<String, byte[]> cache =
                manager.administration().getOrCreateCache(name, DefaultTemplate.DIST_SYNC);
            lengths(cache);
            conditions(cache);
            interleaved(cache);
        }
        Application.done();
    }

    private static byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    /** Byte for byte: this release's reads of several bytes go wrong where they cross the end of a piece. */
    private static byte[] read(InputStream stream, int most) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        for (int at = 0; at < most; at++) {
            int next = stream.read();
            if (next < 0) {
                break;
            }
            bytes.write(next);
        }
        return bytes.toByteArray();
    }

    private static void put(OutputStream stream, byte[] bytes) throws Exception {
        try (stream) {
            stream.write(bytes);
        }
    }

    private static void lengths(RemoteCache<String, byte[]> cache) throws Exception {
        StreamingRemoteCache<String> streams = cache.streaming();
        InputStream nothing = streams.get("nothing");
        check(nothing, null, "a stream of nothing");
        for (int length : new int[] {1, 8_191, 8_192, 8_193, 16_384, 20_000, 3_000_000}) {
            byte[] value = bytes(length);
            put(streams.put("key"), value);
            try (InputStream stream = streams.get("key")) {
                check(Arrays.equals(read(stream, Integer.MAX_VALUE), value), true, "a stream of " + length);
                check(((VersionedMetadata) stream).getLifespan(), -1, "lifespan of a stream of " + length);
            }
        }
        // To the end: 16.2.2 fails with "Queue full" where a piece comes while its stream is closed.
        put(streams.put("timed", 1_000, TimeUnit.SECONDS), bytes(10_000));
        try (InputStream stream = streams.get("timed")) {
            check(((VersionedMetadata) stream).getLifespan(), 1_000, "lifespan of a stream");
            check(Arrays.equals(read(stream, Integer.MAX_VALUE), bytes(10_000)), true, "a stream with a lifespan");
        }
    }

    private static void conditions(RemoteCache<String, byte[]> cache) throws Exception {
        StreamingRemoteCache<String> streams = cache.streaming();
        byte[] first = bytes(30_000);
        put(streams.putIfAbsent("conditional"), first);
        put(streams.putIfAbsent("conditional"), bytes(100));
        long version;
        try (InputStream stream = streams.get("conditional")) {
            version = ((VersionedMetadata) stream).getVersion();
            check(Arrays.equals(read(stream, Integer.MAX_VALUE), first), true, "putIfAbsent");
        }
        byte[] second = bytes(40_000);
        put(streams.replaceWithVersion("conditional", version), second);
        put(streams.replaceWithVersion("conditional", version), bytes(200));
        try (InputStream stream = streams.get("conditional")) {
            check(Arrays.equals(read(stream, Integer.MAX_VALUE), second), true, "replaceWithVersion");
        }
    }

    /** Other requests of the same connection go on, and nobody sees a part of what is written. */
    private static void interleaved(RemoteCache<String, byte[]> cache) throws Exception {
        DataFormat raw = DataFormat.builder().valueType(MediaType.APPLICATION_OCTET_STREAM)
            .valueMarshaller(IdentityMarshaller.INSTANCE).build();
        RemoteCache<String, byte[]> plain = cache.withDataFormat(raw);
        StreamingRemoteCache<String> streams = cache.streaming();
        byte[] piece = bytes(8_192);
        plain.put("small", piece);
        try (OutputStream stream = streams.put("large")) {
            for (int at = 0; at < 50; at++) {
                stream.write(piece);
                check(Arrays.equals(plain.get("small"), piece), true, "get between pieces that are written");
                check(plain.containsKey("large"), false, "a part of a value");
            }
        }
        try (InputStream stream = streams.get("large")) {
            for (int at = 0; at < 50; at++) {
                check(Arrays.equals(read(stream, 8_192), piece), true, "piece " + at);
                check(Arrays.equals(plain.get("small"), piece), true, "get between pieces that are read");
            }
            check(stream.read(), -1, "the end");
        }
    }
}
