use bytes::Bytes;
use consort_server::fuzzing;

use crate::bounds::{bounded, bounded_by};
use crate::seen::Seen;

pub(crate) fn buckets() -> Vec<Vec<u8>> {
    let bucket = |values: &[&[u8]]| {
        let mut bytes = b"\xf5MM\x01".to_vec();
        bytes.extend((values.len() as u32).to_be_bytes());
        for value in values {
            bytes.extend((value.len() as u32).to_be_bytes());
            bytes.extend(*value);
        }
        bytes
    };
    vec![
        bucket(&[]),
        bucket(&[b"one"]),
        bucket(&[b"", b"", b"a longer value than the others", b"x"]),
        bucket(&[&[7; 300], b"after it"]),
        bucket(&[&b"a"[..]; 40]),
    ]
}

pub(crate) fn bucket(bytes: &[u8]) -> Seen {
    let input = Bytes::copy_from_slice(bytes);
    let (read, peak) = bounded(bytes.len(), || fuzzing::bucket(&input));
    if let Some((values, written)) = &read {
        assert_eq!(written, &input);
        let length: usize = values.iter().map(|value| 4 + value.len()).sum();
        assert_eq!(8 + length, bytes.len(), "values are parts of the input");
    }
    Seen::one(read.is_some(), peak)
}

/// Requests of monitoring clients, and some that no client sends.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    let texts = [
        "GET /health HTTP/1.1\r\nHost: localhost:11222\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: 10.0.0.1:11222\r\nUser-Agent: Prometheus/3.5.0\r\n\
         Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1\r\n\
         Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\
         Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n",
        "HEAD /rest/v2/cache-managers/default/health/status?x=y HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
        "POST http://host/rest/v2/container/health HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
        "GET /health/ready HTTP/1.1\r\nhost:h\r\nauthorization: bearer a.b.c\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// A head is the same, however the input is cut.
pub(crate) fn http(bytes: &[u8]) -> Seen {
    let (read, peak) = bounded(bytes.len(), || fuzzing::http_head(bytes));
    let half = fuzzing::http_head(&bytes[..bytes.len() / 2]);
    match (&half, &read) {
        (Ok(Some(_)), _) => assert_eq!(half, read, "bytes after a head change it"),
        (Err(_), Ok(_)) => panic!("{half:?} became {read:?}"),
        (Ok(None), _) | (Err(_), Err(_)) => {}
    }
    if let Ok(Some((_, length))) = read {
        assert!(length <= bytes.len());
        assert_eq!(fuzzing::http_head(&bytes[..length]), read, "it is all that it says");
    }
    Seen::one(matches!(read, Ok(Some(_))), peak)
}

/// The indices of the first byte's formats, and the value.
fn formats(bytes: &[u8]) -> (usize, usize, Bytes) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let first = usize::from(*first);
    (first / fuzzing::FORMATS % fuzzing::FORMATS, first % fuzzing::FORMATS, Bytes::copy_from_slice(rest))
}

pub(crate) fn media() -> Vec<Vec<u8>> {
    let values: [&[u8]; 14] = [
        b"a text",
        "r\u{e4}ksm\u{f6}rg\u{e5}s".as_bytes(),
        b"{\"_type\":\"string\",\"_value\":\"a text\"}",
        b"{\"_type\":\"double\",\"_value\":-1.5e300}",
        b"[1, {\"a\": null}]",
        b"\x4a\x06a text",
        b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x09\0\0\0\0\0\0\xf8\x3f",
        b"\x52\x03\x01\x02\x03",
        // Entities of the schema there.
        b"{\"_type\":\"s.M\",\"s\":\"a\",\"i\":-1,\"ms\":[{},{\"is\":[1,2]}],\"x\":{\"k\":{\"e\":\"B\"}},\"y\":{\"-1\":1}}",
        b"{\"_type\":\"s.M\",\"b\":\"AQI=\",\"d\":1.5,\"f\":\"NaN\",\"z\":[1],\"o\":true,\"n\":{\"ns\":[{\"q\":-1}]}}",
        b"\x98\x01\xf0\xa2\x04\x8a\x01\x0b\x0a\x01a\x10\x05\x1a\x00\x2a\x02\x01\x02",
        b"\x82\x01\x03s.N\x8a\x01\x0b\x0a\x00\x11\x01\0\0\0\0\0\0\0",
        b"\x82\x01\x03s.E\x90\x01\x01",
    ];
    let all = fuzzing::FORMATS * fuzzing::FORMATS;
    let each = values.iter().flat_map(|value| (0..all).map(move |ways| [&[ways as u8], *value].concat()));
    each.collect()
}

