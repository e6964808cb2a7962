package consort.interop;

import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;

/** What arrived from one sender. Callers lock it. */
final class Tally {
    /** A number beyond this is no count of a test, but garbage. */
    private static final int MAX_NUMBER = 1 << 26;

    private static final class Run {
        final BitSet seen = new BitSet();
        int next;
    }

    private final Map<Integer, Run> runs = new HashMap<>();
    private long received;
    private long duplicates;
    private long outOfOrder;
    private long corrupt;

    long received() {
        return received;
    }

    /** Counts a message; where order is not promised only what came twice or garbled is noted. */
    void add(byte[] bytes, int offset, int length, boolean isOrdered) {
        received++;
        Numbered numbered = Numbered.read(bytes, offset, length);
        if (numbered == null) {
            return;
        }
        int number = numbered.number();
        if (number < 0 || number > MAX_NUMBER || !numbered.isIntact(bytes, offset, length)) {
            corrupt++;
            return;
        }
        Run run = runs.computeIfAbsent(numbered.run(), unused -> new Run());
        if (run.seen.get(number)) {
            duplicates++;
            return;
        }
        run.seen.set(number);
        if (isOrdered && number != run.next) {
            outOfOrder++;
        }
        run.next = number + 1;
    }

    Map<String, Object> report() {
        Map<String, Object> report =
            Json.object("received", received, "duplicates", duplicates, "out_of_order", outOfOrder);
        if (corrupt > 0) {
            report.put("corrupt", corrupt);
        }
        return report;
    }
}
