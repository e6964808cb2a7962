//! The slab under [`super::Links`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use consort_group::{PhysAddr, Time};
use tokio::net::TcpListener;

use crate::signals::{Key, Owner, Signals, SourceWaker};
use crate::tcp::framed::Framed;
use crate::tcp::queue::SendQueue;
use crate::tcp::stream::Opening;

pub(super) enum State {
    /// A step may have the content.
    Vacant,
    Listening(TcpListener),
    /// The accepted connection is in the TLS handshake.
    Handshaking(Opening),
    /// The accepted connection has sent no set-up bytes.
    Unidentified(Box<Framed>),
    /// This member opens it; frames are queued.
    Connecting(Attempt),
    Open(Connection),
    /// This member closes it: the queue is written, and bytes under way are read.
    Draining(Connection),
}

pub(super) struct Attempt {
    pub(super) peer: PhysAddr,
    /// The time counts from the begin.
    pub(super) timeout: Duration,
    /// `None` in the pause after a failed attempt.
    pub(super) opening: Option<Opening>,
    pub(super) queue: SendQueue,
}

pub(super) struct Connection {
    pub(super) peer: PhysAddr,
    pub(super) framed: Box<Framed>,
    /// The time when bytes last went.
    pub(super) used: Time,
}

pub(super) struct Slot {
    /// Unlike the slot, it is never reused.
    pub(super) link: u64,
    pub(super) waker: Waker,
    pub(super) deadline: Option<Time>,
    /// The slot has bytes to write.
    pub(super) is_dirty: bool,
    pub(super) state: State,
}

pub(super) struct Slots {
    owner: Owner,
    signals: Arc<Signals>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    next_link: u64,
    deadlines: BTreeSet<(Time, u32)>,
    /// The slots to poll without their wakers.
    again: Vec<u32>,
}

impl Slots {
    pub(super) fn new(owner: Owner, signals: Arc<Signals>, first_link: u64) -> Self {
        Self {
            owner,
            signals,
            slots: Vec::new(),
            free: Vec::new(),
            next_link: first_link,
            deadlines: BTreeSet::new(),
            again: Vec::new(),
        }
    }

    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..).zip(&self.slots)
    }

    pub(super) fn waker(&self, index: u32) -> &Waker {
        &self.slots[index as usize].waker
    }

    pub(super) fn link(&self, index: u32) -> u64 {
        self.slots[index as usize].link
    }

    /// The next cycle polls it, which registers its waker.
    pub(super) fn add(&mut self, state: State, deadline: Option<Time>) -> u32 {
        let link = self.next_link;
        self.next_link += 1;
        let index = match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                (slot.link, slot.state) = (link, state);
                index
            }
            None => {
                let index = self.slots.len() as u32;
                let waker = SourceWaker::waker(&self.signals, Key { owner: self.owner, index });
                self.slots.push(Slot { link, waker, deadline: None, is_dirty: false, state });
                index
            }
        };
        self.set_deadline(index, deadline);
        self.again.push(index);
        index
    }

    /// The slot stays occupied.
    pub(super) fn take(&mut self, index: u32) -> Option<State> {
        let slot = self.slots.get_mut(index as usize)?;
        match std::mem::replace(&mut slot.state, State::Vacant) {
            State::Vacant => None,
            state => Some(state),
        }
    }

    pub(super) fn put(&mut self, index: u32, state: State) {
        self.slots[index as usize].state = state;
    }

    /// Dropping the content, which is taken out, closes the socket.
    pub(super) fn release(&mut self, index: u32) {
        self.set_deadline(index, None);
        let slot = &mut self.slots[index as usize];
        debug_assert!(matches!(slot.state, State::Vacant), "released while occupied");
        slot.is_dirty = false;
        self.free.push(index);
    }

    pub(super) fn poll_again(&mut self, index: u32) {
        self.again.push(index);
    }

    pub(super) fn take_again(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.again)
    }

    pub(super) fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    pub(super) fn set_deadline(&mut self, index: u32, deadline: Option<Time>) {
        let slot = &mut self.slots[index as usize];
        if let Some(old) = std::mem::replace(&mut slot.deadline, deadline) {
            self.deadlines.remove(&(old, index));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, index));
        }
    }

    pub(super) fn first_deadline(&self) -> Option<(Time, u32)> {
        self.deadlines.first().copied()
    }

    pub(super) fn by_deadline(&self) -> impl Iterator<Item = u32> {
        self.deadlines.iter().map(|&(_, index)| index)
    }
}
