use std::fmt;

use zeroize::Zeroizing;

use super::Property;

/// A password. Probe, debug output and the manual hide it, and its memory is cleared.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<String>);

impl Password {
    /// Creates a password.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether it is unset.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Property for Password {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }
    fn show(&self) -> String {
        if self.is_empty() { String::new() } else { "(not shown)".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_parsed_and_never_shown() {
        let password = Password::parse("geheim").unwrap();
        assert_eq!(password.text(), "geheim");
        assert_eq!((password.show(), format!("{password:?}")), ("(not shown)".into(), "(not shown)".into()));
        assert_eq!(Password::new("").show(), "");
    }
}
