//! Whole stacks: three members form a cluster, a fourth that knows their traffic sends them forged packets, and the cluster has
//! to heal.
//!
//! An input is a round of records: five bytes (kind, members, time until the next, and two of length) and the bytes of the
//! packet. Every round begins with the same cluster, byte for byte, so that one round's recorded traffic has a meaning in all.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use consort_group::config::StackConfig;
use consort_group::{Event, Flags, Rng, wire};

use crate::cluster::{Cluster, Passed, Sent, Way, stock};
use crate::mutate::{Shape, mutated};
use crate::seen::Seen;

/// More packets would lead to the same end.
pub(crate) const PACKETS: u64 = 256;

const MEMBERS: usize = 3;

/// The response to one packet; a request for retransmission may name a whole window.
const SENT_AT_ONCE: Sent = Sent { packets: 64, bytes: 256 * 1024 };

/// The growth of all members together: bounded tables of unknown members, windows with incomplete messages, and
/// own messages.
const GROWTH_MAX: u64 = 4 * 1024 * 1024;

/// A view with members that do not exist takes several timeouts of failure detection.
const HEALS_WITHIN: Duration = Duration::from_secs(200);

const FRESH: usize = 3;

struct Stage {
    config: StackConfig,
    traffic: Vec<Passed>,
    payloads: Vec<Vec<u8>>,
}

impl Stage {
    fn new(config: StackConfig) -> Self {
        let traffic = record(&config);
        let payloads = traffic.iter().map(|passed| passed.bytes.to_vec()).collect();
        Self { config, traffic, payloads }
    }
}

fn joined(config: &StackConfig) -> Cluster {
    let mut cluster = Cluster::new(config.clone());
    for _ in 0..MEMBERS {
        cluster.start();
        cluster.run_for(Duration::from_secs(4));
    }
    for member in &cluster.members {
        assert_eq!(member.view.as_ref().map(|view| view.len()), Some(MEMBERS), "the cluster is whole before");
    }
    cluster
}

/// Joins, messages of all kinds, loss, state transfer, a crash, a partition that ends, and a leave; each message once.
fn record(config: &StackConfig) -> Vec<Passed> {
    let mut cluster = Cluster::new(config.clone());
    cluster.tap = Some(Vec::new());
    let second = Duration::from_secs(1);
    for _ in 0..MEMBERS {
        cluster.start();
        cluster.run_for(4 * second);
    }
    for round in 0..6 {
        for from in 0..MEMBERS {
            cluster.send(from, None, 40 + round, Flags::default());
            cluster.send(from, Some((from + 1) % MEMBERS), 60, Flags::default());
            cluster.send(from, None, 10, Flags::RSVP);
            cluster.send(from, Some((from + 2) % MEMBERS), 10, Flags::OOB);
        }
        // Lost packets cause requests for them, and responses.
        cluster.cuts.insert((round % 3, (round + 1) % 3));
        cluster.run_for(Duration::from_millis(20));
        cluster.cuts.clear();
        cluster.run_for(second);
    }
    cluster.send(1, None, 130_000, Flags::default());
    cluster.send(2, Some(0), 70_000, Flags::default());
    cluster.act(2, |stack, now| {
        stack.handle_event(now, Event::GetState { target: None, timeout: Duration::from_secs(2) });
    });
    cluster.run_for(5 * second);
    let fourth = cluster.start();
    cluster.run_for(4 * second);
    cluster.crash(fourth);
    cluster.run_for(15 * second);
    for far in 1..MEMBERS {
        cluster.cuts.extend([(0, far), (far, 0)]);
    }
    cluster.run_for(25 * second);
    cluster.send(0, None, 30, Flags::default());
    cluster.cuts.clear();
    cluster.run_for(25 * second);
    cluster.act(2, |stack, now| stack.handle_disconnect(now));
    cluster.run_for(5 * second);
    let mut seen = BTreeSet::new();
    let all = cluster.tap.take().unwrap_or_default();
    all.into_iter()
        .filter(|passed| passed.bytes.len() <= 8_000)
        .filter(|passed| seen.insert((passed.way, passed.to, passed.bytes.clone())))
        .collect()
}

enum Step {
    Inject(Passed),
    /// Multicast, unicast, message with acknowledgement, or state transfer.
    Act {
        node: usize,
        what: u8,
    },
}

const HEAD: usize = 5;

fn steps(mut rest: &[u8]) -> impl Iterator<Item = (Step, Duration)> {
    std::iter::from_fn(move || {
        let &[what, who, gap, high, low] = rest.first_chunk::<HEAD>()?;
        let length = usize::from(u16::from_be_bytes([high, low])).min(rest.len() - HEAD);
        let (bytes, later) = rest[HEAD..].split_at(length);
        rest = later;
        let to = usize::from(who & 15) % MEMBERS;
        // Number 3 is a member that is not there yet, number 4 no member.
        let from = usize::from(who >> 4) % 5;
        let step = match what % 8 {
            5 => Step::Inject(Passed { way: Way::Frame, from, to, bytes: Bytes::copy_from_slice(bytes) }),
            6 => Step::Inject(Passed { way: Way::Datagram, from, to, bytes: Bytes::copy_from_slice(bytes) }),
            7 => Step::Act { node: to, what: (who >> 4) % 4 },
            _ => Step::Inject(Passed { way: Way::Packet, from, to, bytes: Bytes::copy_from_slice(bytes) }),
        };
        let gap = u64::from(gap);
        Some((step, Duration::from_millis(gap * gap / 64)))
    })
}

