use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use consort_group::{Address, BridgeInput, Event, ForwardRule, Message, MessageBatch, RelayEvent};
use consort_net::Command;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::bridge::Supervisor;
use super::listener::{SiteListener, SiteStatus};
use super::listener_queue::ListenerQueue;
use super::outbound::Outbound;
use super::setup::{BridgeSetup, RelaySetup};
use crate::receiver::Credit;
use crate::site_traffic::{Pending, SiteTraffic};
use crate::up_handler::UpHandler;
use crate::weak_channel::WeakChannel;

/// RELAY2 or RELAY3 of a member: its bridges, and the sites that the application knows.
pub(crate) struct RelayHandler {
    site: Arc<str>,
    bridges: Vec<BridgeSetup>,
    forwards: Vec<ForwardRule>,
    outbound: Outbound,
    runtime: Handle,
    channel: OnceLock<WeakChannel>,
    status: watch::Sender<SiteStatus>,
    /// Whether the bridges have to be open. `None`: the channel is closed.
    is_master: Mutex<Option<watch::Sender<bool>>>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    listener: ListenerQueue,
}

impl RelayHandler {
    pub(crate) fn new(setup: RelaySetup, listener: Option<Arc<dyn SiteListener>>, runtime: Handle) -> Self {
        Self {
            site: setup.site.as_str().into(),
            bridges: setup.bridges,
            forwards: setup.forwards,
            outbound: Outbound::new(runtime.clone()),
            listener: ListenerQueue::new(listener, &runtime),
            runtime,
            channel: OnceLock::new(),
            status: watch::Sender::default(),
            is_master: Mutex::default(),
            supervisor: Mutex::default(),
        }
    }

    pub(super) fn site(&self) -> &str {
        &self.site
    }

    pub(super) fn status(&self) -> &watch::Sender<SiteStatus> {
        &self.status
    }

    pub(super) fn dropped(&self) -> u64 {
        self.outbound.dropped()
    }

    pub(super) fn dropped_events(&self) -> u64 {
        self.listener.dropped()
    }

    /// Returns whether a message may go to other sites.
    fn is_concerned(&self, dest: Option<&Address>) -> bool {
        let is_other =
            |dest: &Address| dest.is_site_master() || dest.site().is_some_and(|site| *site != *self.site);
        dest.is_none_or(is_other)
    }

    fn set_master(&self, is_site_master: bool) {
        if let Some(is_master) = &*self.is_master.lock().unwrap_or_else(PoisonError::into_inner) {
            is_master.send_replace(is_site_master);
        }
        self.status.send_modify(|status| status.is_site_master = is_site_master);
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<Arc<str>>)) {
        self.status.send_modify(|status| {
            let mut known: BTreeSet<Arc<str>> = status.reachable.drain(..).collect();
            change(&mut known);
            status.reachable = known.into_iter().collect();
        });
    }

    fn stop(&self) {
        drop(self.is_master.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl SiteTraffic for RelayHandler {
    fn handle(&self, event: RelayEvent) {
        match &event {
            RelayEvent::OpenBridges => self.set_master(true),
            RelayEvent::CloseBridges => self.set_master(false),
            RelayEvent::Send(_) => {}
            RelayEvent::SitesUp(sites) => self.change(|known| known.extend(sites.iter().cloned())),
            RelayEvent::SitesDown(sites) => self.change(|known| {
                sites.iter().for_each(|site| _ = known.remove(site));
            }),
            RelayEvent::SiteUnreachable(_) | RelayEvent::MemberUnreachable(_) => {}
        }
        match event {
            RelayEvent::Send(send) => {
                let credit = self.channel.get().zip(send.credit);
                let credit = credit.map(|(channel, held)| Credit::held(held, channel.submitter()));
                self.outbound.push(send.bridge, send.message, credit);
            }
            RelayEvent::OpenBridges | RelayEvent::CloseBridges => {}
            event => self.listener.push(event),
        }
    }

    fn has_room(&self, dest: Option<&Address>) -> bool {
        !self.is_concerned(dest) || self.outbound.has_room()
    }

    fn wait_for_room(&self) -> Pending<'_> {
        Box::pin(self.outbound.wait_for_room())
    }

    fn shut_down(&self) -> Pending<'_> {
        self.stop();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            if let Some(supervisor) = supervisor {
                let _ = supervisor.await;
            }
        })
    }
}

impl UpHandler for RelayHandler {
    fn opened(&self, channel: WeakChannel) {
        let (is_master, changes) = watch::channel(false);
        let supervisor = Supervisor {
            site: self.site.clone(),
            name: format!("_{}", channel.name()),
            bridges: self.bridges.clone(),
            member: channel.submitter(),
            outbound: self.outbound.clone(),
        };
        *self.is_master.lock().unwrap_or_else(PoisonError::into_inner) = Some(is_master);
        if !self.forwards.is_empty() {
            let forwards = Event::FromBridge(Box::new(BridgeInput::Forwards(self.forwards.clone())));
            // A stack that has ended needs none.
            let _ = channel.submitter().submit(Command::Event(forwards));
        }
        let task = self.runtime.spawn(supervisor.run(changes));
        *self.supervisor.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        let _ = self.channel.set(channel);
    }

    fn takes(&self, _message: &Message) -> bool {
        false
    }

    fn handle_batch(&self, _batch: MessageBatch) {}

    fn closed(&self) {
        self.stop();
    }
}
