package consort.interop;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * The payload of a counted message: four bytes with its number in the run (from 0), four bytes with the run's own
 * number, then bytes that follow from both. Shorter ones hold what fits: under eight bytes no run, under four nothing.
 * A run of number 0 is one whose sender fills the rest as it likes.
 */
record Numbered(int number, int run) {
    static final int NUMBER_BYTES = 4;
    static final int HEAD_BYTES = 8;

    /** The filling repeats after this many bytes: a prime, so that pieces joined at the wrong place show. */
    private static final int PERIOD = 251;

    byte[] bytes(int size) {
        byte[] bytes = new byte[size];
        if (size >= NUMBER_BYTES) {
            ByteBuffer.wrap(bytes).putInt(number);
        }
        if (size >= HEAD_BYTES) {
            ByteBuffer.wrap(bytes).putInt(NUMBER_BYTES, run);
            byte[] filling = filling();
            for (int at = HEAD_BYTES; at < size; at += PERIOD) {
                System.arraycopy(filling, 0, bytes, at, Math.min(PERIOD, size - at));
            }
        }
        return bytes;
    }

    /** The head of a payload, or null if it has no room for a number. */
    static Numbered read(byte[] bytes, int offset, int length) {
        if (length < NUMBER_BYTES) {
            return null;
        }
        ByteBuffer head = ByteBuffer.wrap(bytes, offset, length);
        int number = head.getInt();
        return new Numbered(number, length >= HEAD_BYTES ? head.getInt() : 0);
    }

    /** Whether the rest of the payload is what the sender of such a message wrote. */
    boolean isIntact(byte[] bytes, int offset, int length) {
        if (run == 0) {
            return true;
        }
        byte[] filling = filling();
        for (int at = HEAD_BYTES; at < length; at += PERIOD) {
            int left = Math.min(PERIOD, length - at);
            if (!Arrays.equals(bytes, offset + at, offset + at + left, filling, 0, left)) {
                return false;
            }
        }
        return true;
    }

    /** What comes after the head, once: making it for every byte would cost more than bringing the message. */
    private byte[] filling() {
        byte[] filling = new byte[PERIOD];
        for (int at = 0; at < PERIOD; at++) {
            filling[at] = (byte) (((long) HEAD_BYTES + at + number) % PERIOD ^ run);
        }
        return filling;
    }
}
