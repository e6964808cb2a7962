//! The neighbour that this member watches, and the connection to it.

use std::collections::VecDeque;
use std::time::Duration;

use super::{ANSWER, Conn, Ending, FdSock2};
use crate::protocols::socket_ring::RETRY;
use crate::{Address, ConnId, Cx, Effect, FdSock2Header, PhysAddr, Token};

/// Two members that connect to each other at once keep one connection: the other one ends in order, perhaps before the
/// kept one is known here. After this time it is.
pub(super) const REPLACED_PAUSE: Duration = Duration::from_millis(100);

/// A process that only ends connections in order is watched no longer than so.
pub(super) const REPLACED_MAX: u32 = 10;

pub(super) enum Link {
    /// There is no neighbour, or a pause.
    None,
    /// `left` has the addresses to try next.
    Connecting { token: Token, to: PhysAddr, left: VecDeque<PhysAddr> },
    /// The neighbour was asked for its identity.
    Asking { conn: ConnId, left: VecDeque<PhysAddr> },
    /// A break of this connection is a crash.
    Watching { conn: ConnId },
}

impl FdSock2 {
    pub(super) fn follow_ring(&mut self, cx: &mut Cx<'_>) {
        if !self.is_connected || self.own.is_none() {
            return;
        }
        let next = self.ring.next(cx);
        if next == self.neighbour && !matches!(self.link, Link::None) {
            return;
        }
        self.stop_watching(cx);
        self.neighbour = next;
        let Some(neighbour) = &self.neighbour else { return };
        if self.ring.is_pausing(cx, neighbour) {
            return;
        }
        let Some(phys) = cx.shared().book.phys(neighbour) else {
            return cx.arm(RETRY, self.config.connect_timeout);
        };
        // Members on one host have adjacent ports, one of which is this member's own.
        let candidates = self
            .config
            .ports_beside(phys.port)
            .into_iter()
            .map(|port| PhysAddr { port, ..phys })
            .filter(|candidate| Some(*candidate) != self.own)
            .collect();
        self.try_next(cx, candidates);
    }

    fn open_to(&self, peer: PhysAddr) -> Option<ConnId> {
        self.conns.iter().find(|(_, conn)| conn.peer == peer).map(|(&conn, _)| conn)
    }

    /// The connection stays open if the peer monitors this member through it.
    fn stop_watching(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(ANSWER);
        if let Link::Asking { conn, .. } | Link::Watching { conn } =
            std::mem::replace(&mut self.link, Link::None)
        {
            self.abandon(cx, conn);
        }
    }

    fn try_next(&mut self, cx: &mut Cx<'_>, mut left: VecDeque<PhysAddr>) {
        cx.disarm(ANSWER);
        let (Some(to), Some(own)) = (left.pop_front(), self.own) else {
            self.link = Link::None;
            if let Some(neighbour) = self.neighbour.take() {
                // If it turns out to be alive, the next attempt waits, because it would fail as fast as this
                // one.
                self.ring.pause(cx, neighbour.clone(), self.config.connect_timeout);
                self.replaced = 0;
                self.ring.suspect(cx, neighbour);
                self.follow_ring(cx);
            }
            return;
        };
        if let Some(conn) = self.open_to(to) {
            return self.ask(cx, conn, left);
        }
        let token = cx.request(Effect::Connect {
            to,
            own: Some(own),
            timeout: self.config.connect_timeout,
            name: None,
        });
        self.link = Link::Connecting { token, to, left };
    }

    fn ask(&mut self, cx: &mut Cx<'_>, conn: ConnId, left: VecDeque<PhysAddr>) {
        let Some(neighbour) = self.neighbour.clone() else { return };
        self.write(cx, conn, FdSock2Header::Connect(neighbour));
        self.link = Link::Asking { conn, left };
        cx.arm(ANSWER, self.config.connect_timeout);
    }

