//! Queries, in every version.

use bytes::Bytes;
use consort_client::{ProtocolVersion, QueryResult, RawCache, Wrapped};
use consort_protostream::wire::{LENGTH, MESSAGE, TYPE_NAME, VARINT, put_bytes, put_tag, put_varint};

use crate::servers::{DISTRIBUTED, Running};
use crate::verbs::{speaking, versions};

const SCHEMA: &str = "syntax = \"proto3\"; package shop; message Book { string title = 1; int32 pages = 2; }";

/// An entity as wrapped by clients that use its type name.
fn book(title: &str, pages: u64) -> Bytes {
    let (mut message, mut out) = (Vec::new(), Vec::new());
    put_tag(&mut message, 1, LENGTH);
    put_bytes(&mut message, title.as_bytes());
    put_tag(&mut message, 2, VARINT);
    put_varint(&mut message, pages);
    put_tag(&mut out, TYPE_NAME, LENGTH);
    put_bytes(&mut out, b"shop.Book");
    put_tag(&mut out, MESSAGE, LENGTH);
    put_bytes(&mut out, &message);
    out.into()
}

async fn fill(books: &RawCache) {
    for pages in 0..20_u64 {
        let title = format!("b{pages:02}");
        books.put(title.as_bytes(), &book(&title, pages)).await.unwrap();
    }
}

#[tokio::test]
async fn queries_return_entities_and_rows_and_delete_in_every_version() {
    let (server, admin) = Running::with_cache("queries", "books").await;
    admin.raw("___protobuf_metadata").put(&b"book.proto"[..], SCHEMA.as_bytes()).await.unwrap();
    for version in versions(ProtocolVersion::V2_8) {
        let client = speaking(&server, version).await.unwrap();
        let books = client.raw("books");
        fill(&books).await;
        let query = books.query("FROM shop.Book WHERE pages >= :p ORDER BY title DESC").parameter("p", 5);
        let QueryResult { hits, count, is_exact } = query.skip(1).limit(2).entities().await.unwrap();
        assert_eq!((hits, count, is_exact), (vec![book("b18", 18), book("b17", 17)], 15, true));
        let sums =
            books.query("SELECT COUNT(*), SUM(pages), MIN(title) FROM shop.Book WHERE title LIKE 'b1%'");
        let found = sums.local().rows().await.unwrap();
        let row = [Wrapped::from(10_i64), Wrapped::from(145_i64), Wrapped::from("b10")].map(Some).to_vec();
        assert_eq!(found, QueryResult { hits: vec![row], count: 1, is_exact: true });
        let none = books.query("SELECT SUM(pages) FROM shop.Book WHERE pages > 100").rows().await.unwrap();
        assert_eq!(none.hits, [[None]]);
        assert_eq!(books.query("DELETE FROM shop.Book WHERE pages < 5").delete().await.unwrap(), 5);
        assert_eq!(books.size().await.unwrap(), 15);
    }
}

#[tokio::test]
async fn a_query_error_names_its_position() {
    let (_server, client) = Running::with_cache("queries-wrong", "books").await;
    client.administration().create("others", DISTRIBUTED).await.unwrap();
    let wrong = client.raw("others").query("FROM shop.Film").entities().await.unwrap_err();
    assert!(wrong.to_string().contains("Unknown entity name shop.Film (line 1, character 6)"), "{wrong}");
}
