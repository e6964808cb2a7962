package consort.bench;

import java.util.concurrent.TimeUnit;

import org.jgroups.Receiver;
import org.jgroups.View;

/** Hears of views, and lets others wait for one. */
class Views implements Receiver {
    private View last;

    @Override
    public synchronized void viewAccepted(View view) {
        last = view;
        notifyAll();
    }

    /** Waits for a view of this many members. */
    synchronized void await(int members, long millisMax) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millisMax);
        while (last == null || last.size() < members) {
            long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
            if (left <= 0) {
                throw new IllegalStateException("only " + last);
            }
            wait(left);
        }
    }
}
