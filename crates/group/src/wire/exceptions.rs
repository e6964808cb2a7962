use bytes::{BufMut, Bytes, BytesMut};

use super::primitives::{NESTING_MAX, Reader, Result, put_string};

/// Java writes all stack frames, which are skipped.
const FRAMES_MAX: usize = 4_096;

/// Encodes an `IllegalStateException` with this text.
pub fn encode_exception(text: &str) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&[0, 0]);
    put_string(&mut out, Some("java.lang.IllegalStateException"));
    put_string(&mut out, Some(text));
    out.put_u16(0);
    out.put_u8(0);
    out.freeze()
}

/// Decodes class and message of an exception and its causes; fails on invalid bytes.
pub fn decode_exception(bytes: &Bytes) -> Result<String> {
    let mut reader = Reader::new(bytes);
    let mut text = String::new();
    for depth in 0..NESTING_MAX {
        if reader.bool("whether the exception is null")? {
            break;
        }
        reader.bool("whether the exception is wrapped")?;
        let class = reader.string("exception class")?.unwrap_or_default();
        let message = reader.string("exception message")?;
        if depth > 0 {
            text.push_str(", caused by ");
        }
        text.push_str(&class);
        if let Some(message) = message {
            text.push_str(": ");
            text.push_str(&message);
        }
        let frames = usize::from(reader.u16("stack depth")?).min(FRAMES_MAX);
        for _ in 0..frames {
            for what in ["class of a frame", "method of a frame", "file of a frame"] {
                reader.string(what)?;
            }
            reader.compressed_int("line of a frame")?;
        }
        if !reader.bool("whether there is a cause")? {
            break;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::vector;

    #[test]
    fn vectors_decode_as_class_and_message() {
        let text = |name| decode_exception(&vector("02-objects", name)).unwrap();
        assert_eq!(text("exception"), "java.lang.IllegalStateException: boom");
        assert_eq!(text("exception.ite"), "java.lang.IllegalStateException: boom");
        assert_eq!(
            text("exception.cause"),
            "java.io.IOException: outer, caused by java.lang.IllegalStateException: boom"
        );
    }

    #[test]
    fn an_encoded_exception_decodes_and_truncated_bytes_are_errors() {
        let bytes = encode_exception("no state yet");
        assert_eq!(decode_exception(&bytes).unwrap(), "java.lang.IllegalStateException: no state yet");
        for end in 0..bytes.len() {
            assert!(decode_exception(&bytes.slice(..end)).is_err());
        }
    }
}
