//! `consort backup` and `consort restore` with Infinispan's own: each restores the other's archive.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use consort_client::{
    Cache, Client, CounterConfig, CounterKind, Decode, Encode, Encoded, Encoding, EncodingError, Entry,
    Lifetime, Raw,
};
use consort_interop::{Tool, eventually, in_own_network};

use super::{infinispan, prepared};

const SERVER: &str = "127.0.0.1:11222";
const SCHEMAS: &str = "___protobuf_metadata";
const SCHEMA: &str = "syntax = \"proto3\";\npackage shop;\nmessage Book { string title = 1; }";

const STRONG: CounterConfig = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 3 };
const BOUNDED: CounterConfig =
    CounterConfig { kind: CounterKind::Bounded { lower: -5, upper: 50 }, is_persistent: false, initial: 0 };
const WEAK: CounterConfig =
    CounterConfig { kind: CounterKind::Weak { concurrency: 4 }, is_persistent: false, initial: 1 };
const COUNTERS: [(&str, CounterConfig, i64); 3] =
    [("hits", STRONG, 9), ("seats", BOUNDED, -2), ("likes", WEAK, 77)];

const CACHES: [(&str, &str); 3] = [
    (
        "shop",
        r#"<distributed-cache name="shop" owners="2"><encoding media-type="application/x-protostream"/></distributed-cache>"#,
    ),
    ("texts", r#"<replicated-cache name="texts"><encoding media-type="text/plain"/></replicated-cache>"#),
    (
        "bytes",
        r#"<local-cache name="bytes"><encoding media-type="application/octet-stream"/><expiration lifespan="3600000"/></local-cache>"#,
    ),
];
const KEYS: u32 = 500;

/// Keys of application/x-protostream are wrapped texts.
fn key(cache: &str, n: u32) -> Vec<u8> {
    let text = format!("k{n}");
    if cache == "shop" {
        consort_protostream::Wrapped::Text(text).write().to_vec()
    } else {
        text.into_bytes()
    }
}

fn value(cache: &str, n: u32) -> Vec<u8> {
    key(cache, n * 7)
}

const HOUR: Duration = Duration::from_secs(3_600);
const IDLE: Duration = Duration::from_secs(1_800);

/// A cache of texts, and of bytes as they are stored.
#[derive(Clone, Copy)]
struct Of(&'static str);

const TEXT: Of = Of("text/plain");
/// Unknown in Hot Rod: the client names no media type.
const STORED: Of = Of("application/x-stored");

impl Encoding for Of {
    fn media_type(&self) -> &str {
        self.0
    }
}

impl<T: AsRef<[u8]> + ?Sized> Encode<T> for Of {
    fn encode<'a>(&self, value: &'a T) -> Result<Encoded<'a>, EncodingError> {
        Ok(Encoded::Borrowed(value.as_ref()))
    }
}

impl Decode<String> for Of {
    fn decode(&self, bytes: Bytes) -> Result<String, EncodingError> {
        Raw.decode(bytes)
    }
}

impl Decode<Vec<u8>> for Of {
    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, EncodingError> {
        Raw.decode(bytes)
    }
}

fn schemas(client: &Client) -> Cache<String, String, Of, Of> {
    client.encoded(SCHEMAS, TEXT, TEXT)
}

fn bytes_of(client: &Client, cache: &str) -> Cache<Vec<u8>, Vec<u8>, Of, Of> {
    client.encoded(cache, STORED, STORED)
}

async fn fill(client: &Client) {
    schemas(client).put("shop.proto", SCHEMA).await.expect("the schema");
    for (name, definition) in CACHES {
        client.administration().create(name, definition).await.expect("a cache");
        let cache = bytes_of(client, name);
        for n in 0..KEYS {
            cache.put(&key(name, n)[..], &value(name, n)[..]).await.expect("an entry");
        }
    }
    let texts = bytes_of(client, "texts");
    let both = Lifetime { lifespan: Some(HOUR), max_idle: Some(IDLE) };
    let idle = Lifetime { lifespan: None, max_idle: Some(IDLE) };
    for (key, lifetime) in [("long", Lifetime::lifespan(HOUR)), ("idle", idle), ("both", both)] {
        texts.with_lifetime(lifetime).put(key.as_bytes(), &b"x"[..]).await.expect("an entry");
    }
    let bytes = bytes_of(client, "bytes").with_lifetime(Lifetime::FOREVER);
    bytes.put(&b"for ever"[..], &b"x"[..]).await.expect("an entry");
    for (name, config, value) in COUNTERS {
        let counter = client.counter(name);
        assert!(counter.create(config).await.expect("a counter"));
        counter.add(value - config.initial).await.expect("an addition");
    }
}

async fn entry(client: &Client, cache: &str, key: &str) -> Entry<Vec<u8>> {
    let found = bytes_of(client, cache).get_with_metadata(key.as_bytes()).await.expect("an answer");
    found.unwrap_or_else(|| panic!("no {key} in {cache}"))
}

