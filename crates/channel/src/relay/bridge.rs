//! The bridges of a site master: channels that the supervisor's task opens and closes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, BridgeInput, Event, Rng, View};
use consort_net::{Command, Submitter};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::outbound::Outbound;
use super::setup::BridgeSetup;
use crate::channel::Channel;
use crate::receiver::{Delivery, Receiver};
use crate::seed::random_seed;

/// The time between two attempts to open a bridge.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Supervisor {
    pub(super) site: Arc<str>,
    /// The bridges' name.
    pub(super) name: String,
    pub(super) bridges: Vec<BridgeSetup>,
    pub(super) member: Submitter,
    pub(super) outbound: Outbound,
}

impl Supervisor {
    /// Opens bridges when the member becomes site master and closes them when it ceases to be one, until it ends; then no bridge is
    /// open. Of several changes meanwhile the last one counts. It is boxed, because bridges are channels, too.
    pub(super) fn run(
        self,
        mut is_master: watch::Receiver<bool>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut opening = JoinSet::new();
            loop {
                let has_ended = is_master.changed().await.is_err();
                // Bridges that are being opened are given up.
                opening.shutdown().await;
                let closing = (0..self.bridges.len()).filter_map(|bridge| self.outbound.close(bridge));
                let closing: JoinSet<()> = closing.map(|channel| channel.close()).collect();
                closing.join_all().await;
                if has_ended {
                    return;
                }
                if *is_master.borrow_and_update() {
                    for (number, setup) in self.bridges.iter().enumerate() {
                        opening.spawn(self.open(number, setup.clone()));
                    }
                }
            }
        })
    }

    /// Opens a bridge, repeatedly if need be.
    fn open(&self, number: usize, setup: BridgeSetup) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (site, name) = (self.site.clone(), self.name.clone());
        let (member, outbound) = (self.member.clone(), self.outbound.clone());
        Box::pin(async move {
            loop {
                let receiver = BridgeReceiver { number, member: member.clone() };
                let address = Address::random(&mut Rng::new(random_seed())).in_site(&site, Some(&name));
                let builder = Channel::from_config(setup.stack.clone()).name(&name).address(address);
                match builder.receiver(receiver).connect(&setup.cluster).await {
                    Ok(channel) => {
                        tracing::info!("{name}: joined bridge {}", setup.cluster);
                        outbound.open(number, channel);
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(
                            "{name}: cannot join bridge {}: {error}; next attempt in {RETRY_INTERVAL:?}",
                            setup.cluster
                        );
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        })
    }
}

/// Passes messages and views of a bridge to the member of the site.
struct BridgeReceiver {
    number: usize,
    member: Submitter,
}

impl Receiver for BridgeReceiver {
    /// The bridge's credits return when the member's driver has the messages. It never waits for the site, because two sites
    /// that wait for each other would stop.
    fn receive_batch(&self, mut delivery: Delivery) {
        let bridge = self.number;
        let call = Command::Call(Box::new(move |stack, now| {
            for message in delivery.take() {
                stack
                    .handle_event(now, Event::FromBridge(Box::new(BridgeInput::Message { bridge, message })));
            }
            drop(delivery);
        }));
        let _ = self.member.submit(call);
    }

    fn view_accepted(&self, view: &View) {
        let input = BridgeInput::View { bridge: self.number, members: view.members().to_vec() };
        let _ = self.member.submit(Command::Event(Event::FromBridge(Box::new(input))));
    }
}
