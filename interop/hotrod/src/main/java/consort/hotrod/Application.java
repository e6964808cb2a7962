package consort.hotrod;

import org.infinispan.client.hotrod.ProtocolVersion;
import org.infinispan.client.hotrod.RemoteCacheManager;
import org.infinispan.client.hotrod.configuration.ClientIntelligence;
import org.infinispan.client.hotrod.configuration.ConfigurationBuilder;

/** What our programs have in common: how they connect, and how they say what they have found. */
final class Application {
    private static int checks;

    private Application() {
    }

    static synchronized void check(Object found, Object expected, String what) {
        checks++;
        if (!(expected == null ? found == null : expected.equals(found))) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
    }

    /** The last line that is said, if everything was right. */
    static void done() {
        System.out.println("ok " + checks);
    }

    static ConfigurationBuilder settings(String servers, String intelligence, String version) {
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.addServers(servers);
        builder.clientIntelligence(ClientIntelligence.valueOf(intelligence));
        builder.version(ProtocolVersion.valueOf(version));
        // A busy machine is no error.
        builder.socketTimeout(30_000).connectionTimeout(30_000);
        return builder;
    }

    static RemoteCacheManager connect(String servers, String intelligence, String version) {
        return new RemoteCacheManager(settings(servers, intelligence, version).build());
    }
}
