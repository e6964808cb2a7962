//! The head of a request in HTTP/1.0 or 1.1 (RFC 9112), with the fields that this server uses.

use httparse::{EMPTY_HEADER, Error, Header, Request, Status};

use crate::limits::{CREDENTIALS_BYTES_MAX, HTTP_HEADERS_MAX};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    Get,
    Head,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("malformed request: {0}")]
    Malformed(Error),
    #[error(
        "the request's head is larger than {CREDENTIALS_BYTES_MAX} bytes or has more than {HTTP_HEADERS_MAX} fields"
    )]
    TooLarge,
    #[error("only HTTP/1.0 and HTTP/1.1 are supported")]
    Version,
    #[error("the request has no Host field")]
    NoHost,
    /// A proxy may parse the request differently than this server.
    #[error("the request is ambiguous: {0}")]
    Ambiguous(&'static str),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) accept: String,
    /// The connection closes after the response: the client asked for that, or the request has a body, which is not read.
    pub(crate) is_last: bool,
}

impl Head {
    /// Parses a head and returns its length; `None` if it is incomplete. An error ends the connection.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadError> {
        let mut headers = [EMPTY_HEADER; HTTP_HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        let length = match request.parse(bytes) {
            Ok(Status::Complete(length)) if length <= CREDENTIALS_BYTES_MAX => length,
            Ok(Status::Partial) if bytes.len() < CREDENTIALS_BYTES_MAX => return Ok(None),
            Ok(_) | Err(Error::TooManyHeaders) => return Err(HeadError::TooLarge),
            Err(Error::Version) => return Err(HeadError::Version),
            Err(error) => return Err(HeadError::Malformed(error)),
        };
        if let Some(why) = ambiguity(&bytes[..length], request.headers) {
            return Err(HeadError::Ambiguous(why));
        }
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        };
        let is_newer = request.version == Some(1);
        if is_newer && value(request.headers, "host").is_none() {
            return Err(HeadError::NoHost);
        }
        let has_body = value(request.headers, "content-length").is_some_and(|length| length != "0")
            || value(request.headers, "transfer-encoding").is_some();
        let closes = all(request.headers, "connection")
            .any(|value| value.split(',').any(|option| option.trim().eq_ignore_ascii_case("close")));
        let accept: Vec<&str> = all(request.headers, "accept").collect();
        let head = Self {
            method,
            path: path(request.path.unwrap_or_default()).to_owned(),
            authorization: value(request.headers, "authorization").map(str::to_owned),
            accept: accept.join(","),
            is_last: !is_newer || closes || has_body || method == Method::Other,
        };
        Ok(Some((head, length)))
    }
}

/// Why a proxy may parse the request differently (RFC 9112, sections 2.2, 3.2 and 6.3): it may be request smuggling.
fn ambiguity(head: &[u8], headers: &[Header<'_>]) -> Option<&'static str> {
    let of = |name: &'static str| headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    let is_bare = |at: usize| head[at] == b'\n' && (at == 0 || head[at - 1] != b'\r');
    if (0..head.len()).any(is_bare) {
        return Some("a line ends without a carriage return");
    }
    if of("host").count() > 1 {
        return Some("it has two Host fields");
    }
    let mut lengths = of("content-length");
    let length = lengths.next();
    if lengths.next().is_some() {
        return Some("it has two Content-Length fields");
    }
    if let Some(length) = length {
        if length.value.is_empty() || !length.value.iter().all(u8::is_ascii_digit) {
            return Some("its Content-Length is not a number");
        }
        if of("transfer-encoding").next().is_some() {
            return Some("it has Content-Length and Transfer-Encoding");
        }
    }
    None
}

fn all<'a>(headers: &'a [Header<'_>], name: &'static str) -> impl Iterator<Item = &'a str> {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.filter_map(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
}

fn value<'a>(headers: &'a [Header<'_>], name: &'static str) -> Option<&'a str> {
    all(headers, name).next()
}

fn path(target: &str) -> &str {
    let target = target.split(['?', '#']).next().unwrap_or_default();
    match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Head, HeadError> {
        Head::read(text.as_bytes()).map(|read| read.expect("a whole head").0)
    }

    #[test]
    fn head_is_read_from_any_split_and_the_rest_is_left() {
        let text =
            b"GET /metrics?name=a HTTP/1.1\r\nHost: a\r\naccept: text/plain\r\nAccept: */*\r\n\r\nGET /";
        let end = text.len() - 5;
        for cut in 0..end {
            assert_eq!(Head::read(&text[..cut]), Ok(None), "{cut}");
        }
        let (read, length) = Head::read(text).unwrap().unwrap();
        assert_eq!((length, &*read.path, &*read.accept), (end, "/metrics", "text/plain,*/*"));
        assert!(read.method == Method::Get && !read.is_last && read.authorization.is_none());
    }

    #[test]
    fn connection_closes_on_request_of_the_client() {
        let is_last = |text| head(text).unwrap().is_last;
        assert!(!is_last("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Close\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.0\r\n\r\n"));
        // The body is not read.
        assert!(is_last("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
        assert!(is_last("POST / HTTP/1.1\r\nHost: a\r\n\r\n"));
    }

    #[test]
    fn a_request_that_can_be_read_in_more_than_one_way_is_refused() {
        for (text, why) in [
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", "a line ends without a carriage return"),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", "a line ends without a carriage return"),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", "a line ends without a carriage return"),
            ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "a line ends without a carriage return"),
            ("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "it has two Host fields"),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "it has two Host fields"),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
                "it has two Content-Length fields",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n",
                "its Content-Length is not a number",
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", "its Content-Length is not a number"),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", "its Content-Length is not a number"),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "it has Content-Length and Transfer-Encoding",
            ),
        ] {
            assert_eq!(head(text), Err(HeadError::Ambiguous(why)), "{text:?}");
        }
    }

    #[test]
    fn a_target_may_name_the_host() {
        for (target, path) in
            [("http://a:1/health?x", "/health"), ("http://a", "/"), ("*", "*"), ("/a%20b#c", "/a%20b")]
        {
            assert_eq!(head(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap().path, path);
        }
    }

    #[test]
    fn each_kind_of_unreadable_request_has_its_own_error() {
        assert_eq!(head("GET / HTTP/1.1\r\n\r\n"), Err(HeadError::NoHost));
        assert_eq!(head("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Err(HeadError::Version));
        assert!(matches!(head("GET\r\n\r\n"), Err(HeadError::Malformed(_))));
        let many = "a: b\r\n".repeat(HTTP_HEADERS_MAX + 1);
        assert_eq!(head(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(HeadError::TooLarge));
        let long = format!("GET /{}", "a".repeat(CREDENTIALS_BYTES_MAX));
        assert_eq!(Head::read(long.as_bytes()), Err(HeadError::TooLarge));
        assert_eq!(Head::read(&long.as_bytes()[..CREDENTIALS_BYTES_MAX - 1]), Ok(None));
    }
}