pub(crate) fn convert(bytes: &[u8]) -> Seen {
    let (from, to, value) = formats(bytes);
    // The schema is compiled once, whatever the input is.
    fuzzing::convert(&Bytes::new(), fuzzing::FORMATS - 1, fuzzing::FORMATS - 2);
    let (converted, peak) = bounded(bytes.len(), || fuzzing::convert(&value, from, to));
    let (json, wrapped) = (fuzzing::FORMATS - 2, fuzzing::FORMATS - 1);
    if let Some(converted) = &converted
        && from == wrapped
        && to == json
        && !value.is_empty()
    {
        let back = fuzzing::convert(converted, json, wrapped).expect("it is JSON that we have written");
        assert_eq!(fuzzing::convert(&back, wrapped, json).as_ref(), Some(converted));
    }
    Seen::one(converted.is_some(), peak)
}

pub(crate) fn definitions() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"distributed-cache": {"mode": "SYNC", "owners": 3, "segments": 16, "statistics": "true"}}"#,
        r#"{"c": {"replicated-cache": {"encoding": {"key": {"media-type": "text/plain; charset=UTF-16"}}}}}"#,
        "distributedCache:\n  mode: SYNC\n  encoding:\n    mediaType: \"application/x-protostream\"\n",
        "c: &c\n  localCache:\n    statistics: true\n",
        "<infinispan><cache-container><replicated-cache name=\"c\"><encoding><value media-type=\"application/json\"/>\
         </encoding><transaction mode=\"FULL_XA\" locking=\"OPTIMISTIC\"/></replicated-cache></cache-container></infinispan>",
        "<?xml version=\"1.0\"?><local-cache/>",
        "<infinispan xmlns=\"urn:infinispan:config:16.0\"><cache-container name=\"x\"><local-cache name=\"a\"/><caches>\
         <replicated-cache name=\"b\"/></caches></cache-container></infinispan>",
        "infinispan:\n  cacheContainer:\n    caches:\n      a:\n        localCache: ~\n      caches:\n        localCache:\n          \
         segments: 3\n",
        r#"{"distributed-cache": {"mode": "ASYNC", "memory": {"max-size": "15MiB", "when-full": "EXCEPTION"}}}"#,
        "<replicated-cache configuration=\"org.infinispan.REPL_SYNC\"><memory max-count=\"7\"/><expiration lifespan=\"10s\" \
         max-idle=\"1\"/><partition-handling when-split=\"ALLOW_READ_WRITES\" merge-policy=\"REMOVE_ALL\"/></replicated-cache>",
        "localCache:\n  persistence:\n    passivation: true\n    fileStore:\n      purge: true\n      data:\n        \
         syncWrites: true\n      writeBehind:\n        modificationQueueSize: 9\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// The memory for any input, and for each byte: events with their places, and a tree of values.
const YAML: (u64, u64) = (256 * 1024, 4 * 1024);

/// A definition, also in a document, is written as it was read.
pub(crate) fn definition(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = YAML.0 + YAML.1 * text.len() as u64;
    let (read, one_peak) = bounded_by(limit, || fuzzing::definition("c", &text));
    let (all, peak) = bounded_by(limit, || fuzzing::definitions(&text));
    let named = all.iter().flatten().map(|(name, written)| (&name[..], written));
    for (name, written) in read.iter().map(|written| ("c", written)).chain(named) {
        assert_eq!(fuzzing::definition(name, written).as_ref(), Some(written), "{name}");
    }
    Seen::one(read.is_some() || all.is_some(), peak.max(one_peak))
}

/// The memory for any input, above all the own stacks of Infinispan, and for each byte: elements with places, which a template
/// multiplies by its caches.
const SERVER_FILE: (u64, u64) = (4 * 1024 * 1024, 16 * 1024);

