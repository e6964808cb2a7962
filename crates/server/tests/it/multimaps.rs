//! Multimaps in protocol versions that our client does not support.

use consort_hotrod::ops::map::Assignment;
use consort_hotrod::ops::multimap::{Action, Request, Response as Multimap};
use consort_hotrod::{Expiration, ProtocolVersion, RequestBody, Response, ResponseBody, Status};

use consort_server::{Budget, Server};

use crate::client::{Client, RunningServer, request};

async fn ask(client: &mut Client, action: Action) -> Response {
    let body = RequestBody::Multimap(Request { action, allows_duplicates: false });
    let mut request = request(9, "c", body);
    request.header.version = ProtocolVersion::V2_7;
    client.send_request(request).await
}

async fn is(client: &mut Client, action: Action) -> bool {
    match ask(client, action).await.body {
        ResponseBody::Multimap(Multimap::Is(is)) => is,
        other => panic!("{other:?}"),
    }
}

/// Requests before 4.0 do not say whether a key may have a value twice: it may not.
#[tokio::test]
async fn multimap_of_an_old_version_has_each_value_once() {
    let (_server, mut client) = RunningServer::with_cache("old-multimaps", "c").await;
    let to = Assignment { key: "key".into(), expiration: Expiration::default(), value: "value".into() };
    for _ in 0..2 {
        assert_eq!(ask(&mut client, Action::Put(to.clone())).await.status, Status::Success);
    }
    let values = ask(&mut client, Action::Get("key".into())).await.body;
    assert_eq!(values, ResponseBody::Multimap(Multimap::Values(vec!["value".into()])));
    assert!(is(&mut client, Action::ContainsValue(Expiration::default(), "value".into())).await);
    assert!(is(&mut client, Action::RemoveEntry(to)).await);
    assert!(!is(&mut client, Action::RemoveKey("key".into())).await);
    assert_eq!(ask(&mut client, Action::Get("key".into())).await.status, Status::NotFound);
}

/// Of a process with 64 MiB, clients have 32 MiB, entries on their way from owners a quarter of that, and one walk a quarter of those.
#[tokio::test]
async fn walks_over_all_keys_reserve_the_bytes_that_owners_send() {
    const MIB: u64 = 1024 * 1024;
    let walks = [Action::Size, Action::ContainsValue(Expiration::default(), "value".into())];
    for (nth, walk) in walks.into_iter().enumerate() {
        let process = Budget::new("process", 64 * MIB);
        let builder = Server::builder().memory(process.clone());
        let server = RunningServer::secured(&format!("multimap-walks-{nth}"), builder).await;
        let mut client = server.client().await;
        client.create("c").await;
        let to = Assignment { key: "key".into(), expiration: Expiration::default(), value: "value".into() };
        assert_eq!(ask(&mut client, Action::Put(to)).await.status, Status::Success);
        assert!(process.usage().peak < MIB, "{:?}", process.usage());
        let response = ask(&mut client, walk).await;
        assert_eq!(response.status, Status::Success, "{response:?}");
        assert!(process.usage().peak >= 2 * MIB, "{:?}", process.usage());
        assert!(process.used() < MIB, "{:?}", process.usage());
    }
}
