//! The keys of IspnPerfTest, from a terminal or a pipe (S000-27). All members get a setting at once.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use consort_channel::rpc::RpcDispatcher;
use consort_procstat::grouped;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use super::control::{ORDER_TIME_MAX, OVERTIME_MAX, Order, POPULATE_TIME_MAX, State, order_all, order_each};
use super::copies::{Copies, Verdict};
use super::figures::{Figures, Total};
use super::load::{self, Test};
use super::member::{End, Member};
use super::settings::{Setting, Settings, bytes};
use crate::terminal::Escaped;

fn text(settings: &Settings) -> String {
    format!(
        "[1] Start test [2] View [3] Cache size [4] Threads ({})\n\
         [5] Keys ({}) [6] Time (secs) ({}) [7] Value size ({}) [8] Validate\n\
         [p] Populate cache [c] Clear cache [v] Versions\n\
         [r] Read percentage ({:.2})\n\
         [d] Details ({})  [i] Invokers ({}) [l] dump local cache\n\
         [q] Quit [X] Quit all",
        settings.threads,
        grouped(settings.keys.into()),
        settings.time,
        bytes(settings.size as f64),
        settings.read_percentage,
        settings.details,
        settings.print_invokers
    )
}

pub(crate) struct Menu {
    member: Arc<Member>,
    dispatcher: RpcDispatcher,
    lines: Lines<BufReader<Stdin>>,
    is_good: bool,
}

impl Menu {
    pub(crate) fn new(member: Arc<Member>, dispatcher: RpcDispatcher) -> Self {
        Self { member, dispatcher, lines: BufReader::new(tokio::io::stdin()).lines(), is_good: true }
    }

    pub(crate) async fn serve(mut self) -> anyhow::Result<(End, bool)> {
        let member = self.member.clone();
        loop {
            println!("{}", text(&self.member.settings()));
            let line = tokio::select! {
                end = member.wait_for_end() => return Ok((end, self.is_good)),
                line = self.next() => line?,
            };
            let Some(line) = line else { return Ok((End::Alone, self.is_good)) };
            let (key, value) = line.split_once(' ').unwrap_or((&line, ""));
            match key {
                "q" => return Ok((End::Alone, self.is_good)),
                "X" => {
                    // Members that have ended already do not respond.
                    let _ = order_each::<()>(&self.dispatcher, &Order::Quit, ORDER_TIME_MAX).await;
                    return Ok((End::Together, self.is_good));
                }
                _ => {
                    // A signal, or the end of everything, is not waited for until a test is over.
                    let acted = tokio::select! {
                        end = member.wait_for_end() => return Ok((end, self.is_good)),
                        acted = self.act(key, value.trim()) => acted,
                    };
                    if let Err(error) = acted {
                        println!("[{key}] has failed: {error:#}");
                        self.is_good = false;
                    }
                }
            }
        }
    }

    async fn act(&mut self, key: &str, value: &str) -> anyhow::Result<()> {
        match key {
            "" => Ok(()),
            "1" => self.start().await,
            "2" => {
                let manager = &self.member.manager;
                println!("-- local: {}\n-- view: {}", manager.name(), Escaped(manager.view_text()));
                Ok(())
            }
            "3" => self.size().await,
            "8" => self.validate().await,
            "p" => self.populate().await,
            "c" => self.clear().await,
            "v" => {
                println!("Consort {}, JGroups 5.5 on the wire", env!("CARGO_PKG_VERSION"));
                Ok(())
            }
            "l" => self.dump().await,
            _ => match Setting::of(key) {
                Some(setting) => self.set(setting, value).await,
                None => {
                    println!("no key `{key}`");
                    Ok(())
                }
            },
        }
    }

    async fn next(&mut self) -> anyhow::Result<Option<String>> {
        Ok(self.lines.next_line().await.context("the input")?.map(|line| line.trim().to_owned()))
    }

    async fn set(&mut self, setting: &Setting, given: &str) -> anyhow::Result<()> {
        let value = if given.is_empty() && !setting.is_switch() {
            print!("{}: ", setting.name);
            std::io::stdout().flush().context("the output")?;
            self.next().await?.unwrap_or_default()
        } else {
            given.to_owned()
        };
        let mut settings = self.member.settings();
        if let Err(why) = setting.set(&mut settings, &value) {
            println!("{}: {why}", setting.name);
            return Ok(());
        }
        order_all::<()>(&self.dispatcher, &Order::Set(settings), ORDER_TIME_MAX).await.map(drop)
    }

