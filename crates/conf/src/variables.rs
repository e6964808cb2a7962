//! Variables: `${name}`, `${name:default}`, `${first,second:default}` (JGroups' system properties).

use std::collections::BTreeMap;

/// Nested defaults; usual files have one level. A file could exhaust the stack.
const NESTED_MAX: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unset {
    IsError,
    IsEmpty,
}

/// Values for `${name}`, as a JVM's `-Dname=value`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Variables {
    values: BTreeMap<String, String>,
}

/// The first parts of JGroups' names of variables.
const SECTIONS: [&str; 12] = [
    "tcpping",
    "tcpgossip",
    "tcp",
    "tunnel",
    "udp",
    "mping",
    "bundler",
    "thread_pool",
    "file",
    "diag",
    "dns",
    "kube",
];

impl Variables {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the environment. Names that begin with `JGROUPS_` also set JGroups' names:
    /// `JGROUPS_TCPPING_INITIAL_HOSTS` sets `jgroups.tcpping.initial_hosts`. As in Infinispan, each is also `env.NAME`.
    pub fn from_env() -> Self {
        let mut variables = Self::default();
        for (name, value) in std::env::vars() {
            if let Some(rest) = name.strip_prefix("JGROUPS_") {
                let rest = rest.to_lowercase();
                variables.values.insert(format!("jgroups.{rest}"), value.clone());
                for section in SECTIONS {
                    if let Some(rest) = rest.strip_prefix(section).and_then(|rest| rest.strip_prefix('_')) {
                        variables.values.insert(format!("jgroups.{section}.{rest}"), value.clone());
                    }
                }
            }
            // Infinispan's notation.
            variables.values.insert(format!("env.{name}"), value.clone());
            variables.values.insert(name, value);
        }
        variables
    }

    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.values.insert(name.into(), value.into());
    }

    /// Returns a variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns the names within each `${…}` of a text, also of nested ones.
    pub fn names_in(text: &str) -> impl Iterator<Item = &str> {
        text.split("${").skip(1).flat_map(|rest| {
            let end = rest.find([':', '}']).unwrap_or(rest.len());
            rest[..end].split(',').map(str::trim)
        })
    }

    /// Replaces every `${…}`.
    ///
    /// # Errors
    ///
    /// If a variable is unset without default, a brace open, or defaults too deep. The text is for the operator.
    pub fn substitute(&self, text: &str) -> Result<String, String> {
        self.expand(text, 0, Unset::IsError)
    }

    /// Replaces every `${…}` in a stack's attribute, as JGroups: an unset variable is empty. `None`: all are empty,
    /// and the attribute keeps its default.
    ///
    /// # Errors
    ///
    /// If a brace is open or defaults are too deep. The text is for the operator.
    pub fn substitute_attribute(&self, text: &str) -> Result<Option<String>, String> {
        let value = self.expand(text, 0, Unset::IsEmpty)?;
        Ok(Some(value).filter(|value| !value.is_empty() || !text.contains("${")))
    }

    fn expand(&self, text: &str, depth: usize, unset: Unset) -> Result<String, String> {
        if depth > NESTED_MAX {
            return Err(format!("more than {NESTED_MAX} defaults within each other"));
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            out.push_str(&rest[..start]);
            let inner = &rest[start + 2..];
            let end = closing_brace(inner)
                .ok_or_else(|| format!("`{}` is not closed by a brace", &rest[start..]))?;
            out.push_str(&self.variable(&inner[..end], depth, unset)?);
            rest = &inner[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn variable(&self, expression: &str, depth: usize, unset: Unset) -> Result<String, String> {
        let (names, default) = match expression.split_once(':') {
            Some((names, default)) => (names, Some(default)),
            None => (expression, None),
        };
        let value = names.split(',').find_map(|name| self.get(name.trim()));
        match (value, default) {
            (Some(value), _) => Ok(value.to_owned()),
            (None, Some(default)) => self.expand(default, depth + 1, unset),
            (None, None) if unset == Unset::IsEmpty => Ok(String::new()),
            (None, None) => Err(format!("variable `{names}` is not set and has no default")),
        }
    }
}

fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_before_defaults_also_within_them() {
        let names = |text| Variables::names_in(text).collect::<Vec<_>>();
        assert_eq!(names("a ${b} ${c.d, e:1}${f:${g:2}} h:i}"), ["b", "c.d", "e", "f", "g"]);
        assert_eq!(names("a"), [] as [&str; 0]);
    }

    #[test]
    fn variables_defaults_and_alternatives() {
        let variables = Variables::new().with("b", "2").with("jgroups.x", "y");
        for (text, wanted) in [
            ("plain", "plain"),
            ("${b}", "2"),
            ("${a:1}", "1"),
            ("${a,b:1}", "2"),
            ("x${b:0}y${c:}z", "x2yz"),
            ("${a:${b}}", "2"),
            ("${a:localhost[7800]}", "localhost[7800]"),
            ("${jgroups.x:n}", "y"),
            ("$b and {b}", "$b and {b}"),
        ] {
            assert_eq!(variables.substitute(text).as_deref(), Ok(wanted), "{text}");
        }
    }

    /// JGroups 5.5.7 gives the same values.
    #[test]
    fn an_attribute_of_unset_variables_keeps_its_default() {
        let variables = Variables::new().with("b", "2");
        for (text, wanted) in [
            ("${a}", None),
            ("${a}${c:}", None),
            ("${a:}", None),
            ("x${a}y", Some("xy")),
            ("${a}${b}", Some("2")),
            ("${a:${c}}", None),
            ("", Some("")),
            ("7800", Some("7800")),
        ] {
            assert_eq!(variables.substitute_attribute(text), Ok(wanted.map(str::to_owned)), "{text}");
        }
        assert!(variables.substitute_attribute("${a").is_err());
    }

    #[test]
    fn a_variable_that_cannot_be_replaced_is_an_error() {
        let variables = Variables::new();
        assert_eq!(variables.substitute("${a}").unwrap_err(), "variable `a` is not set and has no default");
        assert_eq!(variables.substitute("x${a:1").unwrap_err(), "`${a:1` is not closed by a brace");
        let deep = "${a:".repeat(100_000) + &"}".repeat(100_000);
        assert_eq!(variables.substitute(&deep).unwrap_err(), "more than 16 defaults within each other");
    }
}
