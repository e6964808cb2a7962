package consort.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.Message;
import org.jgroups.conf.ClassConfigurator;
import org.jgroups.protocols.TP;
import org.jgroups.protocols.TpHeader;
import org.jgroups.protocols.UDP;
import org.jgroups.protocols.pbcast.NAKACK2;
import org.jgroups.protocols.pbcast.NakAckHeader2;
import org.jgroups.util.ByteArrayDataInputStream;
import org.jgroups.util.ByteArrayDataOutputStream;
import org.jgroups.util.UUID;
import org.jgroups.util.Util;

import consort.interop.Json;

/**
 * JGroups' own writing and reading of packets. Each line on standard input, {@code write|read size=BYTES count=N
 * time_ms=N}, is answered by {@code nanos} per packet of so many messages, and the packet's {@code bytes}.
 */
public final class Marshal {
    private static final byte[] CLUSTER = "bench".getBytes(StandardCharsets.US_ASCII);
    private static final short TRANSPORT = ClassConfigurator.getProtocolId(UDP.class);
    private static final short NAKACK = ClassConfigurator.getProtocolId(NAKACK2.class);
    private static final long SLICE_NANOS = 1_000_000;

    /** What is read goes here, so that nobody can tell that it is not needed. */
    private static volatile Object sink;

    private Marshal() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" ");
            List<Message> messages = messages(number(words[1]), number(words[2]));
            ByteArrayDataOutputStream out = new ByteArrayDataOutputStream(1024);
            write(messages, out);
            byte[] packet = Arrays.copyOf(out.buffer(), out.position());
            Step step = words[0].equals("read") ? () -> sink = read(packet) : () -> {
                out.position(0);
                write(messages, out);
            };
            Json.say(System.out, Json.object("nanos", nanos(step, number(words[3])), "bytes", packet.length));
        }
    }

    private static int number(String word) {
        return Integer.parseInt(word.substring(word.indexOf('=') + 1));
    }

    private static List<Message> messages(int size, int count) {
        Address src = new UUID(1, 2);
        byte[] payload = new byte[size];
        List<Message> messages = new ArrayList<>();
        for (int nth = 1; nth <= count; nth++) {
            Message message = new BytesMessage(null, payload).setSrc(src);
            message.putHeader(NAKACK, NakAckHeader2.createMessageHeader(nth));
            message.putHeader(TRANSPORT, new TpHeader(CLUSTER));
            messages.add(message);
        }
        return messages;
    }

    private static void write(List<Message> messages, ByteArrayDataOutputStream out) throws Exception {
        if (messages.size() == 1) {
            Util.writeMessage(messages.get(0), out, true);
        } else {
            Util.writeMessageList(null, messages.get(0).getSrc(), CLUSTER, messages, out, true);
        }
    }

    private static Object read(byte[] packet) throws Exception {
        ByteArrayDataInputStream in = new ByteArrayDataInputStream(packet);
        in.readShort();
        boolean isList = (in.readByte() & TP.LIST) != 0;
        return isList ? Util.readMessageBatch(in, true) : Util.readMessage(in);
    }

    /** Of slices of a millisecond, the tenth part that was fastest ends there. */
    private static double nanos(Step step, long millis) throws Exception {
        int calls = 1;
        while (slice(step, calls) < SLICE_NANOS) {
            calls *= 2;
        }
        List<Double> slices = new ArrayList<>();
        long end = System.nanoTime() + millis * 1_000_000;
        do {
            slices.add((double) slice(step, calls) / calls);
        } while (System.nanoTime() < end);
        slices.sort(null);
        return slices.get(slices.size() / 10);
    }

    private static long slice(Step step, int calls) throws Exception {
        long begun = System.nanoTime();
        for (int call = 0; call < calls; call++) {
            step.run();
        }
        return System.nanoTime() - begun;
    }

    private interface Step {
        void run() throws Exception;
    }
}
