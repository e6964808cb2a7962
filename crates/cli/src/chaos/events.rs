use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ValueEnum;

use super::clients::Tally;
use super::cluster::Cluster;
use super::member::{Found, Order, Reply};
use crate::perf::member_name;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Event {
    /// kill -9 of a member.
    Kill,
    /// kill -9 of the coordinator.
    KillCoordinator,
    /// SIGSTOP of a member, and SIGCONT after a while.
    Pause,
    /// The link of a member's host is cut, and healed after a while.
    Cut,
    /// Every member is ended by SIGTERM and started anew, one after the other.
    Restart,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) calm: Duration,
    pub(crate) pause: Duration,
    pub(crate) cut: Duration,
    pub(crate) whole_max: Duration,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) event: String,
    pub(crate) others: Tally,
    pub(crate) faulty: Tally,
    pub(crate) found: Found,
    /// Since the event, or since its end if it lasts.
    pub(crate) whole: Duration,
    pub(crate) note: String,
}

impl Row {
    pub(crate) fn is_good(&self) -> bool {
        let Found { lost, wrong, failed, .. } = self.found;
        let both = [&self.others, &self.faulty];
        lost + wrong + failed == 0
            && self.others.stale == 0
            && both.iter().all(|tally| tally.hung + tally.wrong == 0)
            && self.others.reads > 0
            && self.others.writes > 0
    }
}

pub(super) struct Done {
    pub(super) faulty: Vec<usize>,
    tally: Tally,
    whole: Duration,
    note: String,
}

impl Event {
    /// A member may be left out of the topology without knowing it, and return stale values.
    pub(super) fn allows_stale_reads(self) -> bool {
        matches!(self, Self::Pause | Self::Cut)
    }

    pub(super) fn text(self, times: &Times) -> String {
        match self {
            Self::Kill => "kill -9 of a member".to_owned(),
            Self::KillCoordinator => "kill -9 of the coordinator".to_owned(),
            Self::Pause => format!("SIGSTOP of a member for {} s", times.pause.as_secs()),
            Self::Cut => format!("links of a member cut for {} s", times.cut.as_secs()),
            Self::Restart => "rolling restart of all".to_owned(),
        }
    }

    pub(crate) async fn run(self, cluster: &mut Cluster, times: &Times) -> anyhow::Result<Row> {
        cluster.order_all(Order::Work).await?;
        tokio::time::sleep(times.calm).await;
        let done = self.cause(cluster, times).await?;
        tokio::time::sleep(times.calm).await;
        let (mut others, mut faulty) = (Tally::default(), done.tally);
        for (place, reply) in cluster.order_all(Order::Stop).await? {
            let Reply::Tally(tally) = reply else { bail!("no tally") };
            if done.faulty.contains(&place) { &mut faulty } else { &mut others }.add(&tally);
        }
        let mut found = Found::default();
        for (place, reply) in cluster.order_all(Order::Read).await? {
            let Reply::Found(own) = reply else { bail!("nothing found") };
            found.lost = found.lost.max(own.lost);
            found.wrong = found.wrong.max(own.wrong);
            found.failed = found.failed.max(own.failed);
            let example = own.example.map(|example| format!("at {}: {example}", member_name(place)));
            found.example = found.example.or(example);
        }
        let (event, whole, note) = (self.text(times), done.whole, done.note);
        Ok(Row { event, others, faulty, found, whole, note })
    }

    pub(super) async fn cause(self, cluster: &mut Cluster, times: &Times) -> anyhow::Result<Done> {
        let all = cluster.running_members();
        let coordinator = cluster.coordinator().await?;
        let other = *all.iter().rev().find(|place| **place != coordinator).unwrap_or(&coordinator);
        let mut done =
            Done { faulty: vec![other], tally: Tally::default(), whole: Duration::ZERO, note: String::new() };
        match self {
            Self::Kill | Self::KillCoordinator => {
                let place = if self == Self::Kill { other } else { coordinator };
                cluster.kill(place)?;
                done.faulty = vec![place];
                done.whole = cluster.wait_until_complete(all.len() - 1, times.whole_max).await?;
                tokio::time::sleep(times.calm).await;
                let begin = Instant::now();
                cluster.start(place).await?;
                cluster.wait_until_complete(all.len(), times.whole_max).await?;
                let joined = begin.elapsed().as_secs_f64();
                done.note =
                    format!("a new {} has its share {joined:.1} s after its start", member_name(place));
            }
            Self::Pause => {
                cluster.signal(other, "STOP")?;
                tokio::time::sleep(times.pause).await;
                cluster.signal(other, "CONT")?;
                done.whole = cluster.wait_until_complete(all.len(), times.whole_max).await?;
            }
            Self::Cut => {
                cluster.cut(other)?;
                tokio::time::sleep(times.cut).await;
                cluster.heal(other)?;
                done.whole = cluster.wait_until_complete(all.len(), times.whole_max).await?;
            }
            Self::Restart => {
                done.faulty.clear();
                let (mut left, mut joined) = (Duration::ZERO, Duration::ZERO);
                for place in all.clone() {
                    let begin = Instant::now();
                    cluster.signal(place, "TERM")?;
                    let (last, is_good) = cluster.wait_for_end(place).await?;
                    left = left.max(begin.elapsed());
                    if !is_good {
                        bail!("{} has not ended well", member_name(place));
                    }
                    if let Some(Reply::Last(tally)) = last {
                        done.tally.add(&tally);
                    }
                    let begin = Instant::now();
                    cluster.start(place).await?;
                    cluster.wait_until_complete(all.len(), times.whole_max).await?;
                    joined = joined.max(begin.elapsed());
                    cluster.order(place, Order::Work, times.whole_max).await?;
                }
                done.whole = joined;
                let left = left.as_secs_f64();
                done.note = format!("a member has ended at most {left:.1} s after SIGTERM");
            }
        }
        Ok(done)
    }
}
