//! `consort clients`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use consort_client::{ClientBuilder, Intelligence, ServerAddress};
use serde_json::{Value, json};

use super::{Target, address, answered, cell, items, parse, print_json, print_text, units};
use crate::broken_pipe::print_error;
use crate::table::{Align, aligned};
use crate::terminal::Escaped;

/// The most connections of one server that are listed. A server has fewer descriptors, unless it is hostile.
const CLIENTS_MAX: usize = 1_000_000;

/// The most bytes of the answers of all servers, as JSON: enough for a quarter of a million connections.
const ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The most members that are asked. A cluster has at most some hundred, unless the first server is hostile.
const MEMBERS_MAX: usize = 1_000;

/// List the connections of Hot Rod clients to all servers, this command's own included.
///
/// Each server is asked at its address for clients. Without users, anyone can ask; with users, it requires the role admin.
#[derive(Args)]
#[command(after_help = "The exit code is 2 for errors, also if one of the servers does not answer.\n\n\
    Examples:\n  \
    consort clients\n  \
    consort clients --at hotrods://shop.example --user alice --json\n  \
    consort clients --at 10.0.0.1 --this-server")]
pub(crate) struct Clients {
    #[command(flatten)]
    target: Target,
    /// Ask only the server at --at
    #[arg(long)]
    this_server: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A server with its connections, or the reason why they are unknown.
struct Asked {
    name: String,
    at: String,
    clients: anyhow::Result<Vec<Value>>,
}

impl Clients {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(self.ask().await.unwrap_or_else(|error| print_error(&error, ExitCode::from(2))))
    }

    async fn ask(self) -> anyhow::Result<ExitCode> {
        // Otherwise a request could go to another server.
        let builder = self.target.client()?.intelligence(Intelligence::Basic);
        let client = builder.clone().connect().await?;
        let cluster = answered(client.administration().members().await);
        client.close().await;
        let cluster = parse(&cluster?)?;
        let mut all = Vec::new();
        let mut budget = Budget { members: MEMBERS_MAX, clients: CLIENTS_MAX, bytes: ANSWERS_BYTES_MAX };
        budget.check_members(&cluster)?;
        for member in items(&cluster["members"]) {
            let is_asked = member["asked"] == true;
            if self.this_server && !is_asked {
                continue;
            }
            let Some(builder) = builder_for(&builder, member, is_asked) else { continue };
            let clients = of_server(builder, &mut budget).await;
            all.push(Asked { name: cell(&member["name"]), at: address(member), clients });
        }
        if self.json {
            print_json(&to_json(&all))?;
        } else {
            print_text(&all.iter().map(listing).collect::<Vec<_>>().join("\n"))?;
        }
        let mut code = ExitCode::SUCCESS;
        for Asked { name, at, clients } in all {
            if let Err(error) = clients {
                code = print_error(&error.context(format!("{name} ({at})")), ExitCode::from(2));
            }
        }
        Ok(code)
    }
}

/// `None` for a member that serves no clients. The server at --at may have another address for others.
fn builder_for(builder: &ClientBuilder, member: &Value, is_asked: bool) -> Option<ClientBuilder> {
    if is_asked && let [_] = builder.servers() {
        return Some(builder.clone());
    }
    let (host, port) = (member["host"].as_str()?, u16::try_from(member["port"].as_u64()?).ok()?);
    Some(builder.clone().only_server(ServerAddress { host: host.into(), port }))
}

/// The limits of the servers' answers.
struct Budget {
    members: usize,
    clients: usize,
    /// For all servers together.
    bytes: usize,
}

impl Budget {
    fn check_members(&self, cluster: &Value) -> anyhow::Result<()> {
        let members = items(&cluster["members"]).count();
        anyhow::ensure!(
            members <= self.members,
            "the server names {members} members; the limit is {}",
            self.members
        );
        Ok(())
    }

    /// Adds a page. Returns the last id if there may be another page.
    fn add(&mut self, all: &mut Vec<Value>, answer: &str, after: u64) -> anyhow::Result<Option<u64>> {
        let left = self.bytes.checked_sub(answer.len());
        self.bytes = left.with_context(|| {
            format!(
                "the servers' answers have more than {ANSWERS_BYTES_MAX} bytes; ask each with --this-server"
            )
        })?;
        let Value::Array(page) = parse(answer)? else { anyhow::bail!("the server's answer is no list") };
        anyhow::ensure!(
            all.len() + page.len() <= self.clients,
            "the server lists more than {} connections",
            self.clients
        );
        // Ids grow, so that a server cannot keep this command busy with the same page.
        let last = page.last().and_then(|client| client["id"].as_u64()).filter(|last| *last > after);
        all.extend(page);
        Ok(last)
    }
}

/// Page by page.
async fn of_server(builder: ClientBuilder, budget: &mut Budget) -> anyhow::Result<Vec<Value>> {
    let client = builder.connect().await?;
    let asking = async {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let answer = answered(client.administration().clients(after).await)?;
            match budget.add(&mut all, &answer, after)? {
                Some(last) => after = last,
                None => return Ok(all),
            }
        }
    };
    let all = asking.await;
    client.close().await;
    all
}

