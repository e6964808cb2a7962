//! An event is one line: data of peers and clients are in fields, which are escaped here only.

use std::fmt::{self, Write};
use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FormatFields, MakeWriter};

use crate::terminal::Escaping;

/// The form of each event's line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// Time, level, target, message and fields, as people read them
    #[default]
    Text,
    /// One JSON object with timestamp, level, target, message and the fields
    Json,
}

pub(crate) fn init(filter: EnvFilter, format: LogFormat) {
    let is_terminal = io::stderr().is_terminal();
    // Nothing else of this process logs.
    let _ = match format {
        LogFormat::Text => {
            tracing::subscriber::set_global_default(subscriber(filter, is_terminal, io::stderr))
        }
        LogFormat::Json => tracing::subscriber::set_global_default(json(filter, io::stderr)),
    };
}

fn json<W>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let writer = EscapedLines(writer);
    tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter).with_writer(writer).finish()
}

fn subscriber<W>(filter: EnvFilter, is_terminal: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        .fmt_fields(EscapedFields)
        .with_env_filter(filter)
        .with_ansi(is_terminal)
        .with_writer(writer)
        .finish()
}

/// Writes lines of JSON. JSON itself escapes only the controls of ASCII; the others are escaped here, in the form of JSON.
struct EscapedLines<W>(W);

struct EscapedWriter<O>(O);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for EscapedLines<W> {
    type Writer = EscapedWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapedWriter(self.0.make_writer())
    }
}

impl<O: io::Write> io::Write for EscapedWriter<O> {
    /// The subscriber writes whole lines.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut escaped = String::new();
        let _ = Escaping { to: &mut escaped, kept: "\n" }.write_str(&String::from_utf8_lossy(bytes));
        self.0.write_all(escaped.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// As `tracing_subscriber` does, but escaped.
struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = EscapingVisitor { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct EscapingVisitor<'writer> {
    writer: Writer<'writer>,
    is_empty: bool,
    result: fmt::Result,
}

impl EscapingVisitor<'_> {
    fn write(&mut self, name: &str, value: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.is_empty) {
            self.writer.write_char(' ')?;
        }
        if name != "message" {
            let name = name.strip_prefix("r#").unwrap_or(name);
            let [italic, dimmed, plain] =
                if self.writer.has_ansi_escapes() { ["\x1b[3m", "\x1b[2m", "\x1b[0m"] } else { [""; 3] };
            write!(self.writer, "{italic}{name}{plain}{dimmed}={plain}")?;
        }
        Escaping { to: &mut self.writer, kept: "" }.write_fmt(value)
    }
}

impl Visit for EscapingVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
        let mut source = value.source();
        while let Some(cause) = source {
            if self.result.is_ok() {
                self.result =
                    Escaping { to: &mut self.writer, kept: "" }.write_fmt(format_args!(": {cause}"));
            }
            source = cause.source();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = self.write(field.name(), format_args!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn of<S: Subscriber + Send + Sync + 'static>(
            subscriber: impl FnOnce(EnvFilter, Box<dyn Fn() -> Self + Send + Sync>) -> S,
            log: impl FnOnce(),
        ) -> String {
            let written = Self::default();
            let to = written.clone();
            let subscriber = subscriber(EnvFilter::new("trace"), Box::new(move || to.clone()));
            tracing::subscriber::with_default(subscriber, log);
            let bytes = std::mem::take(&mut *written.0.lock().unwrap());
            String::from_utf8(bytes).unwrap()
        }
    }

    fn written(is_terminal: bool, log: impl FnOnce()) -> String {
        Written::of(|filter, writer| subscriber(filter, is_terminal, writer), log)
    }

    #[test]
    fn event_is_one_json_object_with_its_fields() {
        let log = Written::of(json, || {
            let error = Outer(io::Error::other(HOSTILE));
            tracing::warn!(cache = HOSTILE, nodes = 3, %error, "is slow");
            tracing::info!("second");
        });
        let lines: Vec<serde_json::Value> =
            log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(!log.replace('\n', "").contains(|c: char| c.is_control() || c == '\u{202e}'), "{log:?}");
        let [first, second] = &lines[..] else { panic!("{log}") };
        assert_eq!((&first["level"], &first["message"]), (&"WARN".into(), &"is slow".into()));
        assert_eq!((&first["cache"], &first["nodes"]), (&HOSTILE.into(), &3.into()));
        assert_eq!((&first["error"], &second["message"]), (&"outer\n\u{1b}[31m".into(), &"second".into()));
        assert!(first["timestamp"].is_string() && first["target"] == "consort::log::tests");
    }

    const HOSTILE: &str =
        "x\n2026-01-01T00:00:00Z ERROR forged: \r\u{1b}[31m\u{202e}\u{85}\u{7f}\u{9b}31m\u{7}";

    #[derive(Debug, thiserror::Error)]
    #[error("outer\n\u{1b}[31m")]
    struct Outer(#[source] io::Error);

    /// Covers every way by which a value enters the log, not single log sites.
    #[test]
    fn no_value_from_outside_ends_a_line_or_acts_on_a_terminal() {
        for is_terminal in [false, true] {
            let log = written(is_terminal, || {
                let span = tracing::info_span!("request", cache = %HOSTILE, key = HOSTILE);
                let _entered = span.enter();
                span.record("cache", HOSTILE);
                let error = Outer(io::Error::other(HOSTILE));
                tracing::warn!(cache = %HOSTILE, "plain");
                tracing::warn!(cache = HOSTILE, "a string");
                tracing::warn!(cache = ?HOSTILE, "debug");
                tracing::warn!(debug = ?format_args!("{HOSTILE}"), "debug that is not quoted");
                tracing::warn!(%error, "shown");
                tracing::warn!(error = &error as &(dyn std::error::Error + 'static), "as an error");
                tracing::warn!("in the message: {HOSTILE}");
            });
            assert_eq!(log.lines().count(), 7, "{log}");
            assert!(log.ends_with('\n'));
            // The formatter's own output for a terminal begins with ESC [ and ends with m.
            let own = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[33m"];
            let rest = own.iter().fold(log.replace('\n', ""), |text, code| text.replace(code, ""));
            assert!(!rest.contains(|c: char| c.is_control() || c == '\u{202e}'), "{rest:?}");
            assert!(
                rest.contains("in the message: x\\n2026-01-01T00:00:00Z ERROR forged: \\r\\u001b[31m\\u202e")
            );
        }
    }

    #[test]
    fn events_read_as_the_subscribers_own() {
        let log = written(false, || tracing::warn!(cache = %"shop", nodes = 3, name = "a b", "is slow"));
        assert!(
            log.ends_with(" WARN consort::log::tests: is slow cache=shop nodes=3 name=\"a b\"\n"),
            "{log}"
        );
    }
}
