//! Failures on the wire: JGroups' Java-serialized exceptions.
//!
//! This member writes a `java.lang.RuntimeException` with a message, which every Java caller can read; it reads class name and
//! message, never objects.

use bytes::{BufMut, BytesMut};
use consort_group::{Object, Payload};

/// The type number of a Java-serialized object in the "buffer" form.
const SERIALIZABLE: u8 = 51;
const STREAM_MAGIC: &[u8] = &[0xac, 0xed, 0x00, 0x05];
const TC_NULL: u8 = 0x70;
const TC_REFERENCE: u8 = 0x71;
const TC_CLASSDESC: u8 = 0x72;
const TC_OBJECT: u8 = 0x73;
const TC_STRING: u8 = 0x74;
const TC_ENDBLOCKDATA: u8 = 0x78;
const SC_SERIALIZABLE: u8 = 0x02;

/// Java's short strings end at 65535 bytes.
const TEXT_BYTES_MAX: usize = 8_000;

/// The classes up to `Throwable`, with serial version ids.
const SUPER_CLASSES: [(&str, u64); 3] = [
    ("java.lang.RuntimeException", 0x9e5f_0647_0a34_83e5),
    ("java.lang.Exception", 0xd0fd_1f3e_1a3b_1cc4),
    ("java.lang.Throwable", 0xd5c6_3527_3977_b8cb),
];

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u16(text.len() as u16);
    out.put_slice(text.as_bytes());
}

fn put_class(out: &mut BytesMut, name: &str, serial_version: u64) {
    out.put_u8(TC_CLASSDESC);
    put_text(out, name);
    out.put_u64(serial_version);
    out.put_u8(SC_SERIALIZABLE);
}

/// The payload has no cause and no stack trace.
pub(super) fn failure_payload(text: &str) -> Payload {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Java's modified UTF-8 differs for NUL and beyond the BMP; such characters are replaced.
    let text: String =
        text[..end].chars().map(|c| if c == '\0' || u32::from(c) > 0xffff { '?' } else { c }).collect();
    let mut out = BytesMut::new();
    out.put_u8(SERIALIZABLE);
    out.put_slice(STREAM_MAGIC);
    out.put_u8(TC_OBJECT);
    for (name, serial_version) in &SUPER_CLASSES[..2] {
        put_class(&mut out, name, *serial_version);
        out.put_u16(0);
        out.put_u8(TC_ENDBLOCKDATA);
    }
    let (name, serial_version) = SUPER_CLASSES[2];
    put_class(&mut out, name, serial_version);
    out.put_u16(1);
    out.put_u8(b'L');
    put_text(&mut out, "detailMessage");
    out.put_u8(TC_STRING);
    put_text(&mut out, "Ljava/lang/String;");
    out.put_u8(TC_ENDBLOCKDATA);
    out.put_u8(TC_NULL);
    out.put_u8(TC_STRING);
    put_text(&mut out, &text);
    Payload::Object(Box::new(Object::Serialized(Some(out.freeze()))))
}

/// Returns class and message, if found.
pub fn failure_text(payload: &Payload) -> String {
    let bytes = match payload {
        Payload::Object(object) => match &**object {
            Object::Serialized(Some(bytes)) => bytes.clone(),
            other => return format!("{other:?}"),
        },
        Payload::Bytes(Some(bytes)) => bytes.clone(),
        _ => return "an exception without content".to_owned(),
    };
    let Some(stream) = bytes.strip_prefix(&[SERIALIZABLE]).and_then(|rest| rest.strip_prefix(STREAM_MAGIC))
    else {
        return format!("an exception in an unknown form ({} bytes)", bytes.len());
    };
    let class = (stream.first() == Some(&TC_OBJECT) && stream.get(1) == Some(&TC_CLASSDESC))
        .then(|| text_at(stream, 2))
        .flatten()
        .unwrap_or_else(|| "an exception".to_owned());
    match message_in(stream) {
        Some(message) => format!("{class}: {message}"),
        None => class,
    }
}

fn text_at(stream: &[u8], at: usize) -> Option<String> {
    let length = usize::from(u16::from_be_bytes([*stream.get(at)?, *stream.get(at + 1)?]));
    stream.get(at + 2..at + 2 + length).map(|text| String::from_utf8_lossy(text).into_owned())
}

/// `Throwable`'s data follows the class descriptors, which end with a null superclass: the cause (without one, the
/// exception itself), then the message.
fn message_in(stream: &[u8]) -> Option<String> {
    let end = stream.windows(2).position(|window| window == [TC_ENDBLOCKDATA, TC_NULL])? + 2;
    let after_cause = match *stream.get(end)? {
        TC_REFERENCE => end + 5,
        TC_NULL => end + 1,
        _ => end,
    };
    (stream.get(after_cause) == Some(&TC_STRING)).then(|| text_at(stream, after_cause + 1)).flatten()
}

#[cfg(test)]
fn failure_bytes(text: &str) -> bytes::Bytes {
    match failure_payload(text) {
        Payload::Object(object) => match *object {
            Object::Serialized(Some(bytes)) => bytes,
            _ => bytes::Bytes::new(),
        },
        _ => bytes::Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_back_as_class_and_message() {
        assert_eq!(failure_text(&failure_payload("no such key")), "java.lang.RuntimeException: no such key");
    }

    #[test]
    fn garbage_is_described_and_never_a_panic() {
        assert_eq!(failure_text(&Payload::Empty), "an exception without content");
        let bytes = failure_bytes("x");
        for end in 0..bytes.len() {
            let _ = failure_text(&Payload::Bytes(Some(bytes.slice(..end))));
        }
    }

    #[test]
    fn long_texts_are_cut() {
        assert!(failure_bytes(&"ü".repeat(10_000)).len() < TEXT_BYTES_MAX + 400);
    }
}
