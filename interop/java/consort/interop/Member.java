package consort.interop;

import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.Event;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.UpHandler;
import org.jgroups.View;
import org.jgroups.blocks.MessageDispatcher;
import org.jgroups.blocks.RequestOptions;
import org.jgroups.blocks.ResponseMode;
import org.jgroups.protocols.DISCARD;
import org.jgroups.protocols.SHUFFLE;
import org.jgroups.protocols.TP;
import org.jgroups.stack.ProtocolStack;
import org.jgroups.util.MessageBatch;
import org.jgroups.util.Rsp;
import org.jgroups.util.RspList;

/**
 * A JGroups member that is driven by lines on its standard input. Every command is answered by one line
 * {@code @@ {json}} on its standard output; views are announced by such lines too.
 *
 * Numbered messages begin with a four-byte number if they have room for it.
 */
public class Member implements Receiver {
    private static final class Seen {
        long received, duplicates, outOfOrder;
        long next;
    }

    private JChannel channel;
    private MessageDispatcher dispatcher;
    private final Map<Address, Seen> seen = new HashMap<>();
    private volatile long slowNanos;
    private volatile byte[] state = new byte[0];

    public static void main(String[] args) throws Exception {
        new Member().run();
    }

    private static synchronized void say(String json) {
        System.out.println("@@ " + json);
        System.out.flush();
    }

    private static String quote(String text) {
        return "\"" + String.valueOf(text).replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"";
    }

