package consort.interop;

import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.zip.CRC32;

import org.jgroups.Address;
import org.jgroups.Event;
import org.jgroups.MergeView;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.UpHandler;
import org.jgroups.View;
import org.jgroups.blocks.RequestCorrelator;
import org.jgroups.conf.ClassConfigurator;
import org.jgroups.protocols.relay.SiteUUID;
import org.jgroups.util.MessageBatch;

/**
 * Everything that comes up: messages are counted, views and suspicions announced, the state kept, and requests left to
 * the dispatcher, which would otherwise drop whatever is none.
 */
class Inbox implements Receiver, UpHandler {
    /** A state up to this long is shown, a longer one summed up. */
    private static final int SHOWN_STATE = 1024;
    private static final short REQUEST = ClassConfigurator.getProtocolId(RequestCorrelator.class);

    private final Consumer<Map<String, Object>> announce;
    private final Map<Address, Tally> tallies = new HashMap<>();
    /** The regular messages of all senders as they came. Goes with the tallies. */
    private final List<Numbered> order = new ArrayList<>();
    private UpHandler dispatcher;
    private volatile long pauseNanos;
    private volatile byte[] state = {};

    Inbox(Consumer<Map<String, Object>> announce) {
        this.announce = announce;
    }

    void setDispatcher(UpHandler dispatcher) {
        this.dispatcher = dispatcher;
    }

    /** Sleeps this long in every delivery from now on. */
    void pause(long micros) {
        pauseNanos = TimeUnit.MICROSECONDS.toNanos(micros);
    }

    void reset() {
        synchronized (tallies) {
            tallies.clear();
            order.clear();
        }
    }

    /** Waits until that many messages came from the sender or the time is over. */
    Map<String, Object> expect(Address sender, long count, long timeoutMillis) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        synchronized (tallies) {
            while (true) {
                Tally tally = tallies.getOrDefault(sender, new Tally());
                long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                if (tally.received() >= count || left <= 0) {
                    return tally.report();
                }
                tallies.wait(left);
            }
        }
    }

    /** As {@link #expect}, from a member of another site: {@code NAME:SITE}. */
    Map<String, Object> expectOfSite(String sender, long count, long timeoutMillis) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        synchronized (tallies) {
            while (true) {
                Address address = senderOfSite(sender);
                Tally tally = address == null ? new Tally() : tallies.get(address);
                long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                if (tally.received() >= count || left <= 0) {
                    return tally.report();
                }
                tallies.wait(left);
            }
        }
    }

    /** The address of a member of another site that has sent a message. */
    Address senderOfSite(String name) {
        synchronized (tallies) {
            for (Address address : tallies.keySet()) {
                if (address instanceof SiteUUID site && name.equals(site.getName() + ":" + site.getSite())) {
                    return address;
                }
            }
        }
        return null;
    }

    /** The order of all regular messages. */
    Map<String, Object> order() {
        synchronized (tallies) {
            return Json.object(
                "order",
                order.stream().map(one -> Integer.toUnsignedString(one.run()) + ":" + one.number()).toList());
        }
    }

    void setState(byte[] bytes) {
        state = bytes;
    }

    Map<String, Object> showState() {
        byte[] bytes = state;
        if (bytes.length <= SHOWN_STATE) {
            return Json.object("state", new String(bytes, StandardCharsets.UTF_8));
        }
        CRC32 sum = new CRC32();
        sum.update(bytes);
        return Json.object("length", bytes.length, "crc32", sum.getValue());
    }

    /** With names of members as in a stack without sites. */
    private static String text(View view) {
        String text = view.toString();
        for (Address member : view.getMembers()) {
            text = text.replace(member.toString(), nameOf(member));
        }
        return text;
    }

    /** RELAY3's members print their sites, too. */
    static String nameOf(Address member) {
        return member instanceof SiteUUID site ? site.getName() : String.valueOf(member);
    }

    static Map<String, Object> show(View view) {
        return Json.object(
            "view", text(view),
            "id", view.getViewId().toString(),
            "members", view.getMembers().stream().map(String::valueOf).toList());
    }

    @Override
    public void receive(Message message) {
        long pause = pauseNanos;
        if (pause > 0) {
            LockSupport.parkNanos(pause);
        }
        synchronized (tallies) {
            Tally tally = tallies.computeIfAbsent(message.getSrc(), unused -> new Tally());
            boolean isOrdered = !message.isFlagSet(Message.Flag.OOB);
            if (message.hasArray()) {
                tally.add(message.getArray(), message.getOffset(), message.getLength(), isOrdered);
                note(message, isOrdered);
            } else {
                tally.add(new byte[0], 0, 0, isOrdered);
            }
            tallies.notifyAll();
        }
    }

    private void note(Message message, boolean isOrdered) {
        boolean hasBoth = message.getLength() >= Numbered.HEAD_BYTES;
        if (isOrdered && hasBoth) {
            order.add(Numbered.read(message.getArray(), message.getOffset(), message.getLength()));
        }
    }

    @Override
    public void viewAccepted(View view) {
        Map<String, Object> event = Json.object("event", "view");
        event.putAll(show(view));
        if (view instanceof MergeView merge) {
            event.put("subgroups", merge.getSubgroups().stream().map(View::toString).toList());
        }
        announce.accept(event);
    }

    @Override
    public void getState(OutputStream out) throws Exception {
        out.write(state);
    }

    @Override
    public void setState(InputStream in) throws Exception {
        state = in.readAllBytes();
    }

    @Override
    public UpHandler setLocalAddress(Address address) {
        dispatcher.setLocalAddress(address);
        return this;
    }

    @Override
    public Object up(Event event) {
        if (event.getType() == Event.SUSPECT) {
            Iterable<Address> suspects = event.getArg();
            for (Address suspect : suspects) {
                announce.accept(Json.object("event", "suspect", "member", String.valueOf(suspect)));
            }
        }
        return dispatcher.up(event);
    }

    @Override
    public Object up(Message message) {
        if (message.getHeader(REQUEST) != null) {
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
