//! The memory that Linux reports as available, of the machine and of the process's control groups (version
//! 2).

use std::fs::read_to_string;
use std::path::Path;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AvailableMemory {
    pub(super) bytes: u64,
    pub(super) of: String,
}

const GROUPS: &str = "/sys/fs/cgroup";

pub(super) fn available_memory() -> Option<AvailableMemory> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|meminfo| machine_memory(&meminfo));
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = group(&own).into_iter().flat_map(Path::ancestors).filter_map(|path| {
        let group = Path::new(GROUPS).join(path);
        let read = |file: &str| read_to_string(group.join(file)).ok();
        let bytes = group_memory(&read("memory.max")?, &read("memory.current")?, &read("memory.stat")?)?;
        Some(AvailableMemory { bytes, of: format!("control group {}", group.display()) })
    });
    machine.into_iter().chain(groups).min_by_key(|available| available.bytes)
}

fn machine_memory(meminfo: &str) -> Option<AvailableMemory> {
    let bytes = number(meminfo, "MemAvailable:")? * 1_024;
    Some(AvailableMemory { bytes, of: "this machine".to_owned() })
}

fn group(own: &str) -> Option<&Path> {
    own.lines().find_map(|line| line.strip_prefix("0::/")).map(Path::new)
}

/// Pages of files count as available. `None` without a limit.
fn group_memory(max: &str, current: &str, stat: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let files = number(stat, "file").unwrap_or_default();
    Some(max.saturating_sub(current.saturating_sub(files)))
}

fn number(text: &str, name: &str) -> Option<u64> {
    let mut fields = text.lines().map(str::split_whitespace);
    let mut found = fields.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    found.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_of_the_machine_is_read_from_meminfo() {
        let meminfo =
            "MemTotal:       24683596 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(
            machine_memory(meminfo),
            Some(AvailableMemory { bytes: 20_480_000_000, of: "this machine".to_owned() })
        );
        assert_eq!(machine_memory("MemTotal: 5 kB\nMemAvailable: many"), None);
    }

    #[test]
    fn file_pages_of_a_group_count_as_available() {
        let stat = "anon 600\nfile 300\nfile_mapped 7\n";
        assert_eq!(group_memory("1000\n", "900\n", stat), Some(400));
        assert_eq!(group_memory("1000\n", "1300\n", ""), Some(0), "a limit that was lowered");
        assert_eq!(group_memory("max\n", "900\n", stat), None);
    }

    #[test]
    fn group_path_includes_its_ancestors() {
        let own = group("1:name=systemd:/old\n0::/kubepods/pod7\n").unwrap();
        let all: Vec<_> = own.ancestors().map(|path| Path::new(GROUPS).join(path)).collect();
        let expected = ["/sys/fs/cgroup/kubepods/pod7", "/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/"];
        assert_eq!(all, expected.map(Path::new));
        assert_eq!(group("3:memory:/x\n"), None);
    }

    #[test]
    fn this_machine_has_available_memory() {
        if cfg!(target_os = "linux") {
            assert!(available_memory().is_some_and(|available| available.bytes > 0));
        }
    }
}
