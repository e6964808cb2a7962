//! The messages of one sender that the application has consumed. Fixed windows (NAKACK4 and UNICAST4) acknowledge
//! consumed messages, not delivered ones, so that a slow application slows its senders down.

use std::collections::VecDeque;

use crate::{Address, Message};

#[derive(Debug)]
pub(crate) struct Consumption {
    /// The seqno up to which each message completes consumption, and its remaining credit.
    pending: VecDeque<(u64, u32)>,
    up_to: u64,
}

impl Consumption {
    pub(crate) fn from(seqno: u64) -> Self {
        Self { pending: VecDeque::new(), up_to: seqno }
    }

    pub(crate) fn up_to(&self) -> u64 {
        self.up_to
    }

    /// Its credit is at least 1, so that empty messages count.
    pub(crate) fn expect(&mut self, seqno: u64, message: &mut Message) {
        message.credit = u32::try_from(message.length()).unwrap_or(u32::MAX).max(1);
        self.pending.push_back((seqno, message.credit));
    }

    /// Out-of-band messages were delivered earlier and are not in `ready`: the last ready message covers their
    /// seqnos.
    #[inline]
    pub(crate) fn expect_all(&mut self, ready: &mut [Message], before: u64, after: u64) {
        let count = ready.len();
        for (nth, message) in ready.iter_mut().enumerate() {
            let seqno = if nth + 1 == count { after } else { before + 1 + nth as u64 };
            self.expect(seqno, message);
        }
    }

    /// These seqnos need no further credit: they complete with the messages before them.
    pub(crate) fn extend_to(&mut self, seqno: u64) {
        match self.pending.back_mut() {
            Some((last, _)) => *last = seqno,
            None => self.up_to = self.up_to.max(seqno),
        }
    }

    pub(crate) fn consume(&mut self, credit: u64) -> usize {
        let mut left = credit;
        let mut completed = 0;
        while let Some((seqno, own)) = self.pending.front_mut() {
            if u64::from(*own) > left {
                *own -= left as u32;
                break;
            }
            left -= u64::from(*own);
            self.up_to = self.up_to.max(*seqno);
            completed += 1;
            self.pending.pop_front();
        }
        completed
    }
}

#[derive(Debug)]
pub(crate) struct OwedAcks {
    pub(crate) consumption: Consumption,
    /// Received (fixed windows: consumed) since the last acknowledgement.
    pub(crate) messages: usize,
    pub(crate) bytes: u64,
    pub(crate) is_due: bool,
}

impl OwedAcks {
    pub(crate) fn from(seqno: u64) -> Self {
        Self { consumption: Consumption::from(seqno), messages: 0, bytes: 0, is_due: false }
    }

    pub(crate) fn consume(&mut self, credit: u64) {
        let consumed = self.consumption.consume(credit);
        self.messages += consumed;
        self.bytes += credit;
        self.is_due |= consumed > 0;
    }

    pub(crate) fn reset(&mut self) {
        (self.messages, self.bytes, self.is_due) = (0, 0, false);
    }
}

pub(crate) fn due_acks<'a>(all: impl Iterator<Item = (&'a Address, &'a OwedAcks)>) -> Vec<Address> {
    all.filter(|(_, owed)| owed.is_due).map(|(member, _)| member.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(lengths: &[usize]) -> Vec<Message> {
        lengths.iter().map(|&length| Message::bytes(None, vec![0; length])).collect()
    }

    #[test]
    fn messages_are_consumed_in_order_and_in_parts() {
        let mut consumption = Consumption::from(3);
        let mut ready = messages(&[10, 0, 5]);
        consumption.expect_all(&mut ready, 3, 6);
        assert_eq!(ready.iter().map(|message| message.credit).collect::<Vec<_>>(), [10, 1, 5]);
        let steps: Vec<_> =
            [4, 6, 3, 3].map(|credit| (consumption.consume(credit), consumption.up_to())).into();
        assert_eq!(steps, [(0, 3), (1, 4), (1, 5), (1, 6)]);
    }

    /// Otherwise the sender would wait for an acknowledgement until its next message.
    #[test]
    fn numbers_of_messages_delivered_before_their_turn_are_consumed_with_what_filled_the_gap() {
        let mut consumption = Consumption::from(0);
        consumption.expect_all(&mut messages(&[5]), 0, 0);
        consumption.expect_all(&mut messages(&[5]), 0, 2);
        assert_eq!((consumption.consume(5), consumption.up_to()), (1, 0));
        assert_eq!((consumption.consume(5), consumption.up_to()), (1, 2));
    }
}
