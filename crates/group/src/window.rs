//! Windows of numbered messages: received ones that wait for their turn, and sent ones kept for retransmission.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Message, SeqnoList, Transient};

/// The highest seqno that a digest may set: half of JGroups' maximum (a Java `long`). A higher one is broken or
/// hostile.
const SKIP_SEQNO_MAX: u64 = i64::MAX as u64 / 2;

/// A late message has arrived by then. JGroups requests in its second round, after one or two `xmit_interval`, while
/// the sender's credits run out.
pub(crate) const FIRST_REQUEST_DELAY: Duration = Duration::from_millis(10);

pub(crate) fn first_request_delay(xmit_interval: Duration) -> Duration {
    FIRST_REQUEST_DELAY.min(xmit_interval)
}

pub(crate) type Gaps = fn(&mut ReceiveWindow, usize) -> Option<SeqnoList>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Insertion {
    New,
    Duplicate,
    Beyond,
}

#[derive(Debug)]
enum Slot {
    Missing,
    Waiting(Box<Message>),
    /// An OOB message that was delivered on arrival.
    Delivered,
}

/// The invariant: exactly the seqnos up to `delivered` are delivered, besides OOB messages.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    delivered: u64,
    /// Slot 0 is `delivered + 1`. The last slot is never `Missing`.
    slots: VecDeque<Slot>,
    /// The count begins after `delivered`.
    capacity: usize,
    /// Gaps up to here existed in an earlier round.
    requestable_up_to: u64,
    /// These gaps are requested soon if they stay.
    noticed: u64,
    /// These gaps had the early request; rounds make later ones.
    requested_early: u64,
}

impl ReceiveWindow {
    pub(crate) fn new(delivered: u64, capacity: usize) -> Self {
        Self {
            delivered,
            slots: VecDeque::new(),
            capacity,
            requestable_up_to: 0,
            noticed: 0,
            requested_early: 0,
        }
    }

    pub(crate) fn highest_delivered(&self) -> u64 {
        self.delivered
    }

    pub(crate) fn highest_received(&self) -> u64 {
        self.delivered + self.slots.len() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A message that is next, with none waiting, need not move.
    #[inline]
    pub(crate) fn pass(&mut self, seqno: u64) -> bool {
        let is_next = self.slots.is_empty() && seqno == self.delivered + 1;
        self.delivered += u64::from(is_next);
        is_next
    }

    /// Appends all deliverable messages to `out`; an OOB message at once.
    #[inline]
    pub(crate) fn add(&mut self, seqno: u64, mut message: Message, out: &mut Vec<Message>) -> Insertion {
        let Some(at) = seqno.checked_sub(self.delivered + 1) else { return Insertion::Duplicate };
        if self.pass(seqno) {
            out.push(message);
            return Insertion::New;
        }
        let Ok(at) = usize::try_from(at) else { return Insertion::Beyond };
        if at >= self.capacity {
            return Insertion::Beyond;
        }
        while self.slots.len() <= at {
            self.slots.push_back(Slot::Missing);
        }
        if !matches!(self.slots[at], Slot::Missing) {
            return Insertion::Duplicate;
        }
        self.slots[at] = if message.is_oob() {
            message.transient |= Transient::OOB_DELIVERED;
            out.push(message);
            Slot::Delivered
        } else {
            Slot::Waiting(Box::new(message))
        };
        self.take_ready(out);
        Insertion::New
    }

    /// Counts a message as delivered that did not wait for its connection.
    pub(crate) fn skip(&mut self, seqno: u64, out: &mut Vec<Message>) {
        let at = seqno.checked_sub(self.delivered + 1).and_then(|at| usize::try_from(at).ok());
        let Some(at) = at.filter(|at| *at < self.capacity) else { return };
        while self.slots.len() <= at {
            self.slots.push_back(Slot::Missing);
        }
        self.slots[at] = Slot::Delivered;
        self.take_ready(out);
    }

    fn take_ready(&mut self, out: &mut Vec<Message>) {
        while let Some(slot) = self.slots.front_mut() {
            match std::mem::replace(slot, Slot::Missing) {
                Slot::Missing => return,
                Slot::Waiting(message) => out.push(*message),
                Slot::Delivered => {}
            }
            self.slots.pop_front();
            self.delivered += 1;
        }
    }

    pub(crate) fn delivered_ahead(&self) -> SeqnoList {
        let ahead = (self.delivered + 1..).zip(&self.slots);
        list_of(ahead.filter(|(_, slot)| matches!(slot, Slot::Delivered)).map(|(seqno, _)| seqno))
    }

    pub(crate) fn with_delivered(mut self, ahead: &SeqnoList) -> Self {
        let last = self.delivered.saturating_add(self.capacity as u64);
        for seqno in ahead.iter().take_while(|&seqno| seqno <= last) {
            let Some(at) = seqno.checked_sub(self.delivered + 1) else { continue };
            while self.slots.len() as u64 <= at {
                self.slots.push_back(Slot::Missing);
            }
            self.slots[at as usize] = Slot::Delivered;
        }
        self.take_ready(&mut Vec::new());
        self
    }

    /// Returns the gaps of the last round, and remembers the present ones.
    pub(crate) fn gaps_to_request(&mut self, most: usize) -> Option<SeqnoList> {
        let received = self.highest_received();
        let known = std::mem::replace(&mut self.requestable_up_to, received);
        self.gaps(self.delivered, known, most)
    }

    /// Notices a missing message that was not yet requested.
    pub(crate) fn notice(&mut self) -> bool {
        self.noticed = self.highest_received();
        !self.slots.is_empty() && self.noticed > self.requested_early
    }

    /// Returns each noticed gap once. Gaps beyond `most` stay noticed.
    pub(crate) fn noticed_gaps(&mut self, most: usize) -> Option<SeqnoList> {
        let list = self.gaps(self.requested_early, self.noticed, most);
        let last = list.as_ref().filter(|list| list.len() >= most).and_then(|list| list.iter().last());
        self.requested_early = self.requested_early.max(last.unwrap_or(self.noticed));
        list
    }

    fn gaps(&self, low: u64, limit: u64, most: usize) -> Option<SeqnoList> {
        let skipped = low.saturating_sub(self.delivered);
        let first = self.delivered + 1 + skipped;
        let slots = self.slots.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        let missing = (first..)
            .zip(slots)
            .take_while(|(seqno, _)| *seqno <= limit)
            .filter_map(|(seqno, slot)| matches!(slot, Slot::Missing).then_some(seqno));
        Some(list_of(missing.take(most.max(1)))).filter(|list| !list.is_empty())
    }
}

fn list_of(seqnos: impl Iterator<Item = u64>) -> SeqnoList {
    let seqnos: Vec<u64> = seqnos.collect();
    let (Some(first), Some(last)) = (seqnos.first(), seqnos.last()) else { return SeqnoList::default() };
    let mut list = SeqnoList::new(*first, u32::try_from(last - first + 1).unwrap_or(u32::MAX));
    for seqno in seqnos {
        list.add(seqno);
    }
    list
}

#[derive(Debug, Default)]
pub(crate) struct SendWindow {
    low: u64,
    messages: VecDeque<Message>,
}

impl SendWindow {
    pub(crate) fn highest_sent(&self) -> u64 {
        self.low + self.messages.len() as u64
    }

