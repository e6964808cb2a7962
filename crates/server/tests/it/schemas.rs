//! The cache of protobuf schemas.

use bytes::Bytes;
use consort_hotrod::ops::{bulk, map, multimap, server, task};
use consort_hotrod::{
    Expiration, Flags, MediaType, ProtocolVersion, Request, RequestBody, RequestHeader, Response,
    ResponseBody, Status,
};
use consort_server::Role;

use crate::authentication::users;
use crate::client::{Client, RunningServer, error, exec, get, put, request};

const SCHEMAS: &str = "___protobuf_metadata";

const BOOK: &str = "syntax = \"proto3\"; package shop; message Book { string title = 1; }";
const LOAN: &str = "syntax = \"proto3\"; import \"book.proto\"; message Loan { shop.Book book = 1; }";

fn text(body: RequestBody) -> Request {
    let mut request = request(1, SCHEMAS, body);
    request.header.key_type = MediaType::TEXT;
    request.header.value_type = MediaType::TEXT;
    request
}

async fn ask(client: &mut Client, body: RequestBody) -> Response {
    client.send_request(text(body)).await
}

async fn read(client: &mut Client, key: &'static str) -> Option<String> {
    match ask(client, get(key)).await.body {
        ResponseBody::Map(map::Response::Value(value)) => Some(String::from_utf8(value.into()).unwrap()),
        ResponseBody::Empty => None,
        other => panic!("{other:?}"),
    }
}

async fn run(client: &mut Client, name: &str, params: &[(&str, &str)]) -> Response {
    let params =
        params.iter().map(|(name, value)| ((*name).into(), Bytes::copy_from_slice(value.as_bytes())));
    client.ask("", RequestBody::Task(task::Request::Exec(name.into(), params.collect()))).await
}

