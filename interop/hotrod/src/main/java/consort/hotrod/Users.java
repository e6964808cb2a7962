package consort.hotrod;

import static consort.hotrod.Application.check;

import java.io.ByteArrayInputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;

import org.infinispan.client.hotrod.DefaultTemplate;
import org.infinispan.client.hotrod.RemoteCache;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;
import org.infinispan.client.hotrod.exceptions.HotRodClientException;

/**
 * An application of a user: SERVERS MECHANISM NAME PASSWORD TRUSTED SHOWN EXPECTED. TRUSTED and SHOWN are PEM files with the
 * certificates to believe, and with a certificate and its key to show; - is none, and then there is no TLS. Expected is that
 * it works as for an administrator, that it reads only, or that the user is rejected.
 */
public final class Users {
    private static final int ENTRIES = 500;
    private static final char[] STORE_PASSWORD = "password".toCharArray();

    public static void main(String[] args) throws Exception {
        switch (args[6]) {
            case "works" -> works(args);
            case "reads" -> reads(args);
            case "rejected" -> rejected(args);
            default -> throw new IllegalArgumentException(args[6]);
        }
        Application.done();
    }

    private static RemoteCacheManager connect(String[] args) throws Exception {
        String mechanism = args[1];
        ConfigurationBuilder builder =
            Application.settings(args[0], "HASH_DISTRIBUTION_AWARE", "PROTOCOL_VERSION_AUTO");
        builder.maxRetries(1);
        if (!args[4].equals("-")) {
            builder.security().ssl().enable().trustStoreFileName(args[4]).trustStoreType("pem")
                .sniHostName("localhost");
        }
        if (!args[5].equals("-")) {
            builder.security().ssl().keyStoreFileName(store(Path.of(args[5]))).keyStoreType("PKCS12")
                .keyStorePassword(STORE_PASSWORD);
        }
        if (mechanism.equals("EXTERNAL")) {
            builder.security().authentication().enable().saslMechanism(mechanism)
                .callbackHandler(callbacks -> { });
        } else if (mechanism.equals("OAUTHBEARER")) {
            builder.security().authentication().enable().saslMechanism(mechanism).token(args[3]);
        } else if (!mechanism.equals("-")) {
            builder.security().authentication().enable().saslMechanism(mechanism).username(args[2]).password(args[3]);
        }
        return new RemoteCacheManager(builder.build());
    }

    /** The client reads certificates to believe from PEM files, but not those to show: a store of its own kind has the same. */
    private static String store(Path pem) throws Exception {
        String text = Files.readString(pem);
        int key = text.indexOf("-----BEGIN PRIVATE KEY-----");
        Certificate certificate = CertificateFactory.getInstance("X.509")
            .generateCertificate(new ByteArrayInputStream(text.substring(0, key).getBytes()));
        byte[] encoded = Base64.getMimeDecoder().decode(text.substring(key).replaceAll("-----[A-Z ]+-----", ""));
        PrivateKey shown = KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(encoded));
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        store.setKeyEntry("shown", shown, STORE_PASSWORD, new Certificate[] {certificate});
        Path file = Path.of(pem + ".p12");
        try (OutputStream to = Files.newOutputStream(file)) {
            store.store(to, STORE_PASSWORD);
        }
        return file.toString();
    }

    private static void works(String[] args) throws Exception {
        try (RemoteCacheManager manager = connect(args)) {
            RemoteCache<String, String> cache =
                manager.administration().getOrCreateCache("users", DefaultTemplate.DIST_SYNC);
            cache.clear();
            List<CompletableFuture<String>> putting = new ArrayList<>();
            for (int n = 0; n < ENTRIES; n++) {
                putting.add(cache.putAsync("key-" + n, "value-" + n));
            }
            for (CompletableFuture<String> put : putting) {
                put.get();
            }
            check(cache.size(), ENTRIES, "size");
            check(cache.get("key-7"), "value-7", "get");
            check(cache.keySet().size(), ENTRIES, "keySet");
            String large = "x".repeat(300_000);
            cache.put("large", large);
            check(cache.get("large"), large, "a large value");
            cache.remove("large");
            cache.put("key", "value");
        }
    }

    private static void reads(String[] args) throws Exception {
        try (RemoteCacheManager manager = connect(args)) {
            RemoteCache<String, String> cache = manager.getCache("users");
            check(cache.get("key"), "value", "get");
            try {
                cache.put("key", "other");
                throw new AssertionError("an observer writes");
            } catch (HotRodClientException expected) {
                check(expected.getMessage().contains("ISPN000287"), true, expected.getMessage());
            }
            check(cache.get("key"), "value", "get after put");
        }
    }

    private static void rejected(String[] args) throws Exception {
        try (RemoteCacheManager manager = connect(args)) {
            manager.getCache("users").get("key");
            throw new AssertionError(args[2] + " is not rejected");
        } catch (HotRodClientException expected) {
            check(true, true, "rejected");
        }
    }
}
