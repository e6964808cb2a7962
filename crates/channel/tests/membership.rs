//! Tests of the application's membership policy.

mod cluster;

use cluster::{Cluster, join, one_view};
use consort_channel::{Address, Channel, DefaultPolicy, MembershipPolicy};

/// Places a joining member right after the coordinator.
struct NewestSecond;

impl MembershipPolicy for NewestSecond {
    fn next(
        &self,
        current: &[Address],
        joiners: &[Address],
        leavers: &[Address],
        suspects: &[Address],
    ) -> Vec<Address> {
        let mut members = DefaultPolicy.next(current, &[], leavers, suspects);
        for joiner in joiners {
            if !members.contains(joiner) {
                members.insert(members.len().min(1), joiner.clone());
            }
        }
        members
    }

    fn merge(&self, subgroups: &[Vec<Address>]) -> Vec<Address> {
        DefaultPolicy.merge(subgroups)
    }
}

async fn member(cluster: &Cluster, name: &str) -> Channel {
    join(&cluster.name, cluster.builder(name).membership_policy(NewestSecond)).await
}

fn ends(channel: &Channel, order: &str) -> bool {
    channel.view_text().ends_with(order)
}

#[tokio::test]
async fn the_applications_policy_orders_members() {
    let cluster = Cluster::new("tcp.xml");
    let a = member(&cluster, "A").await;
    let b = member(&cluster, "B").await;
    let c = member(&cluster, "C").await;
    one_view(&[&a, &b, &c]).await;
    for channel in [&a, &b, &c] {
        assert!(ends(channel, "(3) [A, C, B]"), "{}", channel.view_text());
    }
    let d = member(&cluster, "D").await;
    one_view(&[&a, &b, &c, &d]).await;
    assert!(ends(&b, "(4) [A, D, C, B]"), "{}", b.view_text());
    // The last member to join becomes coordinator when the first leaves.
    a.close().await;
    one_view(&[&b, &c, &d]).await;
    assert!(ends(&b, "(3) [D, C, B]"), "{}", b.view_text());
    for channel in [b, c, d] {
        channel.close().await;
    }
}

/// Other settings of GMS stay those of the file, and a stack without GMS is refused.
#[tokio::test]
async fn a_policy_needs_gms_and_leaves_its_settings() {
    let gms = "<pbcast.GMS print_local_addr=\"true\" join_timeout=\"2s\"/>";
    let other = "<pbcast.GMS join_timeout=\"777ms\"/>";
    let cluster = Cluster::new("tcp.xml").edited(&[(gms, other)]);
    let a = member(&cluster, "A").await;
    let value = a.with_stack(|stack, _| stack.attribute("GMS", "join_timeout")).await.expect("open");
    assert!(value.as_deref().is_some_and(|value| value.contains("777")), "{value:?}");
    a.close().await;

    let text = "<config><TCP bind_addr=\"127.0.0.1\" bind_port=\"0\"/></config>";
    let stack = consort_conf::parse_stack("my.xml", text, &consort_conf::Variables::new()).unwrap();
    let builder = Channel::from_config(stack.config).membership_policy(NewestSecond);
    let error = builder.connect("nobody").await.expect_err("an error").to_string();
    assert!(error.contains("GMS"), "{error}");
}

/// Otherwise it would try to join for ever.
#[tokio::test]
async fn a_stack_without_discovery_is_refused() {
    let cluster = Cluster::new("tcp.xml");
    let at = cluster.text.find("<TCPPING").expect("a discovery");
    let end = at + cluster.text[at..].find("/>").expect("its end") + 2;
    let discovery = cluster.text[at..end].to_owned();
    let cluster = cluster.edited(&[(&discovery, "")]);
    let joining = cluster.builder("A").connect(&cluster.name);
    let refused = tokio::time::timeout(cluster::PATIENCE, joining).await.expect("at once");
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("GMS needs a discovery below it"), "{error}");
}
