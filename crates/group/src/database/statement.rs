//! Statements with JDBC's parameters.

use crate::config::Property;

/// A statement with the parameters `?` of JDBC.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SqlStatement {
    text: String,
    numbered: String,
    parameters: usize,
}

impl SqlStatement {
    /// Returns the text with PostgreSQL's parameters: `$1`, `$2` and so on.
    pub fn numbered(&self) -> &str {
        &self.numbered
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// Returns whether it is unset.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl Property for SqlStatement {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with('{') {
            return Err(
                "escapes of JDBC are not supported: write `call name(?, ?)` without braces".to_owned()
            );
        }
        let (numbered, parameters) = number_parameters(text)?;
        Ok(Self { text: text.to_owned(), numbered, parameters })
    }
    fn show(&self) -> String {
        self.text.clone()
    }
}

/// Returns the length of a text that begins with a quotation or comment, in which `?` is no parameter. 0: it begins with
/// neither.
fn quotation_len(text: &str) -> Result<usize, String> {
    let closed_by = |opening: usize, end: &str| {
        let found = text[opening..].find(end).map(|at| opening + at + end.len());
        found.ok_or_else(|| format!("a quotation or comment is not closed by `{end}`"))
    };
    match text.as_bytes() {
        // A doubled quote within a quotation ends one and begins the next.
        [b'\'', ..] => closed_by(1, "'"),
        [b'"', ..] => closed_by(1, "\""),
        [b'-', b'-', ..] => Ok(text.find('\n').unwrap_or(text.len())),
        [b'/', b'*', ..] => closed_by(2, "*/"),
        [b'$', ..] => {
            let tag = text[1..].find('$').map(|at| &text[..at + 2]);
            match tag.filter(|tag| tag[1..tag.len() - 1].chars().all(|c| c.is_alphanumeric() || c == '_')) {
                Some(tag) => closed_by(tag.len(), tag),
                None => Ok(0),
            }
        }
        _ => Ok(0),
    }
}

fn number_parameters(text: &str) -> Result<(String, usize), String> {
    let (mut numbered, mut parameters, mut rest) = (String::new(), 0, text);
    while let Some(first) = rest.chars().next() {
        let quotation = quotation_len(rest)?;
        let length = if quotation > 0 {
            numbered.push_str(&rest[..quotation]);
            quotation
        } else if rest.starts_with("??") {
            // The operator `?` in JDBC.
            numbered.push('?');
            2
        } else if first == '?' {
            parameters += 1;
            numbered.push_str(&format!("${parameters}"));
            1
        } else {
            numbered.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    Ok((numbered, parameters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_outside_of_quotations_and_comments() {
        for (text, numbered, parameters) in [
            ("INSERT INTO jgroups values (?, ?, ?)", "INSERT INTO jgroups values ($1, $2, $3)", 3),
            (
                "select '?''?', \"?\" /* ? */ where a=? -- ?",
                "select '?''?', \"?\" /* ? */ where a=$1 -- ?",
                1,
            ),
            ("select $a$ ? $a$, ?", "select $a$ ? $a$, $1", 1),
            ("select a ?? ?", "select a ? $1", 1),
            ("select ‘é’ = ?", "select ‘é’ = $1", 1),
            ("select $", "select $", 0),
            ("", "", 0),
        ] {
            let statement = SqlStatement::parse(text).unwrap();
            assert_eq!((statement.numbered(), statement.parameters()), (numbered, parameters));
            assert_eq!(statement.show(), text);
        }
    }

    #[test]
    fn statement_that_cannot_be_sent_is_refused() {
        assert!(SqlStatement::parse("{call p(?)}").unwrap_err().contains("without braces"));
        for text in ["select 'a", "select \"a", "select /* a", "select $$ a", "'"] {
            assert!(SqlStatement::parse(text).unwrap_err().contains("is not closed"), "{text}");
        }
    }
}