    pub(crate) fn low(&self) -> u64 {
        self.low
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn push(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    /// Forgets all messages. Returns false for a lower `seqno`, or one above [`SKIP_SEQNO_MAX`].
    pub(crate) fn skip_to(&mut self, seqno: u64) -> bool {
        let is_above = seqno > self.highest_sent() && seqno <= SKIP_SEQNO_MAX;
        if is_above {
            self.messages.clear();
            self.low = seqno;
        }
        is_above
    }

    pub(crate) fn get(&self, seqno: u64) -> Option<&Message> {
        let at = seqno.checked_sub(self.low + 1)?;
        self.messages.get(usize::try_from(at).ok()?)
    }

    pub(crate) fn purge(&mut self, seqno: u64) -> bool {
        let count = seqno.min(self.highest_sent()).saturating_sub(self.low);
        self.messages.drain(..count as usize);
        self.low += count;
        count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flags, Payload, Rng};

    fn message(seqno: u64) -> Message {
        Message::new(None, Payload::Long(seqno as i64))
    }

    fn numbers(out: &[Message]) -> Vec<i64> {
        out.iter().map(|message| if let Payload::Long(n) = message.payload { n } else { -1 }).collect()
    }

    /// S000-82: one stack owns the window, so there is no lock.
    #[test]
    fn any_order_of_arrival_is_delivered_in_order_once() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut seqnos: Vec<u64> = (1..=50).chain(1..=50).collect();
            rng.shuffle(&mut seqnos);
            let (mut window, mut out) = (ReceiveWindow::new(0, 100), Vec::new());
            let added: Vec<Insertion> =
                seqnos.iter().map(|&seqno| window.add(seqno, message(seqno), &mut out)).collect();
            assert_eq!(numbers(&out), (1..=50).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(added.iter().filter(|added| **added == Insertion::Duplicate).count(), 50);
            assert_eq!((window.highest_delivered(), window.len()), (50, 0));
        }
    }

    #[test]
    fn oob_messages_are_delivered_on_arrival_and_skipped_in_turn() {
        let (mut window, mut out) = (ReceiveWindow::new(0, 100), Vec::new());
        window.add(2, message(2).with_flags(Flags::OOB), &mut out);
        assert_eq!(numbers(&out), [2]);
        assert_eq!(window.add(2, message(2).with_flags(Flags::OOB), &mut out), Insertion::Duplicate);
        window.add(3, message(3), &mut out);
        window.add(1, message(1), &mut out);
        assert_eq!(numbers(&out), [2, 1, 3]);
    }

    #[test]
    fn messages_delivered_ahead_are_remembered_exactly() {
        let (mut window, mut out) = (ReceiveWindow::new(10, 100), Vec::new());
        for seqno in [13, 14, 16, 19, 22] {
            window.add(seqno, message(seqno).with_flags(Flags::OOB), &mut out);
        }
        window.add(12, message(12), &mut out);
        window.add(23, message(23), &mut out);
        let ahead = window.delivered_ahead();
        assert_eq!(ahead.iter().collect::<Vec<_>>(), [13, 14, 16, 19, 22]);
        assert_eq!((ahead.offset, ahead.size), (13, 10));
        let mut again = ReceiveWindow::new(11, 100).with_delivered(&ahead);
        assert_eq!(again.add(13, message(13), &mut out), Insertion::Duplicate);
        out.clear();
        again.add(12, message(12), &mut out);
        assert_eq!((numbers(&out), again.highest_delivered()), (vec![12], 14));
        assert_eq!(ReceiveWindow::new(12, 100).with_delivered(&ahead).highest_delivered(), 14);
        assert_eq!(ReceiveWindow::new(12, 3).with_delivered(&ahead).highest_received(), 14);
        assert!(ReceiveWindow::new(0, 100).delivered_ahead().is_empty());
    }

    #[test]
    fn gaps_are_requested_in_the_second_round() {
        let (mut window, mut out) = (ReceiveWindow::new(0, 100), Vec::new());
        window.add(3, message(3), &mut out);
        assert_eq!(window.gaps_to_request(10), None);
        window.add(6, message(6), &mut out);
        let list = window.gaps_to_request(10).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2]);
        let list = window.gaps_to_request(3).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn gaps_that_stay_are_requested_early_and_once() {
        let (mut window, mut out) = (ReceiveWindow::new(0, 100), Vec::new());
        assert!(!window.notice());
        window.add(3, message(3), &mut out);
        assert!(window.notice());
        window.add(2, message(2), &mut out);
        window.add(6, message(6), &mut out);
        let seqnos = |list: Option<SeqnoList>| list.map(|list| list.iter().collect::<Vec<_>>());
        assert_eq!(seqnos(window.noticed_gaps(10)), Some(vec![1]));
        assert_eq!(window.noticed_gaps(10), None);
        assert!(window.notice());
        assert_eq!(seqnos(window.noticed_gaps(1)), Some(vec![4]));
        assert!(window.notice());
        assert_eq!(seqnos(window.noticed_gaps(10)), Some(vec![5]));
        assert!(!window.notice());
        // Gaps that were requested and stay are left to the rounds.
        assert_eq!(window.gaps_to_request(10), None);
        assert_eq!(seqnos(window.gaps_to_request(10)), Some(vec![1, 4, 5]));
    }

