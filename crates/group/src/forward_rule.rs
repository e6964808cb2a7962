//! Ways to sites without a common bridge: over a gateway, a site that has one (RELAY3).

use std::sync::Arc;

use regex_lite::Regex;

/// The most forwarding rules of a site.
pub const FORWARDS_MAX: usize = 500;

/// Messages to the sites that a pattern matches go to the gateway's site master.
#[derive(Clone, Debug)]
pub struct ForwardRule {
    to: Arc<str>,
    gateway: Arc<str>,
    pattern: Regex,
}

impl ForwardRule {
    /// Creates a rule. `to` is a site's name or a regular expression for the whole name.
    ///
    /// # Errors
    ///
    /// If it is no regular expression, or one with parts that are not supported.
    pub fn new(to: &str, gateway: &str) -> Result<Self, String> {
        let pattern = Regex::new(&format!("^(?:{to})$"));
        let pattern = pattern.map_err(|error| format!("`{to}` is no regular expression: {error}"))?;
        Ok(Self { to: to.into(), gateway: gateway.into(), pattern })
    }

    /// Returns the name or expression of the destination.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// Returns the site that gets the messages.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Returns whether messages to the site take this way.
    pub fn matches(&self, site: &str) -> bool {
        self.pattern.is_match(site)
    }
}

impl PartialEq for ForwardRule {
    fn eq(&self, other: &Self) -> bool {
        (&self.to, &self.gateway) == (&other.to, &other.gateway)
    }
}

impl Eq for ForwardRule {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_matches_whole_names() {
        let rule = |to: &str| ForwardRule::new(to, "net1").unwrap();
        assert!(rule("net3").matches("net3") && !rule("net3").matches("net33"));
        assert!(rule(".*").matches("sfo"));
        assert!(rule("net[2-3]|hf").matches("hf") && !rule("net[2-3]|hf").matches("ahf"));
        assert!(ForwardRule::new("(", "net1").unwrap_err().starts_with("`(` is no regular expression"));
    }
}
