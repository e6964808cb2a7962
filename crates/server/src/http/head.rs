//! The head of a request in HTTP/1.0 or 1.1 (RFC 9112), as far as this server looks at it.

use httparse::{EMPTY_HEADER, Error, Header, Request, Status};

use crate::bounds::{CREDENTIALS_BYTES_MAX, HTTP_HEADERS_MAX};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    /// Something.
    Get,
    /// How something would be answered.
    Head,
    /// What nothing here has.
    Other,
}

/// Nothing that can be answered as it is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// It is not HTTP's.
    #[error("the request cannot be read: {0}")]
    Malformed(Error),
    /// It is longer than anybody needs.
    #[error(
        "the request's head is larger than {CREDENTIALS_BYTES_MAX} bytes or has more than {HTTP_HEADERS_MAX} fields"
    )]
    TooLarge,
    /// It is of another version.
    #[error("only HTTP/1.0 and HTTP/1.1 are spoken here")]
    Version,
    /// HTTP/1.1 wants to know for whom it is.
    #[error("the request does not say for which host it is")]
    NoHost,
    /// A proxy in between may read it as another request than this server does.
    #[error("the request can be read in more than one way: {0}")]
    Ambiguous(&'static str),
}

/// A request's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// Without what follows a question mark.
    pub(crate) path: String,
    /// Who asks, as it says.
    pub(crate) authorization: Option<String>,
    /// The media types that its client reads.
    pub(crate) accept: String,
    /// Its client wants nothing more after it, or sends something behind it that nobody reads.
    pub(crate) is_last: bool,
}

impl Head {
    /// Reads the head that these bytes begin with, and says how many of them it is; nothing if it goes on behind them.
    ///
    /// # Errors
    ///
    /// [`Unreadable`]. The connection cannot be used any more.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, Unreadable> {
        let mut headers = [EMPTY_HEADER; HTTP_HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        let length = match request.parse(bytes) {
            Ok(Status::Complete(length)) if length <= CREDENTIALS_BYTES_MAX => length,
            Ok(Status::Partial) if bytes.len() < CREDENTIALS_BYTES_MAX => return Ok(None),
            Ok(_) | Err(Error::TooManyHeaders) => return Err(Unreadable::TooLarge),
            Err(Error::Version) => return Err(Unreadable::Version),
            Err(error) => return Err(Unreadable::Malformed(error)),
        };
        if let Some(why) = ambiguity(&bytes[..length], request.headers) {
            return Err(Unreadable::Ambiguous(why));
        }
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        };
        let is_newer = request.version == Some(1);
        if is_newer && value(request.headers, "host").is_none() {
            return Err(Unreadable::NoHost);
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

/// What a proxy may read in another way (RFC 9112, sections 2.2, 3.2 and 6.3), if anything is: whoever sends that may want to
/// have a part of the request taken for another one.
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
            return Some("its Content-Length is no number");
        }
        if of("transfer-encoding").next().is_some() {
            return Some("it has Content-Length and Transfer-Encoding");
        }
    }
    None
}

/// The values of fields of this name, as far as they are texts.
fn all<'a>(headers: &'a [Header<'_>], name: &'static str) -> impl Iterator<Item = &'a str> {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.filter_map(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
}

fn value<'a>(headers: &'a [Header<'_>], name: &'static str) -> Option<&'a str> {
    all(headers, name).next()
}

/// The path in a request's target, which may name the host as well.
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

    fn head(text: &str) -> Result<Head, Unreadable> {
        Head::read(text.as_bytes()).map(|read| read.expect("a whole head").0)
    }

    #[test]
    fn a_head_is_read_from_any_split_and_what_follows_it_is_left() {
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
    fn connections_end_as_their_clients_want_it() {
        let is_last = |text| head(text).unwrap().is_last;
        assert!(!is_last("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Close\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.0\r\n\r\n"));
        // What they send besides is not read.
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
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n", "its Content-Length is no number"),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", "its Content-Length is no number"),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", "its Content-Length is no number"),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "it has Content-Length and Transfer-Encoding",
            ),
        ] {
            assert_eq!(head(text), Err(Unreadable::Ambiguous(why)), "{text:?}");
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
    fn what_cannot_be_read_is_told_apart() {
        assert_eq!(head("GET / HTTP/1.1\r\n\r\n"), Err(Unreadable::NoHost));
        assert_eq!(head("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Err(Unreadable::Version));
        assert!(matches!(head("GET\r\n\r\n"), Err(Unreadable::Malformed(_))));
        let many = "a: b\r\n".repeat(HTTP_HEADERS_MAX + 1);
        assert_eq!(head(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(Unreadable::TooLarge));
        let long = format!("GET /{}", "a".repeat(CREDENTIALS_BYTES_MAX));
        assert_eq!(Head::read(long.as_bytes()), Err(Unreadable::TooLarge));
        assert_eq!(Head::read(&long.as_bytes()[..CREDENTIALS_BYTES_MAX - 1]), Ok(None));
    }
}
