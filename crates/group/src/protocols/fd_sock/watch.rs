//! The neighbour that this member watches, and the connection to it.

use std::time::Duration;

use super::{FdSock, LOOK_UP, close, close_gracefully, header};
use crate::protocols::socket_ring::RETRY;
use crate::{Address, ConnId, Cx, Effect, FdSockHeader, PhysAddr, Token};

/// The time to wait for a response with the address of the neighbour's server socket.
const LOOK_UP_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause after a look-up without a response.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) enum Link {
    /// There is no neighbour, or a pause.
    #[default]
    None,
    /// The neighbour was asked for the address of its server socket; afterwards all members are.
    LookingUp {
        is_multicast: bool,
    },
    Connecting {
        token: Token,
    },
    /// The end of this connection is a crash.
    Watching {
        conn: ConnId,
    },
}

#[derive(Default)]
pub(super) struct Watch {
    neighbour: Option<Address>,
    link: Link,
}

impl Watch {
    pub(super) const fn neighbour(&self) -> Option<&Address> {
        self.neighbour.as_ref()
    }

    pub(super) const fn is_watching(&self) -> bool {
        matches!(self.link, Link::Watching { .. })
    }
}

impl FdSock {
    pub(super) fn follow_ring(&mut self, cx: &mut Cx<'_>) {
        if !self.is_connected || self.own.is_none() || cx.is_armed(super::CACHE) {
            return;
        }
        let next = self.ring.next(cx);
        if next == self.watch.neighbour && !matches!(self.watch.link, Link::None) {
            return;
        }
        self.stop_watching(cx);
        self.watch.neighbour = next;
        let Some(neighbour) = self.watch.neighbour.clone() else { return };
        if self.ring.is_pausing(cx, &neighbour) {
            return;
        }
        match self.addresses.get(&neighbour) {
            Some(address) => self.connect(cx, address),
            None => {
                self.send(cx, &neighbour, FdSockHeader::WhoHasSock(neighbour.clone()));
                self.watch.link = Link::LookingUp { is_multicast: false };
                cx.arm(LOOK_UP, LOOK_UP_TIMEOUT);
            }
        }
    }

    pub(super) fn stop_watching(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(LOOK_UP);
        if let Link::Watching { conn } = std::mem::take(&mut self.watch.link) {
            close_gracefully(cx, conn);
        }
    }

    fn connect(&mut self, cx: &mut Cx<'_>, to: PhysAddr) {
        cx.disarm(LOOK_UP);
        let (timeout, options) = (self.config.sock_conn_timeout, self.config.options());
        let token = cx.request(Effect::ConnectStream { to, timeout, options });
        self.watch.link = Link::Connecting { token };
    }

    pub(super) fn address_learned(&mut self, cx: &mut Cx<'_>) {
        let address = self.watch.neighbour.as_ref().and_then(|neighbour| self.addresses.get(neighbour));
        if let (Link::LookingUp { .. }, Some(address)) = (&self.watch.link, address) {
            self.connect(cx, address);
        }
    }

    pub(super) fn address_missing(&mut self, cx: &mut Cx<'_>) {
        let Some(neighbour) = self.watch.neighbour.clone() else { return };
        match self.watch.link {
            Link::LookingUp { is_multicast: false } => {
                self.ring.multicast(cx, header(FdSockHeader::WhoHasSock(neighbour)));
                self.watch.link = Link::LookingUp { is_multicast: true };
                cx.arm(LOOK_UP, LOOK_UP_TIMEOUT);
            }
            Link::LookingUp { is_multicast: true } => {
                self.watch.link = Link::None;
                cx.arm(RETRY, LOOK_UP_PAUSE);
            }
            _ => {}
        }
    }

    pub(super) fn connected(&mut self, cx: &mut Cx<'_>, token: Token, conn: ConnId) {
        match self.watch.link {
            Link::Connecting { token: own } if own == token => self.watch.link = Link::Watching { conn },
            _ => close_gracefully(cx, conn),
        }
    }

    pub(super) fn connect_failed(&mut self, cx: &mut Cx<'_>, token: Token) {
        match self.watch.link {
            Link::Connecting { token: own } if own == token => {}
            _ => return,
        }
        self.watch.link = Link::None;
        let Some(neighbour) = self.watch.neighbour.take() else { return };
        // If it turns out to be alive, the next attempt waits, because it would fail as fast as this one. Its server
        // socket may have another address by then.
        self.ring.pause(cx, neighbour.clone(), self.config.sock_conn_timeout);
        self.addresses.forget(&neighbour);
        self.ring.suspect(cx, neighbour);
        self.follow_ring(cx);
    }

    /// After a graceful end the view decides.
    pub(super) fn neighbour_leaves(&mut self, cx: &mut Cx<'_>, conn: ConnId) {
        if !self.is_watched_through(conn) {
            return;
        }
        self.watch.link = Link::None;
        close(cx, conn);
        if let Some(neighbour) = self.watch.neighbour.clone() {
            self.ring.pause(cx, neighbour, self.config.sock_conn_timeout);
        }
    }

    pub(super) fn neighbour_crashed(&mut self, cx: &mut Cx<'_>, conn: ConnId) {
        if !self.is_watched_through(conn) {
            return;
        }
        self.watch.link = Link::None;
        if let Some(neighbour) = self.watch.neighbour.take() {
            self.ring.suspect(cx, neighbour);
            self.follow_ring(cx);
        }
    }

    fn is_watched_through(&self, conn: ConnId) -> bool {
        matches!(self.watch.link, Link::Watching { conn: own } if own == conn)
    }
}
