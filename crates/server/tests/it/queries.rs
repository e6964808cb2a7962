//! Queries in both formats, on one server and on three.

use bytes::Bytes;
use consort_hotrod::ops::iteration::{Request as Iteration, Response as Walked, Start};
use consort_hotrod::ops::listener::{Factory, Interests, Listener};
use consort_hotrod::ops::{bulk, listener, task};
use consort_hotrod::{MediaType, Request, RequestBody, Response, ResponseBody, Status};
use consort_protostream::{QueryRequest, QueryResponse};
use consort_server::{Budget, Role, Server};

use crate::authentication::users;
use crate::client::{Client, RunningServer, error, put, request};

const WRAPPED: &str = r#"{"distributed-cache": {"encoding": {"media-type": "application/x-protostream"}}}"#;
const SCHEMA: &str =
    "syntax = \"proto3\"; package shop; message Book { string title = 1; int32 pages = 2; bytes code = 3; }";

/// A request with keys as text and values as JSON.
fn json(cache: &str, body: RequestBody) -> Request {
    let mut request = request(1, cache, body);
    request.header.key_type = MediaType::TEXT;
    request.header.value_type = MediaType::named("application/json");
    request
}

async fn with_books(client: &mut Client, count: usize) {
    client.create_with("books", WRAPPED).await;
    let mut schema = request(1, "___protobuf_metadata", put("book.proto", SCHEMA));
    (schema.header.key_type, schema.header.value_type) = (MediaType::TEXT, MediaType::TEXT);
    assert_eq!(client.send_request(schema).await.status, Status::Success);
    let entries = (0..count).map(|pages| {
        let book = format!(r#"{{"_type":"shop.Book","title":"b{pages:03}","pages":{pages},"code":"Af8="}}"#);
        (Bytes::from(format!("book-{pages}")), Bytes::from(book))
    });
    let all = bulk::Request::PutAll(consort_hotrod::Expiration::INFINITE, entries.collect());
    let put = client.send_request(json("books", RequestBody::Bulk(all))).await;
    assert_eq!(put.status, Status::Success, "{put:?}");
}

fn query(query: Bytes) -> RequestBody {
    RequestBody::Task(task::Request::Query(query))
}

async fn found(client: &mut Client, asked: QueryRequest) -> QueryResponse {
    let response = client.ask("books", query(asked.write())).await;
    let ResponseBody::Result(result) = &response.body else { panic!("{response:?}") };
    QueryResponse::read(result).unwrap()
}

async fn query_response(client: &mut Client, asked: &'static str) -> Response {
    client.send_request(json("books", query(asked.into()))).await
}

fn ickle(text: &str) -> QueryRequest {
    QueryRequest { query: text.to_owned(), ..QueryRequest::default() }
}

#[tokio::test]
async fn query_of_three_servers_finds_each_entry_once_at_any_of_them() {
    let servers = RunningServer::three("queries").await;
    let mut client = servers[0].client().await;
    with_books(&mut client, 300).await;
    for server in &servers {
        let mut client = server.client().await;
        let all = found(&mut client, ickle("FROM shop.Book WHERE pages >= 50")).await;
        assert_eq!((all.rows.len(), all.count, all.is_exact, all.columns), (100, 250, true, 0));
        let sum = found(&mut client, ickle("SELECT COUNT(*), SUM(pages) FROM shop.Book")).await;
        let expected = [&b"\x18\xac\x02"[..], b"\x18\xb2\xde\x02"].map(Bytes::from_static).to_vec();
        assert_eq!((sum.rows, sum.count), (vec![expected], 1));
        let page = QueryRequest {
            offset: Some(290),
            max: Some(7),
            ..ickle("SELECT title FROM shop.Book ORDER BY pages DESC")
        };
        let page = found(&mut client, page).await;
        let titles: Vec<Bytes> = page.rows.into_iter().flatten().collect();
        assert_eq!(titles, (3..10).rev().map(|at| format!("J\x04b{at:03}")).collect::<Vec<_>>());
        let whole = QueryRequest { max: Some(1_000), ..ickle("FROM shop.Book") };
        let mut rows = found(&mut client, whole).await.rows;
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), 300);
    }
    // Each server returns the entries that it owns; with two owners every entry appears twice.
    let mut own = 0;
    for server in &servers {
        let asked = QueryRequest { is_local: true, ..ickle("FROM shop.Book") };
        own += found(&mut server.client().await, asked).await.count;
    }
    assert_eq!(own, 600);
    let deleted = found(&mut client, ickle("DELETE FROM shop.Book WHERE pages < 290")).await;
    assert_eq!((deleted.count, deleted.rows.len()), (290, 0));
    assert_eq!(found(&mut client, ickle("FROM shop.Book")).await.count, 10);
}

