//! Members on loopback for live tests, with ports of their own per cluster, and waits for conditions.
#![allow(dead_code, unreachable_pub)] // each test program uses a part

pub mod stallable_member;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use consort_channel::rpc::{RpcDispatcher, RpcHandler};
use consort_channel::{Address, Channel, ChannelBuilder, Delivery, Message, Receiver, SendError, View};
use consort_conf::{STOCK, Variables, parse_stack};
use consort_testkit::{free_base, members_from};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// Timeout of all waits. No test takes a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A cluster's settings, with ports of its own.
pub struct Cluster {
    pub name: String,
    pub config: &'static str,
    pub text: String,
    pub variables: Variables,
}

impl Cluster {
    pub fn new(config: &'static str) -> Self {
        let base = free_base();
        let variables = members_from(base);
        let (_, text) = STOCK.iter().find(|(name, _)| *name == config).expect("a stock stack");
        Self { name: format!("cluster-{base}"), config, text: (*text).to_owned(), variables }
    }

    /// Replaces some of the configuration's text.
    pub fn edited(mut self, replacements: &[(&str, &str)]) -> Self {
        for (old, new) in replacements {
            assert!(self.text.contains(old), "{} has no {old}", self.config);
            self.text = self.text.replace(old, new);
        }
        self
    }

    /// Makes members respond to probe over TCP from this port on.
    pub fn probed(self, port: u16) -> Self {
        let plain = "<include file=\"${transport-config:tcp-default.xml}\"/>";
        let probed = format!(
            "<include file=\"${{transport-config:tcp-default.xml}}\" diag.enable_udp=\"false\" diag.port=\"{port}\"/>"
        );
        self.edited(&[(plain, &probed)])
    }

    /// Sets a variable of the configuration.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.set(name, value);
        self
    }

    /// Replaces the included transport by one with this name and these attributes.
    pub fn transport(self, name: &str, attributes: &str) -> Self {
        let (file, port) = match name {
            "UDP" => ("udp-default.xml", "mcast_port=\"${jgroups.udp.mcast_port}\""),
            "TCP_NIO2" => ("nio-default.xml", "bind_port=\"${jgroups.bind_port}\""),
            _ => ("tcp-default.xml", "bind_port=\"${jgroups.bind_port}\""),
        };
        let include = format!("<include file=\"${{transport-config:{file}}}\"/>");
        let transport = format!("<{name} bind_addr=\"${{jgroups.bind_addr}}\" {port} {attributes}/>");
        self.edited(&[(&include, &transport)])
    }

    pub fn builder(&self, name: &str) -> ChannelBuilder {
        let mut variables = self.variables.clone();
        if self.config.contains("udp") || self.config.contains("sequencer") {
            variables.set("jgroups.bind_port", "0");
        }
        let stack =
            parse_stack(self.config, &self.text, &variables).unwrap_or_else(|error| panic!("{error}"));
        Channel::from_config(stack.config).name(name)
    }

    pub async fn join(&self, name: &str, receiver: impl Receiver) -> Channel {
        let connected = self.builder(name).receiver(receiver).connect(&self.name);
        match timeout(PATIENCE, connected).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => panic!("{name}: {error}"),
            Err(_) => panic!("{name} does not join"),
        }
    }
}

/// Joins a cluster.
pub async fn join(cluster: &str, builder: ChannelBuilder) -> Channel {
    timeout(PATIENCE, builder.connect(cluster)).await.expect("in time").expect("joined")
}

/// Joins a cluster with remote calls.
pub async fn join_rpc(cluster: &str, builder: ChannelBuilder, handler: impl RpcHandler) -> RpcDispatcher {
    let joining = RpcDispatcher::connect(builder, cluster, handler);
    timeout(PATIENCE, joining).await.expect("in time").expect("joined")
}

/// Waits until a member has a view of this many members.
pub async fn members(channel: &Channel, count: usize) -> View {
    let mut views = channel.watch_view();
    let has_all = |view: &Option<View>| view.as_ref().is_some_and(|view| view.len() == count);
    let Ok(view) = timeout(PATIENCE, views.wait_for(has_all)).await else {
        panic!("no view of {count}: {}", channel.view_text());
    };
    view.expect("an open channel").clone().expect("a view")
}

