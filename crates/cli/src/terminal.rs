//! Text from outside on terminals and in logs.
//!
//! Names, values and errors of peers may hold control characters, which forge lines, move the cursor, or
//! change the direction of text. [`Escaped`] writes them as `\n` or `\u001b`. This module's macros replace
//! the standard library's in the whole command: they escape everything but line feeds and tabs.

use std::fmt::{self, Display, Write};

/// Text without control characters, as one line.
pub(crate) struct Escaped<T>(pub(crate) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, kept: "" }, "{}", self.0)
    }
}

/// Keeps line feeds, and a carriage return at the beginning of a line: progress overwrites its own line.
pub(crate) struct Lines<T>(pub(crate) T);

impl<T: Display> Display for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let rest = text.strip_prefix('\r').unwrap_or(&text);
        f.write_str(&text[..text.len() - rest.len()])?;
        Escaping { to: f, kept: "\n\t" }.write_str(rest)
    }
}

/// Bytes for other outputs than a terminal stay unchanged.
pub(crate) fn escape_bytes(bytes: &[u8], is_terminal: bool) -> std::borrow::Cow<'_, [u8]> {
    if is_terminal {
        Lines(String::from_utf8_lossy(bytes)).to_string().into_bytes().into()
    } else {
        bytes.into()
    }
}

pub(crate) struct Escaping<'a, W: ?Sized> {
    pub(crate) to: &'a mut W,
    pub(crate) kept: &'static str,
}

impl<W: Write + ?Sized> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let is_escaped = |c: char| is_control(c) && !self.kept.contains(c);
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_escaped(*c)) {
            self.to.write_str(&rest[..at])?;
            match c {
                '\n' => self.to.write_str("\\n")?,
                '\r' => self.to.write_str("\\r")?,
                '\t' => self.to.write_str("\\t")?,
                // As JSON has it, so that JSON stays JSON.
                c => write!(self.to, "\\u{:04x}", u32::from(c))?,
            }
            rest = &rest[at + c.len_utf8()..];
        }
        self.to.write_str(rest)
    }
}

/// Control characters, separators of lines and paragraphs, and changes of the text direction.
const fn is_control(c: char) -> bool {
    c.is_ascii_control()
        || matches!(c, '\u{80}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

macro_rules! print {
    ($($text:tt)*) => { ::std::print!("{}", $crate::terminal::Lines(::std::format_args!($($text)*))) };
}

macro_rules! println {
    () => { ::std::println!() };
    ($($text:tt)*) => { ::std::println!("{}", $crate::terminal::Lines(::std::format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { ::std::eprint!("{}", $crate::terminal::Lines(::std::format_args!($($text)*))) };
}

macro_rules! eprintln {
    () => { ::std::eprintln!() };
    ($($text:tt)*) => { ::std::eprintln!("{}", $crate::terminal::Lines(::std::format_args!($($text)*))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "a\nb\r\t\u{1b}[2J\u{7}\u{0}\u{7f}\u{9b}\u{85}\u{2028}\u{202e}\u{2066}\u{200f}\u{61c}ä\\";

    #[test]
    fn one_line_holds_no_control_character() {
        let escaped =
            "a\\nb\\r\\t\\u001b[2J\\u0007\\u0000\\u007f\\u009b\\u0085\\u2028\\u202e\\u2066\\u200f\\u061cä\\";
        assert_eq!(Escaped(HOSTILE).to_string(), escaped);
        assert!(!Escaped(HOSTILE).to_string().chars().any(is_control));
    }

    #[test]
    fn lines_keep_line_feeds_and_tabs_and_a_carriage_return_at_the_beginning() {
        assert_eq!(Lines("\r 1\n\t2\r3\u{1b}[H\n").to_string(), "\r 1\n\t2\\r3\\u001b[H\n");
        assert_eq!(Lines("\u{202e}\r").to_string(), "\\u202e\\r");
        assert_eq!(Lines("").to_string(), "");
    }

    #[test]
    fn bytes_are_escaped_for_terminals_only() {
        assert_eq!(&*escape_bytes(b"\x1b]0;x\x07\xff", true), "\\u001b]0;x\\u0007\u{fffd}".as_bytes());
        assert_eq!(&*escape_bytes(b"\x1b\xff", false), b"\x1b\xff");
    }

    #[test]
    fn json_with_controls_in_it_stays_json() {
        let json = serde_json::to_string("\u{202e}\u{7f}\n").unwrap();
        let text = Lines(&json).to_string();
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), "\u{202e}\u{7f}\n");
        assert!(!text.chars().any(is_control));
    }

    /// Every output of the command uses the macros above, or its exception is listed here.
    #[test]
    fn no_module_writes_to_a_terminal_past_the_macros() {
        // Bytes of requested values and answers, escaped by `escape_bytes`; a script for shells; lines of this process's own
        // settings.
        const KNOWN: [&str; 7] = [
            "cache.rs",
            "completion.rs",
            "operator/mod.rs",
            "router.rs",
            "server.rs",
            "server_config.rs",
            "chaos/member.rs",
        ];
        // Handles that move the cursor or flush.
        const HANDLES: [&str; 7] = [
            "log.rs",
            "sim/seeds.rs",
            "terminal.rs",
            "perf/progress.rs",
            "perf/menu.rs",
            "perf/grid/menu.rs",
            "perf/grid/mod.rs",
        ];
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).unwrap();
                let is_known = KNOWN.contains(&&*name) || HANDLES.contains(&&*name);
                let writes = ["std::print", "std::eprint", "io::stdout()", "io::stderr()"];
                assert!(is_known || !writes.iter().any(|write| text.contains(write)), "{name}");
            }
        }
    }
}
