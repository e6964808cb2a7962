package consort.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.jgroups.JChannel;
import org.jgroups.protocols.relay.RELAY;
import org.jgroups.protocols.relay.RELAY2;
import org.jgroups.protocols.relay.RELAY3;
import org.jgroups.protocols.relay.RouteStatusListener;

/** What a member hears of sites. */
final class Sites implements RouteStatusListener {
    private final RELAY relay;
    private final Set<String> up = new TreeSet<>();
    private final Set<String> unreachable = new TreeSet<>();

    /** {@code null} if the stack has neither RELAY2 nor RELAY3. */
    static Sites of(JChannel channel) {
        RELAY relay = channel.getProtocolStack().findProtocol(RELAY2.class);
        if (relay == null) {
            relay = channel.getProtocolStack().findProtocol(RELAY3.class);
        }
        return relay == null ? null : new Sites(relay);
    }

    private Sites(RELAY relay) {
        this.relay = relay;
        relay.setRouteStatusListener(this);
    }

    /** {@code sites}: whether the member is site master, the other sites that are up, and those that were unreachable. */
    synchronized Map<String, Object> show() {
        Set<String> sites = new TreeSet<>(up);
        List<String> routes = relay.getCurrentSites();
        if (routes != null) {
            sites.addAll(routes);
        }
        sites.remove(relay.site());
        return Json.object(
            "master", relay.isSiteMaster(),
            "sites", new ArrayList<>(sites),
            "unreachable", new ArrayList<>(unreachable));
    }

    @Override
    public synchronized void sitesUp(String... sites) {
        up.addAll(List.of(sites));
    }

    @Override
    public synchronized void sitesDown(String... sites) {
        List.of(sites).forEach(up::remove);
    }

    @Override
    public synchronized void sitesUnreachable(String... sites) {
        unreachable.addAll(List.of(sites));
    }
}
