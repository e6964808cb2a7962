use std::fmt::Write;
use std::time::SystemTime;

use bytes::Bytes;

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Ok = 200,
    BadRequest = 400,
    Unauthorized = 401,
    Forbidden = 403,
    NotFound = 404,
    MethodNotAllowed = 405,
    HeadTooLarge = 431,
    Unavailable = 503,
    OtherVersion = 505,
}

impl Code {
    const fn reason(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::BadRequest => "Bad Request",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not Found",
            Self::MethodNotAllowed => "Method Not Allowed",
            Self::HeadTooLarge => "Request Header Fields Too Large",
            Self::Unavailable => "Service Unavailable",
            Self::OtherVersion => "HTTP Version Not Supported",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    pub(crate) code: Code,
    content_type: &'static str,
    fields: Vec<(&'static str, String)>,
    pub(crate) content: String,
}

impl Reply {
    pub(crate) fn new(code: Code, content_type: &'static str, content: impl Into<String>) -> Self {
        Self { code, content_type, fields: Vec::new(), content: content.into() }
    }

    pub(crate) fn text(code: Code, text: impl std::fmt::Display) -> Self {
        Self::new(code, TEXT, format!("{text}\n"))
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    pub(crate) fn into_bytes(self, with_content: bool, is_last: bool) -> Bytes {
        let mut text = format!(
            "HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n",
            self.code as u16,
            self.code.reason(),
            httpdate::fmt_http_date(SystemTime::now()),
            self.content_type,
            self.content.len(),
        );
        for (name, value) in &self.fields {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        text += if is_last { "Connection: close\r\n\r\n" } else { "\r\n" };
        if with_content {
            text += &self.content;
        }
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_to_head_has_the_length_of_its_content() {
        let reply = Reply::text(Code::MethodNotAllowed, "no").with("Allow", "GET, HEAD");
        let whole = reply.clone().into_bytes(true, false);
        let whole = std::str::from_utf8(&whole).unwrap();
        let (head, content) = whole.split_once("\r\n\r\n").unwrap();
        assert_eq!(content, "no\n");
        assert!(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\nDate: "), "{head}");
        assert!(
            head.contains("\r\nContent-Length: 3\r\n") && head.ends_with("\r\nAllow: GET, HEAD"),
            "{head}"
        );
        let last = reply.into_bytes(false, true);
        let last = std::str::from_utf8(&last).unwrap();
        assert!(
            last.contains("Content-Length: 3\r\n") && last.ends_with("\r\nConnection: close\r\n\r\n"),
            "{last}"
        );
    }
}
