//! The demonstration of the founding text: an interactive member, a Deployment, probe, more members, a test.

use std::process::Command;

use consort_interop::Tool;

use super::Namespace;

const MANIFEST: &str = include_str!("../../../../examples/kubernetes/perf.yaml");

const SELECTOR: &str = "app=perf";

/// S000-20, S000-21, S000-22, S000-23, S000-46, S000-47.
#[test]
fn interactive_member_and_a_deployment_form_one_cluster_that_grows_to_ten_and_is_tested() {
    let namespace = Namespace::new("demonstration");
    // Roles first: `kubectl run` starts its pod at once.
    namespace.apply(MANIFEST);
    namespace.until("three pods", || namespace.running(SELECTOR).len() == 3);
    let mut member = in_a_terminal(namespace.command(&[
        "run",
        "perf",
        "--rm",
        "-it",
        "--image=localhost/consort:0.1.0",
        "--image-pull-policy=IfNotPresent",
        "--command",
        "--",
        "perf.sh",
        "-name=A",
        "-cfg",
        "kubernetes.xml",
        "-keys=1000",
        "-time=2",
    ]));
    member.wait_for(&["[q] Quit"]);
    until_view_of(&namespace, &mut member, 4);
    // As many responses as members, from within a pod, through one address.
    let pod = namespace.running(SELECTOR).swap_remove(0);
    let responses = namespace.run(&["exec", &pod, "--", "probe.sh", "-addr", "localhost"]);
    assert!(responses.contains("4 responses"), "{responses}");
    namespace.run(&["scale", "deployment", "perf-members", "--replicas=9"]);
    until_view_of(&namespace, &mut member, 10);
    for setting in ["5 1000", "6 2"] {
        member.type_line(setting);
    }
    member.type_line("p");
    member.wait_for(&["-- inserted 1,000 keys in "]);
    member.type_line("1");
    member.wait_for(&["Throughput: "]);
    member.type_line("q");
    member.wait_for_end();
    namespace.until("nine members", || {
        let responses = namespace.kubectl(&["exec", &pod, "--", "probe.sh", "-addr", "localhost"]);
        String::from_utf8_lossy(&responses.stdout).contains("9 responses")
    });
}

/// Asks by the key of the menu.
fn until_view_of(namespace: &Namespace, member: &mut Tool, members: usize) {
    namespace.until("the view of the interactive member", || {
        member.type_line("2");
        member.wait_for(&["-- view: "]).contains(&format!(" ({members}) "))
    });
}

/// Runs a command with a terminal: the output has the lines of the terminal.
fn in_a_terminal(command: Command) -> Tool {
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("text")))
        .collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--echo", "never", "--command", &words.join(" "), "/dev/null"]);
    script.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Tool::start(script)
}

/// The image serves all tools, and has less than 40 MB beyond its base.
#[test]
fn image_has_the_command_with_the_names_of_jgroups_scripts() {
    let namespace = Namespace::new("image");
    let script = "perf.sh -help; probe.sh -help; stat -L -c size=%s /usr/local/bin/consort; id -u";
    namespace.run(&[
        "run",
        "image",
        "--restart=Never",
        "--image=localhost/consort:0.1.0",
        "--image-pull-policy=IfNotPresent",
        "--command",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let phase = ["get", "pod", "image", "--output=jsonpath={.status.phase}"];
    namespace.until("the end", || namespace.run(&phase) == "Succeeded");
    let help = namespace.run(&["logs", "image"]);
    assert!(help.contains("Usage: consort perf") && help.contains("Usage: consort probe"), "{help}");
    let size = help.lines().find_map(|line| line.strip_prefix("size=")).expect("a size");
    assert!(size.parse::<u64>().expect("a number") < 40_000_000, "{size}");
    assert!(help.lines().any(|line| line == "65532"), "{help}");
}
