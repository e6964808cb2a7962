//! Licenses of dependencies: `deny.toml` must allow every one.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

pub(crate) fn refused(metadata: &Value, root: &Path) -> Result<Vec<String>, String> {
    let text =
        std::fs::read_to_string(root.join("deny.toml")).map_err(|error| format!("deny.toml: {error}"))?;
    let rules: Rules = toml::from_str(&text).map_err(|error| format!("deny.toml: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let mut refused = Vec::new();
    for package in packages {
        let name = format!("{} {}", text_of(&package["name"]), text_of(&package["version"]));
        match package["license"].as_str() {
            None => refused.push(format!("{name}: no license field")),
            Some(license) if is_allowed(license, &rules.licenses.allow) == Some(true) => {}
            Some(license) => refused.push(format!("{name}: {license} is not allowed by deny.toml")),
        }
    }
    Ok(refused)
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// Whether an SPDX expression permits a choice of allowed licenses; `None` if it is no expression. Older
/// packages write a slash for OR.
fn is_allowed(expression: &str, allow: &BTreeSet<String>) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allow };
    let is_allowed = parser.any()?;
    parser.words.is_empty().then_some(is_allowed)
}

struct Parser<'t> {
    words: &'t [&'t str],
    allow: &'t BTreeSet<String>,
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        self.words = &self.words[usize::from(is_next)..];
        is_next
    }

    /// OR binds less than AND.
    fn any(&mut self) -> Option<bool> {
        let mut is_allowed = self.all()?;
        while self.take("OR") {
            is_allowed |= self.all()?;
        }
        Some(is_allowed)
    }

    fn all(&mut self) -> Option<bool> {
        let mut is_allowed = self.one()?;
        while self.take("AND") {
            is_allowed &= self.one()?;
        }
        Some(is_allowed)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let is_allowed = self.any()?;
            return self.take(")").then_some(is_allowed);
        }
        let (name, rest) = self.words.split_first()?;
        self.words = rest;
        if !self.take("WITH") {
            return Some(self.allow.contains(*name));
        }
        let (exception, rest) = self.words.split_first()?;
        self.words = rest;
        Some(self.allow.contains(&format!("{name} WITH {exception}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_is_allowed_if_one_choice_is() {
        let allow = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned));
        let is_allowed = |expression| is_allowed(expression, &allow);
        assert_eq!(is_allowed("MIT"), Some(true));
        assert_eq!(is_allowed("GPL-3.0-only"), Some(false));
        assert_eq!(is_allowed("GPL-3.0-only OR MIT"), Some(true));
        assert_eq!(is_allowed("GPL-3.0-only/MIT"), Some(true));
        assert_eq!(is_allowed("MIT AND GPL-3.0-only"), Some(false));
        assert_eq!(is_allowed("(MIT OR GPL-3.0-only) AND ISC"), Some(true));
        assert_eq!(is_allowed("Apache-2.0 WITH LLVM-exception"), Some(true));
        assert_eq!(is_allowed("Apache-2.0 WITH other"), Some(false));
        assert_eq!(is_allowed("(MIT"), None);
        assert_eq!(is_allowed("MIT MIT"), None);
        assert_eq!(is_allowed(""), None);
    }
}
