//! The keys of JGroups' UPerf, from a terminal or a pipe (S000-33). Every member gets the settings when a
//! test starts.

use std::io::Write;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use super::uperf::{Caller, Uperf};
use super::{Cluster, range};

struct Setting {
    key: &'static str,
    name: &'static str,
    shown: fn(&Uperf) -> String,
    set: fn(&mut Uperf, &str) -> Result<(), String>,
}

const SETTINGS: &[Setting] = &[
    Setting {
        key: "4",
        name: "Threads",
        shown: |test| test.common.threads.to_string(),
        set: |test, text| range::threads(text).map(|value| test.common.threads = value),
    },
    Setting {
        key: "6",
        name: "Time (s)",
        shown: |test| test.common.time.to_string(),
        set: |test, text| range::seconds(text).map(|value| test.common.time = value),
    },
    Setting {
        key: "7",
        name: "Message size",
        shown: |test| test.common.size.to_string(),
        set: |test, text| range::size(text).map(|value| test.common.size = value),
    },
    Setting {
        key: "r",
        name: "Read percentage",
        shown: |test| format!("{:.2}", test.read),
        set: |test, text| range::fraction(text).map(|value| test.read = value),
    },
    Setting {
        key: "a",
        name: "Anycast count",
        shown: |test| test.anycast.to_string(),
        set: |test, text| range::members(text).map(|value| test.anycast = value),
    },
    Setting {
        key: "o",
        name: "OOB",
        shown: |test| test.oob.to_string(),
        set: |test, text| range::within(text, false, true).map(|value| test.oob = value),
    },
];

fn text(test: &Uperf) -> String {
    let settings = SETTINGS.iter().map(|one| format!("[{}] {} ({})", one.key, one.name, (one.shown)(test)));
    let settings: Vec<String> = settings.collect();
    let (numbers, letters) = settings.split_at(3);
    format!("[1] Start test [2] View {}\n{}\n[v] Version [x] Exit", numbers.join(" "), letters.join(" "))
}

pub(super) async fn serve(test: &mut Uperf, cluster: &Cluster<Caller>) -> anyhow::Result<bool> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut is_good = true;
    loop {
        println!("{}", text(test));
        let Some(line) = next(&mut lines).await? else { return Ok(is_good) };
        let (key, value) = line.split_once(' ').unwrap_or((&line, ""));
        match key {
            "" => {}
            "1" => match test.round(cluster).await {
                Ok(went_well) => is_good &= went_well,
                Err(error) => {
                    println!("the test failed: {error:#}");
                    is_good = false;
                }
            },
            "2" => println!("{}", cluster.introduction()),
            "v" => println!("Consort {}", env!("CARGO_PKG_VERSION")),
            "x" => return Ok(is_good),
            _ => match SETTINGS.iter().find(|setting| setting.key == key) {
                Some(setting) => {
                    let Some(value) = asked(setting, value, &mut lines).await? else { return Ok(is_good) };
                    if let Err(why) = (setting.set)(test, &value) {
                        println!("{}: {why}", setting.name);
                    }
                }
                None => println!("no key `{key}`"),
            },
        }
    }
}

/// The rest of the line, or else the next line.
async fn asked(
    setting: &Setting,
    given: &str,
    lines: &mut Lines<BufReader<Stdin>>,
) -> anyhow::Result<Option<String>> {
    if !given.trim().is_empty() {
        return Ok(Some(given.trim().to_owned()));
    }
    print!("{}: ", setting.name);
    std::io::stdout().flush().context("the output")?;
    next(lines).await
}

async fn next(lines: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<Option<String>> {
    Ok(lines.next_line().await.context("the input")?.map(|line| line.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        test: Uperf,
    }

    fn set(test: &mut Uperf, key: &str, value: &str) -> Result<(), String> {
        let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
        (setting.set)(test, value)
    }

    #[test]
    fn the_menu_shows_the_settings() {
        let mut test = Arguments::parse_from(["uperf", "--menu"]).test;
        assert_eq!(
            text(&test),
            "[1] Start test [2] View [4] Threads (100) [6] Time (s) (10) [7] Message size (1000)\n\
             [r] Read percentage (0.80) [a] Anycast count (2) [o] OOB (true)\n\
             [v] Version [x] Exit"
        );
        for (key, value) in [("4", "25"), ("6", "0.5"), ("7", "0"), ("r", "1"), ("a", "3"), ("o", "false")] {
            assert_eq!(set(&mut test, key, value), Ok(()));
        }
        assert_eq!(
            text(&test),
            "[1] Start test [2] View [4] Threads (25) [6] Time (s) (0.5) [7] Message size (0)\n\
             [r] Read percentage (1.00) [a] Anycast count (3) [o] OOB (false)\n\
             [v] Version [x] Exit"
        );
    }

    #[test]
    fn contradictory_settings_are_refused() {
        let mut test = Arguments::parse_from(["uperf"]).test;
        for (key, value) in [("4", "0"), ("6", "NaN"), ("7", "-1"), ("r", "1.5"), ("a", "x"), ("o", "maybe")]
        {
            assert!(set(&mut test, key, value).is_err(), "{key} {value}");
        }
        assert_eq!(set(&mut test, "r", "80"), Err("`80` is not from 0 to 1".to_owned()));
    }
}
