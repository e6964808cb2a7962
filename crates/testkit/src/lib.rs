//! Fixtures that run in the test's process and that several crates use, each behind a feature. Fixtures that
//! start other programs are in `consort-testbed`.

#![forbid(unsafe_code)]

#[cfg(feature = "certificates")]
mod certificates;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "log")]
mod log;
#[cfg(feature = "messages")]
pub mod messages;
#[cfg(feature = "owners")]
mod owners;
#[cfg(feature = "ports")]
mod ports;
#[cfg(feature = "write-tracker")]
mod write_tracker;

#[cfg(feature = "certificates")]
pub use certificates::{Authority, Files};
#[cfg(feature = "log")]
pub use log::Log;
#[cfg(feature = "owners")]
pub use owners::Owners;
#[cfg(feature = "ports")]
pub use ports::{free_base, members_from};
#[cfg(feature = "write-tracker")]
pub use write_tracker::Callers;