    /// S000-65
    #[test]
    fn a_slot_is_small() {
        assert!(size_of::<Slot>() <= 16, "{}", size_of::<Slot>());
    }

    /// S000-78
    #[test]
    fn messages_move_from_the_window_into_the_batch() {
        let (mut window, mut out) = (ReceiveWindow::new(0, 1_000), Vec::with_capacity(1_000));
        (2..=1_000).for_each(|seqno| {
            window.add(seqno, message(seqno), &mut out);
        });
        let first = message(1);
        let used = allocation_counter::measure(|| {
            window.add(1, first, &mut out);
        });
        // One box: the first message waits for its turn like any other.
        assert!((used.count_total <= 1, out.len()) == (true, 1_000), "{used:?}");
    }

    #[test]
    fn a_message_beyond_the_window_is_refused() {
        let (mut window, mut out) = (ReceiveWindow::new(10, 5), Vec::new());
        assert_eq!(window.add(16, message(16), &mut out), Insertion::Beyond);
        assert_eq!(window.add(15, message(15), &mut out), Insertion::New);
        assert_eq!(window.add(u64::MAX, message(0), &mut out), Insertion::Beyond);
        assert_eq!(window.add(0, message(0), &mut out), Insertion::Duplicate);
    }

    /// S003-10
    #[test]
    fn a_kept_message_costs_little_besides_its_payload() {
        const COUNT: u64 = 10_000;
        let mut window = SendWindow::default();
        let kept = allocation_counter::measure(|| {
            (0..COUNT).for_each(|_| window.push(Message::bytes(None, vec![0; 1_000])));
        });
        let each = kept.bytes_current / COUNT as i64;
        assert!(each <= 1_000 + 640, "{each} bytes");
        let freed = allocation_counter::measure(|| {
            window.purge(COUNT);
        });
        assert!(freed.bytes_current <= -1_000 * COUNT as i64, "{freed:?}");
    }

    #[test]
    fn a_send_window_forgets_what_was_acknowledged() {
        let mut window = SendWindow::default();
        (1..=5).for_each(|seqno| window.push(message(seqno)));
        assert!(window.purge(3));
        assert!(!window.purge(2));
        assert_eq!((window.low(), window.highest_sent(), window.len()), (3, 5, 2));
        assert!(window.get(3).is_none());
        assert_eq!(window.get(4), Some(&message(4)));
        window.purge(100);
        assert_eq!((window.low(), window.highest_sent()), (5, 5));
    }
}
