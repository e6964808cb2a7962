//! The client's side: whom we watch, and the connection to it.

use std::collections::VecDeque;

use super::{ANSWER, Conn, FdSock2, RETRY};
use crate::{Address, ConnId, Cx, Effect, FdSock2Header, PhysAddr, Token};

/// How far the connection to the neighbour is.
pub(super) enum Link {
    /// There is nobody to watch, or the neighbour's address is not known yet.
    None,
    /// A connection attempt runs; these addresses are left to try.
    Connecting { token: Token, to: PhysAddr, left: VecDeque<PhysAddr> },
    /// The neighbour has been asked who it is.
    Asking { conn: ConnId, left: VecDeque<PhysAddr> },
    /// It has answered. When this connection breaks, it has crashed.
    Watching { conn: ConnId },
}

impl FdSock2 {
    /// The next member in the view that is not suspected, which is the one to watch.
    fn next_in_ring(&self, cx: &Cx<'_>) -> Option<Address> {
        let view = cx.view()?;
        let rank = view.rank(cx.local())?;
        let members = view.members();
        (1..members.len())
            .map(|step| &members[(rank + step) % members.len()])
            .find(|member| !self.suspects.contains(member))
            .cloned()
    }

    /// Watches whoever is next now.
    pub(super) fn follow_ring(&mut self, cx: &mut Cx<'_>) {
        if !self.is_connected || self.own.is_none() {
            return;
        }
        let next = self.next_in_ring(cx);
        if next == self.neighbour && !matches!(self.link, Link::None) {
            return;
        }
        self.let_go(cx);
        self.neighbour = next;
        let Some(neighbour) = &self.neighbour else { return };
        let Some(phys) = cx.shared().book.phys(neighbour) else {
            return cx.arm(RETRY, self.config.connect_timeout);
        };
        let candidates: VecDeque<PhysAddr> =
            self.ports(phys.port).into_iter().map(|port| PhysAddr { port, ..phys }).collect();
        // A connection that it has opened to us serves both.
        let open = self.conns.iter().find(|(_, conn)| candidates.contains(&conn.peer));
        match open.map(|(&conn, _)| conn) {
            Some(conn) => self.ask(cx, conn, candidates),
            None => self.try_next(cx, candidates),
        }
    }

    /// Ends the watch. A connection through which the peer watches us stays.
    fn let_go(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(ANSWER);
        if let Link::Asking { conn, .. } | Link::Watching { conn } =
            std::mem::replace(&mut self.link, Link::None)
            && self.conns.get(&conn).is_some_and(|known| !known.is_watched_by_peer)
        {
            self.conns.remove(&conn);
            cx.request(Effect::Close { conn, is_graceful: true });
        }
    }

    fn try_next(&mut self, cx: &mut Cx<'_>, mut left: VecDeque<PhysAddr>) {
        cx.disarm(ANSWER);
        let (Some(to), Some(own)) = (left.pop_front(), self.own) else {
            self.link = Link::None;
            if let Some(neighbour) = self.neighbour.take() {
                self.suspect(cx, neighbour);
                self.follow_ring(cx);
            }
            return;
        };
        let token = cx.request(Effect::Connect { to, own, timeout: self.config.connect_timeout });
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
                self.conns.insert(conn, Conn { peer: to, is_watched_by_peer: false });
                self.ask(cx, conn, left);
            }
            other => {
                self.link = other;
                cx.request(Effect::Close { conn, is_graceful: true });
            }
        }
    }

    /// Returns whether it was the attempt under way.
    pub(super) fn connect_failed(&mut self, cx: &mut Cx<'_>, token: Token) -> bool {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connecting { token: own, left, .. } if own == token => {
                self.try_next(cx, left);
                true
            }
            other => {
                self.link = other;
                false
            }
        }
    }

    /// Somebody has said who it is; `None` = of another cluster.
    pub(super) fn answered(&mut self, cx: &mut Cx<'_>, conn: ConnId, server: Option<Address>) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Asking { conn: own, left } if own == conn => {
                cx.disarm(ANSWER);
                if server.is_some() && server == self.neighbour {
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

    /// Closes a connection that leads to somebody else, unless that one watches us through it.
    fn abandon(&mut self, cx: &mut Cx<'_>, conn: ConnId) {
        if self.conns.get(&conn).is_some_and(|known| !known.is_watched_by_peer) {
            self.conns.remove(&conn);
            cx.request(Effect::Close { conn, is_graceful: true });
        }
    }

    pub(super) fn closed(&mut self, cx: &mut Cx<'_>, conn: ConnId) {
        let known = self.conns.remove(&conn);
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Watching { conn: own } if own == conn => {
                // Two connections that were opened at once become one; the other may be there already.
                let other = known.and_then(|known| {
                    self.conns.iter().find(|(_, other)| other.peer == known.peer).map(|(&conn, _)| conn)
                });
                match (other, self.neighbour.take()) {
                    (Some(other), neighbour) => {
                        self.neighbour = neighbour;
                        self.ask(cx, other, VecDeque::new());
                    }
                    (None, Some(neighbour)) => {
                        self.suspect(cx, neighbour);
                        self.follow_ring(cx);
                    }
                    (None, None) => {}
                }
            }
            Link::Asking { conn: own, left } if own == conn => {
                // The tie-break may have replaced it by a connection of the peer's.
                if let Some(known) = known
                    && let Some((&other, _)) = self.conns.iter().find(|(_, other)| other.peer == known.peer)
                {
                    return self.ask(cx, other, left);
                }
                self.try_next(cx, left);
            }
            other => self.link = other,
        }
    }
}