/// Returns the response to a probe request of the member that listens there.
pub async fn ask(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a responder");
    stream.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Waits until all have the same view of exactly these members.
pub async fn one_view(channels: &[&Channel]) {
    let wanted = channels.len();
    let agreed = async {
        for channel in channels {
            let mut views = channel.watch_view();
            let has_all = |view: &Option<View>| view.as_ref().is_some_and(|view| view.len() == wanted);
            views.wait_for(has_all).await.expect("an open channel");
        }
    };
    if timeout(PATIENCE, agreed).await.is_err() {
        let views: Vec<String> = channels.iter().map(|channel| channel.view_text()).collect();
        panic!("no view of {wanted}: {views:?}");
    }
    let first = channels[0].view();
    assert!(channels.iter().all(|channel| channel.view() == first));
}

/// Keeps received messages, per sender.
pub struct Inbox {
    received: watch::Sender<BTreeMap<Address, Vec<Vec<u8>>>>,
    pub state: Mutex<Vec<u8>>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { received: watch::Sender::new(BTreeMap::new()), state: Mutex::default() }
    }
}

impl Receiver for Inbox {
    fn receive_batch(&self, mut delivery: Delivery) {
        self.received.send_modify(|received| {
            for message in delivery.take() {
                let src = message.src.clone().expect("a source");
                let bytes = message.payload_bytes().map(|bytes| bytes.to_vec()).unwrap_or_default();
                received.entry(src).or_default().push(bytes);
            }
        });
    }

    fn state(&self) -> Result<Option<bytes::Bytes>, String> {
        Ok(Some(self.state.lock().unwrap().clone().into()))
    }

    fn set_state(&self, state: Option<bytes::Bytes>) {
        *self.state.lock().unwrap() = state.unwrap_or_default().to_vec();
    }
}

impl Inbox {
    /// Waits for this many messages of a sender, and returns them.
    pub async fn from(&self, sender: &Address, count: usize) -> Vec<Vec<u8>> {
        let mut received = self.received.subscribe();
        let arrived = received.wait_for(|all| all.get(sender).is_some_and(|one| one.len() >= count));
        match timeout(PATIENCE, arrived).await {
            Ok(all) => all.expect("an inbox")[sender].clone(),
            Err(_) => {
                let have = self.received.borrow().get(sender).map_or(0, Vec::len);
                panic!("{have} of {count} messages have arrived");
            }
        }
    }
}

/// Keeps deliveries until the test drops them.
#[derive(Default)]
pub struct Slow {
    pub kept: Mutex<Option<Vec<Delivery>>>,
    pub bytes: watch::Sender<usize>,
}

impl Slow {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { kept: Mutex::new(Some(Vec::new())), bytes: watch::Sender::new(0) })
    }
}

impl Receiver for Slow {
    fn receive_batch(&self, delivery: Delivery) {
        let bytes: usize = delivery.messages().iter().map(Message::length).sum();
        if let Some(kept) = &mut *self.kept.lock().unwrap() {
            kept.push(delivery);
        }
        self.bytes.send_modify(|total| *total += bytes);
    }
}

/// Waits until the gate knows how much stack and edge hold: it is updated at the end of a cycle, and this call runs
/// in the next one.
async fn settled(channel: &Channel) {
    for _ in 0..2 {
        channel.with_stack(|_, _| ()).await.expect("an open channel");
    }
}

/// Sends until stack and edge have no capacity, and returns the bytes; never waits for capacity.
pub async fn fill(from: &Channel, message: &Message) -> usize {
    let mut sent = 0;
    let mut is_settled = false;
    while sent < 100_000 {
        match from.try_send(message.clone()) {
            Ok(()) => (sent, is_settled) = (sent + 1, false),
            // Messages that no cycle has taken yet fill the gate too, but not stack and edge.
            Err(SendError::Full) if !is_settled => {
                settled(from).await;
                is_settled = true;
            }
            Err(SendError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    sent * message.length()
}
