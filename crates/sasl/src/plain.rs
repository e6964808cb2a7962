//! PLAIN: cleartext passwords (RFC 4616).

use crate::Malformed;

/// A client's message.
#[derive(Clone, PartialEq, Eq)]
pub struct Plain<'a> {
    /// The identity to act as; empty for the user.
    pub act_as: &'a str,
    /// The user.
    pub name: &'a str,
    /// The password.
    pub password: &'a str,
}

impl std::fmt::Debug for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a> Plain<'a> {
    /// Decodes the message.
    ///
    /// # Errors
    ///
    /// An invalid message.
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = |reason| Malformed { mechanism: "PLAIN", reason };
        let text = std::str::from_utf8(message).map_err(|_| wrong("not UTF-8"))?;
        let mut parts = text.split('\0');
        let (Some(act_as), Some(name), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong("three parts are required"));
        };
        Ok(Self { act_as, name, password })
    }

    /// Encodes the message.
    pub fn write(&self) -> Vec<u8> {
        [self.act_as, self.name, self.password].join("\0").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4616, section 4.
    #[test]
    fn the_examples_of_the_rfc_are_read_and_written() {
        let own = Plain { act_as: "", name: "tim", password: "tanstaaftanstaaf" };
        let other = Plain { act_as: "Ursel", name: "Kurt", password: "xipj3plmq" };
        for (plain, message) in
            [(own, &b"\0tim\0tanstaaftanstaaf"[..]), (other, &b"Ursel\0Kurt\0xipj3plmq"[..])]
        {
            assert_eq!(Plain::read(message), Ok(plain.clone()));
            assert_eq!(plain.write(), message);
        }
    }

    #[test]
    fn a_message_without_three_parts_is_refused() {
        for message in [&b""[..], b"tim", b"\0tim", b"\0tim\0pass\0more", b"\0t\xffm\0pass"] {
            assert!(Plain::read(message).is_err(), "{message:?}");
        }
    }
}
