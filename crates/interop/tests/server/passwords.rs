//! Passwords of users as `consort user`, `consort cache` and `consort doctor` take them.

use std::process::{Command, Stdio};

use consort_interop::{Tool, built, in_own_network};

use super::{SERVER, user};

/// Returns the output and the exit code of a command with this password in its environment.
fn run(password: Option<&str>, arguments: &[&str]) -> (String, i32) {
    let mut command = Command::new(built("consort"));
    command.args(arguments).stdin(Stdio::null()).env_remove("CONSORT_PASSWORD");
    command.envs(password.map(|password| ("CONSORT_PASSWORD", password)));
    let run = command.output().expect("the command");
    let output = [run.stdout, run.stderr].concat();
    (String::from_utf8(output).expect("text"), run.status.code().expect("an exit code"))
}

#[test]
fn commands_take_the_password_of_the_environment() {
    in_own_network("passwords::commands_take_the_password_of_the_environment", async {
        let file = std::env::temp_dir().join(format!("consort-passwords-{}", std::process::id()));
        std::fs::write(&file, user("alice", "admin", "rabbit hole")).expect("a file");
        let mut server = Tool::consort(&["server", "--users", file.to_str().expect("text")]);
        server.wait_for(&["Hot Rod"]);
        let list = ["cache", "--user=alice", "ls"];
        let look = ["doctor", SERVER, "--timeout=1", "--user=alice"];
        for (password, expected, codes) in [
            (Some("rabbit hole"), None, [0, 0]),
            (Some("rabbit"), Some("ISPN006024: Invalid credentials"), [2, 1]),
            // The input is no terminal that could be asked.
            (None, Some("no password for alice"), [2, 2]),
        ] {
            for (arguments, code) in [&list[..], &look[..]].into_iter().zip(codes) {
                let (output, own_code) = run(password, arguments);
                assert_eq!(own_code, code, "{arguments:?} with {password:?}: {output}");
                assert!(expected.is_none_or(|expected| output.contains(expected)), "{arguments:?}: {output}");
            }
        }
        let password = file.with_extension("password");
        std::fs::write(&password, "rabbit hole\n").expect("a file");
        let from_file = ["cache", "--user=alice", "--password-file", password.to_str().expect("text"), "ls"];
        assert_eq!(
            run(Some("rabbit"), &from_file).1,
            0,
            "a file that is named counts before the environment"
        );
        for file in [file, password] {
            std::fs::remove_file(file).expect("the file");
        }
    });
}

/// A password would be a second way in for a user that only a certificate or a token is to show.
#[test]
fn a_user_without_a_password_has_a_line_without_secrets() {
    let made = Tool::run_consort(&["user", "the robot", "--role=deployer,monitor", "--no-password"]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(String::from_utf8_lossy(&made.stdout), "\"the robot\" deployer,monitor\n");
    let without = Tool::run_consort(&["user", "robot", "--role=deployer"]);
    let message = String::from_utf8_lossy(&without.stderr);
    assert!(!without.status.success() && message.contains("no password on standard input"), "{message}");
}
