//! The socket on which a layer accepts streams.

use crate::{Cx, Effect, PhysAddr, Token};

#[derive(Default)]
pub(super) enum StreamListener {
    #[default]
    Closed,
    Opening(Token),
    Open(PhysAddr),
}

impl StreamListener {
    pub(super) const fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    /// Whether this is the request whose outcome it waits for.
    pub(super) fn is_opening(&self, token: Token) -> bool {
        matches!(self, Self::Opening(own) if *own == token)
    }

    pub(super) const fn address(&self) -> Option<PhysAddr> {
        match self {
            Self::Open(own) => Some(*own),
            _ => None,
        }
    }

    /// 0: it does not listen.
    pub(super) fn port(&self) -> u16 {
        self.address().map_or(0, |own| own.port)
    }

    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::take(self).is_closed() {
            cx.request(Effect::CloseListener);
        }
    }
}
