//! Proofs of crashes: a suspect whose connection ended, and whose ports are closed, needs no further verification.
//!
//! The host of a dead process is well: it ends the process's streams and refuses connections to its ports. The member that
//! will make the next view needs all of this for a proof:
//!
//! * a connection of the suspect ended, FD_SOCK2's or the transport's here, or FD_SOCK2's at the member that suspects it,
//!   without a close in order and without a reset ([`super::super::ended_streams`]). A firewall that rejects packets sends
//!   resets, and a full queue of connections ends no connection;
//! * the transport's port, and the suspect's FD_SOCK2 port if it is certain, refuse some connections in a row. A live member,
//!   or another process on that port, goes on accepting; a silent host or network does not answer;
//! * no message of the suspect arrives meanwhile.
//!
//! Otherwise the verification above decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::FdSock2;
use crate::{Address, Answer, Cx, Effect, Event, PhysAddr, PortState, Query, Time, TimerKey, Token};

pub(super) const PROBE: TimerKey = TimerKey(5);

/// The time between two rounds of probes. Messages that the suspect had sent arrive meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// Messages of the suspect that still arrive begin the count again. The verification above ends at about this time.
const ROUNDS_MAX: u32 = 200;

/// A dying process closes its sockets one after the other, so that a port may accept when a connection has ended; on a busy
/// host for a second or more. The pauses between such rounds double up to [`OPEN_PAUSE_MAX`]. A port that still accepts after
/// so many rounds (3 s in total) is of a live process.
pub(super) const OPEN_ROUNDS_MAX: u32 = 22;

const OPEN_PAUSE_MAX: Duration = Duration::from_millis(160);

/// Further suspects at a time wait for the verification above.
const PROOFS_MAX: usize = 16;

struct Proof {
    ports: Vec<PhysAddr>,
    waiting: BTreeSet<Token>,
    next: Time,
    rounds: u32,
    /// The rounds in a row in which all ports refused.
    refused: u32,
    /// The rounds in which a port accepted.
    open: u32,
    is_open: bool,
    is_heard: bool,
}

#[derive(Default)]
pub(super) struct Proofs {
    running: BTreeMap<Address, Proof>,
    /// Members of the view whose crash is proven: further evidence proves nothing new.
    crashed: BTreeSet<Address>,
    proven: u64,
}

impl Proofs {
    pub(super) const fn proven(&self) -> u64 {
        self.proven
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// A message of the member arrived, which may have been sent before its end.
    pub(super) fn heard(&mut self, member: &Address) {
        if let Some(proof) = self.running.get_mut(member) {
            proof.is_heard = true;
            proof.refused = 0;
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Address) -> bool) {
        self.running.retain(|member, _| keep(member));
        self.crashed.retain(keep);
    }

    pub(super) fn clear(&mut self) {
        self.running.clear();
        self.crashed.clear();
    }
}

impl FdSock2 {
    /// Begins a proof of each suspect on which this member acts.
    pub(super) fn prove(&mut self, cx: &mut Cx<'_>) {
        if self.config.num_refused_probes == 0 {
            return;
        }
        for member in self.ring.acted_on(cx) {
            let Proofs { running, crashed, .. } = &self.proofs;
            if running.len() >= PROOFS_MAX || running.contains_key(&member) || crashed.contains(&member) {
                continue;
            }
            let Some(ended) = self.ring.ended.get(cx.now(), &member) else { continue };
            #[cfg(feature = "injected-bugs")]
            if cx.has_bug(crate::InjectedBug::ClosedIsProof) {
                self.proven(cx, member);
                continue;
            }
            let Some(ports) = self.ports_of(cx, &member, ended.listener) else { continue };
            let proof = Proof {
                ports,
                waiting: BTreeSet::new(),
                next: cx.now(),
                rounds: 0,
                refused: 0,
                open: 0,
                is_open: false,
                is_heard: false,
            };
            self.proofs.running.insert(member, proof);
        }
        self.probe_ports(cx);
    }

    /// `None`: not enough is known. Over TCP the transport's port is certain. Otherwise one of the ports beside it is the
    /// suspect's, so all of them have to refuse.
    fn ports_of(&self, cx: &Cx<'_>, member: &Address, listener: Option<PhysAddr>) -> Option<Vec<PhysAddr>> {
        let transport = cx.shared().book.phys(member)?;
        if cx.ask(&Query::HasTcpPort) == Some(Answer::Yes(true)) {
            return Some([transport].into_iter().chain(listener).collect());
        }
        Some(match listener {
            Some(listener) => vec![listener],
            None => {
                let ports = self.config.ports_beside(transport.port).into_iter();
                ports.map(|port| PhysAddr { port, ..transport }).collect()
            }
        })
    }

    pub(super) fn probe_ports(&mut self, cx: &mut Cx<'_>) {
        let (now, timeout) = (cx.now(), self.config.connect_timeout);
        for proof in self.proofs.running.values_mut() {
            if proof.waiting.is_empty() && proof.next <= now {
                proof.rounds += 1;
                (proof.is_heard, proof.is_open) = (false, false);
                let ports = proof.ports.iter();
                proof.waiting = ports.map(|&to| cx.request(Effect::ProbePort { to, timeout })).collect();
            }
        }
        self.arm_probe(cx);
    }

    fn arm_probe(&self, cx: &mut Cx<'_>) {
        let pausing = self.proofs.running.values().filter(|proof| proof.waiting.is_empty());
        match pausing.map(|proof| proof.next).min() {
            Some(at) => {
                let rest = at.since(cx.now());
                cx.arm(PROBE, rest);
            }
            None => cx.disarm(PROBE),
        }
    }

    pub(super) fn probed(&mut self, cx: &mut Cx<'_>, token: Token, state: PortState) {
        let needed = self.config.num_refused_probes;
        let mut running = self.proofs.running.iter_mut();
        let Some((member, proof)) = running.find(|(_, proof)| proof.waiting.contains(&token)) else { return };
        proof.waiting.remove(&token);
        let member = member.clone();
        proof.is_open |= state == PortState::Open;
        if !proof.waiting.is_empty() && state != PortState::Unknown {
            return;
        }
        let mut pause = PAUSE;
        if proof.is_open {
            proof.refused = 0;
            proof.open += 1;
            pause = OPEN_PAUSE_MAX.min(PAUSE * (1 << proof.open.min(8)));
        } else if !proof.is_heard {
            proof.refused += 1;
        }
        if state != PortState::Unknown && proof.refused >= needed {
            self.proven(cx, member);
        } else if state == PortState::Unknown || proof.open >= OPEN_ROUNDS_MAX || proof.rounds >= ROUNDS_MAX {
            tracing::debug!(member = %cx.shared().book.member(&member), ?state, "no proof of a crash");
            self.end_proof(cx, &member);
        } else {
            proof.next = cx.now() + pause;
            self.arm_probe(cx);
        }
    }

    fn proven(&mut self, cx: &mut Cx<'_>, member: Address) {
        self.proofs.proven += 1;
        self.proofs.crashed.insert(member.clone());
        self.end_proof(cx, &member);
        let name = cx.shared().book.member(&member);
        tracing::info!(member = %name, "the member has crashed: its connection ended, and its host refuses its ports");
        cx.lower(Event::Crashed(vec![member.clone()]));
        cx.raise(Event::Crashed(vec![member]));
    }

    /// A repeated suspicion does not begin the proof again.
    fn end_proof(&mut self, cx: &mut Cx<'_>, member: &Address) {
        self.proofs.running.remove(member);
        self.ring.ended.forget(member);
        self.arm_probe(cx);
    }
}