    private void run() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.trim().split(" +");
            try {
                say(carryOut(words));
            } catch (Throwable error) {
                error.printStackTrace();
                say("{\"error\":" + quote(error.toString()) + "}");
            }
            if (words[0].equals("exit")) {
                break;
            }
        }
        if (channel != null) {
            channel.close();
        }
        System.exit(0);
    }

    private String carryOut(String[] words) throws Exception {
        switch (words[0]) {
            case "connect":
                return connect(words[1], words[2], words[3]);
            case "view":
                return "{\"view\":" + quote(channel.getView().toString()) + ",\"address\":" + quote(channel.getAddressAsUUID()) + "}";
            case "send":
                return send(words);
            case "expect":
                return expect(words[1], Long.parseLong(words[2]), Long.parseLong(words[3]));
            case "reset":
                synchronized (seen) {
                    seen.clear();
                }
                return "{}";
            case "slow":
                slowNanos = Long.parseLong(words[1]) * 1_000;
                return "{}";
            case "state":
                return state(words);
            case "rpc":
                return rpc(words[1], words[2], Long.parseLong(words[3]));
            case "discard":
                DISCARD discard = fault(DISCARD.class, new DISCARD());
                discard.setUpDiscardRate(Double.parseDouble(words[1]));
                discard.setDownDiscardRate(Double.parseDouble(words[2]));
                return "{}";
            case "shuffle":
                if (words[1].equals("on")) {
                    // Upwards, 5.5.7 passes its last message on ten times and loses the other nine.
                    fault(SHUFFLE.class, new SHUFFLE().setUp(false).setDown(true).setMaxSize(10).setMaxTime(50));
                } else {
                    channel.getProtocolStack().removeProtocol(SHUFFLE.class);
                }
                return "{}";
            case "ignore":
                return ignore(words);
            case "leave":
                channel.disconnect();
                return "{}";
            case "exit":
                return "{}";
            default:
                return "{\"error\":" + quote("unknown command " + words[0]) + "}";
        }
    }

    private String connect(String name, String cluster, String config) throws Exception {
        channel = new JChannel(config).name(name);
        dispatcher = new MessageDispatcher(channel, this::handle);
        dispatcher.setReceiver(this);
        channel.setUpHandler(new Split(channel.getUpHandler()));
        channel.connect(cluster);
        return "{\"view\":" + quote(channel.getView().toString()) + "}";
    }

    /** A dispatcher drops what is no RPC; here that goes to the receiver. */
    private final class Split implements UpHandler {
        private static final short RPC = 200;
        private final UpHandler dispatcher;

        Split(UpHandler dispatcher) {
            this.dispatcher = dispatcher;
        }

        @Override
        public UpHandler setLocalAddress(Address address) {
            dispatcher.setLocalAddress(address);
            return this;
        }

        @Override
        public Object up(Event event) {
            return dispatcher.up(event);
        }

        @Override
        public Object up(Message message) {
            if (message.getHeader(RPC) != null) {
                return dispatcher.up(message);
            }
            receive(message);
            return null;
        }

        @Override
        public void up(MessageBatch batch) {
            for (Message message : batch) {
                up(message);
            }
        }
    }

    private <T extends org.jgroups.stack.Protocol> T fault(Class<T> type, T protocol) throws Exception {
        T present = channel.getProtocolStack().findProtocol(type);
        if (present == null) {
            protocol.setProtocolStack(channel.getProtocolStack());
            channel.getProtocolStack().insertProtocol(protocol, ProtocolStack.Position.ABOVE, TP.class);
            if (protocol instanceof SHUFFLE) {
                protocol.init();
                protocol.start();
            }
            present = protocol;
        }
        return present;
    }

    private String ignore(String[] words) throws Exception {
        DISCARD discard = fault(DISCARD.class, new DISCARD());
        if (words[1].equals("none")) {
            discard.resetIgnoredMembers();
            return "{}";
        }
        for (String name : Arrays.copyOfRange(words, 1, words.length)) {
            discard.addIgnoreMember(member(name));
        }
        return "{}";
    }

    private Address member(String name) {
        for (Address member : channel.getView().getMembers()) {
            if (name.equals(String.valueOf(member))) {
                return member;
            }
        }
        throw new IllegalArgumentException("no member " + name + " in " + channel.getView());
    }

    private String send(String[] words) throws Exception {
        int count = Integer.parseInt(words[1]);
        int size = Integer.parseInt(words[2]);
        Address dest = null;
        Message.Flag[] flags = {};
        for (int at = 3; at < words.length; at++) {
            switch (words[at]) {
                case "to":
                    dest = member(words[++at]);
                    break;
                case "oob":
                    flags = add(flags, Message.Flag.OOB);
                    break;
                case "rsvp":
                    flags = add(flags, Message.Flag.RSVP);
                    break;
                default:
                    throw new IllegalArgumentException(words[at]);
            }
        }
        long start = System.nanoTime();
        for (int n = 0; n < count; n++) {
            byte[] bytes = new byte[size];
            if (size >= 4) {
                ByteBuffer.wrap(bytes).putInt(n);
            }
            channel.send(new BytesMessage(dest, bytes).setFlag(flags));
        }
        return "{\"sent\":" + count + ",\"millis\":" + (System.nanoTime() - start) / 1_000_000 + "}";
    }

    private static Message.Flag[] add(Message.Flag[] flags, Message.Flag flag) {
        Message.Flag[] more = Arrays.copyOf(flags, flags.length + 1);
        more[flags.length] = flag;
        return more;
    }

    private String expect(String sender, long count, long timeoutMillis) throws Exception {
        long until = System.nanoTime() + timeoutMillis * 1_000_000;
        Address address = member(sender);
        synchronized (seen) {
            for (;;) {
                Seen one = seen.computeIfAbsent(address, unused -> new Seen());
                long left = (until - System.nanoTime()) / 1_000_000;
                if (one.received >= count || left <= 0) {
                    return "{\"received\":" + one.received + ",\"duplicates\":" + one.duplicates
                        + ",\"out_of_order\":" + one.outOfOrder + "}";
                }
                seen.wait(left);
            }
        }
    }

    private String state(String[] words) throws Exception {
        switch (words[1]) {
            case "set":
                state = words[2].getBytes(StandardCharsets.UTF_8);
                break;
            case "fetch":
                channel.getState(words.length > 2 ? member(words[2]) : null, 10_000);
                break;
            default:
                break;
        }
        return "{\"state\":" + quote(new String(state, StandardCharsets.UTF_8)) + "}";
    }

    private Object handle(Message request) {
        String text = new String(request.getArray(), request.getOffset(), request.getLength(), StandardCharsets.UTF_8);
        if (text.equals("fail")) {
            throw new IllegalStateException("told to fail");
        }
        return (text + "@" + channel.getName()).getBytes(StandardCharsets.UTF_8);
    }

    private String rpc(String dest, String text, long timeoutMillis) throws Exception {
        byte[] request = text.getBytes(StandardCharsets.UTF_8);
        RequestOptions options = new RequestOptions(ResponseMode.GET_ALL, timeoutMillis);
        StringBuilder json = new StringBuilder("{");
        if (dest.equals("all")) {
            RspList<Object> answers = dispatcher.castMessage(null, new BytesMessage(null, request), options);
            for (Map.Entry<Address, Rsp<Object>> entry : answers.entrySet()) {
                Rsp<Object> answer = entry.getValue();
                String value = answer.hasException() ? "exception " + answer.getException() : text(answer.getValue());
                if (answer.wasSuspected()) {
                    value = "suspected";
                }
                json.append(json.length() > 1 ? "," : "").append(quote(entry.getKey().toString())).append(':').append(quote(value));
            }
        } else {
            try {
                Object answer = dispatcher.sendMessage(new BytesMessage(member(dest), request), options);
                json.append(quote(dest)).append(':').append(quote(text(answer)));
            } catch (Exception error) {
                json.append("\"exception\":").append(quote(error.toString()));
            }
        }
        return json.append("}").toString();
    }

    private static String text(Object value) {
        return value instanceof byte[] ? new String((byte[]) value, StandardCharsets.UTF_8) : String.valueOf(value);
    }

    @Override
    public void receive(Message message) {
        long pause = slowNanos;
        if (pause > 0) {
            LockSupport.parkNanos(pause);
        }
        synchronized (seen) {
            Seen one = seen.computeIfAbsent(message.getSrc(), unused -> new Seen());
            one.received++;
            if (message.getLength() >= 4 && !message.isFlagSet(Message.Flag.OOB)) {
                long number = ByteBuffer.wrap(message.getArray(), message.getOffset(), 4).getInt();
                if (number < one.next) {
                    one.duplicates++;
                } else if (number > one.next) {
                    one.outOfOrder++;
                }
                one.next = number + 1;
            }
            seen.notifyAll();
        }
    }

    @Override
    public void viewAccepted(View view) {
        say("{\"event\":\"view\",\"view\":" + quote(view.toString()) + "}");
    }

    @Override
    public void getState(OutputStream out) throws Exception {
        DataOutputStream data = new DataOutputStream(out);
        data.write(state);
        data.flush();
    }

    @Override
    public void setState(InputStream in) throws Exception {
        state = new DataInputStream(in).readAllBytes();
    }
}
