//! `consort cluster`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use consort_client::Client;
use serde_json::Value;

use super::{Target, address, answered, cell, items, parse, print_json, print_text, stop};
use crate::broken_pipe::print_error;
use crate::table::{Align, aligned};
use crate::terminal::Escaped;

#[derive(Args)]
#[command(after_help = "With users, it requires a role with the permission MONITOR: monitor, observer,\n\
    application, deployer or admin; to change rebalancing or to stop the servers,\n\
    admin. The exit code is 2 for errors.\n\n\
    Examples:\n  \
    consort cluster members\n  \
    consort cluster --at hotrods://shop.example --user alice members --json\n  \
    consort cluster segments               all caches\n  \
    consort cluster segments shop\n  \
    consort cluster rebalance              the state of all caches\n  \
    consort cluster rebalance off          before several servers join\n  \
    consort cluster rebalance --cache shop on\n  \
    consort cluster stop")]
pub(crate) struct Cluster {
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the members with their addresses for clients, the coordinator first
    Members,
    /// Count the segments that each member owns, and those without an owner
    Segments {
        /// Name of the cache; without it, all caches
        cache: Option<String>,
    },
    /// Print whether segments get new owners when members join or leave, and the rebalances in progress.
    ///
    /// With `off`, servers that join own no segments, and the copies of a server that is lost or leaves are not replaced, until it
    /// is `on` again or all servers have ended. A server that leaves hands over only entries that no other server has. The crash
    /// of the last owner then loses entries, so do not use it for a rolling restart. A new cache gets its owners all the same, a replicated one two.
    Rebalance {
        /// Name of the cache; without it, all caches
        #[arg(long, value_name = "NAME")]
        cache: Option<String>,
        /// Enable or disable it; without it, nothing is changed
        state: Option<Switch>,
    },
    /// Stop all servers in order, and wait until they have ended.
    ///
    /// Clients' requests are answered; then all servers end together, and no entries are moved. Entries of caches with stores stay on
    /// the disks of their servers, also with passivation and write-behind; entries of all other caches are lost. At the restart,
    /// caches with stores serve when all servers of this moment are back. The servers' exit codes are 0: a supervisor that starts ended
    /// servers again makes this a restart of the cluster, unless they have --stay-after-stop, as in the chart for Kubernetes. If the
    /// servers do not agree, none stops.
    Stop {
        /// Return once the servers have agreed, without waiting for their end
        #[arg(long)]
        no_wait: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Cluster {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(self.ask().await.unwrap_or_else(|error| print_error(&error, ExitCode::from(2))))
    }

    async fn ask(self) -> anyhow::Result<ExitCode> {
        let client = self.target.client()?.connect().await?;
        let answer = self.verb.answer(&client).await;
        client.close().await;
        let answer = parse(&answer?)?;
        if self.json {
            print_json(&answer)?;
        } else {
            print_text(&match self.verb {
                Verb::Members => members(&answer),
                Verb::Segments { .. } => segments(&answer),
                Verb::Rebalance { .. } => rebalancing(&answer),
                Verb::Stop { .. } => format!("{}\nall servers stop\n", members(&answer)),
            })?;
        }
        if let Verb::Stop { no_wait: false } = self.verb {
            stop::end(&answer, |report| eprintln!("{report}")).await?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Verb {
    async fn answer(&self, client: &Client) -> anyhow::Result<String> {
        let admin = client.administration();
        answered(match self {
            Self::Members => admin.members().await,
            Self::Segments { cache } => admin.segments(cache.as_deref()).await,
            Self::Rebalance { cache, state: None } => admin.rebalancing(cache.as_deref()).await,
            Self::Stop { .. } => admin.stop_cluster().await,
            Self::Rebalance { cache, state: Some(state) } => {
                admin.set_rebalancing(cache.as_deref(), *state == Switch::On).await
            }
        })
    }
}

fn members(answer: &Value) -> String {
    let mut rows = vec![["member", "address", "state"].map(str::to_owned).to_vec()];
    for member in items(&answer["members"]) {
        let flags = [
            ("coordinator", "coordinator"),
            ("asked", "this server"),
            ("leaving", "leaving"),
            ("silent", "silent"),
        ];
        let state: Vec<&str> =
            flags.iter().filter(|(flag, _)| member[flag] == true).map(|(_, text)| *text).collect();
        rows.push(vec![cell(&member["name"]), address(member), state.join(", ")]);
    }
    let heading = format!(
        "cluster {}, view {}, {} members",
        cell(&answer["cluster"]),
        cell(&answer["view"]),
        rows.len() - 1
    );
    format!("{}\n\n{}", Escaped(heading), aligned(&rows, &[Align::Left; 3]))
}

fn segments(answer: &Value) -> String {
    let each: Vec<String> = items(answer)
        .map(|cache| format!("{}\n{}", Escaped(cell(&cache["cache"])), owners(&cache["segments"])))
        .collect();
    each.join("\n")
}

/// The lines about a cache below its name.
pub(super) fn owners(segments: &Value) -> String {
    if segments.is_null() {
        return "  local: each server has entries of its own\n".to_owned();
    }
    let number = |name: &str| segments[name].as_u64().unwrap_or_default();
    let mut text = format!(
        "  {} segments, {}, topology {}, {}\n",
        number("segments"),
        owner_count(segments),
        number("topology"),
        Escaped(cell(&segments["availability"])),
    );
    let (lost, fewer) = (number("without_owner"), number("with_fewer_owners"));
    if lost > 0 {
        text += &format!("  {lost} segments without a reachable owner\n");
    }
    if fewer > 0 {
        text += &format!("  {fewer} segments with fewer owners than possible\n");
    }
    let mut rows = vec![["  member", "primary", "backup"].map(str::to_owned).to_vec()];
    for member in items(&segments["members"]) {
        let mut row =
            vec![format!("  {}", cell(&member["name"])), cell(&member["primary"]), cell(&member["backup"])];
        if member["reachable"] == false {
            row.push("unreachable".to_owned());
        }
        rows.push(row);
    }
    text + &aligned(&rows, &[Align::Left, Align::Right, Align::Right, Align::Left])
}

/// A replicated cache has as many owners as members.
fn owner_count(segments: &Value) -> String {
    let (owners, members) = (segments["owners"].as_u64(), items(&segments["members"]).count());
    match owners {
        Some(1) => "1 owner".to_owned(),
        Some(owners) if owners < u64::from(u16::MAX) => format!("{owners} owners"),
        _ => format!("all {members} members own"),
    }
}

fn rebalancing(answer: &Value) -> String {
    let heading = ["cache", "rebalancing", "now", "to move", "ended", "last"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for cache in items(&answer["caches"]) {
        let state = &cache["rebalancing"];
        let mut row = vec![cell(&cache["cache"])];
        if state.is_null() {
            row.extend(["-", "local"].map(str::to_owned));
        } else {
            row.extend([
                switch(&state["is_enabled"]).to_owned(),
                progress(state),
                cell(&state["segments_to_move"]),
                cell(&state["ended"]),
                state["last_seconds"].as_f64().map_or_else(|| "-".to_owned(), |last| format!("{last:.1} s")),
            ]);
        }
        rows.push(row);
    }
    let align = [Align::Left, Align::Left, Align::Left, Align::Right, Align::Right, Align::Right];
    format!("rebalancing {}\n\n{}", switch(&answer["is_enabled"]), aligned(&rows, &align))
}

fn switch(is_enabled: &Value) -> &'static str {
    if *is_enabled == true { "on" } else { "off" }
}

/// The phase in words, and for how long.
pub(super) fn progress(state: &Value) -> String {
    let words = match state["phase"].as_str() {
        Some("NO_REBALANCE") => return "idle".to_owned(),
        Some("RESTORING") => "restoring",
        _ => "rebalancing",
    };
    match state["running_seconds"].as_f64() {
        Some(seconds) => format!("{words} {seconds:.1} s"),
        None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_a_table() {
        let answer = json!({"cluster": "shop", "view": 2, "version": "1", "members": [
            {"name": "A", "host": "10.0.0.1", "port": 11222, "coordinator": true, "asked": true},
            {"name": "B\n", "host": "fd00::2", "port": 11222, "leaving": true, "silent": true},
            {"name": "C", "host": null, "port": null},
        ]});
        assert_eq!(
            members(&answer),
            "cluster shop, view 2, 3 members\n\n\
             member  address          state\n\
             A       10.0.0.1:11222   coordinator, this server\n\
             B\\n     [fd00::2]:11222  leaving, silent\n\
             C       -\n"
        );
    }

    #[test]
    fn segments_are_counted_per_member() {
        let cache = |owners: u64| {
            json!({"segments": 256, "owners": owners, "topology": 9, "availability": "DEGRADED_MODE",
                "without_owner": 3, "with_fewer_owners": 86, "members": [
                {"name": "A", "primary": 170, "backup": 86, "reachable": true},
                {"name": "B", "primary": 86, "backup": 85, "reachable": false}]})
        };
        let answer = json!([{"cache": "shop", "segments": cache(2)}, {"cache": "own", "segments": null}]);
        assert_eq!(
            segments(&answer),
            "shop\n  256 segments, 2 owners, topology 9, DEGRADED_MODE\n  \
             3 segments without a reachable owner\n  86 segments with fewer owners than possible\n  \
             member  primary  backup\n  \
             A           170      86\n  \
             B            86      85  unreachable\n\n\
             own\n  local: each server has entries of its own\n"
        );
        assert_eq!(owner_count(&cache(1)), "1 owner");
        assert_eq!(owner_count(&cache(65_535)), "all 2 members own");
    }

    /// The standard output of a command may be a file that is shown later.
    #[test]
    fn texts_of_a_server_have_no_control_characters() {
        let evil = "\u{1b}]0;x\u{7}\n";
        let cache = json!({"segments": 1, "owners": 1, "topology": 1, "availability": evil, "without_owner": evil,
            "with_fewer_owners": 0, "members": [{"name": evil, "primary": evil, "backup": evil, "reachable": true}]});
        let state = json!({"is_enabled": evil, "phase": evil, "segments_to_move": evil, "ended": evil, "last_seconds": evil});
        let texts = [
            segments(&json!([{"cache": evil, "segments": cache}])),
            members(
                &json!({"cluster": evil, "view": evil, "members": [{"name": evil, "host": evil, "port": 1}]}),
            ),
            rebalancing(&json!({"is_enabled": evil, "caches": [{"cache": evil, "rebalancing": state}]})),
        ];
        for text in texts {
            let is_ours = |c: char| c == '\n' || !c.is_control();
            assert!(text.chars().all(is_ours), "{text:?}");
            assert!(!text.contains("x\n"), "a line feed is escaped, too: {text:?}");
        }
    }

    #[test]
    fn rebalancing_is_on_or_off_and_idle_or_running() {
        let answer = json!({"is_enabled": true, "caches": [
            {"cache": "shop", "rebalancing": {"is_enabled": false, "phase": "NO_REBALANCE", "segments_to_move": 0,
                "ended": 2, "last_seconds": 0.26}},
            {"cache": "stock", "rebalancing": {"is_enabled": true, "phase": "READ_OLD_WRITE_ALL", "segments_to_move": 85,
                "ended": 0, "last_seconds": null, "running_seconds": 1.52}},
            {"cache": "own", "rebalancing": null}]});
        assert_eq!(
            rebalancing(&answer),
            "rebalancing on\n\n\
             cache  rebalancing  now                to move  ended   last\n\
             shop   off          idle                     0      2  0.3 s\n\
             stock  on           rebalancing 1.5 s       85      0      -\n\
             own    -            local\n"
        );
    }
}
