package consort.interop;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

import org.jgroups.Address;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.protocols.DISCARD;
import org.jgroups.protocols.SHUFFLE;
import org.jgroups.protocols.TP;
import org.jgroups.stack.Protocol;
import org.jgroups.stack.ProtocolStack;

/** Loss, reordering and cuts, by protocols that are put right above the transport when first asked for. */
final class Faults {
    /** How long SHUFFLE gathers messages before it passes them on in another order. */
    private static final long SHUFFLE_MILLIS = 10;

    private final JChannel channel;
    private Cut cut;

    Faults(JChannel channel) {
        this.channel = channel;
    }

    /** Drops these shares of the messages; the member's own messages to itself are spared. */
    void discard(double up, double down) throws Exception {
        cut().setUpDiscardRate(up).setDownDiscardRate(down);
    }

    /**
     * Drops messages from and unicasts to these members. Multicasts still go out to them: a partition needs the same
     * at their side, with this member ignored.
     */
    void ignore(List<Address> members) throws Exception {
        cut().ignore(new HashSet<>(members));
    }

    /**
     * Reorders in both directions, by time only: the release gathers up to `max_size` messages too, but then passes
     * the last one up as many times and loses the others.
     */
    void shuffle(boolean isOn) throws Exception {
        SHUFFLE present = channel.getProtocolStack().findProtocol(SHUFFLE.class);
        if (isOn && present == null) {
            SHUFFLE shuffle = new SHUFFLE().setUp(true).setDown(true).setMaxTime(SHUFFLE_MILLIS);
            shuffle.setProtocolStack(channel.getProtocolStack());
            // Its lists are made by init(); inserted before, it would get a message without them.
            shuffle.init();
            shuffle.setMaxSize(Integer.MAX_VALUE);
            insert(shuffle);
            shuffle.start();
        } else if (!isOn && present != null) {
            present.flush(true);
            channel.getProtocolStack().removeProtocol(present);
        }
    }

    private Cut cut() throws Exception {
        if (cut == null) {
            cut = new Cut();
            cut.setProtocolStack(channel.getProtocolStack());
            insert(cut);
        }
        return cut;
    }

    private void insert(Protocol protocol) throws Exception {
        protocol.setAddress(channel.getAddress());
        channel.getProtocolStack().insertProtocol(protocol, ProtocolStack.Position.ABOVE, TP.class);
    }

    /** DISCARD that ignores members in the other direction too, as far as it can tell. */
    private static final class Cut extends DISCARD {
        private volatile Set<Address> cutOff = Set.of();

        void ignore(Set<Address> members) {
            cutOff = members;
            resetIgnoredMembers();
            members.forEach(this::addIgnoreMember);
        }

        @Override
        public Object down(Message message) {
            Address dest = message.getDest();
            return dest != null && cutOff.contains(dest) ? null : super.down(message);
        }
    }
}