/// `created` is when the entries were written at the latest.
async fn check(client: &Client, created: SystemTime) {
    for (name, _) in CACHES {
        let cache = bytes_of(client, name);
        for n in 0..KEYS {
            let found = cache.get(&key(name, n)[..]).await.expect("an answer");
            assert_eq!(found.as_deref(), Some(&value(name, n)[..]), "{name}, {n}");
        }
        let others = match name {
            "texts" => 3,
            "bytes" => 1,
            _ => 0,
        };
        assert_eq!(cache.size().await.expect("the size"), u64::from(KEYS) + others, "{name}");
    }
    let long = entry(client, "texts", "long").await;
    let written = long.created.expect("a time");
    // Infinispan keeps the time of the write, and Consort the rest of the lifespan.
    assert!(written <= created || long.lifetime.lifespan < Some(HOUR), "{long:?}");
    assert_eq!(
        entry(client, "texts", "idle").await.lifetime,
        Lifetime { lifespan: None, max_idle: Some(IDLE) }
    );
    let both = entry(client, "texts", "both").await.lifetime;
    assert!(both.max_idle == Some(IDLE) && both.lifespan <= Some(HOUR), "{both:?}");
    assert!(entry(client, "bytes", "k1").await.lifetime.lifespan.is_some());
    assert_eq!(entry(client, "bytes", "for ever").await.lifetime, Lifetime::FOREVER);
    for (name, config, value) in COUNTERS {
        let counter = client.counter(name);
        assert_eq!((counter.config().await.expect(name), counter.get().await.expect(name)), (config, value));
    }
    assert_eq!(schemas(client).get("shop.proto").await.expect("an answer").as_deref(), Some(SCHEMA));
}

/// Returns status and body of a request to the server's REST API.
fn rest(method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(SERVER).expect("the server");
    write!(
        stream,
        "{method} /rest/v2/container/{path} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("a request");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("a header") + 4;
    let head = String::from_utf8_lossy(&response[..end]).to_lowercase();
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = response.split_off(end);
    (status, if head.contains("transfer-encoding: chunked") { unchunked(&body) } else { body })
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n").expect("a length");
        let length = std::str::from_utf8(&body[..end]).expect("digits");
        let length = usize::from_str_radix(length, 16).expect("a length");
        if length == 0 {
            return out;
        }
        out.extend_from_slice(&body[end + 2..end + 2 + length]);
        body = &body[end + 2 + length + 2..];
    }
}

async fn rest_until(path: &str, done: u16) {
    eventually(path, async || {
        let (status, _) = rest("HEAD", path, "");
        assert!(status == done || status == 202, "{path}: {status}");
        status == done
    })
    .await;
}

fn archive(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("consort-{name}-{}.zip", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn consort(command: &str, file: &Path) -> String {
    let run = Tool::run_consort(&[command, &file.display().to_string()]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(run.status.success(), "{command}: {}{}", text(&run.stdout), text(&run.stderr));
    text(&run.stdout)
}

#[test]
fn our_servers_restore_a_backup_of_infinispan() {
    let prepared = prepared();
    in_own_network("backup::our_servers_restore_a_backup_of_infinispan", async move {
        let file = archive("infinispan");
        let server = infinispan(&prepared, "A", 11222);
        let client = Client::connect(SERVER).await.expect("a connection");
        fill(&client).await;
        let created = SystemTime::now();
        assert_eq!(rest("POST", "backups/all", "{}").0, 202);
        rest_until("backups/all", 200).await;
        let (status, zip) = rest("GET", "backups/all", "");
        assert_eq!(status, 200);
        std::fs::write(&file, zip).expect("the archive");
        client.close().await;
        drop(server);

        let mut server = Tool::consort(&["server"]);
        server.wait_for(&["Hot Rod"]);
        let client = Client::connect(SERVER).await.expect("a connection");
        let text = consort("restore", &file);
        for line in
            ["shop: 500 entries", "texts: 503 entries", "bytes: 501 entries", "counters: 3", "schemas: 1"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
        check(&client, created).await;
        // Again: nothing differs.
        consort("restore", &file);
        check(&client, created).await;
        std::fs::remove_file(&file).expect("the archive is ours");
    });
}

#[test]
fn infinispan_restores_our_backup() {
    let prepared = prepared();
    in_own_network("backup::infinispan_restores_our_backup", async move {
        let file = archive("consort");
        let mut server = Tool::consort(&["server"]);
        server.wait_for(&["Hot Rod"]);
        let client = Client::connect(SERVER).await.expect("a connection");
        fill(&client).await;
        let created = SystemTime::now();
        let text = consort("backup", &file);
        assert!(text.contains("shop: 500 entries") && text.contains("counters: 3\nschemas: 1\n"), "{text}");
        client.close().await;
        server.terminate();

        let _server = infinispan(&prepared, "A", 11222);
        let location = format!(r#"{{"location": "{}"}}"#, file.display());
        assert_eq!(rest("POST", "restores/all", &location).0, 202);
        rest_until("restores/all", 201).await;
        let client = Client::connect(SERVER).await.expect("a connection");
        check(&client, created).await;
        std::fs::remove_file(&file).expect("the archive is ours");
    });
}