fn put_step(out: &mut Vec<u8>, what: u8, who: u8, gap: u8, bytes: &[u8]) {
    out.extend([what, who, gap]);
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

pub(crate) fn records(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(head) = rest.first_chunk::<HEAD>() {
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let (record, later) = rest.split_at((HEAD + length).min(rest.len()));
        all.push(record.to_vec());
        rest = later;
    }
    all
}

pub(crate) fn round(name: &str, rng: &mut Rng) -> Vec<u8> {
    let stage = stage(name);
    let mut out = Vec::new();
    for _ in 0..PACKETS {
        // Mostly the next packet comes at once, sometimes timers fire in between.
        let gap = if rng.chance(0.7) { rng.below(20) } else { rng.below(256) } as u8;
        if rng.chance(0.05) {
            put_step(&mut out, 7, rng.next_u64() as u8, gap, &[]);
        }
        let original = &stage.traffic[rng.below(stage.traffic.len() as u64) as usize];
        let bytes = match rng.below(10) {
            0 | 1 => original.bytes.to_vec(),
            2 => mutated(rng, &stage.payloads, Shape::Bytes),
            _ => {
                let one = [
                    original.bytes.to_vec(),
                    stage.payloads[rng.below(stage.payloads.len() as u64) as usize].clone(),
                ];
                mutated(rng, &one, Shape::Bytes)
            }
        };
        let what = match original.way {
            Way::Packet => 0,
            Way::Frame => 5,
            Way::Datagram => 6,
        };
        let (to, from) = if rng.chance(0.9) {
            (original.to, original.from)
        } else {
            (rng.below(3) as usize, rng.below(5) as usize)
        };
        put_step(
            &mut out,
            what,
            ((from as u8) << 4) | (to % MEMBERS) as u8,
            gap,
            &bytes[..bytes.len().min(16_000)],
        );
    }
    out
}

fn play(stage: &Stage, bytes: &[u8]) -> Seen {
    let mut cluster = joined(&stage.config);
    let mut seen = Seen::default();
    let used = allocation_counter::measure(|| {
        for (step, gap) in steps(bytes) {
            match step {
                Step::Inject(passed) => {
                    seen.given += 1;
                    seen.accepted += u64::from(is_decoded(&passed));
                    let before = cluster.members[passed.to].sent;
                    cluster.arrive(&passed);
                    check_answers(before, cluster.members[passed.to].sent);
                }
                Step::Act { node, what } => act(&mut cluster, node, what),
            }
            cluster.run_for(gap);
        }
    });
    seen.peak = used.bytes_max;
    assert!(used.bytes_max <= GROWTH_MAX, "{} bytes more than before, at most {GROWTH_MAX}", used.bytes_max);
    for member in &cluster.members {
        assert!(
            member.stack.queued_bytes(None) <= GROWTH_MAX,
            "{} bytes are held",
            member.stack.queued_bytes(None)
        );
    }
    seen.apart = u64::from(!heal(&mut cluster));
    seen
}

fn is_decoded(passed: &Passed) -> bool {
    match passed.way {
        Way::Packet => wire::decode_packet(&passed.bytes, &[]).is_ok(),
        Way::Frame => wire::decode_body(2, &passed.bytes).is_ok(),
        Way::Datagram => wire::decode_body(0, &passed.bytes).is_ok(),
    }
}

fn check_answers(before: Sent, after: Sent) {
    let (packets, bytes) = (after.packets - before.packets, after.bytes - before.bytes);
    assert!(
        packets <= SENT_AT_ONCE.packets && bytes <= SENT_AT_ONCE.bytes,
        "one packet made a member send {packets} packets with {bytes} bytes, at most {SENT_AT_ONCE:?}"
    );
}

fn act(cluster: &mut Cluster, node: usize, what: u8) {
    match what {
        0 => cluster.send(node, None, 200, Flags::default()),
        1 => cluster.send(node, Some((node + 1) % MEMBERS), 200, Flags::default()),
        2 => cluster.send(node, None, 20, Flags::RSVP),
        _ => cluster.act(node, |stack, now| {
            stack.handle_event(now, Event::GetState { target: None, timeout: Duration::from_secs(2) });
        }),
    }
}

/// Members without forged packets join, and all remaining members receive their messages. More than one joins, because a forged
/// view may have the next real one's number: a member that has it waits for the view after that.
///
/// Returns false if members keep different views of one number. Only a view in the coordinator's name that it never made causes
/// that, as in JGroups: no number reveals it to either partition. Then the new member and those with its view have to be well.
fn heal(cluster: &mut Cluster) -> bool {
    for _ in 0..FRESH {
        let fresh = cluster.start_fresh();
        let end = cluster.now + HEALS_WITHIN;
        while cluster.now < end {
            cluster.run_for(Duration::from_secs(2));
            let with_it = sharing_view_of(cluster, fresh);
            let alive = cluster.members.iter().filter(|member| !member.is_gone).count();
            if with_it.len() == alive && is_heard(cluster, fresh, &with_it) {
                return true;
            }
        }
    }
    let fresh = cluster.members.len() - 1;
    let with_it = sharing_view_of(cluster, fresh);
    if is_forked(cluster) && with_it.iter().any(|&node| node < MEMBERS) && is_heard(cluster, fresh, &with_it)
    {
        return false;
    }
    let members = cluster.members.iter().map(|member| {
        format!("{} gone {}: {:?}\n  got {:?}", member.address, member.is_gone, member.view, member.got)
    });
    panic!("the cluster is not well:\n{}", members.collect::<Vec<_>>().join("\n"));
}

fn sharing_view_of(cluster: &Cluster, node: usize) -> Vec<usize> {
    let Some(view) = &cluster.members[node].view else { return Vec::new() };
    let sharing: Vec<usize> = (0..cluster.members.len())
        .filter(|&other| {
            !cluster.members[other].is_gone && cluster.members[other].view.as_ref() == Some(view)
        })
        .collect();
    let is_whole = sharing.len() == view.len()
        && sharing.iter().all(|&other| view.contains(&cluster.members[other].address));
    if is_whole || is_forked(cluster) { sharing } else { Vec::new() }
}

fn is_forked(cluster: &Cluster) -> bool {
    let views =
        || cluster.members.iter().filter(|member| !member.is_gone).filter_map(|member| member.view.as_ref());
    views().any(|one| views().any(|other| one.id() == other.id() && one.members() != other.members()))
}

fn is_heard(cluster: &mut Cluster, fresh: usize, all: &[usize]) -> bool {
    let own = cluster.members[fresh].address.clone();
    let got = |cluster: &Cluster, node: usize| cluster.members[node].got.get(&own).copied().unwrap_or(0);
    let before: Vec<(usize, u64)> =
        all.iter().filter(|&&node| node != fresh).map(|&node| (node, got(cluster, node))).collect();
    cluster.send(fresh, None, 16, Flags::default());
    for (other, _) in &before {
        cluster.send(fresh, Some(*other), 16, Flags::default());
    }
    cluster.run_for(Duration::from_secs(5));
    before.into_iter().all(|(node, before)| got(cluster, node) >= before + 2)
}

type Named = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const STAGES: [Named; 4] = [
    ("stack-tcp", "tcp.xml", &[]),
    ("stack-udp", "udp.xml", &[]),
    ("stack-tcp-new", "tcp-new.xml", &[("TCPPING", "MPING"), ("BARRIER", "RSVP")]),
    ("stack-sequencer", "sequencer.xml", &[]),
];

fn stage(name: &str) -> &'static Stage {
    static MADE: [OnceLock<Stage>; 4] = [const { OnceLock::new() }; 4];
    let Some(nth) = STAGES.iter().position(|(own, _, _)| *own == name) else { panic!("no stack {name}") };
    let (_, file, changes) = STAGES[nth];
    MADE[nth].get_or_init(|| Stage::new(stock(file, changes)))
}

