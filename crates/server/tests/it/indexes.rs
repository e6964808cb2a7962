//! Queries of indexed caches, whose results are those of a scan.

use bytes::Bytes;
use consort_hotrod::ops::map::{self, Request as Map};
use consort_hotrod::ops::{bulk, task};
use consort_hotrod::{Expiration, MediaType, Request, RequestBody, ResponseBody, Status};
use consort_protostream::{QueryRequest, QueryResponse};

use crate::client::{Client, RunningServer, error, exec, put, request};
use crate::configurations::Directory;
use crate::failed_caches::stop;
use crate::http::ask;

const INDEXED: &str = r#"{"distributed-cache": {"encoding": {"media-type": "application/x-protostream"},
    "indexing": {"enabled": true, "indexed-entities": ["shop.Book"]}}}"#;

const PLAIN: &str = r#"{"distributed-cache": {"encoding": {"media-type": "application/x-protostream"}}}"#;

const SCHEMA: &str = "syntax = \"proto3\";\npackage shop;\n\n/**\n * @Indexed\n */\nmessage Book {\n  /** @Keyword */\n  \
    string title = 1;\n  /** @Basic */\n  int32 pages = 2;\n  /** @Text */\n  string about = 3;\n}\n";

/// A request with keys as text and values as JSON.
fn json(cache: &str, body: RequestBody) -> Request {
    let mut request = request(1, cache, body);
    request.header.key_type = MediaType::TEXT;
    request.header.value_type = MediaType::named("application/json");
    request
}

fn book(pages: u32) -> Bytes {
    format!(r#"{{"_type":"shop.Book","title":"b{:02}","pages":{pages},"about":"x"}}"#, pages % 50).into()
}

async fn register_schema(client: &mut Client) {
    let mut schema = request(1, "___protobuf_metadata", put("book.proto", SCHEMA));
    (schema.header.key_type, schema.header.value_type) = (MediaType::TEXT, MediaType::TEXT);
    assert_eq!(client.send_request(schema).await.status, Status::Success);
}

async fn put_books(client: &mut Client, cache: &str, count: u32) {
    let entries = (0..count).map(|pages| (Bytes::from(format!("book-{pages}")), book(pages)));
    let all = bulk::Request::PutAll(Expiration::INFINITE, entries.collect());
    let put = client.send_request(json(cache, RequestBody::Bulk(all))).await;
    assert_eq!(put.status, Status::Success, "{put:?}");
}

async fn found(client: &mut Client, cache: &str, text: &str) -> (u64, Vec<Vec<Bytes>>) {
    // Pages of deletions are refused.
    let max = (!text.starts_with("DELETE")).then_some(1_000);
    let query = QueryRequest { query: text.to_owned(), max, ..QueryRequest::default() };
    let response = client.ask(cache, RequestBody::Task(task::Request::Query(query.write()))).await;
    let ResponseBody::Result(result) = &response.body else { panic!("{text}: {response:?}") };
    let QueryResponse { count, mut rows, .. } = QueryResponse::read(result).unwrap();
    rows.sort();
    (count, rows)
}

/// Returns the parts of queries that the index has answered, and those that have scanned.
async fn walks(server: &RunningServer, cache: &str) -> (f64, f64) {
    let metrics = ask(server, "/metrics", "").await.content;
    let value = |name: &str| {
        let series = format!("{name}_total{{cache=\"{cache}\"}} ");
        let found = metrics.lines().find_map(|line| line.strip_prefix(&*series));
        found.unwrap_or_else(|| panic!("{series}: {metrics}")).parse().unwrap()
    };
    (value("consort_cache_index_lookups"), value("consort_cache_index_scans"))
}

const QUERIES: [&str; 9] = [
    "FROM shop.Book WHERE pages = 77",
    "FROM shop.Book WHERE title = 'b07'",
    "FROM shop.Book WHERE pages BETWEEN 10 AND 19",
    "FROM shop.Book WHERE pages >= 290 OR title = 'b03'",
    "FROM shop.Book WHERE title IN ('b01', 'b02') AND pages < 100",
    "FROM shop.Book WHERE title LIKE 'b1%' AND about = 'x'",
    "SELECT title, pages FROM shop.Book WHERE pages > 295",
    "SELECT COUNT(*), SUM(pages) FROM shop.Book WHERE title = 'b07'",
    "FROM shop.Book WHERE pages = 9999",
];

#[tokio::test]
async fn indexed_queries_of_three_servers_find_what_scans_find() {
    let servers = RunningServer::three("indexes").await;
    let mut client = servers[0].client().await;
    register_schema(&mut client).await;
    client.create_with("books", INDEXED).await;
    client.create_with("plain", PLAIN).await;
    for cache in ["books", "plain"] {
        put_books(&mut client, cache, 300).await;
        let changed =
            map::Assignment { key: "book-5".into(), expiration: Expiration::INFINITE, value: book(77) };
        let put = client.send_request(json(cache, RequestBody::Map(Map::Put(changed)))).await;
        assert_eq!(put.status, Status::Success);
        found(&mut client, cache, "DELETE FROM shop.Book WHERE pages = 78").await;
    }
    for server in &servers {
        let mut client = server.client().await;
        // Waits for the index of this server.
        let reindexed = client.ask("", exec("@@cache@reindex", "books")).await;
        assert_eq!(reindexed.status, Status::Success, "{reindexed:?}");
    }
    let mut before = Vec::new();
    for server in &servers {
        before.push(walks(server, "books").await);
    }
    for server in &servers {
        let mut client = server.client().await;
        for query in QUERIES {
            let scanned = found(&mut client, "plain", query).await;
            assert_eq!(found(&mut client, "books", query).await, scanned, "{query}");
        }
    }
    assert_eq!(found(&mut client, "books", QUERIES[0]).await.0, 2);
    for (server, (lookups, scans)) in servers.iter().zip(before) {
        let (lookups_now, scans_now) = walks(server, "books").await;
        assert!(lookups_now > lookups && (scans_now - scans).abs() < f64::EPSILON, "{lookups} {scans}");
    }
    // A condition without an index.
    assert_eq!(found(&mut client, "books", "FROM shop.Book WHERE about = 'x'").await.0, 299);
}

#[tokio::test]
async fn index_is_built_while_entries_are_loaded_after_a_restart() {
    let directory = Directory::new("indexes-restart");
    let server = directory.server("indexes-restart").await;
    let mut client = server.client().await;
    register_schema(&mut client).await;
    client
        .create_with(
            "books",
            r#"{"distributed-cache": {"encoding": {"media-type": "application/x-protostream"}, "indexing": {},
                "persistence": {"file-store": {"preload": true}}}}"#,
        )
        .await;
    put_books(&mut client, "books", 100).await;
    let before = found(&mut client, "books", QUERIES[2]).await;
    assert_eq!(before.0, 10);
    stop(server).await;
    let server = directory.server("indexes-restart").await;
    let mut client = server.client().await;
    assert_eq!(found(&mut client, "books", QUERIES[2]).await, before);
    let (lookups, scans) = walks(&server, "books").await;
    assert!(lookups > 0.0 && scans < 1.0, "{lookups} {scans}");
}