#[tokio::test]
async fn query_in_json_is_answered_in_json() {
    let running = RunningServer::start("queries-json").await;
    let mut client = running.client().await;
    with_books(&mut client, 3).await;
    for (asked, answer) in [
        (
            r#"{"queryString":"FROM shop.Book WHERE pages = 1"}"#,
            r#"{"hit_count":1,"hit_count_exact":true,"hits":[{"hit":{"_type":"shop.Book","title":"b001","pages":1,"code":"Af8="}}]}"#,
        ),
        (
            "{\"queryString\":\"SELECT title, code FROM shop.Book WHERE pages > :p ORDER BY title\",\"startOffset\":null,\
             \"maxResults\":1,\"namedParameters\":[{\"name\":\"p\",\"value\":0}],\"local\":false}",
            r#"{"hit_count":2,"hit_count_exact":true,"hits":[{"hit":{"title":"b001","code":[1,-1]}}]}"#,
        ),
        (
            r#"{"queryString":"SELECT COUNT(title), b FROM shop.Book b"}"#,
            "ISPN014026: The expression 'b' must be part of an aggregate function",
        ),
        (r#"{"query":"FROM shop.Book"}"#, "invalid query request: queryString is invalid"),
    ] {
        let response = query_response(&mut client, asked).await;
        match &response.body {
            ResponseBody::Result(result) => assert_eq!(result, answer.as_bytes()),
            _ => assert!(error(&response).contains(answer), "{response:?}"),
        }
    }
}

#[tokio::test]
async fn invalid_query_is_refused_with_its_reason() {
    let running = RunningServer::start("queries-refused").await;
    let mut client = running.client().await;
    with_books(&mut client, 1).await;
    client.create_with("texts", r#"{"local-cache": {"encoding": {"media-type": "text/plain"}}}"#).await;
    let refused = client.ask("texts", query(ickle("FROM shop.Book").write())).await;
    assert_eq!(
        error(&refused),
        "cache 'texts' cannot be queried: its values are not application/x-protostream"
    );
    let refused = client.ask("books", query(ickle("FROM shop.Book WHERE page = 1").write())).await;
    assert_eq!(
        error(&refused),
        "org.infinispan.query.objectfilter.ParsingException: ISPN028501: The type shop.Book does not have an accessible \
         property named 'page'. Did you mean pages? (line 1, character 22)"
    );
    let refused = client.ask("books", query(Bytes::from_static(b"\xff"))).await;
    assert!(error(&refused).contains("invalid query request"), "{refused:?}");
    let missing = client.ask("films", query(ickle("FROM shop.Book").write())).await;
    assert!(error(&missing).contains("CacheNotFoundException"), "{missing:?}");
    for (params, why) in [
        (vec![], "has to be the query"),
        (vec!["J\x04FROM"], "the name of a type is expected"),
        (vec!["J\x0eFROM shop.Book", "J\x01p"], "a parameter has a name but no value"),
    ] {
        let params = params.into_iter().map(Bytes::from).collect();
        let filter = Factory { name: "continuous-query-filter-converter-factory".into(), params };
        let listener = Listener {
            id: "l".into(),
            includes_state: true,
            filter: Some(filter.clone()),
            converter: Some(filter),
            is_raw: true,
            interests: Interests::ALL,
        };
        let refused = client.ask("books", RequestBody::Listener(listener::Request::Add(listener))).await;
        assert!(error(&refused).contains(why), "{refused:?}");
    }
}

/// Returns a text as Java's clients wrap it.
fn wrapped(text: &str) -> Bytes {
    consort_protostream::Wrapped::Text(text.to_owned()).write()
}

fn start_iteration(params: &[Bytes], with_metadata: bool) -> RequestBody {
    let filter = Factory { name: "iteration-filter-converter-factory".into(), params: params.to_vec() };
    RequestBody::Iteration(Iteration::Start(Start {
        segments: None,
        filter: Some(filter),
        batch: 7,
        with_metadata,
    }))
}

/// Returns the keys with their values, in order.
async fn iterate(client: &mut Client, params: &[Bytes], with_metadata: bool) -> Vec<(Bytes, Vec<Bytes>)> {
    let begun = client.ask("books", start_iteration(params, with_metadata)).await;
    let ResponseBody::Iteration(Walked::Started(id)) = begun.body else { panic!("{begun:?}") };
    let mut all = Vec::new();
    loop {
        let next = client.ask("books", RequestBody::Iteration(Iteration::Next(id.clone()))).await;
        let ResponseBody::Iteration(Walked::Batch(batch)) = next.body else { panic!("{next:?}") };
        if batch.entries.is_empty() {
            all.sort();
            return all;
        }
        for entry in batch.entries {
            assert_eq!(entry.values.len(), batch.projections as usize);
            assert_eq!(entry.metadata.is_some_and(|metadata| metadata.version != 0), with_metadata);
            all.push((entry.key, entry.values.into_vec()));
        }
    }
}

#[tokio::test]
async fn iteration_with_a_query_returns_each_match_once_from_all_servers() {
    let servers = RunningServer::three("queries-iterated").await;
    let mut client = servers[1].client().await;
    with_books(&mut client, 100).await;
    for with_metadata in [false, true] {
        let named = ["FROM shop.Book b WHERE b.pages > :p", "p"].map(wrapped);
        let [query, name] = named;
        let whole = iterate(&mut client, &[query, name, "\x28\x3b".into()], with_metadata).await;
        let keys: Vec<Bytes> = whole.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(keys, (60..100).map(|at| wrapped(&format!("book-{at}"))).collect::<Vec<_>>());
        assert!(whole.iter().all(|(_, values)| values[0].windows(9).any(|name| name == b"shop.Book")));
        let selected = wrapped("SELECT title, pages FROM shop.Book WHERE title = 'b007'");
        let fields = iterate(&mut client, &[selected], with_metadata).await;
        let expected = ["J\x04b007", "\x28\x07"].map(Bytes::from).to_vec();
        assert_eq!(fields, [(wrapped("book-7"), expected)]);
    }
    for (params, why) in [
        (vec![wrapped("DELETE FROM shop.Book")], "cannot remove entries"),
        (vec![wrapped("SELECT COUNT(*) FROM shop.Book")], "cannot use grouping or aggregations"),
        (vec![], "first parameter of 'iteration-filter-converter-factory' has to be the query"),
    ] {
        let refused = client.ask("books", start_iteration(&params, false)).await;
        assert!(error(&refused).contains(why), "{refused:?}");
    }
}

#[tokio::test]
async fn user_with_read_permission_can_query_but_not_delete() {
    let running = RunningServer::secured("queries-roles", users()).await;
    let mut admin = running.client().await;
    admin.plain("admin", "admin").await;
    with_books(&mut admin, 2).await;
    let mut observer = running.client().await;
    observer.plain(Role::Observer.name(), Role::Observer.name()).await;
    assert_eq!(found(&mut observer, ickle("FROM shop.Book")).await.count, 2);
    let refused = observer.ask("books", query(ickle("DELETE FROM shop.Book").write())).await;
    assert!(error(&refused).contains("lacks 'BULK_WRITE' permission"), "{refused:?}");
    assert_eq!(found(&mut admin, ickle("DELETE FROM shop.Book")).await.count, 2);
}

/// As a query that reads: a quarter of the bytes for entries on their way, here 16 MiB.
#[tokio::test]
async fn delete_by_query_reserves_the_bytes_that_owners_send() {
    const MIB: u64 = 1024 * 1024;
    let process = Budget::new("process", 512 * MIB);
    let server = RunningServer::secured("delete-bytes", Server::builder().memory(process.clone())).await;
    let mut client = server.client().await;
    with_books(&mut client, 3).await;
    assert!(process.usage().peak < 16 * MIB, "{:?}", process.usage());
    assert_eq!(found(&mut client, ickle("DELETE FROM shop.Book")).await.count, 3);
    assert!(process.usage().peak >= 16 * MIB, "{:?}", process.usage());
}
