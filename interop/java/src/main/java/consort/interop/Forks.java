package consort.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.fork.ForkChannel;

/** Fork channels, driven by lines. Each keeps the texts that it receives. */
final class Forks {
    private final JChannel channel;
    private final Map<String, Fork> forks = new LinkedHashMap<>();

    Forks(JChannel channel) {
        this.channel = channel;
    }

    /** {@code fork open STACK CHANNEL | view STACK CHANNEL | expect STACK CHANNEL COUNT TIMEOUT_MS | close STACK CHANNEL}. */
    Map<String, Object> run(String[] words) throws Exception {
        String id = words[2] + ":" + words[3];
        switch (words[1]) {
            case "open":
                forks.put(id, new Fork(new ForkChannel(channel, words[2], words[3])));
                return Map.of();
            case "view":
                return Json.object("view", forks.get(id).channel.getView().toString());
            case "expect":
                return Json.object("texts", forks.get(id).expect(Integer.parseInt(words[4]), Long.parseLong(words[5])));
            case "close":
                forks.remove(id).channel.close();
                return Map.of();
            default:
                throw new IllegalArgumentException("no such command: fork " + words[1]);
        }
    }

    /** {@code fork send STACK CHANNEL TEXT [to NAME]}. */
    Map<String, Object> send(String[] words, Address dest) throws Exception {
        byte[] text = words[4].getBytes(StandardCharsets.UTF_8);
        forks.get(words[2] + ":" + words[3]).channel.send(new BytesMessage(dest, text));
        return Map.of();
    }

    private static final class Fork implements Receiver {
        private final ForkChannel channel;
        private final List<String> texts = new ArrayList<>();

        Fork(ForkChannel channel) throws Exception {
            this.channel = channel;
            channel.setReceiver(this);
            channel.connect("ignored");
        }

        @Override
        public synchronized void receive(Message message) {
            String text = new String(message.getArray(), message.getOffset(), message.getLength(), StandardCharsets.UTF_8);
            texts.add(text + "@" + message.getSrc());
            notifyAll();
        }

        synchronized List<String> expect(int count, long millis) throws InterruptedException {
            long end = System.nanoTime() + millis * 1_000_000;
            for (long left = millis; texts.size() < count && left > 0; left = (end - System.nanoTime()) / 1_000_000) {
                wait(left);
            }
            return new ArrayList<>(texts);
        }
    }
}
