//! The memory that a process can still take, as Linux reports it: of the machine, and of the control groups of the process.

use std::fs::read_to_string;
use std::path::Path;

/// The available bytes, and the limit that they belong to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Room {
    pub(super) bytes: u64,
    pub(super) of: String,
}

/// Where control groups are, those of version 2.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns the narrowest limit; none if none is known.
pub(super) fn room() -> Option<Room> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|said| of_machine(&said));
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = group(&own).into_iter().flat_map(Path::ancestors).filter_map(|path| {
        let group = Path::new(GROUPS).join(path);
        let said = |file: &str| read_to_string(group.join(file)).ok();
        let bytes = of_group(&said("memory.max")?, &said("memory.current")?, &said("memory.stat")?)?;
        Some(Room { bytes, of: format!("control group {}", group.display()) })
    });
    machine.into_iter().chain(groups).min_by_key(|room| room.bytes)
}

/// Returns the memory that is available without swapping.
fn of_machine(meminfo: &str) -> Option<Room> {
    let bytes = number(meminfo, "MemAvailable:")? * 1_024;
    Some(Room { bytes, of: "this machine".to_owned() })
}

/// The path of a process's group, below where they all are.
fn group(own: &str) -> Option<&Path> {
    own.lines().find_map(|line| line.strip_prefix("0::/")).map(Path::new)
}

/// Returns the memory that a group's processes can still take; pages of files make room for them. None without a limit.
fn of_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let files = number(stat, "file").unwrap_or_default();
    Some(max.saturating_sub(current.saturating_sub(files)))
}

/// The number behind a name, in a text with one per line.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut fields = text.lines().map(str::split_whitespace);
    let mut found = fields.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    found.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells_what_is_available() {
        let meminfo =
            "MemTotal:       24683596 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(of_machine(meminfo), Some(Room { bytes: 20_480_000_000, of: "this machine".to_owned() }));
        assert_eq!(of_machine("MemTotal: 5 kB\nMemAvailable: many"), None);
    }

    #[test]
    fn files_of_a_group_make_room() {
        let stat = "anon 600\nfile 300\nfile_mapped 7\n";
        assert_eq!(of_group("1000\n", "900\n", stat), Some(400));
        assert_eq!(of_group("1000\n", "1300\n", ""), Some(0), "a limit that was lowered");
        assert_eq!(of_group("max\n", "900\n", stat), None);
    }

    #[test]
    fn a_group_is_in_others() {
        let own = group("1:name=systemd:/old\n0::/kubepods/pod7\n").unwrap();
        let all: Vec<_> = own.ancestors().map(|path| Path::new(GROUPS).join(path)).collect();
        let expected = ["/sys/fs/cgroup/kubepods/pod7", "/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/"];
        assert_eq!(all, expected.map(Path::new));
        assert_eq!(group("3:memory:/x\n"), None);
    }

    #[test]
    fn this_machine_has_some() {
        if cfg!(target_os = "linux") {
            assert!(room().is_some_and(|room| room.bytes > 0));
        }
    }
}
