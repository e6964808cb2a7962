use consort_cache::StackCount;

use crate::catalog::caches::Caches;
use crate::http::exposition::{Exposition, Kind};

pub(crate) type StackMetric = (&'static str, StackCount, u64);

const fn family(count: StackCount) -> (Kind, &'static str, &'static str) {
    match count {
        StackCount::Suspicions => {
            (Kind::Counter, "consort_cluster_suspicions", "Times that a failure detector suspected a member.")
        }
        StackCount::ProvenCrashes => (
            Kind::Counter,
            "consort_cluster_proven_crashes",
            "Suspected members whose crash was proven by their closed ports, without a wait for the verification.",
        ),
        StackCount::Merges => {
            (Kind::Counter, "consort_cluster_merges", "Views that merged partitions of the cluster.")
        }
        StackCount::RetransmissionRequestsSent => (
            Kind::Counter,
            "consort_cluster_retransmission_requests_sent",
            "Requests of this server for messages that were missing.",
        ),
        StackCount::RetransmissionRequestsReceived => (
            Kind::Counter,
            "consort_cluster_retransmission_requests_received",
            "Requests of other members for messages that were missing.",
        ),
        StackCount::RetransmittedMessages => (
            Kind::Counter,
            "consort_cluster_retransmitted_messages",
            "Messages that this server sent again because another member asked for them.",
        ),
        StackCount::RejectedMessages => (
            Kind::Counter,
            "consort_cluster_rejected_messages",
            "Messages that were discarded because their sender lacks the cluster's key or may not join.",
        ),
        StackCount::CreditBlockings => (
            Kind::Counter,
            "consort_cluster_credit_blockings",
            "Times that messages began to wait for credits of receivers.",
        ),
        StackCount::CreditWaitingBytes => (
            Kind::Gauge,
            "consort_cluster_credit_waiting_bytes",
            "Bytes of messages that wait for credits of receivers.",
        ),
        StackCount::CreditOutstandingBytes => (
            Kind::Gauge,
            "consort_cluster_credit_outstanding_bytes",
            "Bytes that were sent and for which receivers have not given credits back.",
        ),
        StackCount::CreditRequestsSent => {
            (Kind::Counter, "consort_cluster_credit_requests_sent", "Requests of this server for credits.")
        }
        StackCount::CreditRequestsReceived => (
            Kind::Counter,
            "consort_cluster_credit_requests_received",
            "Requests of other members for credits.",
        ),
        StackCount::Routers => {
            (Kind::Gauge, "consort_cluster_routers", "Routers in the stack's file (TCPGOSSIP, TUNNEL).")
        }
        StackCount::RoutersConnected => (
            Kind::Gauge,
            "consort_cluster_routers_connected",
            "Routers to which this server is connected. With TUNNEL and none, it is cut off from all members.",
        ),
    }
}

/// The layers of a stack do not change. Without its response there are no values.
pub(super) fn append_stack(out: &mut Exposition, counts: &[StackMetric]) {
    for wanted in StackCount::ALL {
        let (kind, name, help) = family(wanted);
        out.family(kind, name, help);
        for (layer, _, value) in counts.iter().filter(|(_, count, _)| *count == wanted) {
            out.value(&[("protocol", layer)], value);
        }
    }
}

pub(super) fn append(out: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    if let Some(view) = manager.view() {
        let is_first = view.coordinator() == Some(manager.address());
        out.family(Kind::Gauge, "consort_cluster_members", "Members of the cluster.").value(&[], view.len());
        let help = "Members that have missed heartbeats and are not suspected yet.";
        out.family(Kind::Gauge, "consort_cluster_silent_members", help).value(&[], manager.silent().len());
        out.family(Kind::Gauge, "consort_cluster_view", "The view's number.").value(&[], view.id().id);
        out.family(
            Kind::Gauge,
            "consort_cluster_coordinator",
            "Whether this server is the cluster's coordinator.",
        )
        .value(&[], u8::from(is_first));
    }
    out.family(
        Kind::Gauge,
        "consort_cluster_operations_in_flight",
        "Operations of this server that have begun and wait for other members or for stores.",
    )
    .value(&[], manager.operation_count());
    let traffic = manager.traffic();
    for (name, help, value) in [
        ("consort_cluster_sent_messages", "Messages to other members.", traffic.messages_sent),
        ("consort_cluster_sent_bytes", "Bytes of messages to other members.", traffic.bytes_sent),
        ("consort_cluster_received_messages", "Messages from other members.", traffic.messages_received),
        ("consort_cluster_received_bytes", "Bytes of messages from other members.", traffic.bytes_received),
    ] {
        out.family(Kind::Counter, name, help).value(&[], value);
    }
    let load = manager.response_load();
    for (name, help, value) in [
        (
            "consort_cluster_response_waiting",
            "Operations that wait until other members may send more values.",
            load.waiting as u64,
        ),
        (
            "consort_cluster_response_reserved_bytes",
            "Bytes of values that other members may be sending to this one.",
            load.reserved_bytes,
        ),
        (
            "consort_cluster_response_held_bytes",
            "Bytes of reads of other members that wait here for room, without their values.",
            load.held_bytes as u64,
        ),
        (
            "consort_listeners_waiting_bytes",
            "Bytes of events that wait for listeners of this server, of all caches.",
            manager.waiting_event_bytes(),
        ),
    ] {
        out.family(Kind::Gauge, name, help).value(&[], value);
    }
    let unusual = manager.counters();
    out.family(
        Kind::Counter,
        "consort_cluster_unusual",
        "Commands of members that were not processed in the usual way.",
    );
    for (what, count) in [
        ("deferred", unusual.deferred),
        ("overflowed", unusual.overflowed),
        ("repeated", unusual.repeated),
        ("held", unusual.held),
        ("answered_once", unusual.answered_once),
        ("outdated", unusual.outdated),
        ("malformed", unusual.malformed),
        ("unknown", unusual.unknown),
        ("adopted", unusual.adopted),
        ("unsaved", unusual.unsaved),
    ] {
        out.value(&[("what", what)], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_of_the_stack_has_its_own_family_and_a_value_per_layer() {
        let mut out = Exposition::for_client("");
        let counts: Vec<StackMetric> =
            StackCount::ALL.iter().zip(1..).map(|(count, nth)| ("X", *count, nth)).collect();
        append_stack(&mut out, &counts);
        let out = out.finish();
        for (nth, count) in (1..).zip(StackCount::ALL) {
            let (kind, name, _) = family(count);
            let suffix = if kind == Kind::Counter { "_total" } else { "" };
            assert!(out.contains(&format!("\n{name}{suffix}{{protocol=\"X\"}} {nth}\n")), "{name}: {out}");
        }
    }
}
