//! Where a test's cluster lives: configuration, cluster name and properties.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::jgroups::directory;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// The environment of one cluster. Both kinds of member read the same configuration file, out of JGroups' own jar.
pub struct Setting {
    /// The configuration file.
    pub config: PathBuf,
    /// The cluster's name.
    pub cluster: String,
    /// System properties for both kinds.
    pub properties: Vec<(String, String)>,
    /// The JVM's heap in MB.
    pub heap_mb: u32,
}

impl Setting {
    /// A cluster by one of the jar's configuration files.
    pub fn new(config: &str) -> Self {
        Self::from_path(directory().join(config))
    }

    /// As [`Setting::new`], with some of the file's text replaced, for timeouts that a test can wait for.
    ///
    /// # Panics
    ///
    /// If the file lacks a text that is to be replaced.
    pub fn edited(config: &str, replacements: &[(&str, &str)]) -> Self {
        let mut text = std::fs::read_to_string(directory().join(config)).expect("a configuration");
        for (old, new) in replacements {
            assert!(text.contains(old), "{config} has no {old}");
            text = text.replace(old, new);
        }
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory().join(format!("edited-{}-{nth}-{config}", std::process::id()));
        std::fs::write(&path, text).expect("written");
        Self::from_path(path)
    }

    /// A cluster by this configuration. `{directory}` in it is the directory of the file.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn from_text(name: &str, text: &str) -> Self {
        let path = directory().join(format!("{}-{name}", std::process::id()));
        let text = text.replace("{directory}", &directory().display().to_string());
        std::fs::write(&path, text).expect("written");
        Self::from_path(path)
    }

    fn from_path(config: PathBuf) -> Self {
        // The files set bind_port to 7800, and a Java member takes no other from a system property then: one cluster
        // at a time, each with a name of its own.
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let properties = [
            ("jgroups.bind_addr", "127.0.0.1".to_owned()),
            ("jgroups.tcpping.initial_hosts", "127.0.0.1[7800]".to_owned()),
            ("jgroups.tcp.port_range", "6".to_owned()),
            ("jgroups.udp.mcast_port", (45_600 + nth).to_string()),
        ];
        let properties = properties.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Self { config, cluster: format!("interop-{nth}"), properties, heap_mb: 512 }
    }
}
