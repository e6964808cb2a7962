use std::path::Path;

use anyhow::Context;

const END: &str = "<!-- end -->\n";

pub(crate) fn put(file: &Path, command: &str, table: &str) -> anyhow::Result<()> {
    let before = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    std::fs::write(file, with(&before, command, table)).with_context(|| file.display().to_string())
}

fn with(text: &str, command: &str, table: &str) -> String {
    let begin = format!("<!-- {command} -->\n");
    let section = format!("{begin}{table}{END}");
    let old = text.split_once(&begin).and_then(|(head, rest)| {
        let (_, tail) = rest.split_once(END)?;
        Some((head, tail))
    });
    match old {
        Some((head, tail)) => format!("{head}{section}{tail}"),
        None if text.is_empty() => section,
        None => format!("{}\n\n{section}", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_replaced_by_the_same_command_only() {
        let text = with("# Title\n", "consort chaos", "one\n");
        assert_eq!(text, "# Title\n\n<!-- consort chaos -->\none\n<!-- end -->\n");
        let text = with(&text, "consort chaos --detect 4", "two\n") + "\nMore.\n";
        let text = with(&text, "consort chaos", "three\n");
        assert_eq!(
            text,
            "# Title\n\n<!-- consort chaos -->\nthree\n<!-- end -->\n\n\
             <!-- consort chaos --detect 4 -->\ntwo\n<!-- end -->\n\nMore.\n"
        );
    }
}