#[tokio::test]
async fn schema_that_comes_after_the_entries_is_indexed_and_full_text_is_refused() {
    let running = RunningServer::start("indexes-later").await;
    let mut client = running.client().await;
    let none = client.ask("", exec("@@cache@reindex", "books")).await;
    assert!(error(&none).contains("no matching cache configuration"), "{none:?}");
    client.create_with("books", INDEXED).await;
    let mut plain = request(1, "___protobuf_metadata", put("book.proto", SCHEMA.replace('@', "")));
    (plain.header.key_type, plain.header.value_type) = (MediaType::TEXT, MediaType::TEXT);
    assert_eq!(client.send_request(plain).await.status, Status::Success);
    put_books(&mut client, "books", 100).await;
    assert_eq!(found(&mut client, "books", QUERIES[2]).await.0, 10);
    assert!(walks(&running, "books").await.0 < 1.0);
    register_schema(&mut client).await;
    assert_eq!(found(&mut client, "books", QUERIES[2]).await.0, 10);
    for task in ["@@cache@updateindexschema", "@@cache@reindex"] {
        assert_eq!(client.ask("", exec(task, "books")).await.status, Status::Success);
    }
    assert_eq!(found(&mut client, "books", QUERIES[2]).await.0, 10);
    assert!(walks(&running, "books").await.0 > 0.0);
    let refused =
        QueryRequest { query: "FROM shop.Book WHERE about : 'x'".to_owned(), ..QueryRequest::default() };
    let refused = client.ask("books", RequestBody::Task(task::Request::Query(refused.write()))).await;
    assert!(error(&refused).contains("index"), "{refused:?}");
}