    pub(super) fn connected(&mut self, cx: &mut Cx<'_>, token: Token, conn: ConnId) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connecting { token: own, to, left } if own == token => {
                self.conns.insert(
                    conn,
                    Conn { peer: to, is_outgoing: true, is_watched_by_peer: false, member: None },
                );
                self.ask(cx, conn, left);
            }
            other => {
                self.link = other;
                cx.request(Effect::Close { conn, is_graceful: true });
            }
        }
    }

    pub(super) fn connect_failed(&mut self, cx: &mut Cx<'_>, token: Token) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connecting { token: own, to, left } if own == token => match self.open_to(to) {
                // The peer connected first: its connection serves both.
                Some(conn) => self.ask(cx, conn, left),
                None => self.try_next(cx, left),
            },
            other => self.link = other,
        }
    }

    /// `None` is a member of another cluster.
    pub(super) fn answered(&mut self, cx: &mut Cx<'_>, conn: ConnId, server: Option<Address>) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Asking { conn: own, left } if own == conn => {
                cx.disarm(ANSWER);
                if server.is_some() && server == self.neighbour {
                    self.replaced = 0;
                    self.link = Link::Watching { conn };
                } else {
                    self.abandon(cx, conn);
                    self.try_next(cx, left);
                }
            }
            other => self.link = other,
        }
    }

    pub(super) fn no_answer(&mut self, cx: &mut Cx<'_>) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Asking { conn, left } => {
                self.abandon(cx, conn);
                self.try_next(cx, left);
            }
            other => self.link = other,
        }
    }

    fn abandon(&mut self, cx: &mut Cx<'_>, conn: ConnId) {
        if self.conns.get(&conn).is_some_and(|known| known.is_outgoing && !known.is_watched_by_peer) {
            self.conns.remove(&conn);
            cx.request(Effect::Close { conn, is_graceful: true });
        }
    }

    /// After a graceful close the view decides.
    pub(super) fn closed(&mut self, cx: &mut Cx<'_>, conn: ConnId, ending: Ending) {
        let known = self.conns.remove(&conn);
        // Two connections opened at the same time are merged into the other one.
        let other = known.as_ref().and_then(|known| self.open_to(known.peer));
        #[cfg(feature = "injected-bugs")]
        let ending =
            if ending == Ending::Broken && takes_reset_for_end(cx) { Ending::EndOfStream } else { ending };
        if let (Some(known), Ending::EndOfStream) = (known, ending) {
            self.note_ended(cx, known, other);
        }
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Watching { conn: own } if own == conn => {
                if let Some(other) = other {
                    return self.ask(cx, other, VecDeque::new());
                }
                let Some(neighbour) = self.neighbour.take() else { return };
                if ending == Ending::InOrder {
                    self.ring.pause(cx, neighbour.clone(), self.config.connect_timeout);
                    self.neighbour = Some(neighbour);
                } else {
                    self.ring.suspect(cx, neighbour);
                    self.follow_ring(cx);
                }
            }
            Link::Asking { conn: own, left } if own == conn => match other {
                Some(other) => self.ask(cx, other, left),
                None if ending == Ending::InOrder && self.replaced < REPLACED_MAX => {
                    self.replaced += 1;
                    cx.disarm(ANSWER);
                    if let Some(neighbour) = self.neighbour.clone() {
                        self.ring.pause(cx, neighbour, REPLACED_PAUSE);
                    }
                }
                None => self.try_next(cx, left),
            },
            other => self.link = other,
        }
    }

    /// Of several connections one may not have named its member yet.
    fn note_ended(&mut self, cx: &Cx<'_>, conn: Conn, other: Option<ConnId>) {
        let named_on_other = || self.conns.get(&other?)?.member.clone();
        let Some(member) = conn.member.or_else(named_on_other) else { return };
        let is_member = cx.view().is_some_and(|view| view.contains(&member));
        if is_member && !cx.is_local(&member) {
            // The address of an accepted connection is the peer's own word.
            let listener = conn.is_outgoing.then_some(conn.peer);
            self.ring.ended.note(cx.now(), member, listener);
        }
    }
}

#[cfg(feature = "injected-bugs")]
fn takes_reset_for_end(cx: &Cx<'_>) -> bool {
    use crate::InjectedBug::{ClosedIsProof, ResetForEnd};
    cx.has_bug(ResetForEnd) || cx.has_bug(ClosedIsProof)
}