    /// On all members at once (S000-37).
    async fn start(&mut self) -> anyhow::Result<()> {
        let test = Test { settings: self.member.settings(), warmup_ms: 0 };
        let limit = test.takes() + OVERTIME_MAX;
        let all = order_each::<Figures>(&self.dispatcher, &Order::Start(test.clone()), limit).await?;
        let mut figures = Vec::new();
        println!("\n======================= Results: ===========================");
        for (member, answer) in all {
            match answer {
                Ok(own) => {
                    println!("{own}");
                    figures.push(own);
                }
                Err(error) => {
                    println!("{}: {error:#}", Escaped(self.dispatcher.channel().name_of(&member)));
                    self.is_good = false;
                }
            }
        }
        let total = Total::of(&figures);
        println!("\n{}", total.text(&test.settings, "members"));
        self.is_good &= total.errors == 0;
        Ok(())
    }

    /// S000-36
    async fn size(&mut self) -> anyhow::Result<()> {
        let states: Vec<State> = order_all(&self.dispatcher, &Order::Look, ORDER_TIME_MAX).await?;
        let copies: u64 = states.iter().map(|state| state.copies).sum();
        let wanted = self.member.wanted_copies().max(1);
        let local = &self.member.cache;
        let is_stable = states.iter().all(|state| state.is_stable);
        println!(
            "-- cache size: {}{}, of which {} ({}) are here; {} copies on {} members",
            if is_stable { "" } else { "about " },
            grouped(copies as f64 / wanted as f64),
            grouped(local.local_len() as f64),
            bytes(local.local_bytes() as f64),
            grouped(copies as f64),
            states.len()
        );
        Ok(())
    }

    async fn validate(&mut self) -> anyhow::Result<()> {
        let keys = self.member.settings().keys;
        let all: Vec<Copies> = order_all(&self.dispatcher, &Order::Copies(keys), POPULATE_TIME_MAX).await?;
        let wanted = self.member.wanted_copies();
        let verdict = Verdict::of(keys, wanted, &all);
        println!("-- {}", verdict.text(wanted));
        self.is_good &= verdict.is_good();
        Ok(())
    }

    async fn populate(&mut self) -> anyhow::Result<()> {
        let Settings { keys, size, .. } = self.member.settings();
        let begin = Instant::now();
        let tenth = (keys / 10).max(1);
        let mut printed = 0;
        load::populate(&self.member.cache, 1..=keys, size, |done| {
            if done / tenth > printed {
                printed = done / tenth;
                println!("-- {} keys", grouped(done.into()));
            }
        })
        .await?;
        println!("-- inserted {} keys in {} ms", grouped(keys.into()), begin.elapsed().as_millis());
        Ok(())
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        load::clear(&self.member.cache, self.member.settings().keys).await?;
        println!("-- cleared");
        Ok(())
    }

    async fn dump(&mut self) -> anyhow::Result<()> {
        let Member { manager, cache, .. } = &*self.member;
        let copies = super::copies::own(manager, cache, self.member.settings().keys).await?;
        let keys: Vec<u32> = copies.0.iter().map(|(key, _)| *key).collect();
        println!("-- {} keys here: {}", grouped(keys.len() as f64), ranges(&keys));
        Ok(())
    }
}

/// 1, 2, 3, 7 is 1-3 7.
fn ranges(keys: &[u32]) -> String {
    let mut text = String::new();
    for range in keys.chunk_by(|one, next| one + 1 == *next) {
        let (first, last) = (range[0], range[range.len() - 1]);
        let space = if text.is_empty() { "" } else { " " };
        let _ = if first == last {
            write!(text, "{space}{first}")
        } else {
            write!(text, "{space}{first}-{last}")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::grid::settings::tests::parsed;

    /// S000-27
    #[test]
    fn the_menu_has_the_keys_and_defaults_of_ispn_perf_test() {
        let mut settings = parsed(&[]);
        assert_eq!(
            text(&settings),
            "[1] Start test [2] View [3] Cache size [4] Threads (100)\n\
             [5] Keys (100,000) [6] Time (secs) (60) [7] Value size (1.00KB) [8] Validate\n\
             [p] Populate cache [c] Clear cache [v] Versions\n\
             [r] Read percentage (1.00)\n\
             [d] Details (true)  [i] Invokers (false) [l] dump local cache\n\
             [q] Quit [X] Quit all"
        );
        for (key, value) in
            [("4", "25"), ("5", "1000"), ("6", "0.5"), ("7", "64"), ("r", "0.8"), ("d", ""), ("i", "")]
        {
            Setting::of(key).unwrap().set(&mut settings, value).unwrap();
        }
        assert_eq!(
            text(&settings),
            "[1] Start test [2] View [3] Cache size [4] Threads (25)\n\
             [5] Keys (1,000) [6] Time (secs) (0.5) [7] Value size (64B) [8] Validate\n\
             [p] Populate cache [c] Clear cache [v] Versions\n\
             [r] Read percentage (0.80)\n\
             [d] Details (false)  [i] Invokers (true) [l] dump local cache\n\
             [q] Quit [X] Quit all"
        );
    }

    #[test]
    fn consecutive_keys_are_printed_as_a_range() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3 7 9-10");
        assert_eq!(ranges(&[]), "");
    }
}
