//! Command lines as users of JGroups type them: scripts such as `probe.sh`, and options with one dash.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Command;

/// The names of JGroups' scripts end with this.
const SCRIPT: &str = ".sh";

/// Returns the arguments in the command's own form: `probe.sh -addr localhost` is `consort probe --addr localhost`.
///
/// A program's name is a script's if a command has the same name. A word with one dash is an option if the command has a long one
/// of that name; all other words stay, `-D NAME=VALUE` among them.
pub(crate) fn arguments(given: impl IntoIterator<Item = OsString>, mut root: Command) -> Vec<OsString> {
    // Adds --help and --version.
    root.build();
    let root = &root;
    let mut given = given.into_iter();
    let Some(program) = given.next() else { return Vec::new() };
    let mut arguments = match script(&program, root) {
        Some(command) => vec![OsString::from(root.get_name()), command],
        None => vec![program],
    };
    arguments.extend(given);
    let Some(mut command) = arguments.get(1).and_then(|name| root.find_subcommand(name)) else {
        return arguments;
    };
    let mut names = HashSet::new();
    add_names(command, &mut names);
    let mut are_options = true;
    for argument in &mut arguments[2..] {
        if let Some(below) = command.find_subcommand(&*argument) {
            command = below;
            add_names(command, &mut names);
        }
        are_options &= *argument != "--";
        if are_options && is_option(argument, &names) {
            *argument = [OsStr::new("-"), argument].into_iter().collect();
        }
    }
    arguments
}

/// Returns the name of the command of which a program's name is the script.
fn script(program: &OsStr, root: &Command) -> Option<OsString> {
    let name = Path::new(program).file_name()?.to_str()?.strip_suffix(SCRIPT)?;
    root.find_subcommand(name).map(|command| OsString::from(command.get_name()))
}

fn add_names(command: &Command, names: &mut HashSet<String>) {
    for option in command.get_arguments() {
        let aliases = option.get_all_aliases().unwrap_or_default();
        names.extend(option.get_long().into_iter().chain(aliases).map(str::to_owned));
    }
}

fn is_option(argument: &OsStr, names: &HashSet<String>) -> bool {
    let Some(name) = argument.to_str().and_then(|text| text.strip_prefix('-')) else { return false };
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    name.len() > 1 && names.contains(name)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Arguments;

    fn converted(line: &str) -> String {
        let converted = arguments(line.split(' ').map(OsString::from), Arguments::command());
        converted.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lines_of_jgroups_users_are_those_of_the_command() {
        for (line, expected) in [
            ("/usr/local/bin/probe.sh -addr localhost", "consort probe --addr localhost"),
            ("perf.sh -nohup", "consort perf --nohup"),
            ("perf.sh -cfg kubernetes.xml -name=A", "consort perf --cfg kubernetes.xml --name=A"),
            (
                "consort perf -nohup -D jgroups.bind_port=7900",
                "consort perf --nohup -D jgroups.bind_port=7900",
            ),
            ("consort cache get -at h:11222 c k", "consort cache get --at h:11222 c k"),
            ("consort cache put --at h:1 c k -- -at", "consort cache put --at h:1 c k -- -at"),
            ("consort probe -x jmx=UFC", "consort probe -x jmx=UFC"),
            ("probe.sh -help", "consort probe --help"),
            ("consort -V", "consort -V"),
            ("other.sh -nohup", "other.sh -nohup"),
        ] {
            assert_eq!(converted(line), expected, "{line}");
        }
        for line in ["probe.sh -addr localhost -timeout 200", "perf.sh -nohup -cfg kubernetes.xml"] {
            use clap::Parser as _;
            let words = arguments(line.split(' ').map(OsString::from), Arguments::command());
            assert!(Arguments::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
