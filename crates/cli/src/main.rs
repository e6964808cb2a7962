//! The `consort` command.

#[macro_use]
mod terminal;

mod allocator;
mod backup;
mod broken_pipe;
mod cache;
mod chaos;
mod chat;
mod completion;
mod demo;
mod demo_text;
mod descriptors;
mod dns_wait;
mod doctor;
mod jgroups_names;
mod join;
mod listener_tls;
mod log;
mod log_filter;
mod man;
mod operator;
mod parse;
mod password;
mod perf;
mod probe;
mod relay;
mod reload;
mod router;
mod server;
mod server_config;
mod shutdown;
mod sim;
mod table;
mod user;

use std::process::ExitCode;
use std::str::FromStr;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::Directive;

/// Group communication and a data grid that speak JGroups and Hot Rod: servers, clients, and tools to measure and diagnose them
#[derive(Parser)]
#[command(
    name = "consort",
    version,
    after_help = "Start with: consort demo. Every command has --help with an example.\n\n\
    Variables of a configuration come from -D NAME=VALUE or from the environment:\n\
    jgroups.bind_addr is JGROUPS_BIND_ADDR. Errors go to standard error;\n\
    CONSORT_LOG=debug logs more."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start three servers with 100,000 keys, kill one under load, and check that no key is lost
    Demo(demo::Demo),
    /// Serve caches to Hot Rod clients, alone or with the other servers of a cluster
    Server(Box<server::ServerCommand>),
    /// Find out why a member is alone or a client cannot connect, and print a remedy
    Doctor(doctor::Doctor),
    /// Create lines for the users file of a server from names and passwords
    User(user::User),
    /// Read, write, create and remove caches of Hot Rod servers
    Cache(cache::Cache),
    /// List the members of a cluster of servers and the owners of segments; enable or disable rebalancing
    Cluster(operator::cluster::Cluster),
    /// List the connections of clients to the servers of a cluster
    Clients(operator::clients::Clients),
    /// Save caches, counters and schemas in an archive with Infinispan's layout
    Backup(backup::Backup),
    /// Restore caches, counters and schemas of an archive, Consort's or Infinispan's
    Restore(backup::Restore),
    /// Measure the grid: every member reads and writes shared keys; with a menu, or --members for scripts
    Perf(Box<perf::grid::Perf>),
    /// Kill, stop, disconnect and restart members under load; count lost entries and measure the recovery
    #[command(alias = "live")]
    Chaos(chaos::Chaos),
    /// Measure iterations over all entries of a cache, by sizes, batches and modes
    Iterate(Box<perf::grid::Iterate>),
    /// Measure a rebalance: one more member joins a cache that is read meanwhile
    Rebalance(Box<perf::grid::Rebalance>),
    /// Measure RPC: every member calls random others, 80 % reads and 20 % writes to two members
    Uperf(perf::uperf::Uperf),
    /// Measure multicasts: every member sends to all
    Mperf(perf::mperf::Mperf),
    /// Chat with all members of a cluster, org.jgroups.demos.Chat included
    Chat(chat::Chat),
    /// Chat with the members of several sites, org.jgroups.demos.RelayDemo included
    Relay(relay::Relay),
    /// Run a router for members with TCPGOSSIP or TUNNEL, or list its members
    Router(router::Router),
    /// Query members for views, attributes and statistics, as JGroups' probe.sh does
    Probe(probe::Probe),
    /// Print the JGroups messages of a capture, one per line
    Parse(parse::Parse),
    /// Print a completion script for a shell
    Completion(completion::Completion),
    /// Write the manual page of each command into a directory
    Man(man::Man),
    /// Simulate whole clusters in virtual time, with faults from a seed
    Sim(sim::Sim),
}

