//! Delivery to the receiver, off the stack's path: at most one call at a time per sender, or over all senders for total order
//! (SEQUENCER).
//!
//! As in JGroups (`message_processing_policy`): `max` (default) merges regular batches queued during a call; `submit` runs a task
//! per batch, so that the receiver orders batches; `unbatch` is `max` with one message per call; `direct` and `all-direct` call
//! on the driver's task. JGroups' `direct` leaves out-of-band messages to other threads.
//!
//! A receiver's panic ends that call alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_group::{Address, Event, MessageBatch, View};
use consort_net::{Command, Submitter};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::catch_panic::{ApplicationPanic, catch_panic};
use crate::receiver::{Delivery, Receiver};

/// The caller of the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeliveryPolicy {
    /// One call per sender; queued batches are merged.
    #[default]
    Max,
    /// A task per batch.
    Submit,
    /// The driver's task: the whole member waits for the receiver.
    Direct,
    /// As `Max`, one message per call.
    Unbatch,
}

/// An unknown `message_processing_policy`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown message_processing_policy `{0}`; there are: max, submit, direct, all-direct, unbatch")]
pub struct UnknownPolicy(pub String);

impl FromStr for DeliveryPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        match name {
            "max" => Ok(Self::Max),
            "submit" => Ok(Self::Submit),
            "direct" | "all-direct" => Ok(Self::Direct),
            "unbatch" => Ok(Self::Unbatch),
            _ => Err(UnknownPolicy(name.to_owned())),
        }
    }
}

/// A call should take well under 1 ms, so that views and other senders do not wait.
const MERGED_MESSAGES_MAX: usize = 1_024;

/// Longest batch to merge: moving it costs no more than a call.
const MERGED_BATCH_MAX: usize = 16;

/// A lane's batches are delivered one after the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lane {
    /// Concurrent calls for two senders would break it.
    TotalOrder,
    /// Multicasts and unicasts are separate, as in JGroups.
    Sender { src: Address, is_multicast: bool },
}

impl Lane {
    /// Returns `None` for a batch that is delivered at once.
    fn for_batch(batch: &MessageBatch) -> Option<Self> {
        if batch.is_totally_ordered() {
            return Some(Self::TotalOrder);
        }
        let src = batch.src().filter(|_| !batch.is_oob())?.clone();
        Some(Self::Sender { src, is_multicast: batch.is_multicast() })
    }
}

/// The order is the stack's.
type Ordinal = u64;

#[derive(Debug)]
pub(crate) enum Notice {
    View(View),
    Suspected(Vec<Address>),
    StateRequested {
        token: u64,
    },
    SetState {
        state: Option<Bytes>,
        /// Completes when the receiver has taken the state.
        set: oneshot::Sender<Result<(), ApplicationPanic>>,
    },
}

#[derive(Default)]
struct PendingBatches {
    next: Ordinal,
    /// Batches that tasks have and the receiver has not consumed.
    unfinished: BTreeSet<Ordinal>,
    /// A lane is present while a task serves it.
    lanes: BTreeMap<Lane, Vec<(Ordinal, MessageBatch)>>,
    /// Present while a task serves the notices.
    notices: Option<VecDeque<(Ordinal, Notice)>>,
    /// Present while a state is set, because later messages must not come before it.
    behind_state: Option<VecDeque<MessageBatch>>,
}

#[derive(Clone)]
pub(crate) struct Deliverer {
    policy: DeliveryPolicy,
    receiver: Arc<dyn Receiver>,
    driver: Submitter,
    runtime: Handle,
    waiting: Arc<Mutex<PendingBatches>>,
    finished: Arc<Notify>,
}

impl Deliverer {
    pub(crate) fn new(
        policy: DeliveryPolicy,
        receiver: Arc<dyn Receiver>,
        driver: Submitter,
        runtime: Handle,
    ) -> Self {
        let (waiting, finished) = (Arc::default(), Arc::default());
        Self { policy, receiver, driver, runtime, waiting, finished }
    }

