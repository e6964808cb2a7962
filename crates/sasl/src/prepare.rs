//! SASLprep (RFC 4013).

use std::borrow::Cow;

/// An empty text, or prohibited characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("empty, or prohibited characters for a name or password")]
pub struct SaslprepError;

/// Normalises a name or password, for comparison and hashing.
pub fn prepare(text: &str) -> Result<Cow<'_, str>, SaslprepError> {
    let prepared = stringprep::saslprep(text).map_err(|_| SaslprepError)?;
    if prepared.is_empty() { Err(SaslprepError) } else { Ok(prepared) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4013, section 3.
    #[test]
    fn the_examples_of_the_rfc_are_prepared() {
        for (text, prepared) in
            [("I\u{AD}X", "IX"), ("user", "user"), ("USER", "USER"), ("\u{AA}", "a"), ("\u{2168}", "IX")]
        {
            assert_eq!(prepare(text).as_deref(), Ok(prepared));
        }
        assert_eq!(prepare("\u{7}"), Err(SaslprepError));
        assert_eq!(prepare("\u{627}1"), Err(SaslprepError));
        assert_eq!(prepare(""), Err(SaslprepError));
    }
}
