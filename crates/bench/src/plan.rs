use serde::Serialize;

use crate::options::{Options, Part, Threads};

#[derive(Clone, Serialize)]
#[serde(tag = "subject", rename_all = "lowercase")]
pub(crate) enum Load {
    /// Calls.
    Uperf {
        callers: usize,
        /// `None` if no JVM makes them, too.
        #[serde(skip_serializing_if = "Option::is_none")]
        java_threads: Option<Threads>,
    },
    /// Multicasts.
    Mperf { config: String, size: usize },
}

impl Load {
    /// Of Consort alone, and of parts that measure one number of callers.
    pub(crate) fn calls(options: &Options) -> Self {
        Self::Uperf { callers: options.first_callers(), java_threads: None }
    }

    pub(crate) fn multicasts(config: &str, options: &Options) -> Self {
        Self::Mperf { config: config.to_owned(), size: options.first_size() }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Uperf { callers, java_threads } => {
                let threads = match java_threads {
                    None => "",
                    Some(Threads::Platform) => ", platform threads",
                    Some(Threads::Virtual) => ", virtual threads",
                };
                format!("uperf, {callers} callers{threads}")
            }
            Self::Mperf { config, size } => format!("mperf, {config}, {size} B"),
        }
    }
}

pub(crate) struct Group {
    /// The first word for the Java program.
    pub(crate) test: &'static str,
    pub(crate) config: String,
    pub(crate) loads: Vec<Load>,
    pub(crate) with_java: bool,
    pub(crate) with_sockets: bool,
}

pub(crate) fn groups(options: &Options) -> Vec<Group> {
    let mut groups = Vec::new();
    if options.has(Part::Uperf) {
        // Without JVMs their threads make no difference.
        let kinds = if options.without_java { &[Threads::Platform][..] } else { &options.java_threads };
        for &java_threads in kinds {
            let load = |&callers| Load::Uperf { callers, java_threads: Some(java_threads) };
            let loads = options.callers.iter().map(load);
            groups.push(Group {
                test: "rpc",
                config: "tcp.xml".to_owned(),
                loads: loads.collect(),
                with_java: options.needs_java(),
                with_sockets: false,
            });
        }
    }
    if options.has(Part::Mperf) || options.has(Part::Sockets) {
        for config in &options.configs {
            let loads = options.sizes.iter().map(|&size| Load::Mperf { config: config.clone(), size });
            groups.push(Group {
                test: "multicast",
                config: config.clone(),
                loads: loads.collect(),
                with_java: options.needs_java() && options.has(Part::Mperf),
                with_sockets: options.has(Part::Sockets),
            });
        }
    }
    groups
}
