package consort.interop;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;

/**
 * Makes a PKCS12 store, as JGroups reads it, out of PEM: a member's certificate and its key (of an elliptic curve) in one
 * file, and the certificate of who vouches for members in another. Arguments: both files, a password, the store.
 */
public final class KeyStores {
    private KeyStores() {
    }

    public static void main(String[] args) throws Exception {
        String member = Files.readString(Path.of(args[0]));
        char[] password = args[2].toCharArray();
        byte[] key = Base64.getMimeDecoder().decode(between(member, "PRIVATE KEY"));
        PrivateKey own = KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(key));
        Certificate authority = certificate(Files.readString(Path.of(args[1])));
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, password);
        store.setKeyEntry("member", own, password, new Certificate[] {certificate(member), authority});
        store.setCertificateEntry("authority", authority);
        try (OutputStream out = Files.newOutputStream(Path.of(args[3]))) {
            store.store(out, password);
        }
    }

    private static Certificate certificate(String pem) throws Exception {
        byte[] bytes = Base64.getMimeDecoder().decode(between(pem, "CERTIFICATE"));
        try (InputStream in = new ByteArrayInputStream(bytes)) {
            return CertificateFactory.getInstance("X.509").generateCertificate(in);
        }
    }

    private static String between(String pem, String what) {
        String begin = "-----BEGIN " + what + "-----";
        int from = pem.indexOf(begin) + begin.length();
        return pem.substring(from, pem.indexOf("-----END " + what, from));
    }
}
