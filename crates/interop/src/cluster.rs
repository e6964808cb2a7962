//! Steps that tests share on a cluster of both kinds of members. They panic if a member does not do its part in time.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use crate::{Member, PATIENCE, Setting};

/// Two members of each kind; `first` is the coordinator's kind.
pub async fn two_and_two(setting: &Setting, java_first: bool) -> Vec<Member> {
    let mut members = Vec::new();
    for (name, is_java) in [("A", java_first), ("B", !java_first), ("C", java_first), ("D", !java_first)] {
        members.push(if is_java { setting.java(name).await } else { setting.consort(name).await });
    }
    same_view(&mut members, "(4) [A, B, C, D]").await;
    members
}

/// Waits until every member has a view that contains this text, and compares the whole texts. A name may arrive
/// after the view (MERGE3 sends names, too: facts 3.5) without a notification, so the members are asked again.
pub async fn same_view(members: &mut [Member], wanted: &str) {
    let mut texts = BTreeSet::new();
    let agreement = async {
        loop {
            texts.clear();
            for member in members.iter_mut() {
                texts.insert(member.view().await);
            }
            if texts.len() == 1 && texts.iter().all(|text| text.contains(wanted)) {
                return;
            }
            let _ = tokio::time::timeout(NAMES_ASKED_AGAIN, any_view_changes(members)).await;
        }
    };
    let outcome = tokio::time::timeout(PATIENCE, agreement).await;
    assert!(outcome.is_ok(), "no view {wanted}: {texts:?}");
}

const NAMES_ASKED_AGAIN: Duration = Duration::from_millis(500);

async fn any_view_changes(members: &mut [Member]) {
    let mut changes: Vec<_> = members.iter_mut().map(|member| Box::pin(member.view_changed())).collect();
    std::future::poll_fn(|cx| {
        let has_changed = changes.iter_mut().any(|change| change.as_mut().poll(cx).is_ready());
        if has_changed { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Resets the received messages of all members.
pub async fn reset(members: &mut [Member]) {
    for member in members {
        member.run("reset").await;
    }
}

/// The timeout of the multicasts of a test.
pub const MUCH: Duration = Duration::from_secs(300);

/// Every member multicasts, and every member receives all messages once and in order.
pub async fn everybody_multicasts(members: &mut [Member], count: u32, size: usize) {
    let names: Vec<String> = members.iter().map(|member| member.name().to_owned()).collect();
    reset(members).await;
    let command = format!("send {count} {size}");
    let sending = members.iter_mut().map(|member| member.run_within(&command, MUCH));
    join_all(sending).await;
    everything_came(members, &names, count).await;
}

/// Waits until every member has received the earlier multicasts of every member. After a merge, members receive what members of other
/// groups have multicast since the merge began, perhaps before the partition ended; in JGroups, too.
pub async fn earlier_multicasts_came(members: &mut [Member]) {
    for sender in 0..members.len() {
        reset(members).await;
        members[sender].run("send 1 100").await;
        // The members of the sender's group have received its earlier messages before: all lists have only the last one in common.
        let last_came = async {
            loop {
                let mut common: Option<BTreeSet<String>> = None;
                for member in members.iter_mut() {
                    let received: BTreeSet<String> = order(member).await.into_iter().collect();
                    common = Some(common.map_or_else(|| received.clone(), |common| &common & &received));
                }
                if common.is_some_and(|common| !common.is_empty()) {
                    return;
                }
            }
        };
        let came = tokio::time::timeout(PATIENCE, last_came).await;
        assert!(came.is_ok(), "the last multicast of {} has not come", members[sender].name());
    }
}

/// Checks that every member received this many multicasts of each sender, once and in order.
pub async fn everything_came(members: &mut [Member], senders: &[String], count: u32) {
    for member in members.iter_mut() {
        for name in senders {
            let seen = member.run(&format!("expect {name} {count} 60000")).await;
            let wanted = json!({ "received": count, "duplicates": 0, "out_of_order": 0 });
            assert_eq!(seen, wanted, "{} from {name}", member.name());
        }
    }
}

/// Checks that these members received the same messages in the same order since they were reset.
pub async fn one_order(members: &mut [Member]) {
    let [first, others @ ..] = members else { return };
    let wanted = order(first).await;
    for other in others {
        let order = order(other).await;
        let place = wanted.iter().zip(&order).position(|(one, another)| one != another);
        let names = [first.name(), other.name()];
        assert_eq!(place, None, "{names:?}: {:?}", place.map(|at| (&wanted[at..], &order[at..])));
        assert_eq!(wanted.len(), order.len(), "{names:?}");
    }
}

async fn order(member: &mut Member) -> Vec<String> {
    serde_json::from_value(member.run("order").await["order"].take()).expect("an order")
}

/// Runs futures that borrow different members at once.
pub async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pinned: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        let mut is_done = true;
        for (future, result) in &mut pinned {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *result = Some(value),
                    std::task::Poll::Pending => is_done = false,
                }
            }
        }
        if is_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    pinned.into_iter().filter_map(|(_, result)| result).collect()
}

/// All members leave.
pub async fn exit(members: Vec<Member>) {
    for member in members {
        member.exit().await;
    }
}
