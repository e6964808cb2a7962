//! What the server reads besides Hot Rod: values of multimaps, and HTTP.

use bytes::Bytes;
use consort_server::foreign;

use crate::bounds::bounded;
use crate::target::Seen;

/// Multimaps' keys with no value, one, and several of different lengths.
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

/// What is a bucket is written as it was read.
pub(crate) fn bucket(bytes: &[u8]) -> Seen {
    let input = Bytes::copy_from_slice(bytes);
    let (read, peak) = bounded(bytes.len(), || foreign::bucket(&input));
    if let Some((values, written)) = &read {
        assert_eq!(written, &input);
        let length: usize = values.iter().map(|value| 4 + value.len()).sum();
        assert_eq!(8 + length, bytes.len(), "values are parts of what was read");
    }
    Seen::one(read.is_some(), peak)
}

/// Requests as those send them that watch servers, and some that nobody sends.
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

/// A head is the same however it comes.
pub(crate) fn http(bytes: &[u8]) -> Seen {
    let (read, peak) = bounded(bytes.len(), || foreign::http_head(bytes));
    let half = foreign::http_head(&bytes[..bytes.len() / 2]);
    match (&half, &read) {
        (Ok(Some(_)), _) => assert_eq!(half, read, "what follows a head changes it"),
        (Err(_), Ok(_)) => panic!("{half:?} became {read:?}"),
        (Ok(None), _) | (Err(_), Err(_)) => {}
    }
    if let Ok(Some((_, length))) = read {
        assert!(length <= bytes.len());
        assert_eq!(foreign::http_head(&bytes[..length]), read, "it is all that it says");
    }
    Seen::one(matches!(read, Ok(Some(_))), peak)
}
