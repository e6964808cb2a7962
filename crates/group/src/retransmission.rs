//! The common retransmission of NAKACK and UNICAST.

use std::collections::VecDeque;
use std::time::Duration;

use crate::window::{Gaps, Insertion, ReceiveWindow, first_request_delay};
use crate::{
    Address, Answer, Cx, DropReason, Flags, HeaderBody, Message, Object, Payload, ProbeOut, ProtocolId,
    SeqnoList, StackCount, TimerKey,
};

/// The timer fires each `xmit_interval`.
pub(crate) const TICK: TimerKey = TimerKey(1);

pub(crate) const FIRST_REQUEST: TimerKey = TimerKey(2);

/// The window of NAKACK2, NAKACK3 and UNICAST3 grows to this. It bounds the memory that a faulty peer can take; flow
/// control limits correct peers long before.
pub(crate) const WINDOW_MAX: usize = 1 << 18;

/// A small request must cost no more than a full window. The requester asks again.
const RESEND_MAX: usize = 1024;

#[inline]
pub(crate) fn capacity(is_fixed: bool, configured: usize) -> usize {
    if is_fixed { configured.max(1) } else { WINDOW_MAX }
}

#[inline]
pub(crate) fn fixed_ack_threshold(capacity: usize) -> usize {
    (capacity / 4).max(1)
}

/// The other half is enough to fill and acknowledge.
pub(crate) fn withholdable(capacity: usize, piece: u64) -> Answer {
    Answer::Number(capacity as u64 / 2 * piece)
}

#[derive(Default, Debug)]
pub(crate) struct XmitCounts {
    pub(crate) requests_sent: u64,
    pub(crate) requests_received: u64,
    pub(crate) resent: u64,
}

impl XmitCounts {
    pub(crate) fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![
            (StackCount::RetransmissionRequestsSent, self.requests_sent),
            (StackCount::RetransmissionRequestsReceived, self.requests_received),
            (StackCount::RetransmittedMessages, self.resent),
        ]
    }

    pub(crate) fn probe(&self, out: &mut ProbeOut) {
        out.put("xmit_reqs_sent", self.requests_sent);
        out.put("xmit_reqs_received", self.requests_received);
        out.put("xmit_rsps_sent", self.resent);
    }
}

#[derive(Default, Debug)]
pub(crate) struct WaitingMessages {
    messages: VecDeque<Message>,
    bytes: u64,
}

impl WaitingMessages {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn take_from_batch(&mut self, message: &mut Message) {
        self.bytes += message.length() as u64;
        self.messages.push_back(std::mem::replace(message, Message::empty(None)));
    }

    pub(crate) fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.bytes = self.bytes.saturating_sub(message.length() as u64);
        Some(message)
    }
}

#[inline]
pub(crate) fn count_refused(
    cx: &mut Cx<'_>,
    insertion: Insertion,
    src: &Address,
    seqno: u64,
    window: &ReceiveWindow,
) {
    let why = match insertion {
        Insertion::New => return,
        Insertion::Duplicate => DropReason::Duplicate,
        Insertion::Beyond => DropReason::BeyondWindow,
    };
    let end = window.highest_delivered();
    cx.count_drop(why, |book| format!("seqno {seqno} of {}, delivered {end}", book.member(src)));
}

#[inline]
pub(crate) fn request_soon(cx: &mut Cx<'_>, window: &mut ReceiveWindow, xmit_interval: Duration) {
    if window.len() > 0 && !cx.is_armed(FIRST_REQUEST) && window.notice() {
        cx.arm(FIRST_REQUEST, first_request_delay(xmit_interval));
    }
}

pub(crate) fn request_rest_soon<'w>(
    cx: &mut Cx<'_>,
    windows: impl Iterator<Item = &'w mut ReceiveWindow>,
    xmit_interval: Duration,
) {
    if windows.fold(false, |is_more, window| window.notice() | is_more) {
        cx.arm(FIRST_REQUEST, first_request_delay(xmit_interval));
    }
}

pub(crate) fn gaps_of<'w>(
    windows: impl Iterator<Item = (&'w Address, &'w mut ReceiveWindow)>,
    gaps: Gaps,
    most: usize,
) -> Vec<(Address, SeqnoList)> {
    windows.filter_map(|(sender, window)| Some((sender.clone(), gaps(window, most)?))).collect()
}

pub(crate) fn xmit_request(
    dest: Option<Address>,
    list: SeqnoList,
    id: ProtocolId,
    header: HeaderBody,
) -> Message {
    Message::object(dest, Object::SeqnoList(list))
        .with_flags(Flags::OOB | Flags::NO_FC)
        .with_header(id, header)
}

/// Returns at most one request's limit.
pub(crate) fn requested_seqnos(request: &Message) -> impl Iterator<Item = u64> + '_ {
    let list = match &request.payload {
        Payload::Object(object) => match &**object {
            Object::SeqnoList(list) => Some(list),
            _ => None,
        },
        _ => None,
    };
    list.into_iter().flat_map(SeqnoList::iter).take(RESEND_MAX)
}
