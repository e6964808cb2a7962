package consort.bench;

import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;

import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.util.MessageBatch;

/** Multicasts to all, itself included, as fast as flow control lets its senders: what arrives is counted. */
final class Multicast extends Views implements Bench.Test {
    private final JChannel channel;
    private final LongAdder received = new LongAdder();

    Multicast(JChannel channel) {
        this.channel = channel;
        channel.setReceiver(this);
    }

    @Override
    public Views views() {
        return this;
    }

    @Override
    public void receive(Message message) {
        received.increment();
    }

    @Override
    public void receive(MessageBatch batch) {
        received.add(batch.size());
    }

    @Override
    public Map<String, Object> run(Slice slice) throws Exception {
        LongAdder errors = new LongAdder();
        byte[] payload = new byte[slice.size];
        for (int nth = 0; nth < slice.threads; nth++) {
            slice.start("sender-" + nth, () -> send(slice, payload, errors));
        }
        AtomicLong before = new AtomicLong();
        AtomicLong after = new AtomicLong();
        Slice.Taken taken = slice.pass(() -> before.set(received.sum()), () -> after.set(received.sum()));
        return taken.with("operations", after.get() - before.get(), "errors", errors.sum());
    }

    private void send(Slice slice, byte[] payload, LongAdder errors) {
        while (!slice.isOver()) {
            try {
                // The message keeps the array, and nobody writes to it.
                channel.send(new BytesMessage(null, payload));
            } catch (Exception error) {
                errors.increment();
            }
        }
    }
}
