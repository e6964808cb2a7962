package consort.interop;

import java.util.LinkedHashMap;
import java.util.Map;

import org.jgroups.JChannel;
import org.jgroups.blocks.atomic.CounterService;
import org.jgroups.blocks.atomic.SyncCounter;

/** Counters of JGroups' CounterService, driven by lines. */
final class Counters {
    private final CounterService service;
    private final Map<String, SyncCounter> counters = new LinkedHashMap<>();

    Counters(JChannel channel) {
        service = new CounterService(channel);
    }

    /** {@code counter create NAME INITIAL | get NAME | add NAME DELTA [TIMES] | set NAME VALUE | swap NAME EXPECTED UPDATE | delete NAME}. */
    Map<String, Object> run(String[] words) {
        String name = words[2];
        switch (words[1]) {
            case "create":
                counters.put(name, service.getOrCreateSyncCounter(name, Long.parseLong(words[3])));
                return value(counters.get(name).get());
            case "get":
                return value(counters.get(name).get());
            case "add":
                long result = 0;
                int times = words.length > 4 ? Integer.parseInt(words[4]) : 1;
                for (int nth = 0; nth < times; nth++) {
                    result = counters.get(name).addAndGet(Long.parseLong(words[3]));
                }
                return value(result);
            case "set":
                counters.get(name).set(Long.parseLong(words[3]));
                return value(Long.parseLong(words[3]));
            case "swap":
                return value(counters.get(name).compareAndSwap(Long.parseLong(words[3]), Long.parseLong(words[4])));
            case "delete":
                service.deleteCounter(name);
                return Map.of();
            default:
                throw new IllegalArgumentException("no such command: counter " + words[1]);
        }
    }

    private static Map<String, Object> value(long value) {
        return Json.object("value", value);
    }
}
