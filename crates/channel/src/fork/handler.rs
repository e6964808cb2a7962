use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use consort_group::{Address, ForkHeader, HeaderBody, Message, MessageBatch, ProtocolId, View};
use tokio::runtime::Handle;

use super::error::ForkError;
use super::limits::{FORK_CHANNELS_MAX, FORK_ID_BYTES_MAX};
use crate::delivery::{Deliverer, DeliveryPolicy, Notice};
use crate::receiver::{Delivery, Receiver};
use crate::up_handler::UpHandler;
use crate::warnings::Warnings;
use crate::weak_channel::WeakChannel;

/// The most characters of a peer's id in a warning.
const SHOWN_MAX: usize = 100;

/// The ids of fork stack and fork channel.
type ForkId = (String, String);

struct Forks {
    channels: BTreeMap<ForkId, Deliverer>,
    /// The view, for fork channels that are opened later.
    view: Option<View>,
    is_closed: bool,
    warnings: Warnings,
}

/// FORK of a member: it passes messages of fork channels to their receivers.
pub(crate) struct ForkHandler {
    policy: DeliveryPolicy,
    /// The caller that opens a fork channel may be outside of a runtime.
    runtime: Handle,
    channel: OnceLock<WeakChannel>,
    forks: Mutex<Forks>,
}

fn fork_header(message: &Message) -> Option<&ForkHeader> {
    match message.headers.get(ProtocolId::FORK)? {
        HeaderBody::Fork(header) => Some(header),
        _ => None,
    }
}

fn shown(id: Option<&str>) -> String {
    id.map_or_else(
        || "no id".to_owned(),
        |id| format!("{:?}", id.chars().take(SHOWN_MAX).collect::<String>()),
    )
}

impl ForkHandler {
    pub(crate) fn new(policy: DeliveryPolicy, runtime: Handle) -> Self {
        let forks =
            Forks { channels: BTreeMap::new(), view: None, is_closed: false, warnings: Warnings::new() };
        Self { policy, runtime, channel: OnceLock::new(), forks: Mutex::new(forks) }
    }

    fn lock(&self) -> MutexGuard<'_, Forks> {
        self.forks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its receiver gets the current view first.
    pub(super) fn open(
        &self,
        stack: &str,
        channel: &str,
        receiver: Arc<dyn Receiver>,
    ) -> Result<(), ForkError> {
        if let Some(id) = [stack, channel].into_iter().find(|id| id.len() > FORK_ID_BYTES_MAX) {
            return Err(ForkError::IdTooLong(id.len()));
        }
        let driver = self.channel.get().ok_or(ForkError::Closed)?.submitter();
        let deliverer = Deliverer::new(self.policy, receiver, driver, self.runtime.clone());
        let mut forks = self.lock();
        if forks.is_closed {
            return Err(ForkError::Closed);
        }
        let id = (stack.to_owned(), channel.to_owned());
        if forks.channels.contains_key(&id) {
            let (stack, channel) = id;
            return Err(ForkError::AlreadyOpen { stack, channel });
        }
        if forks.channels.len() >= FORK_CHANNELS_MAX {
            return Err(ForkError::TooMany);
        }
        if let Some(view) = &forks.view {
            deliverer.notify(Notice::View(view.clone()));
        }
        forks.channels.insert(id, deliverer);
        Ok(())
    }

    pub(super) fn close(&self, stack: &str, channel: &str) {
        let closed = self.lock().channels.remove(&(stack.to_owned(), channel.to_owned()));
        // The receiver may use the handler when it is dropped.
        drop(closed);
    }

    /// Messages of one fork channel, in order, from one sender.
    fn deliver(&self, id: (Option<&str>, Option<&str>), batch: MessageBatch, channel: &WeakChannel) {
        let mut forks = self.lock();
        let found = match id {
            (Some(stack), Some(channel)) => {
                forks.channels.get(&(stack.to_owned(), channel.to_owned())).cloned()
            }
            _ => None,
        };
        if let Some(deliverer) = found {
            // A receiver that the driver's task calls (policy `direct`) may use the handler.
            drop(forks);
            return deliverer.deliver(batch);
        }
        forks.warnings.count(Instant::now(), "unknown fork channel", || {
            let src = batch.src().map_or_else(|| "?".to_owned(), |src| channel.member(src).to_string());
            let (stack, channel) = (shown(id.0), shown(id.1));
            format!("messages of {src} for fork channel {channel} of fork stack {stack} are discarded")
        });
        drop(forks);
        // A drop returns the credits.
        drop(Delivery::new(batch, &channel.submitter()));
    }
}

impl UpHandler for ForkHandler {
    fn opened(&self, channel: WeakChannel) {
        let _ = self.channel.set(channel);
    }

    fn takes(&self, message: &Message) -> bool {
        fork_header(message).is_some()
    }

    fn keeps_credits(&self) -> bool {
        true
    }

    fn handle_batch(&self, batch: MessageBatch) {
        let Some(channel) = self.channel.get() else { return };
        let mut rest = batch.messages.into_iter().peekable();
        while let Some(first) = rest.next() {
            let header = fork_header(&first).cloned();
            let mut messages = vec![first];
            // Messages in a row for one fork channel are one batch.
            while let Some(next) = rest.next_if(|next| fork_header(next) == header.as_ref()) {
                messages.push(next);
            }
            let id = header
                .as_ref()
                .map_or((None, None), |header| (header.stack.as_deref(), header.channel.as_deref()));
            self.deliver(id, MessageBatch { messages }, channel);
        }
    }

    fn view(&self, view: &View) {
        let mut forks = self.lock();
        forks.view = Some(view.clone());
        for deliverer in forks.channels.values() {
            deliverer.notify(Notice::View(view.clone()));
        }
    }

    fn suspected(&self, members: &[Address]) {
        for deliverer in self.lock().channels.values() {
            deliverer.notify(Notice::Suspected(members.to_vec()));
        }
    }

    fn closed(&self) {
        let mut forks = self.lock();
        forks.is_closed = true;
        let channels = std::mem::take(&mut forks.channels);
        drop(forks);
        drop(channels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_peers_are_cut_and_escaped_in_warnings() {
        assert_eq!(shown(None), "no id");
        assert_eq!(shown(Some("a\nb")), "\"a\\nb\"");
        assert_eq!(shown(Some(&"x".repeat(5_000))).len(), SHOWN_MAX + 2);
    }
}
