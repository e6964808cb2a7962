//! Java JGroups members beside Consort's, for tests (`cargo xtask test --only interop`).
//!
//! A [`JavaMember`] is a JVM that takes commands on its standard input (`interop/java`); a [`ConsortMember`] answers
//! to the same commands in this process, so that a test says once what both kinds have to do.

#![forbid(unsafe_code)]

mod consort;
mod java;
mod jgroups;
mod network;
mod numbered;
mod setting;
mod tool;

pub use consort::ConsortMember;
pub use consort_jgroups::Network;
pub use java::JavaMember;
pub use network::{in_network, in_own_network};
pub use setting::Setting;
pub use tool::Tool;

use serde_json::Value;

/// How long a command may take unless it says otherwise.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);

/// A member of either kind.
pub enum Member {
    /// A JVM.
    Java(JavaMember),
    /// In this process.
    Consort(Box<ConsortMember>),
}

impl Member {
    /// Runs a command and returns its answer.
    ///
    /// # Panics
    ///
    /// If it fails: the test has.
    pub async fn run(&mut self, command: &str) -> Value {
        let answer = match self {
            Self::Java(member) => member.run(command).await,
            Self::Consort(member) => member.run(command).await,
        };
        assert!(answer.get("error").is_none(), "`{command}` at {}: {answer}", self.name());
        answer
    }

    /// The logical name.
    pub fn name(&self) -> &str {
        match self {
            Self::Java(member) => &member.name,
            Self::Consort(member) => &member.name,
        }
    }

    /// The view's text.
    pub async fn view(&mut self) -> String {
        match self {
            Self::Java(member) => drop(member.views().borrow_and_update()),
            Self::Consort(member) => drop(member.views().borrow_and_update()),
        }
        self.run("view").await["view"].as_str().expect("a view").to_owned()
    }

    /// Waits for another view than the one that was asked for last. Ends with the member, too.
    pub async fn view_changed(&mut self) {
        let _ = match self {
            Self::Java(member) => member.views().changed().await,
            Self::Consort(member) => member.views().changed().await,
        };
    }

    /// Ends the member without a word.
    pub async fn kill(self) {
        match self {
            Self::Java(member) => member.kill(),
            Self::Consort(member) => member.kill().await,
        }
    }

    /// Ends the member gracefully.
    pub async fn exit(mut self) {
        self.run("leave").await;
        if let Self::Java(mut member) = self {
            member.run("exit").await;
        }
    }
}
