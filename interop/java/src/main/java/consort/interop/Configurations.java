package consort.interop;

import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import java.util.logging.LogManager;

import org.jgroups.JChannel;
import org.jgroups.conf.ConfiguratorFactory;
import org.jgroups.conf.ProtocolConfiguration;
import org.jgroups.stack.Configurator;
import org.jgroups.stack.ProtocolStack;

/**
 * Loads configurations without connecting. Each argument is a file, and the answer one line of JSON for each: {@code stack} is
 * {@code null} if all protocols and attributes are known, and else the error; {@code channel} says the same of a channel, which
 * also reads keys and reaches a database.
 */
public final class Configurations {
    private Configurations() {
    }

    public static void main(String[] files) {
        PrintStream out = System.out;
        System.setOut(System.err);
        LogManager.getLogManager().reset();
        for (String file : files) {
            Map<String, Object> answer = Json.object("file", file, "stack", failure(() -> createStack(file)),
                "channel", failure(() -> new JChannel(file).close()));
            Json.say(out, answer);
        }
        System.exit(0);
    }

    /** Creates the protocols with their attributes, as a channel does before it initialises them. */
    private static void createStack(String file) throws Exception {
        List<ProtocolConfiguration> protocols = ConfiguratorFactory.getStackConfigurator(file).getProtocolStack();
        protocols.forEach(ProtocolConfiguration::substituteVariables);
        Configurator.setupProtocolStack(protocols, new ProtocolStack());
    }

    private interface Load {
        void run() throws Exception;
    }

    private static String failure(Load load) {
        try {
            load.run();
            return null;
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause == error ? error.toString() : error + ": " + cause;
        }
    }
}
