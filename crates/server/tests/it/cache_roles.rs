//! Users with permissions of their own in some caches.

use std::path::PathBuf;

use bytes::Bytes;
use consort_conf::Variables;
use consort_hotrod::ops::iteration::{Request as Iteration, Response as Iterated, Start};
use consort_hotrod::ops::task;
use consort_hotrod::{RequestBody, Response, ResponseBody, Status};
use consort_server::{Server, ServerFile};
use serde_json::Value;

use crate::client::{Client, RunningServer, error, exec, put};

/// Each authenticated user has permissions on the entries of `open`, viewers in `shop`, and keepers in `secret`.
const FILE: &str = r#"<infinispan><cache-container>
    <security><authorization>
        <role name="boss" permissions="ALL"/><role name="viewer" permissions="MONITOR READ BULK_READ"/>
        <role name="keeper" permissions="READ"/>
    </authorization></security>
    <distributed-cache name="open"/>
    <distributed-cache name="shop"><security><authorization roles="boss viewer"/></security></distributed-cache>
    <distributed-cache name="secret"><security><authorization roles="boss keeper"/></security></distributed-cache>
    </cache-container><server><interfaces><interface name="i"><loopback/></interface></interfaces>
    <socket-bindings default-interface="i"><socket-binding name="b" port="11222"/></socket-bindings>
    <security><security-realms><security-realm name="r"><properties-realm><user-properties path="users.properties"/>
    <group-properties path="groups.properties"/></properties-realm></security-realm></security-realms></security>
    <endpoints socket-binding="b" security-realm="r"/></server></infinispan>"#;

/// A directory with the files of a server.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Files {
    fn new(name: &str) -> Self {
        let files = Self(std::env::temp_dir().join(format!("consort-{}-{name}", std::process::id())));
        std::fs::create_dir_all(&files.0).unwrap();
        files.write("infinispan.xml", FILE);
        files.write("users.properties", "alice=a\nbob=b\ncarol=c\n");
        files.write("groups.properties", "alice=boss\nbob=viewer\n");
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn read(&self) -> ServerFile {
        let file = ServerFile::read(self.0.join("infinispan.xml"), &Variables::new());
        assert!(file.is_startable(false), "{:?}", file.problems());
        file
    }

    async fn start(&self, cluster: &str) -> RunningServer {
        RunningServer::secured(cluster, self.read().apply(Server::builder()).allow_cleartext()).await
    }
}

async fn authenticated(server: &RunningServer, name: &str, password: &str) -> Client {
    let mut client = server.client().await;
    assert_eq!(client.plain(name, password).await.status, Status::Success);
    client
}

fn caches(response: &Response, member: &str) -> Vec<String> {
    let ResponseBody::Result(text) = &response.body else { panic!("{response:?}") };
    let answer: Value = serde_json::from_slice(text).unwrap();
    let list = if member.is_empty() { &answer } else { &answer[member] };
    list.as_array().unwrap().iter().map(|cache| cache["cache"].as_str().unwrap().to_owned()).collect()
}

fn is_refused(response: &Response) -> bool {
    matches!(response.body, ResponseBody::Error(_)) && error(response).contains("ISPN000287")
}

#[tokio::test]
async fn operators_see_the_caches_in_which_they_have_the_permission() {
    let server = Files::new("operator-roles").start("operator-roles").await;
    let mut bob = authenticated(&server, "bob", "b").await;
    let mut carol = authenticated(&server, "carol", "c").await;
    let mut alice = authenticated(&server, "alice", "a").await;
    // Bob has the role in general, and not in `secret`; Carol has no role, and permissions in `open` nevertheless.
    for (client, visible) in [
        (&mut bob, &["open", "shop"][..]),
        (&mut carol, &["open"]),
        (&mut alice, &["open", "secret", "shop"]),
    ] {
        for task in ["@@cache@config", "@@cache@describe", "@@cluster@segments", "@@cluster@rebalancing"] {
            for cache in ["open", "shop", "secret"] {
                let response = client.ask("", exec(task, cache)).await;
                assert_eq!(is_refused(&response), !visible.contains(&cache), "{task} {cache}: {response:?}");
            }
        }
        let all = |task: &str| RequestBody::Task(task::Request::Exec(task.into(), Vec::new()));
        assert_eq!(caches(&client.ask("", all("@@cluster@segments")).await, ""), visible);
        assert_eq!(caches(&client.ask("", all("@@cluster@rebalancing")).await, "caches"), visible);
    }
    // Only a user with the permission in general learns that there is no cache of this name.
    assert!(error(&bob.ask("", exec("@@cache@config", "none")).await).contains("ISPN000436"));
    assert!(is_refused(&carol.ask("", exec("@@cache@config", "none")).await));
    assert!(is_refused(&carol.ask("", exec("@@cluster@members", "")).await), "it is about no cache");
    assert!(is_refused(&bob.ask("", exec("@@cluster@disablerebalancing", "shop")).await));
    assert_eq!(alice.ask("", exec("@@cluster@disablerebalancing", "shop")).await.status, Status::Success);
}

#[tokio::test]
async fn iteration_needs_the_permission_in_its_own_cache() {
    let files = Files::new("iteration-roles");
    let server = files.start("iteration-roles").await;
    let mut bob = authenticated(&server, "bob", "b").await;
    let mut alice = authenticated(&server, "alice", "a").await;
    for key in ["k", "l", "m"] {
        assert_eq!(alice.ask("shop", put(key, Bytes::from_static(b"v"))).await.status, Status::Success);
    }
    let start = Start { segments: None, filter: None, batch: 1, with_metadata: false };
    let started = bob.ask("shop", RequestBody::Iteration(Iteration::Start(start))).await;
    let ResponseBody::Iteration(Iterated::Started(id)) = &started.body else { panic!("{started:?}") };
    let next = || RequestBody::Iteration(Iteration::Next(id.clone()));
    let end = || RequestBody::Iteration(Iteration::End(id.clone()));
    // Whatever the header names.
    for header in ["shop", "secret"] {
        assert_eq!(bob.ask(header, next()).await.status, Status::Success, "{header}");
    }
    files.write("groups.properties", "alice=boss\n");
    let users = files.read().realm_files().unwrap().read_users().unwrap().unwrap();
    server.users.as_ref().unwrap().replace(users).unwrap();
    for header in ["shop", "open"] {
        for request in [next(), end()] {
            let response = bob.ask(header, request).await;
            assert!(is_refused(&response), "{header}: {response:?}");
        }
    }
    files.write("groups.properties", "alice=boss\nbob=viewer\n");
    let users = files.read().realm_files().unwrap().read_users().unwrap().unwrap();
    server.users.as_ref().unwrap().replace(users).unwrap();
    assert_eq!(bob.ask("open", next()).await.status, Status::Success, "it has not ended");
}
