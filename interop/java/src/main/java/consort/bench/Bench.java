package consort.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

import org.jgroups.JChannel;
import org.jgroups.Version;

import consort.interop.Json;

/**
 * A JGroups member that is measured: {@code Bench rpc|multicast NAME CLUSTER CONFIG MEMBERS}. It joins, waits for all
 * members, and then works for the lines on its standard input, each answered by a line {@code @@ {json}}.
 * {@code interop/README.md} lists them.
 */
public final class Bench {
    private static final PrintStream OUT = System.out;
    private static final long JOIN_MILLIS_MAX = 60_000;

    private Bench() {
    }

    public static void main(String[] args) throws Exception {
        JChannel channel = new JChannel(args[3]).name(args[1]);
        Test test = args[0].equals("rpc") ? new Rpc(channel) : new Multicast(channel);
        channel.connect(args[2]);
        // Until then the others would not find it.
        say(Json.object("event", "connected"));
        test.views().await(Integer.parseInt(args[4]), JOIN_MILLIS_MAX);
        say(Json.object("view", channel.getViewAsString(), "product", "JGroups " + Version.description,
            "java", System.getProperty("java.version"), "vm", System.getProperty("java.vm.name")));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Slice slice = Slice.parse(line);
            try {
                say(test.run(slice));
            } catch (Exception error) {
                error.printStackTrace();
                say(Json.object("error", error.toString()));
            }
        }
        // Whoever measures is done.
        System.exit(0);
    }

    private static void say(Map<String, Object> object) {
        Json.say(OUT, object);
    }

    /** What is measured. */
    interface Test {
        Views views();

        Map<String, Object> run(Slice slice) throws Exception;
    }
}
