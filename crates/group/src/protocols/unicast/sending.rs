use std::collections::btree_map::Entry;

use super::{SendConnection, Unicast, UnicastKind, is_numbered};
use crate::retransmission::{WaitingMessages, requested_seqnos};
use crate::window::SendWindow;
use crate::{Address, Cx, Message, MessageBatch, UnicastHeader};

impl Unicast {
    pub(super) fn send_batch(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let (kind, is_fixed, capacity) = (self.kind, self.is_fixed(), self.capacity());
        let mut messages = std::mem::take(&mut batch.messages);
        messages.retain_mut(|message| {
            let Some(dest) = message.dest.clone().filter(|_| is_numbered(cx, message)) else { return true };
            let connection = self.connection(cx, &dest);
            if is_fixed && (!connection.waiting.is_empty() || connection.window.len() >= capacity) {
                connection.waiting.take_from_batch(message);
                return false;
            }
            Self::number(kind, cx.local(), connection, message);
            true
        });
        batch.messages = messages;
    }

    /// A closing connection is reused. One to a non-member closes unless a view adds the member, because no view
    /// would report its end.
    fn connection(&mut self, cx: &Cx<'_>, dest: &Address) -> &mut SendConnection {
        let now = cx.now();
        // An open connection is to a member: the view without the member closes it.
        let is_non_member = || cx.view().is_some_and(|view| !view.contains(dest));
        let connection = match self.senders.entry(dest.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let conn_id = self.next_conn_id;
                self.next_conn_id = if conn_id == i16::MAX { 0 } else { conn_id + 1 };
                place.insert(SendConnection {
                    conn_id,
                    window: SendWindow::default(),
                    last_timestamp: None,
                    at_last_tick: (0, 0),
                    last_used: now,
                    closing_since: Some(now),
                    waiting: WaitingMessages::default(),
                })
            }
        };
        connection.last_used = now;
        if connection.closing_since.is_some() {
            connection.closing_since = is_non_member().then_some(now);
        }
        connection
    }

    fn number(kind: UnicastKind, local: &Address, connection: &mut SendConnection, message: &mut Message) {
        let seqno = connection.window.highest_sent() + 1;
        let header = UnicastHeader::Data { seqno, conn_id: connection.conn_id, first: seqno == 1 };
        message.src.get_or_insert_with(|| local.clone());
        message.headers.put(kind.id(), kind.header(header));
        connection.window.push(message.clone());
    }

    fn is_newer(connection: &mut SendConnection, timestamp: i32) -> bool {
        let is_newer = connection.last_timestamp.is_none_or(|last| timestamp.wrapping_sub(last) > 0);
        if is_newer {
            connection.last_timestamp = Some(timestamp);
        }
        is_newer
    }

    pub(super) fn acked(
        &mut self,
        cx: &mut Cx<'_>,
        member: &Address,
        seqno: u64,
        conn_id: i16,
        timestamp: i32,
    ) {
        self.acks_received += 1;
        let (kind, capacity) = (self.kind, self.capacity());
        let Some(connection) = self.senders.get_mut(member) else { return };
        if connection.conn_id != conn_id || !Self::is_newer(connection, timestamp) {
            return;
        }
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::UnicastEarlyPurge) {
            connection.window.purge(u64::MAX);
        }
        connection.window.purge(seqno);
        while let Some(connection) = self.senders.get_mut(member)
            && connection.window.len() < capacity
            && let Some(mut message) = connection.waiting.pop()
        {
            Self::number(kind, cx.local(), connection, &mut message);
            cx.send(message);
        }
    }

    /// The oldest kept message becomes the connection's first.
    pub(super) fn send_first(&mut self, cx: &mut Cx<'_>, member: &Address, timestamp: i32) {
        let kind = self.kind;
        let Some(connection) = self.senders.get_mut(member) else { return };
        if !Self::is_newer(connection, timestamp) {
            return;
        }
        let seqno = connection.window.low() + 1;
        let Some(kept) = connection.window.get(seqno) else { return };
        let mut message = kept.clone();
        let header = UnicastHeader::Data { seqno, conn_id: connection.conn_id, first: true };
        message.headers.put(kind.id(), kind.header(header));
        self.xmit.resent += 1;
        cx.send(message);
    }

    pub(super) fn resend(&mut self, cx: &mut Cx<'_>, member: &Address, request: &Message) {
        self.xmit.requests_received += 1;
        let Some(connection) = self.senders.get(member) else { return };
        for seqno in requested_seqnos(request) {
            if let Some(message) = connection.window.get(seqno) {
                self.xmit.resent += 1;
                cx.send(message.clone());
            }
        }
    }

    /// The last message provokes an acknowledgement or a request.
    pub(super) fn resend_stalled(&mut self, cx: &mut Cx<'_>) {
        for connection in self.senders.values_mut() {
            let state = (connection.window.low(), connection.window.highest_sent());
            let is_stalled = state.0 < state.1 && connection.at_last_tick == state;
            connection.at_last_tick = state;
            if is_stalled && let Some(message) = connection.window.get(state.1) {
                self.xmit.resent += 1;
                cx.send(message.clone());
            }
        }
    }
}