fn to_json(all: &[Asked]) -> Value {
    let of = |asked: &Asked| match &asked.clients {
        Ok(clients) => json!({"server": asked.name, "address": asked.at, "clients": clients}),
        Err(error) => json!({"server": asked.name, "address": asked.at, "error": format!("{error:#}")}),
    };
    all.iter().map(of).collect()
}

/// Errors are printed elsewhere.
fn listing(asked: &Asked) -> String {
    let heading = format!("{} ({})", asked.name, asked.at);
    let heading = Escaped(&heading);
    let Ok(clients) = &asked.clients else { return format!("{heading}: unknown\n") };
    let mut rows = vec![
        ["client", "user", "since", "requests", "in", "out", "listeners", "hotrod"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(clients.iter().map(row));
    let noun = if clients.len() == 1 { "client" } else { "clients" };
    let align = [
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
    ];
    format!("{heading}: {} {noun}\n{}", clients.len(), aligned(&rows, &align))
}

fn row(client: &Value) -> Vec<String> {
    let number = |name: &str| client[name].as_u64();
    let shown = |name: &str, show: fn(u64) -> String| number(name).map_or_else(|| "-".to_owned(), show);
    vec![
        cell(&client["address"]),
        cell(&client["user"]),
        shown("connected_seconds", units::span),
        cell(&client["requests"]),
        shown("received_bytes", units::bytes),
        shown("sent_bytes", units::bytes),
        cell(&client["listeners"]),
        cell(&client["protocol"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(clients: anyhow::Result<Vec<Value>>) -> Asked {
        Asked { name: "A".to_owned(), at: "10.0.0.1:11222".to_owned(), clients }
    }

    fn one() -> Value {
        json!({"id": 1, "address": "10.0.0.9:40123", "user": "alice", "connected_seconds": 3_700, "requests": 1_234_567,
               "received_bytes": 1_536, "sent_bytes": 12, "listeners": 2, "protocol": "4.1"})
    }

    #[test]
    fn clients_are_a_table_that_fits_a_terminal() {
        let listed = listing(&asked(Ok(vec![one(), json!({"id": 2})])));
        assert_eq!(
            listed,
            "A (10.0.0.1:11222): 2 clients\n\
             client          user   since  requests        in   out  listeners  hotrod\n\
             10.0.0.9:40123  alice  1h 1m   1234567  1.50 KiB  12 B          2     4.1\n\
             -               -          -         -         -     -          -       -\n"
        );
        assert!(listed.lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn unreachable_server_does_not_hide_the_others() {
        let all = [asked(Ok(Vec::new())), asked(Err(anyhow::anyhow!("refused")))];
        assert_eq!(listing(&all[1]), "A (10.0.0.1:11222): unknown\n");
        let shown = to_json(&all);
        assert_eq!((&shown[0]["clients"], &shown[1]["error"]), (&json!([]), &"refused".into()));
    }

    #[test]
    fn pages_of_a_hostile_server_are_bounded() {
        let page = |ids: std::ops::Range<u64>| {
            json!(ids.map(|id| json!({"id": id})).collect::<Vec<_>>()).to_string()
        };
        let (mut budget, mut all) = (Budget { members: 2, clients: 5, bytes: 10_000 }, Vec::new());
        let cluster = |members: &[&str]| json!({"members": members});
        assert!(budget.check_members(&cluster(&["A", "B"])).is_ok());
        let error = budget.check_members(&cluster(&["A", "B", "C"])).unwrap_err().to_string();
        assert_eq!(error, "the server names 3 members; the limit is 2");
        assert_eq!(budget.add(&mut all, &page(1..4), 0).unwrap(), Some(3));
        assert_eq!(budget.add(&mut all, &page(1..3), 3).unwrap(), None, "ids that do not grow end it");
        let error = budget.add(&mut all, &page(4..6), 3).unwrap_err().to_string();
        assert_eq!(error, "the server lists more than 5 connections");
        let error = budget.add(&mut Vec::new(), &"x".repeat(10_000), 0).unwrap_err().to_string();
        assert!(error.starts_with("the servers' answers have more than"), "{error}");
        assert!(budget.add(&mut Vec::new(), "{}", 0).unwrap_err().to_string().contains("no list"));
    }

    #[test]
    fn other_servers_are_asked_at_their_own_address() {
        let builder = ClientBuilder::from_uri("10.0.0.1:1").unwrap();
        let member = json!({"name": "B", "host": "10.0.0.2", "port": 2});
        let hosts = |is_asked| {
            let builder = builder_for(&builder, &member, is_asked).unwrap();
            builder.servers().iter().map(|server| server.host.to_string()).collect::<Vec<_>>()
        };
        assert_eq!((hosts(true), hosts(false)), (vec!["10.0.0.1".to_owned()], vec!["10.0.0.2".to_owned()]));
        assert!(builder_for(&builder, &json!({"name": "C", "host": null}), false).is_none());
    }
}
