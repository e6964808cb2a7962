import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.logging.LogManager;

import org.infinispan.commons.test.TestResourceTracker;
import org.infinispan.configuration.ConfigurationManager;
import org.infinispan.configuration.parsing.ParserRegistry;

/**
 * Parses and validates files of Infinispan without starting a server. Each argument is a file, and the answer one line for each:
 * {@code accepted} or {@code refused}, the file, and the error.
 */
public final class ServerFiles {
    private ServerFiles() {
    }

    public static void main(String[] files) {
        PrintStream out = System.out;
        System.setOut(System.err);
        LogManager.getLogManager().reset();
        // A store of Infinispan's tests, which some files name, asks for it.
        TestResourceTracker.setThreadTestName("files");
        for (String file : files) {
            List<String> answer = new ArrayList<>(List.of("@@ accepted", file));
            try {
                load(Path.of(file));
            } catch (Throwable error) {
                answer.set(0, "@@ refused");
                answer.add(describe(error));
            }
            out.println(String.join("\t", answer));
        }
        System.exit(0);
    }

    /** Builds the configurations of the container and of its caches, as a server does before it starts them. */
    private static void load(Path file) throws Exception {
        new ConfigurationManager(new ParserRegistry().parse(file));
    }

    private static String describe(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause.toString().replaceAll("\\s+", " ");
    }
}