pub(crate) fn tcp(bytes: &[u8]) -> Seen {
    play(stage("stack-tcp"), bytes)
}

pub(crate) fn udp(bytes: &[u8]) -> Seen {
    play(stage("stack-udp"), bytes)
}

pub(crate) fn tcp_new(bytes: &[u8]) -> Seen {
    play(stage("stack-tcp-new"), bytes)
}

pub(crate) fn sequencer(bytes: &[u8]) -> Seen {
    play(stage("stack-sequencer"), bytes)
}

/// Rounds are made of recorded traffic.
pub(crate) fn none() -> Vec<Vec<u8>> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_traffic_has_everything_in_it() {
        let traffic = &stage("stack-tcp").traffic;
        assert!(traffic.len() > 300, "{}", traffic.len());
        assert!(traffic.iter().any(|passed| passed.way == Way::Frame));
        assert!(traffic.iter().all(is_decoded));
        assert!(stage("stack-tcp-new").traffic.iter().any(|passed| passed.way == Way::Datagram));
    }

    #[test]
    fn a_cluster_that_nobody_lies_to_stays_well() {
        for (name, _, _) in STAGES {
            let mut quiet = Vec::new();
            for who in 0u8..60 {
                put_step(&mut quiet, 7, (who << 4) | (who % 3), 60, &[]);
            }
            let seen = play(stage(name), &quiet);
            assert_eq!(seen.given, 0);
        }
    }
}
