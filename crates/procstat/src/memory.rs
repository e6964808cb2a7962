//! Limits of this process's memory and their use, from Linux.

use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use consort_memory::{MemoryLimit, ProcessMemory};

/// Containers of entries count in between.
const MEASURED_EVERY: Duration = Duration::from_millis(100);

/// The default limit, of the machine's memory.
const MACHINE_PERCENT: u64 = 80;

/// No limit above this: version 1 writes the largest number of pages.
const GROUP_LIMIT_MAX: u64 = 1 << 50;

/// A control group with a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    directory: PathBuf,
    files: &'static Files,
    /// The most bytes that its processes may use.
    pub limit: u64,
}

#[derive(PartialEq, Eq, Debug)]
struct Files {
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The kernel frees page cache for other uses.
    cached: [&'static str; 2],
}

const VERSION_2: Files = Files {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cached: ["inactive_file", "active_file"],
};

const VERSION_1: Files = Files {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

impl Group {
    /// `None` without a limit.
    fn at(directory: PathBuf, files: &'static Files) -> Option<Self> {
        let limit = read_to_string(directory.join(files.limit)).ok()?.trim().parse().ok()?;
        (limit < GROUP_LIMIT_MAX).then_some(Self { directory, files, limit })
    }

    /// Returns the bytes in use that the kernel cannot free.
    pub fn used(&self) -> Option<u64> {
        let usage: u64 = read_to_string(self.directory.join(self.files.usage)).ok()?.trim().parse().ok()?;
        let stat = read_to_string(self.directory.join("memory.stat")).ok()?;
        let cached: u64 = self.files.cached.iter().filter_map(|name| number(&stat, name)).sum();
        Some(usage.saturating_sub(cached))
    }

    /// Returns its name for logs.
    pub fn name(&self) -> String {
        format!("control group {}", self.directory.display())
    }
}

/// Returns the control groups with a limit that this process is in.
pub fn groups() -> Vec<Group> {
    groups_of(&read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/"))
}

/// By the content of `/proc/self/cgroup`, with all paths below `root`. In a container the path may be the
/// host's, while the process finds its group at the top.
fn groups_of(own: &str, root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let files = match controllers {
            "" if number == "0" => &VERSION_2,
            _ if controllers.split(',').any(|one| one == "memory") => &VERSION_1,
            _ => continue,
        };
        let top = root.join(files.root.trim_start_matches('/'));
        let path = Path::new(path.trim_start_matches('/'));
        groups.extend(path.ancestors().filter_map(|path| Group::at(top.join(path), files)));
    }
    groups
}

/// Returns the number after a name, in a text with one per line.
pub fn number(text: &str, name: &str) -> Option<u64> {
    let mut fields = text.lines().map(str::split_whitespace);
    let mut found = fields.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    found.next()?.parse().ok()
}

/// Returns the resident bytes of this process.
pub fn resident() -> Option<u64> {
    number(&read_to_string("/proc/self/status").ok()?, "VmRSS:").map(|kilobytes| kilobytes * 1024)
}

enum Gauge {
    Process(MemoryLimit),
    Group(MemoryLimit, Group),
}

impl Gauge {
    fn limit(&self) -> MemoryLimit {
        let (Self::Process(limit) | Self::Group(limit, _)) = self;
        limit.clone()
    }

    fn used(&self) -> Option<u64> {
        match self {
            Self::Process(_) => resident(),
            Self::Group(_, group) => group.used(),
        }
    }
}

/// Measures this process every 100 ms (`MEASURED_EVERY`) on a thread, and calls `look` each time. Limits are
/// `most` bytes, set by an option of this name, or 80 % of the machine's memory, and those of control groups.
///
/// # Errors
///
/// If the thread cannot be started.
pub fn watch(
    most: Option<(u64, &str)>,
    mut look: impl FnMut(&ProcessMemory) + Send + 'static,
) -> io::Result<ProcessMemory> {
    let machine = || {
        let total = number(&read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal:");
        // Without /proc/meminfo there is no limit in practice.
        let bytes = total.map_or(u64::MAX / 2, |kilobytes| kilobytes * 1024 / 100 * MACHINE_PERCENT);
        MemoryLimit { bytes, of: format!("a share of {MACHINE_PERCENT} % of this machine").into() }
    };
    let own = most.map_or_else(machine, |(bytes, option)| MemoryLimit { bytes, of: option.into() });
    let mut gauges = vec![Gauge::Process(own)];
    gauges.extend(groups().into_iter().map(|group| {
        Gauge::Group(MemoryLimit { bytes: group.limit, of: format!("the {}", group.name()).into() }, group)
    }));
    let memory = ProcessMemory::new(gauges.iter().map(Gauge::limit).collect());
    let measured = memory.clone();
    let mut measure = move || {
        // An unreadable value counts as 0; the other limits still apply.
        let used: Vec<u64> = gauges.iter().map(|gauge| gauge.used().unwrap_or_default()).collect();
        measured.note_used(&used);
        look(&measured);
    };
    measure();
    thread::Builder::new().name("memory".to_owned()).spawn(move || {
        loop {
            thread::sleep(MEASURED_EVERY);
            measure();
        }
    })?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("consort-procstat-{}-{name}", std::process::id()));
            create_dir_all(&path).unwrap();
            Self(path)
        }

        fn with(self, file: &str, text: &str) -> Self {
            let path = self.0.join(file);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
            self
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn group_of_version_2_is_limited_by_those_that_it_is_in() {
        let root = Root::new("v2")
            .with("sys/fs/cgroup/pods/memory.max", "2000\n")
            .with("sys/fs/cgroup/pods/memory.current", "900\n")
            .with("sys/fs/cgroup/pods/memory.stat", "anon 600\nfile 300\ninactive_file 200\nactive_file 50\n")
            .with("sys/fs/cgroup/pods/one/memory.max", "max\n");
        let groups = groups_of("1:name=systemd:/old\n0::/pods/one\n", &root.0);
        assert_eq!(
            groups.iter().map(|group| (group.limit, group.used())).collect::<Vec<_>>(),
            [(2000, Some(650))]
        );
        assert!(groups[0].name().ends_with("/sys/fs/cgroup/pods"));
    }

    #[test]
    fn group_of_version_1_is_found_also_where_a_container_has_it_at_the_top() {
        let root = Root::new("v1")
            .with("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n")
            .with("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n")
            .with(
                "sys/fs/cgroup/memory/memory.stat",
                "cache 700\ntotal_inactive_file 300\ntotal_active_file 1\n",
            );
        let groups = groups_of("9:cpu,memory:/docker/1234\n", &root.0);
        assert_eq!(
            groups.iter().map(|group| (group.limit, group.used())).collect::<Vec<_>>(),
            [(134_217_728, Some(699))]
        );
        let unlimited = Root::new("v1-unlimited")
            .with("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(groups_of("9:memory:/\n", &unlimited.0), []);
    }

    #[test]
    fn process_is_measured_against_its_limit() {
        let memory = watch(Some((1 << 20, "--memory")), |_| {}).unwrap();
        let shortage = memory.admit(1).unwrap_err();
        assert_eq!((shortage.limit, &*shortage.of), (1 << 20, "--memory"));
        assert!(shortage.used > 1 << 20, "this process has more than 1 MiB: {shortage}");
        let memory = watch(None, |_| {}).unwrap();
        assert!(memory.admit(1).is_ok(), "{memory:?}");
    }
}
