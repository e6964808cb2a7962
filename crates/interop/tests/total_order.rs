//! SEQUENCER with members of both kinds: all multicasts have one order, independent of the sender's kind.

use consort_interop::cluster::{
    MUCH, everybody_multicasts, everything_came, exit, join_all, one_order, reset, same_view, two_and_two,
};
use consort_interop::{Kind, Member, Setting, in_own_network};

/// Of each sender while a sequencer is killed.
const UNDER_WAY: u32 = 3_000;

/// Kills the coordinator while the others multicast. Their messages reach all of them once, in one order.
async fn kill_the_sequencer(members: &mut Vec<Member>, view: &str) {
    reset(members).await;
    let mut sequencer = members.remove(0);
    let names: Vec<String> = members.iter().map(|member| member.name().to_owned()).collect();
    let killed = async {
        for name in &names {
            sequencer.run(&format!("expect {name} {} 60000", UNDER_WAY / 10)).await;
        }
        sequencer.kill();
    };
    let command = format!("send {UNDER_WAY} 100");
    tokio::join!(killed, join_all(members.iter_mut().map(|member| member.run_within(&command, MUCH))));
    same_view(members, view).await;
    everything_came(members, &names, UNDER_WAY).await;
    one_order(members).await;
}

async fn total_order(first: Kind) {
    let setting = Setting::new("sequencer.xml");
    let mut members = two_and_two(&setting, first == Kind::Java).await;
    // A message of 100 KB travels in pieces, each of which has a place of its own.
    for (count, size) in [(1_000, 100), (50, 100_000)] {
        everybody_multicasts(&mut members, count, size).await;
        one_order(&mut members).await;
    }
    assert_eq!(members[0].kind(), first);
    kill_the_sequencer(&mut members, "(3) [B, C, D]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    one_order(&mut members).await;
    assert_ne!(members[0].kind(), first, "the next sequencer is of the other kind");
    kill_the_sequencer(&mut members, "(2) [C, D]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    one_order(&mut members).await;
    exit(members).await;
}

#[test]
fn one_order_from_a_java_sequencer_and_a_consort_one_after_it() {
    in_own_network("one_order_from_a_java_sequencer_and_a_consort_one_after_it", total_order(Kind::Java));
}

#[test]
fn one_order_from_a_consort_sequencer_and_a_java_one_after_it() {
    in_own_network("one_order_from_a_consort_sequencer_and_a_java_one_after_it", total_order(Kind::Consort));
}