pub(crate) fn server_files() -> Vec<Vec<u8>> {
    let texts = [
        include_str!("../../server/tests/infinispan.xml"),
        "<infinispan><jgroups><stack name=\"s\" extends=\"tcp\"><TCP bind_port=\"${a}\"/><FD_SOCK2 stack.combine=\"REMOVE\"/>\
         </stack></jgroups><cache-container default-cache=\"c\"><transport stack=\"s\" cluster=\"x\" initial-cluster-size=\"2\"/>\
         <distributed-cache-configuration name=\"t\" owners=\"3\"/><distributed-cache name=\"c\" configuration=\"t\"><indexing/>\
         <memory max-count=\"5\"/></distributed-cache><counters><strong-counter name=\"n\" lower-bound=\"0\"/></counters>\
         <security><authorization><role name=\"r\" permissions=\"ALL_READ LISTEN\"/></authorization></security></cache-container>\
         </infinispan>",
        "<infinispan><cache-container/><server><interfaces><interface name=\"i\"><loopback/></interface></interfaces>\
         <socket-bindings default-interface=\"i\" port-offset=\"1\"><socket-binding name=\"b\" port=\"1\"/></socket-bindings>\
         <endpoints><endpoint socket-binding=\"b\"><ip-filter><accept from=\"10.0.0.0/8\"/></ip-filter><hotrod-connector>\
         <authentication><sasl mechanisms=\"PLAIN\" qop=\"auth\"/></authentication></hotrod-connector></endpoint></endpoints>\
         </server></infinispan>",
        concat!(
            "<infinispan><cache-container><security><authorization><role name=\"r\" permissions=\"READ\"/></authorization></security>\
             <local-cache-configuration name=\"o.*\"/></cache-container><server><interfaces><interface name=\"i\"><loopback/></interface>\
             </interfaces><socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"1\"/><socket-binding name=\"d\" \
             port=\"2\"/></socket-bindings><security><credential-stores><credential-store name=\"c\" path=\"c.p12\"><masked-credential \
             masked=\"1Hc4Feq2wJs;pepper99;100\"/></credential-store></credential-stores><security-realms><security-realm name=\"r\">\
             <server-identities><ssl><keystore path=\"a.p12\" alias=\"x\" generate-self-signed-certificate-host=\"h\">\
             <credential-reference store=\"c\" alias=\"k\"/></keystore><truststore path=\"t.jks\" password=\"p\"/><engine \
             enabled-protocols=\"TLSv1.3\" enabled-ciphersuites=\"ECDHE-RSA-AES256-GCM-SHA384\"/></ssl></server-identities>\
             <properties-realm><user-properties path=\"u\"/></properties-realm><truststore-realm/><token-realm><jwt audience=\"a\" \
             issuer=\"i\" public-key=\"",
            "-----BEGIN PUBLIC KEY----- MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE91fhZj8S0DgOc5qRKocAHfr/EDyW E6V89ynFvt83wh9xYh85SE/vocXpte/xPYgYF/tMVXXOra5JF0/7hdCi7w== -----END PUBLIC KEY-----",
            "\"/></token-realm><distributed-realm realms=\"properties trust token\"/></security-realm></security-realms></security>\
             <endpoints socket-binding=\"b\" security-realm=\"r\"><endpoint><hotrod-connector/><hotrod-connector socket-binding=\"d\"/>\
             </endpoint></endpoints></server></infinispan>"
        ),
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub(crate) fn server_file(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = SERVER_FILE.0 + SERVER_FILE.1 * text.len() as u64;
    let (problems, peak) = bounded_by(limit, || fuzzing::server_file(&text));
    assert!(problems != Some(0), "a file that is refused has a problem");
    Seen::one(problems.is_none(), peak)
}

pub(crate) fn property_files() -> Vec<Vec<u8>> {
    let texts = [
        "#$REALM_NAME=default$\n#$ALGORITHM=encrypted$\nalice=scram-sha-256\\:BSAAAXNhbHQwMTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMQ==\n",
        "alice=wonder\\u006cand\nbob : secret\n! comment\n",
        "alice=admin, ops\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub(crate) fn properties(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let (is_valid, peak) = bounded_by(64 * 1024 + 2_048 * text.len() as u64, || fuzzing::properties(&text));
    Seen::one(is_valid, peak)
}

pub(crate) fn schemas() -> Vec<Vec<u8>> {
    let texts = [
        "syntax = \"proto3\";\npackage shop;\nmessage Book {\n  string title = 1;\n  repeated int32 pages = 2;\n}\n",
        "syntax = \"proto2\";\n/* @TypeId(100042) */\nmessage A {\n  optional group G = 1 { required bool b = 2 [default = true]; }\n\
         \x20 extensions 100 to max;\n  oneof o { B b = 3; }\n  enum B { X = 0; Y = -1; }\n  map<string, A> m = 4;\n}\n",
        "syntax = \"proto3\"; import public \"google/protobuf/timestamp.proto\"; option java_package = \"a.b\";\n\
         message At { google.protobuf.Timestamp at = 1 [deprecated = true]; reserved 2, 5 to 9; }\n\
         service S { rpc Do (At) returns (stream At) { option idempotency_level = NO_SIDE_EFFECTS; } }",
        "import \"org/infinispan/protostream/message-wrapping.proto\"; message L { }",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// The memory for any input, above all the well-known files, and for each byte.
const COMPILER: (u64, u64) = (8 * 1024 * 1024, 8 * 1024);

pub(crate) fn schema(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = COMPILER.0 + COMPILER.1 * text.len() as u64;
    let (error, peak) = bounded_by(limit, || fuzzing::schema(&text));
    assert!(error.as_ref().is_none_or(|error| error.starts_with(".proto")), "{error:?} names no file");
    Seen::one(error.is_none(), peak)
}
