//! Fixtures of tests and benches that start other programs or need their files.

#![forbid(unsafe_code)]

mod configurations;
mod control_group;
mod grids;
mod hot_rod;
mod hot_rod_js;
mod infinispan_server;
mod jar;
mod jvm;
mod kubernetes_cluster;
mod kubernetes_programs;
mod linearizability;
mod server_files;
pub mod vectors;

pub use configurations::Configurations;
pub use consort_netns::{Host, Hosts, HostsError, KillOnDrop, Links, Network, own_network};
pub use control_group::ControlGroup;
pub use grids::JavaGrid;
pub use hot_rod::{HotRodClient, HotRodRelease};
pub use hot_rod_js::HotRodJsClient;
pub use infinispan_server::{InfinispanServer, InfinispanUsers};
pub use jar::{Jar, JarError};
pub use jvm::brief_jvm;
pub use kubernetes_cluster::KubernetesCluster;
pub use kubernetes_programs::KubernetesPrograms;
pub use linearizability::LinearizabilityChecker;
pub use server_files::ServerFiles;
