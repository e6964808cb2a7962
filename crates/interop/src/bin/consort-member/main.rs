//! A Consort member that is driven by lines, like the Java member (`interop/README.md`). Its arguments are
//! properties: `-Dname=value`.

#![forbid(unsafe_code)]

mod building_blocks;
mod inbox;
mod member;
mod numbered;

use std::io::Write;

use consort_conf::Variables;
use serde_json::Value;
use tracing_subscriber::EnvFilter;

use crate::member::Member;

fn main() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let variables = std::env::args().skip(1).fold(Variables::new(), |all, argument| {
        let property = argument.strip_prefix("-D").and_then(|property| property.split_once('='));
        let (name, value) = property.unwrap_or_else(|| panic!("no -Dname=value: {argument}"));
        all.with(name, value)
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut member = Member::new(variables);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = runtime.block_on(member.run(&line));
        say(&answer);
        if line == "exit" {
            return;
        }
    }
    // The process that drives this member has ended.
}

/// Does nothing if the reader has closed the pipe.
fn say(object: &Value) {
    let _ = writeln!(std::io::stdout(), "@@ {object}");
}
