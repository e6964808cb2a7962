//! Stock stacks as they come, on hosts with either family of addresses and with both.

use std::sync::Arc;

use consort_channel::{Channel, Delivery, Message, Receiver};
use consort_conf::Variables;
use consort_interop::{Network, PATIENCE, Tool, in_network};
use tokio::sync::watch;

/// S003-2: a host with IPv6 only needs no setting.
#[test]
fn members_find_each_other_over_ipv6() {
    in_network(Network::Ipv6, "members_find_each_other_over_ipv6", stock_stacks("[fd00::1]"));
}

/// S003-2: nor does one with IPv4 only.
#[test]
fn members_find_each_other_over_ipv4() {
    in_network(Network::Ipv4, "members_find_each_other_over_ipv4", stock_stacks("10.0.0.1"));
}

/// S003-2: nor does one with both; they agree on one.
#[test]
fn members_find_each_other_on_a_host_with_both_families() {
    let test = "members_find_each_other_on_a_host_with_both_families";
    in_network(Network::Dual, test, stock_stacks("10.0.0.1"));
}

async fn stock_stacks(host: &str) {
    for config in ["tcp.xml", "udp.xml"] {
        three_members(config, host).await;
    }
}

/// Counts received messages.
#[derive(Default)]
struct Count(watch::Sender<usize>);

impl Receiver for Count {
    fn receive_batch(&self, delivery: Delivery) {
        self.0.send_modify(|count| *count += delivery.messages().len());
    }
}

async fn three_members(config: &str, host: &str) {
    let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
    let mut channels: Vec<Channel> = Vec::new();
    for (name, count) in ["A", "B", "C"].into_iter().zip(&counts) {
        let builder = Channel::from_file_with(config, &Variables::new()).expect("a stock stack");
        let connecting = builder.name(name).receiver(count.clone()).connect("stock");
        let joined = tokio::time::timeout(PATIENCE, connecting).await.expect("joined in time");
        channels.push(joined.unwrap_or_else(|error| panic!("{config}, {name}: {error}")));
    }
    for channel in &channels {
        let mut views = channel.watch_view();
        let agreed = views.wait_for(|view| view.as_ref().is_some_and(|view| view.len() == 3));
        assert!(tokio::time::timeout(PATIENCE, agreed).await.is_ok(), "{config}: {}", channel.view_text());
        let own = channel.physical_address().to_string();
        assert!(own.starts_with(&format!("{host}:")), "{config}: {own}");
        channel.send(Message::bytes(None, "to all")).await.expect("sent");
    }
    for count in &counts {
        let mut received = count.0.subscribe();
        let has_all = tokio::time::timeout(PATIENCE, received.wait_for(|&count| count == 3)).await;
        has_all.expect("all messages come").expect("counted");
    }
    // Probe's multicast comes to them as well; in tcp.xml they also listen for it on ports.
    let all = ["3 responses (3 matches, 0 non matches)"];
    Tool::consort(&["probe", "--timeout=3000"]).wait_for(&all);
    if config == "tcp.xml" {
        Tool::consort(&["probe", "--addr", host.trim_matches(['[', ']'])]).wait_for(&all);
    }
    for channel in channels {
        channel.close().await;
    }
}
