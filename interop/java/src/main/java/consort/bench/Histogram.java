package consort.bench;

import java.util.ArrayList;
import java.util.List;

/**
 * Durations in nanoseconds with an error below 0.4 %: 256 cells for each power of two from 512 on, and one for each
 * value below. For one thread; added up afterwards.
 */
public final class Histogram {
    private static final int BITS = 8;
    private static final int CELLS = 1 << BITS;

    private final long[] cells = new long[CELLS * (Long.SIZE - BITS)];

    public void record(long nanos) {
        cells[cell(Math.max(0, nanos))]++;
    }

    public void add(Histogram other) {
        for (int at = 0; at < cells.length; at++) {
            cells[at] += other.cells[at];
        }
    }

    public long count() {
        long count = 0;
        for (long cell : cells) {
            count += cell;
        }
        return count;
    }

    /** Value and count of every cell that has any; the value is the middle of the cell. */
    public List<List<Long>> counts() {
        List<List<Long>> counts = new ArrayList<>();
        for (int at = 0; at < cells.length; at++) {
            if (cells[at] > 0) {
                counts.add(List.of(middle(at), cells[at]));
            }
        }
        return counts;
    }

    private static int cell(long value) {
        int shift = Math.max(0, Long.SIZE - Long.numberOfLeadingZeros(value) - BITS - 1);
        return shift * CELLS + (int) (value >>> shift);
    }

    private static long middle(int cell) {
        if (cell < 2 * CELLS) {
            return cell;
        }
        int shift = cell / CELLS - 1;
        long start = (long) (cell - shift * CELLS) << shift;
        return start + (1L << shift) / 2;
    }
}
