//! OAUTHBEARER: a signed token (RFC 7628).
//!
//! The RFC separates the parts of a message by a byte of value 1. WildFly Elytron, and with it Infinispan's servers and
//! Java client, uses instead the four characters of that byte in the RFC's grammar. The decoder accepts both; the encoder's
//! message is valid in both.

use crate::Malformed;

/// In the RFC.
const END: &str = "\u{1}";

/// In Elytron.
const ELYTRON_END: &str = "%x01";

/// A client's message.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer<'a> {
    /// The identity to act as; empty for the token's user.
    pub act_as: &'a str,
    /// The token.
    pub token: &'a str,
}

impl std::fmt::Debug for Bearer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bearer").field("act_as", &self.act_as).finish_non_exhaustive()
    }
}

impl<'a> Bearer<'a> {
    /// Decodes the message. Names are not unescaped, because no server here supports other identities.
    ///
    /// # Errors
    ///
    /// An invalid message.
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = |reason| Malformed { mechanism: "OAUTHBEARER", reason };
        let text = std::str::from_utf8(message).map_err(|_| wrong("not UTF-8"))?;
        let end = if text.contains(END) { END } else { ELYTRON_END };
        let (header, pairs) = text.split_once(end).ok_or(wrong("missing pairs"))?;
        let header = header.strip_prefix("n,").or_else(|| header.strip_prefix("y,"));
        let act_as = header.and_then(|rest| rest.strip_suffix(',')).ok_or(wrong("invalid header"))?;
        let act_as = match act_as {
            "" => "",
            named => named.strip_prefix("a=").ok_or(wrong("invalid header"))?,
        };
        let mut tokens = pairs.split(end).filter_map(|pair| pair.strip_prefix("auth="));
        let (Some(auth), None) = (tokens.next(), tokens.next()) else {
            return Err(wrong("exactly one token is required"));
        };
        let token = match auth.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("Bearer ") => token.trim(),
            _ => return Err(wrong("the token type is not Bearer")),
        };
        if token.is_empty() { Err(wrong("empty token")) } else { Ok(Self { act_as, token }) }
    }

    /// Encodes it for this server.
    pub fn write(&self, host: &str, port: u16) -> Vec<u8> {
        let act_as = if self.act_as.is_empty() { String::new() } else { format!("a={}", self.act_as) };
        // Elytron reads the part between its separators; others ignore the unknown pair.
        let elytron = format!("elytron={ELYTRON_END}auth=Bearer {}{ELYTRON_END}", self.token);
        let auth = format!("host={host}{END}port={port}{END}auth=Bearer {}", self.token);
        format!("n,{act_as},{END}{elytron}{END}{auth}{END}{END}").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7628, section 4.1.
    #[test]
    fn the_example_of_the_rfc_is_read() {
        let message = b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01\
                        auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01";
        let read = Bearer::read(message).unwrap();
        assert_eq!(read.act_as, "user@example.com");
        assert_eq!(read.token, "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==");
        let own = Bearer { act_as: "", token: "t" };
        assert_eq!(Bearer::read(&own.write("h", 1)), Ok(own));
    }

    #[test]
    fn elytrons_way_is_read_and_written_too() {
        let java = Bearer::read(b"n,,%x01auth=Bearer a.b.c%x01").unwrap();
        assert_eq!((java.act_as, java.token), ("", "a.b.c"));
        let written = String::from_utf8(java.write("h", 1)).unwrap();
        // As Elytron parses it: the part after the first equals sign of the part named auth.
        let auth =
            written.split("%x01").find_map(|part| part.split_once('=').filter(|(name, _)| *name == "auth"));
        assert_eq!(auth, Some(("auth", "Bearer a.b.c")));
    }

    #[test]
    fn a_message_without_a_token_is_refused() {
        for message in [
            &b""[..],
            b"n,,",
            b"p=x,,\x01auth=Bearer t\x01\x01",
            b"n,,\x01host=h\x01\x01",
            b"n,,\x01auth=Basic t\x01\x01",
            b"n,,\x01auth=Bearer \x01\x01",
            b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        ] {
            assert!(Bearer::read(message).is_err(), "{message:?}");
        }
    }
}