    fn lock(&self) -> MutexGuard<'_, PendingBatches> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn deliver(&self, batch: MessageBatch) {
        let mut waiting = self.lock();
        if let Some(behind) = &mut waiting.behind_state {
            return behind.push_back(batch);
        }
        self.start(&mut waiting, batch);
    }

    fn start(&self, waiting: &mut PendingBatches, batch: MessageBatch) {
        if self.policy == DeliveryPolicy::Direct {
            return self.call(batch);
        }
        let ordinal = waiting.next;
        waiting.next += 1;
        waiting.unfinished.insert(ordinal);
        let has_lanes = matches!(self.policy, DeliveryPolicy::Max | DeliveryPolicy::Unbatch);
        let this = self.clone();
        match Lane::for_batch(&batch).filter(|_| has_lanes) {
            Some(lane) => {
                if let Some(batches) = waiting.lanes.get_mut(&lane) {
                    return batches.push((ordinal, batch));
                }
                waiting.lanes.insert(lane.clone(), Vec::new());
                self.runtime.spawn(async move { this.serve(&lane, ordinal, batch).await });
            }
            None => {
                self.runtime.spawn(async move {
                    this.call(batch);
                    this.finish(&[ordinal]);
                });
            }
        }
    }

    async fn serve(&self, lane: &Lane, ordinal: Ordinal, first: MessageBatch) {
        let mut batches = vec![(ordinal, first)];
        loop {
            let (ordinals, ready): (Vec<_>, Vec<_>) = std::mem::take(&mut batches).into_iter().unzip();
            for batch in merged(ready) {
                self.call(batch);
                tokio::task::consume_budget().await;
            }
            self.finish(&ordinals);
            let mut waiting = self.lock();
            match waiting.lanes.get_mut(lane) {
                Some(next) if !next.is_empty() => batches.append(next),
                _ => {
                    waiting.lanes.remove(lane);
                    return;
                }
            }
        }
    }

    fn finish(&self, ordinals: &[Ordinal]) {
        let mut waiting = self.lock();
        for ordinal in ordinals {
            waiting.unfinished.remove(ordinal);
        }
        let is_awaited = waiting.notices.is_some();
        drop(waiting);
        if is_awaited {
            self.finished.notify_waiters();
        }
    }

    fn call(&self, batch: MessageBatch) {
        let src = batch.src().cloned();
        let receive = |batch| {
            let delivery = Delivery::new(batch, &self.driver);
            let _ = catch_panic("receive_batch", src.as_ref(), || self.receiver.receive_batch(delivery));
        };
        if self.policy == DeliveryPolicy::Unbatch {
            batch.messages.into_iter().map(MessageBatch::single).for_each(receive);
        } else {
            receive(batch);
        }
    }

    /// Notices stay in order; a state is exactly between the messages before and after its notice.
    pub(crate) fn notify(&self, notice: Notice) {
        let mut waiting = self.lock();
        if matches!(notice, Notice::SetState { .. }) {
            waiting.behind_state.get_or_insert_default();
        }
        let ordinal = waiting.next;
        waiting.next += 1;
        if let Some(notices) = &mut waiting.notices {
            return notices.push_back((ordinal, notice));
        }
        waiting.notices = Some(VecDeque::from([(ordinal, notice)]));
        drop(waiting);
        let this = self.clone();
        self.runtime.spawn(async move { this.serve_notices().await });
    }

    async fn serve_notices(&self) {
        loop {
            let next = {
                let mut waiting = self.lock();
                let next = waiting.notices.as_mut().and_then(VecDeque::pop_front);
                if next.is_none() {
                    waiting.notices = None;
                }
                next
            };
            let Some((ordinal, notice)) = next else { return };
            match notice {
                Notice::View(view) => {
                    let _ = catch_panic("view_accepted", None, || self.receiver.view_accepted(&view));
                }
                Notice::Suspected(members) => {
                    for member in &members {
                        let _ = catch_panic("suspected", None, || self.receiver.suspected(member));
                    }
                }
                Notice::StateRequested { token } => {
                    self.all_before(ordinal).await;
                    let state = catch_panic("state", None, || self.receiver.state());
                    let state = state.unwrap_or_else(|panicked| Err(panicked.to_string()));
                    let _ = self.driver.submit(Command::Event(Event::ProvideState { token, state }));
                }
                Notice::SetState { state, set } => {
                    self.all_before(ordinal).await;
                    let _ = set.send(catch_panic("set_state", None, || self.receiver.set_state(state)));
                    let mut waiting = self.lock();
                    for batch in waiting.behind_state.take().unwrap_or_default() {
                        self.start(&mut waiting, batch);
                    }
                }
            }
        }
    }

    async fn all_before(&self, ordinal: Ordinal) {
        loop {
            let finished = self.finished.notified();
            if self.lock().unfinished.first().is_none_or(|&oldest| oldest > ordinal) {
                return;
            }
            finished.await;
        }
    }
}

fn merged(batches: Vec<MessageBatch>) -> Vec<MessageBatch> {
    let mut merged: Vec<MessageBatch> = Vec::with_capacity(batches.len());
    for mut batch in batches {
        match merged.last_mut() {
            Some(last)
                if batch.len() <= MERGED_BATCH_MAX
                    && last.len() + batch.len() <= MERGED_MESSAGES_MAX
                    && last.src() == batch.src() =>
            {
                last.messages.append(&mut batch.messages);
            }
            _ => merged.push(batch),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_group::{Message, Rng, Transient};

    #[test]
    fn each_policy_of_jgroups_has_its_name() {
        let names = ["max", "submit", "direct", "all-direct", "unbatch"];
        let policies = names.map(|name| name.parse::<DeliveryPolicy>().unwrap());
        assert_eq!(
            policies,
            [
                DeliveryPolicy::Max,
                DeliveryPolicy::Submit,
                DeliveryPolicy::Direct,
                DeliveryPolicy::Direct,
                DeliveryPolicy::Unbatch
            ]
        );
        let error = "any".parse::<DeliveryPolicy>().unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }

    #[test]
    fn merging_keeps_order_and_stays_bounded() {
        let batch = |n: usize| MessageBatch { messages: vec![Message::empty(None); n] };
        let sizes: Vec<usize> =
            merged(vec![batch(1_010), batch(14), batch(1), batch(16), batch(2_000), batch(17)])
                .iter()
                .map(MessageBatch::len)
                .collect();
        assert_eq!(sizes, [1_024, 17, 2_000, 17]);
    }

    #[test]
    fn messages_of_two_senders_are_not_merged() {
        let [a, b] = [1, 2].map(|seed| Address::random(&mut Rng::new(seed)));
        let from = |src: &Address| {
            let mut message = Message::empty(None);
            message.src = Some(src.clone());
            message.transient |= Transient::TOTAL_ORDER;
            MessageBatch::single(message)
        };
        let batches = merged(vec![from(&a), from(&a), from(&b), from(&a)]);
        let seen: Vec<_> = batches.iter().map(|batch| (batch.src().cloned(), batch.len())).collect();
        assert_eq!(seen, [(Some(a.clone()), 2), (Some(b), 1), (Some(a), 1)]);
    }
}