/// Runs the task that writes a schema. Returns its outcome.
async fn save(client: &mut Client, name: &str, content: &str, op: &str, force: &str) -> String {
    let params = [("name", name), ("content", content), ("op", op), ("force", force)];
    match run(client, "@@schemas@createOrUpdate", &params).await.body {
        ResponseBody::Result(outcome) => String::from_utf8(outcome.into()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn errors_of_schemas_are_visible_on_all_servers_when_the_write_is_answered() {
    let first = RunningServer::start("schemas").await;
    let second = RunningServer::join("schemas").await;
    let (mut here, mut there) = (first.client().await, second.client().await);
    let pong = here.ask(SCHEMAS, RequestBody::Server(server::Request::Ping)).await.body;
    let ResponseBody::Server(server::Response::Pong(pong)) = pong else { panic!("{pong:?}") };
    assert_eq!((pong.key_type, pong.value_type), (MediaType::PROTOSTREAM, MediaType::PROTOSTREAM));

    assert_eq!(ask(&mut here, put("loan.proto", LOAN)).await.status, Status::Success);
    assert!(read(&mut there, "loan.proto.errors").await.unwrap().contains("book.proto"));
    assert_eq!(ask(&mut there, put("bad.proto", "message Bad {")).await.status, Status::Success);
    assert_eq!(read(&mut here, ".errors").await.as_deref(), Some("bad.proto\nloan.proto"));
    // After the missing schema is written, the schemas that import it have no error.
    assert_eq!(ask(&mut there, put("book.proto", BOOK)).await.status, Status::Success);
    assert_eq!(read(&mut here, "loan.proto.errors").await, None);
    assert_eq!(read(&mut here, ".errors").await.as_deref(), Some("bad.proto"));
    let mut remove = text(RequestBody::Map(map::Request::Remove("bad.proto".into())));
    remove.header.flags = Flags::FORCE_RETURN_PREVIOUS;
    let removed = here.send_request(remove).await;
    assert!(matches!(&removed.body, ResponseBody::Map(map::Response::Previous(Some(previous)))
        if previous.value == "message Bad {"));
    assert_eq!(read(&mut there, ".errors").await, None);
    assert_eq!(read(&mut there, "bad.proto.errors").await, None);
    ask(&mut here, RequestBody::Map(map::Request::Remove("book.proto".into()))).await;
    assert_eq!(read(&mut there, ".errors").await.as_deref(), Some("loan.proto"));
    let entries = vec![("book.proto".into(), BOOK.into()), ("worse.proto".into(), "message".into())];
    let put_all = RequestBody::Bulk(bulk::Request::PutAll(Expiration::INFINITE, entries));
    assert_eq!(ask(&mut here, put_all).await.status, Status::Success);
    assert_eq!(read(&mut there, ".errors").await.as_deref(), Some("worse.proto"));
    assert_eq!(ask(&mut there, RequestBody::Bulk(bulk::Request::Clear)).await.status, Status::Success);
    let size = ask(&mut here, RequestBody::Bulk(bulk::Request::Size)).await.body;
    assert_eq!(size, ResponseBody::Bulk(bulk::Response::Size(0)));
}

#[tokio::test]
async fn only_schemas_can_be_written_and_old_clients_wrap_them() {
    let running = RunningServer::start("schemas-only").await;
    let mut client = running.client().await;
    let refused = ask(&mut client, put("book", BOOK)).await;
    assert_eq!(refused.status, Status::ServerError);
    assert!(error(&refused).contains("ISPN028009"), "{refused:?}");
    let values = multimap::Request {
        action: multimap::Action::Put(map::Assignment {
            key: "a.proto".into(),
            expiration: Expiration::INFINITE,
            value: BOOK.into(),
        }),
        allows_duplicates: false,
    };
    assert_eq!(ask(&mut client, RequestBody::Multimap(values)).await.status, Status::ServerError);
    for refused in ["@@cache@create", "@@cache@remove"] {
        assert_eq!(client.ask("", exec(refused, SCHEMAS)).await.status, Status::ServerError, "{refused}");
    }
    let header = RequestHeader { cache: SCHEMAS.into(), ..RequestHeader::new(1, ProtocolVersion::V2_5) };
    let wrapped = "\x4a\x07a.proto";
    let old = Request { header, body: put(wrapped, "\x4a\x02//") };
    assert_eq!(client.send_request(old.clone()).await.status, Status::Success);
    assert_eq!(read(&mut client, "a.proto").await.as_deref(), Some("//"));
    let found = client.send_request(Request { body: get(wrapped), ..old }).await.body;
    assert_eq!(found, ResponseBody::Map(map::Response::Value("\x4a\x02//".into())));
}

#[tokio::test]
async fn tasks_for_schemas_return_their_outcome() {
    let running = RunningServer::start("schemas-tasks").await;
    let mut client = running.client().await;
    assert_eq!(save(&mut client, "book.proto", BOOK, "u", "").await, "n");
    assert_eq!(save(&mut client, "book.proto", BOOK, "c", "").await, "c");
    assert_eq!(save(&mut client, "book.proto", BOOK, "c", "").await, "n");
    assert_eq!(save(&mut client, "book.proto", BOOK, "s", "").await, "n");
    assert_eq!(save(&mut client, "book.proto", BOOK, "s", "f").await, "u");
    let outcome = save(&mut client, "book.proto", "message Book { string title 1; }", "u", "").await;
    assert!(outcome.starts_with("u;book.proto:1:"), "{outcome}");
    let outcome = save(&mut client, "loan.proto", LOAN, "s", "").await;
    assert!(outcome.starts_with("c;") && outcome.contains("book.proto"), "{outcome}");
    let outcome = save(&mut client, "loan.proto", LOAN, "s", "").await;
    assert!(outcome.starts_with("n;"), "{outcome}");
    for (name, outcome) in [("loan.proto", "1"), ("loan.proto", "0"), ("book.proto", "1")] {
        let deleted = run(&mut client, "@@schemas@delete", &[("name", name)]).await.body;
        assert_eq!(deleted, ResponseBody::Result(outcome.into()), "{name}");
    }
    for params in [
        &[("name", "a.proto"), ("op", "c")][..],
        &[("name", "a"), ("content", "//"), ("op", "c")],
        &[("name", "a.proto"), ("content", "//"), ("op", "x")],
    ] {
        let refused = run(&mut client, "@@schemas@createOrUpdate", params).await;
        assert_eq!(refused.status, Status::ServerError, "{params:?}");
    }
}

#[tokio::test]
async fn user_without_create_permission_cannot_write_schemas() {
    let running = RunningServer::secured("schemas-roles", users()).await;
    for role in [Role::Admin, Role::Deployer, Role::Application, Role::Observer] {
        let may = matches!(role, Role::Admin | Role::Deployer);
        let mut client = running.client().await;
        client.plain(role.name(), role.name()).await;
        let remove = RequestBody::Map(map::Request::Remove("a.proto".into()));
        for body in [put("a.proto", "//"), remove, RequestBody::Bulk(bulk::Request::Clear)] {
            let response = ask(&mut client, body).await;
            let is_denied =
                matches!(&response.body, ResponseBody::Error(text) if text.as_str().contains("'CREATE'"));
            assert_eq!(is_denied, !may, "{role}: {response:?}");
        }
        assert_eq!(ask(&mut client, get("a.proto")).await.status, Status::NotFound, "{role} reads");
    }
}