fn main() -> ExitCode {
    allocator::set_purge_delay();
    let arguments =
        Arguments::parse_from(jgroups_names::arguments(std::env::args_os(), Arguments::command()));
    // A server continues without a reader of its output, and so does a router.
    if !matches!(arguments.command, Command::Server(_) | Command::Router(_)) {
        broken_pipe::exit_quietly();
    }
    // A simulation loses messages on purpose, and a demo kills members. A server's log reports the events of its cluster.
    let level = match arguments.command {
        Command::Sim(_) => "off",
        Command::Demo(_) | Command::Chaos(_) => "error",
        Command::Router(_) => "warn,consort_router=info",
        Command::Server(_) => {
            "warn,consort_server=info,consort::reload=info,consort::server=info,consort::allocator=info"
        }
        _ => "warn",
    };
    // Layers have switches of their own for traces, which can be changed while the program runs.
    let switched = Directive::from_str(&format!("{}=trace", consort_group::trace::TARGET));
    let set = std::env::var_os(log_filter::VARIABLE).map(|set| set.to_string_lossy().into_owned());
    let filter = match log_filter::filter(set.as_deref(), level) {
        Ok(filter) => filter,
        Err(error) => return broken_pipe::print_error(&anyhow::anyhow!(error), ExitCode::from(2)),
    };
    // A stack has layers that log messages only if its file names them.
    let messages = Directive::from_str(&format!("{}=info", consort_group::protocols::message_log::TARGET));
    let filter = filter.add_directive(switched.expect("a directive"));
    let format = match &arguments.command {
        Command::Server(server) => server.log_format,
        Command::Router(router) => router.log_format,
        _ => log::LogFormat::Text,
    };
    log::init(filter.add_directive(messages.expect("a directive")), format);
    let result = match arguments.command {
        Command::Demo(demo) => on_one_thread(demo.run()),
        Command::Chaos(chaos) => on_one_thread(chaos.run()),
        Command::Server(server) => server.reserve.take().and_then(|()| on_all_threads(server.run())),
        Command::Doctor(doctor) => on_one_thread(doctor.run()),
        Command::User(user) => user.run(),
        Command::Cache(cache) => on_one_thread(cache.run()),
        Command::Cluster(cluster) => on_one_thread(cluster.run()),
        Command::Clients(clients) => on_one_thread(clients.run()),
        Command::Backup(backup) => on_one_thread(backup.run()),
        Command::Restore(restore) => on_one_thread(restore.run()),
        Command::Perf(perf) => perf.reserve.take().and_then(|()| on_one_thread(perf.run())),
        Command::Iterate(iterate) => on_one_thread(iterate.run()),
        Command::Rebalance(rebalance) => on_one_thread(rebalance.run()),
        Command::Uperf(uperf) => on_one_thread(perf::run_uperf(uperf)),
        Command::Mperf(mperf) => on_one_thread(mperf.run()),
        Command::Chat(chat) => on_one_thread(chat.run()),
        Command::Relay(relay) => on_one_thread(relay.run()),
        Command::Router(router) => on_all_threads(router.run()),
        Command::Probe(probe) => probe.run(),
        Command::Parse(parse) => parse.run(),
        Command::Completion(completion) => completion.run(Arguments::command()),
        Command::Man(man) => man.run(Arguments::command()),
        Command::Sim(sim) => sim.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => broken_pipe::print_error(&error, ExitCode::FAILURE),
    }
}

/// One thread serves sockets, stack and application: mostly, waking another thread costs more than the work itself.
fn on_one_thread(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    allocator::enable_thread_cache();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.on_thread_park(allocator::park).on_thread_unpark(allocator::unpark);
    let runtime = runtime.enable_all().build()?;
    let result = runtime.block_on(work);
    // Does not wait for a thread that reads standard input until a line is typed.
    runtime.shutdown_background();
    result
}

fn on_all_threads(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.on_thread_start(allocator::enable_thread_cache).on_thread_stop(allocator::disable_thread_cache);
    runtime.on_thread_park(allocator::park).on_thread_unpark(allocator::unpark);
    runtime.enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 80;

    /// Adds what is wrong, so that one run finds all of it.
    fn check(command: &mut clap::Command, path: &str, wrong: &mut Vec<String>) {
        let help = command.render_long_help().to_string();
        let is_root = !path.contains(' ');
        let has_example = is_root
            || path.ends_with("help")
            || help.contains("Example")
            || command.has_subcommands()
            || path.split(' ').count() > 2;
        if !has_example {
            wrong.push(format!("{path} has no example"));
        }
        // Before it is wrapped: half a command is nothing to copy.
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().chain(after.lines()).filter(|line| line.chars().count() > WIDTH) {
            wrong.push(format!("{path} --help has a line of more than {WIDTH}: {line}"));
        }
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            if argument.get_help().is_none_or(|help| help.to_string().is_empty()) {
                wrong.push(format!("{path} --help says nothing of {}", argument.get_id()));
            }
        }
        for below in command.get_subcommands_mut() {
            let path = format!("{path} {}", below.get_name());
            check(below, &path, wrong);
        }
    }

    #[test]
    fn every_help_has_an_example_and_fits_a_terminal() {
        let mut command = Arguments::command().term_width(WIDTH);
        command.build();
        let mut wrong = Vec::new();
        check(&mut command, "consort", &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn earlier_spellings_of_commands_and_options_are_accepted() {
        for line in [
            "consort perf --spawn 4 --invokers 5 --seconds 10 --read-percentage 0.5",
            "consort perf --members 4 --threads 5 --time 10 --reads 0.5",
            "consort uperf --read 0.5",
            "consort uperf --reads 0.5",
            "consort chaos --history file --seconds 5",
            "consort chaos --history file --time 5",
            "consort live --history file --time 5",
            "consort sim --grid --without-habits",
            "consort sim --grid --plain-workload",
            "consort server --cluster shop --bind 10.0.0.3 --listed-at shop",
            "consort server --cluster shop --bind 10.0.0.3 --wait-for-dns shop",
            "consort server --data directory --alone-after 5",
            "consort server --data directory --recovery-timeout 5",
        ] {
            let parsed = Arguments::try_parse_from(line.split_whitespace());
            assert!(
                parsed.is_ok(),
                "{line}: {}",
                parsed.err().map(|error| error.to_string()).unwrap_or_default()
            );
        }
    }
}
