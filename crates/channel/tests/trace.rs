//! Test of tracing, which is switched per layer while a member runs.

mod cluster;

use std::sync::Arc;

use cluster::{Cluster, Inbox, ask, one_view};
use consort_channel::{Channel, IgnoringReceiver, Message};
use consort_testkit::Log;

/// Multicasts a number and waits for it.
async fn multicast(from: &Channel, inbox: &Inbox, nth: usize) {
    from.send(Message::bytes(None, (nth as u32).to_be_bytes().to_vec())).await.unwrap();
    inbox.from(from.address(), nth).await;
}

/// S000-80: probe switches a layer's trace on and off, and other layers stay silent.
#[tokio::test]
async fn a_layer_is_traced_while_probe_enables_it() {
    let (log, _guard) = Log::begin("consort::trace=trace");
    let port = 32_000 + (std::process::id() % 1_000) as u16;
    let cluster = Cluster::new("tcp.xml").probed(port);
    let inbox = Arc::new(Inbox::default());
    let a = cluster.join("A", IgnoringReceiver).await;
    let b = cluster.join("B", inbox.clone()).await;
    one_view(&[&a, &b]).await;
    multicast(&a, &inbox, 1).await;
    assert_eq!(log.take(), "", "nothing is traced by default");

    let answer = ask(port, "jmx=NAKACK2.level=trace NAKACK2.level UFC.level").await;
    assert!(answer.contains("NAKACK2.level=trace\r\n"), "{answer}");
    assert!(answer.contains("NAKACK2={level=trace}") && answer.contains("UFC={level=warn}"), "{answer}");
    multicast(&a, &inbox, 2).await;
    let lines = log.take();
    assert!(lines.contains("--> all: 4 bytes, NakAck2(Msg"), "{lines}");
    assert!(lines.contains("<-- A: 4 bytes, NakAck2(Msg"), "its own, through the loopback: {lines}");
    for line in lines.lines() {
        assert!(line.contains("layer=\"NAKACK2\" member=\"A\""), "only what was asked for: {line}");
    }

    ask(port, "jmx=NAKACK2.level=warn").await;
    log.take();
    multicast(&a, &inbox, 3).await;
    assert_eq!(log.take(), "", "it has been switched off");
    let answer = ask(port, "jmx=NAKACK2.level=loud jmx=NONE.level=trace").await;
    assert!(answer.contains("unknown level `loud`") && answer.contains("NONE has no attribute"), "{answer}");
    a.close().await;
    b.close().await;
}
