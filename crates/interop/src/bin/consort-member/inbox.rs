//! The receiver: it counts messages, announces views and keeps the state.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_channel::relay::SiteListener;
use consort_channel::{Address, Delivery, Receiver, View};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::numbered::{Identity, Tally};

#[derive(Default)]
struct Seen {
    tallies: HashMap<Address, Tally>,
    /// Regular messages of all senders in the order of receipt.
    order: Vec<Identity>,
}

#[derive(Default)]
pub(crate) struct Inbox {
    seen: Mutex<Seen>,
    arrived: Notify,
    state: Mutex<Bytes>,
    slow: Mutex<u64>,
    unreachable_sites: Mutex<BTreeSet<String>>,
}

impl SiteListener for Inbox {
    fn site_unreachable(&self, site: &str) {
        self.unreachable_sites.lock().expect("unpoisoned").insert(site.to_owned());
    }
}

impl Inbox {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("unpoisoned")
    }

    pub(crate) fn reset(&self) {
        *self.seen() = Seen::default();
    }

    pub(crate) fn unreachable_sites(&self) -> BTreeSet<String> {
        self.unreachable_sites.lock().expect("unpoisoned").clone()
    }

    /// Delays every message from now on.
    pub(crate) fn slow(&self, micros: u64) {
        *self.slow.lock().expect("unpoisoned") = micros;
    }

    /// The address of a member of another site (`NAME:SITE`) that has sent a message.
    pub(crate) fn sender_of_site(&self, name: &str) -> Option<Address> {
        self.seen().tallies.keys().find(|address| address.to_string() == name).cloned()
    }

    /// `sender` returns none before a message of another site has come.
    pub(crate) async fn expect(
        &self,
        sender: impl Fn() -> Option<Address>,
        count: u64,
        until: Instant,
    ) -> Value {
        loop {
            let arrived = self.arrived.notified();
            {
                let known = sender();
                let mut seen = self.seen();
                let mut nothing = Tally::default();
                let one = match known {
                    Some(sender) => seen.tallies.entry(sender).or_default(),
                    None => &mut nothing,
                };
                if one.received() >= count || Instant::now() >= until {
                    return one.report();
                }
            }
            let _ = tokio::time::timeout_at(until.into(), arrived).await;
        }
    }

    pub(crate) fn order(&self) -> Value {
        let order: Vec<String> = self.seen().order.iter().map(Identity::to_string).collect();
        json!({ "order": order })
    }

    pub(crate) fn keep_state(&self, state: Bytes) {
        *self.state.lock().expect("unpoisoned") = state;
    }

    pub(crate) fn show_state(&self) -> Value {
        json!({ "state": String::from_utf8_lossy(&self.state.lock().expect("unpoisoned")) })
    }
}

impl Receiver for Inbox {
    fn receive_batch(&self, mut delivery: Delivery) {
        let slow = *self.slow.lock().expect("unpoisoned");
        if slow > 0 {
            std::thread::sleep(Duration::from_micros(slow * delivery.messages().len() as u64));
        }
        let mut seen = self.seen();
        for message in delivery.take() {
            let bytes: &[u8] = message.payload_bytes().map_or(&[], |bytes| bytes);
            let one = seen.tallies.entry(message.src.clone().expect("a source")).or_default();
            one.add(bytes, !message.is_oob());
            if !message.is_oob() {
                seen.order.extend(Identity::of(bytes));
            }
        }
        drop(seen);
        self.arrived.notify_waiters();
    }

    fn view_accepted(&self, _: &View) {
        crate::say(&json!({ "event": "view" }));
    }

    fn state(&self) -> Result<Option<Bytes>, String> {
        Ok(Some(self.state.lock().expect("unpoisoned").clone()))
    }

    fn set_state(&self, state: Option<Bytes>) {
        self.keep_state(state.unwrap_or_default());
    }
}
