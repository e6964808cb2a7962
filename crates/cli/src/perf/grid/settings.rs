//! The values of the menu, which all members share (S000-27).

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::perf::range::{THREADS_MAX, fraction, seconds, size, within};

/// Keys have four bytes.
const KEYS_MAX: u32 = u32::MAX - 1;

/// The settings of the next test.
#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Invokers of each member: tasks with one operation in flight each
    #[arg(long, alias = "invokers", value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    pub(crate) threads: u32,
    /// Keys 1 to N.
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    pub(crate) keys: u32,
    /// Duration of the measurement, in seconds
    #[arg(long, alias = "seconds", value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub(crate) time: f64,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000, value_parser = size)]
    pub(crate) size: usize,
    /// Fraction of the operations that are reads
    #[arg(long = "reads", alias = "read-percentage", value_name = "FRACTION", default_value_t = 1.0, value_parser = fraction)]
    pub(crate) read_percentage: f64,
    /// Print percentiles, not only averages
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) details: bool,
    /// Print the figures of each invoker
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) print_invokers: bool,
}

impl Settings {
    pub(crate) fn of(keys: u32, size: usize) -> Self {
        Self {
            threads: 100,
            keys,
            time: 60.0,
            size,
            read_percentage: 1.0,
            details: true,
            print_invokers: false,
        }
    }
}

/// 1000 is 1.00KB, as in the menu.
pub(crate) fn bytes(number: f64) -> String {
    match number {
        ..1e3 => format!("{number:.0}B"),
        ..1e6 => format!("{:.2}KB", number / 1e3),
        ..1e9 => format!("{:.2}MB", number / 1e6),
        _ => format!("{:.2}GB", number / 1e9),
    }
}

pub(crate) struct Setting {
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Setting {
    pub(crate) fn set(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        (self.set)(settings, text)
    }

    /// The menu asks for no value of a switch.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.key, "d" | "i")
    }

    pub(crate) fn of(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }
}

const SETTINGS: &[Setting] = &[
    Setting {
        key: "4",
        name: "Threads",
        set: |settings, text| within(text, 1, THREADS_MAX).map(|value| settings.threads = value),
    },
    Setting {
        key: "5",
        name: "Keys",
        set: |settings, text| within(text, 1, KEYS_MAX).map(|value| settings.keys = value),
    },
    Setting {
        key: "6",
        name: "Time (secs)",
        set: |settings, text| seconds(text).map(|value| settings.time = value),
    },
    Setting {
        key: "7",
        name: "Value size",
        set: |settings, text| size(text).map(|value| settings.size = value),
    },
    Setting {
        key: "r",
        name: "Read percentage",
        set: |settings, text| fraction(text).map(|value| settings.read_percentage = value),
    },
    Setting { key: "d", name: "Details", set: |settings, text| switch(&mut settings.details, text) },
    Setting { key: "i", name: "Invokers", set: |settings, text| switch(&mut settings.print_invokers, text) },
];

/// An empty text toggles the switch.
fn switch(value: &mut bool, text: &str) -> Result<(), String> {
    if text.is_empty() {
        *value = !*value;
        return Ok(());
    }
    within(text, false, true).map(|parsed| *value = parsed)
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        settings: Settings,
    }

    pub(in crate::perf::grid) fn parsed(arguments: &[&str]) -> Settings {
        Arguments::parse_from([&["perf"], arguments].concat()).settings
    }

    /// S000-27
    #[test]
    fn defaults_are_those_of_the_menu() {
        let wanted = Settings {
            threads: 100,
            keys: 100_000,
            time: 60.0,
            size: 1_000,
            read_percentage: 1.0,
            details: true,
            print_invokers: false,
        };
        assert_eq!(parsed(&[]), wanted);
    }

    #[test]
    fn every_value_of_the_menu_is_an_option_too() {
        let by_option = parsed(&[
            "--threads=7",
            "--keys=90",
            "--time=2.5",
            "--size=20",
            "--read-percentage=0.8",
            "--details=false",
            "--print-invokers",
        ]);
        let mut by_menu = parsed(&[]);
        let values =
            [("4", "7"), ("5", "90"), ("6", "2.5"), ("7", "20"), ("r", "0.8"), ("d", ""), ("i", "true")];
        for (key, value) in values {
            Setting::of(key).unwrap().set(&mut by_menu, value).unwrap();
        }
        assert_eq!(by_option, by_menu);
        let earlier = parsed(&["--invokers=5", "--seconds=1", "--read-percentage=0.5"]);
        assert_eq!(earlier, parsed(&["--threads=5", "--time=1", "--reads=0.5"]));
        assert_ne!(earlier, parsed(&[]));
    }

    #[test]
    fn contradictory_settings_change_nothing() {
        let mut settings = parsed(&[]);
        for (key, value) in
            [("4", "0"), ("5", "-1"), ("6", "NaN"), ("7", "x"), ("r", "1.5"), ("d", "maybe"), ("i", "2")]
        {
            assert!(Setting::of(key).unwrap().set(&mut settings, value).is_err(), "{key} {value}");
        }
        assert_eq!(settings, parsed(&[]));
    }

    #[test]
    fn bytes_read_as_in_the_menu() {
        let texts = [0.0, 999.0, 1_000.0, 91_271_000.0, 2e9].map(bytes);
        assert_eq!(texts, ["0B", "999B", "1.00KB", "91.27MB", "2.00GB"]);
    }
}
