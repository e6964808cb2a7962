package consort.interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.Event;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.PhysicalAddress;
import org.jgroups.View;
import org.jgroups.blocks.MessageDispatcher;
import org.jgroups.blocks.RequestOptions;
import org.jgroups.blocks.ResponseMode;
import org.jgroups.protocols.relay.SiteMaster;
import org.jgroups.tests.Probe;
import org.jgroups.util.Rsp;
import org.jgroups.util.RspList;

/**
 * A JGroups member that is driven by lines on its standard input: a command and its words, each answered by one line
 * {@code @@ {json}} on standard output, in order. A number before the command comes back as {@code "id"}, and such
 * commands run beside one another. Events are lines of the same kind with {@code "event"}. The commands are listed in
 * {@code interop/README.md}.
 */
public final class Member {
    private static final PrintStream OUT = System.out;

    private final Set<Address> everSeen = new LinkedHashSet<>();
    private JChannel channel;
    private MessageDispatcher dispatcher;
    private Inbox inbox;
    private Faults faults;
    private Counters counters;
    private Forks forks;
    private Sites sites;

    public static void main(String[] args) throws Exception {
        Member member = new Member();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String text = line.trim();
            if (text.isEmpty()) {
                continue;
            }
            String[] words = text.split(" +");
            if (words[0].chars().allMatch(Character::isDigit) && words.length > 1) {
                long id = Long.parseLong(words[0]);
                String[] rest = Arrays.copyOfRange(words, 1, words.length);
                Thread runner = new Thread(() -> member.answer(id, rest), "command-" + id);
                runner.setDaemon(true);
                runner.start();
            } else {
                member.answer(null, words);
            }
        }
        // Whoever drove this member is gone.
        System.exit(0);
    }

    private static void say(Map<String, Object> object) {
        Json.say(OUT, object);
    }

    private void answer(Long id, String[] words) {
        Map<String, Object> answer = new LinkedHashMap<>();
        if (id != null) {
            answer.put("id", id);
        }
        try {
            answer.putAll(run(words));
        } catch (ArrayIndexOutOfBoundsException missing) {
            answer.put("error", "too few words: " + String.join(" ", words));
        } catch (Throwable error) {
            error.printStackTrace();
            answer.put("error", error.toString());
        }
        say(answer);
        if (words[0].equals("exit")) {
            System.exit(0);
        }
    }

    private Map<String, Object> run(String[] words) throws Exception {
        switch (words[0]) {
            case "connect":
                return connect(words);
            case "view":
                return view();
            case "send":
                return send(words);
            case "expect":
                return words[1].contains(":")
                    ? inbox().expectOfSite(words[1], Long.parseLong(words[2]), Long.parseLong(words[3]))
                    : inbox().expect(member(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
            case "order":
                return inbox().order();
            case "reset":
                inbox().reset();
                return Map.of();
            case "slow":
                inbox().pause(Long.parseLong(words[1]));
                return Map.of();
            case "state":
                return state(words);
            case "rpc":
                return rpc(words);
            case "counter":
                if (counters == null) {
                    counters = new Counters(channel);
                }
                return counters.run(words);
            case "fork":
                if (forks == null) {
                    forks = new Forks(channel);
                }
                return words[1].equals("send")
                    ? forks.send(words, words.length > 6 ? member(words[6]) : null)
                    : forks.run(words);
            case "sites":
                return sites.show();
            case "discard":
                faults.discard(Double.parseDouble(words[1]), Double.parseDouble(words[2]));
                return Map.of();
            case "shuffle":
                faults.shuffle(words[1].equals("on"));
                return Map.of();
            case "ignore":
                faults.ignore(words[1].equals("none") ? List.of() : members(words, 1));
                return Map.of();
            case "probe":
                return probe(Arrays.copyOfRange(words, 1, words.length));
            case "leave":
            case "exit":
                if (channel != null) {
                    channel.close();
                }
                return Map.of();
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    /** {@code connect NAME CLUSTER CONFIG [key=value…]}. */
    private Map<String, Object> connect(String[] words) throws Exception {
        for (int at = 4; at < words.length; at++) {
            int equals = words[at].indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("no key=value: " + words[at]);
            }
            System.setProperty(words[at].substring(0, equals), words[at].substring(equals + 1));
        }
        channel = new JChannel(words[3]).name(words[1]);
        inbox = new Inbox(Member::say) {
            @Override
            public void viewAccepted(View view) {
                synchronized (everSeen) {
                    everSeen.removeAll(view.getMembers());
                    everSeen.addAll(view.getMembers());
                }
                super.viewAccepted(view);
            }
        };
        dispatcher = new MessageDispatcher(channel, this::handle).setReceiver(inbox);
        inbox.setDispatcher(channel.getUpHandler());
        channel.setUpHandler(inbox);
        faults = new Faults(channel);
        sites = Sites.of(channel);
        channel.connect(words[2]);
        return view();
    }

    private Inbox inbox() {
        if (inbox == null) {
            throw new IllegalStateException("not connected");
        }
        return inbox;
    }

    private Map<String, Object> view() {
        View view = channel == null ? null : channel.getView();
        if (view == null) {
            return Json.object("view", null);
        }
        Map<String, Object> answer = Inbox.show(view);
        answer.put("address", channel.getAddressAsUUID());
        PhysicalAddress physical = (PhysicalAddress) channel.down(
            new Event(Event.GET_PHYSICAL_ADDRESS, channel.getAddress()));
        answer.put("physical_address", String.valueOf(physical));
        return answer;
    }

    /** The member of this name, of the current view or else the one that was seen last. */
    private Address member(String name) {
        Address found = null;
        synchronized (everSeen) {
            for (Address address : everSeen) {
                if (name.equals(Inbox.nameOf(address))) {
                    found = address;
                }
            }
        }
        if (found == null) {
            throw new IllegalArgumentException("no member " + name);
        }
        return found;
    }

    private List<Address> members(String[] words, int from) {
        List<Address> members = new ArrayList<>();
        for (int at = from; at < words.length; at++) {
            members.add(member(words[at]));
        }
        return members;
    }

    /** {@code send COUNT SIZE [to NAME|NAME:SITE | site SITE] [oob] [rsvp]}. */
    private Map<String, Object> send(String[] words) throws Exception {
        int count = Integer.parseInt(words[1]);
        int size = Integer.parseInt(words[2]);
        Address dest = null;
        List<Message.Flag> flags = new ArrayList<>();
        for (int at = 3; at < words.length; at++) {
            switch (words[at]) {
                case "to", "dest" -> dest =
                    words[++at].contains(":") ? inbox().senderOfSite(words[at]) : member(words[at]);
                case "site" -> dest = new SiteMaster(words[++at]);
                case "oob" -> flags.add(Message.Flag.OOB);
                case "rsvp" -> flags.add(Message.Flag.RSVP);
                default -> throw new IllegalArgumentException("no such option: " + words[at]);
            }
        }
        Message.Flag[] flagged = flags.toArray(Message.Flag[]::new);
        int run = ThreadLocalRandom.current().nextInt(1, Integer.MAX_VALUE);
        long start = System.nanoTime();
        for (int number = 0; number < count; number++) {
            channel.send(new BytesMessage(dest, new Numbered(number, run).bytes(size)).setFlag(flagged));
        }
        return Json.object("sent", count, "millis", (System.nanoTime() - start) / 1_000_000);
    }

    /** {@code state get | set TEXT | fill BYTES | fetch [NAME] [TIMEOUT]}. */
    private Map<String, Object> state(String[] words) throws Exception {
        switch (words[1]) {
            case "get" -> {
            }
            case "set" -> inbox().setState(words[2].getBytes(StandardCharsets.UTF_8));
            case "fill" -> inbox().setState(new Numbered(0, 1).bytes(Integer.parseInt(words[2])));
            case "fetch" -> {
                String last = words[words.length - 1];
                boolean isTimed = last.chars().allMatch(Character::isDigit);
                boolean isNamed = words.length > (isTimed ? 3 : 2);
                channel.getState(isNamed ? member(words[2]) : null, isTimed ? Long.parseLong(last) : 10_000);
            }
            default -> throw new IllegalArgumentException("no such command: state " + words[1]);
        }
        return inbox().showState();
    }

    /** A member, one of another site that has sent a message, or the master of a site: {@code NAME|NAME:SITE|@SITE}. */
    private Address called(String name) {
        if (name.startsWith("@")) {
            return new SiteMaster(name.substring(1));
        }
        return name.contains(":") ? inbox().senderOfSite(name) : member(name);
    }

    /** {@code rpc NAME|NAME:SITE|@SITE|all TEXT TIMEOUT [first|all|none] [oob]}. */
    private Map<String, Object> rpc(String[] words) throws Exception {
        RequestOptions options = new RequestOptions(ResponseMode.GET_ALL, Long.parseLong(words[3]));
        for (int at = 4; at < words.length; at++) {
            switch (words[at]) {
                case "first" -> options.setMode(ResponseMode.GET_FIRST);
                case "all" -> options.setMode(ResponseMode.GET_ALL);
                case "none" -> options.setMode(ResponseMode.GET_NONE);
                case "oob" -> options.setFlags(Message.Flag.OOB);
                default -> throw new IllegalArgumentException("no such option: " + words[at]);
            }
        }
        byte[] request = words[2].getBytes(StandardCharsets.UTF_8);
        Map<String, Object> answers = new LinkedHashMap<>();
        if (!words[1].equals("all")) {
            try {
                Object answer = dispatcher.sendMessage(new BytesMessage(called(words[1]), request), options);
                answers.put(words[1], text(answer));
            } catch (Exception error) {
                answers.put("exception", error.toString());
            }
            return answers;
        }
        RspList<Object> all = dispatcher.castMessage(null, new BytesMessage(null, request), options);
        if (all != null) {
            for (Map.Entry<Address, Rsp<Object>> entry : all.entrySet()) {
                answers.put(String.valueOf(entry.getKey()), outcome(entry.getValue()));
            }
        }
        return answers;
    }

    private static Object outcome(Rsp<Object> answer) {
        if (answer.hasException()) {
            return "exception " + answer.getException();
        }
        if (answer.wasReceived()) {
            return text(answer.getValue());
        }
        return answer.wasSuspected() ? "suspected" : answer.wasUnreachable() ? "unreachable" : null;
    }

    private static Object text(Object value) {
        return value instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : value;
    }

    /** Answers a request with its text and this member's name; "fail" fails. */
    private Object handle(Message request) {
        String text = new String(request.getArray(), request.getOffset(), request.getLength(), StandardCharsets.UTF_8);
        if (text.equals("fail")) {
            throw new IllegalStateException("requested failure");
        }
        return (text + "@" + channel.getName()).getBytes(StandardCharsets.UTF_8);
    }

    /** {@code probe ARGUMENT…}: JGroups' own tool with these arguments. */
    private static synchronized Map<String, Object> probe(String[] arguments) throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        try {
            Probe.main(arguments);
        } finally {
            System.setOut(OUT);
        }
        return Json.object("output", output.toString(StandardCharsets.UTF_8));
    }
}
