//! Clusters of servers that are killed and start again.

use std::sync::atomic::{AtomicUsize, Ordering};

use consort_testbed::{InfinispanServer, Jar, JavaGrid};

use crate::hotrod::{PORT, ServerProcess};
use crate::java::{Jdk, Jvm, Jvms};
use crate::options::Options;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Product {
    Consort,
    Infinispan,
    Hazelcast,
}

impl Product {
    pub(super) const ALL: [Self; 3] = [Self::Consort, Self::Infinispan, Self::Hazelcast];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Consort => "Consort",
            Self::Infinispan => "Infinispan",
            Self::Hazelcast => "Hazelcast",
        }
    }
}

/// Dropping one kills its process.
enum Server {
    Process { _process: ServerProcess },
    Jvm { jvm: Jvm },
}

pub(super) struct Cluster<'a> {
    product: Product,
    jar: &'a Jar,
    jdk: &'a Jdk,
    options: &'a Options,
    infinispan: Option<InfinispanServer>,
    /// `None` while it is killed.
    servers: Vec<Option<Server>>,
}

/// Of all clusters of this process, so that no two servers have one directory.
static STARTS: AtomicUsize = AtomicUsize::new(0);

impl<'a> Cluster<'a> {
    pub(super) fn start(
        product: Product,
        servers: usize,
        jar: &'a Jar,
        jdk: &'a Jdk,
        options: &'a Options,
    ) -> anyhow::Result<Self> {
        let infinispan = (product == Product::Infinispan).then(InfinispanServer::prepare).transpose()?;
        let mut cluster = Self { product, jar, jdk, options, infinispan, servers: Vec::new() };
        for nth in 0..servers {
            cluster.servers.push(None);
            let server = cluster.launch(nth, servers)?;
            cluster.servers[nth] = Some(server);
        }
        for nth in 0..servers {
            cluster.wait(nth)?;
        }
        Ok(cluster)
    }

    pub(super) fn kill(&mut self, nth: usize) {
        self.servers[nth] = None;
    }

    pub(super) fn start_again(&mut self, nth: usize) -> anyhow::Result<()> {
        let server = self.launch(nth, self.servers.len())?;
        self.servers[nth] = Some(server);
        self.wait(nth)
    }

    fn launch(&mut self, nth: usize, servers: usize) -> anyhow::Result<Server> {
        let port = PORT + nth as u16;
        let heap = &self.options.java_heap;
        Ok(match (self.product, &self.infinispan) {
            (Product::Infinispan, Some(infinispan)) => {
                // A killed server leaves the lock of its data behind: each start has a directory of its own.
                let name = format!("failover-{}", STARTS.fetch_add(1, Ordering::Relaxed));
                let process = ServerProcess::infinispan_member(infinispan, self.jdk, heap, (&name, port))?;
                Server::Process { _process: process }
            }
            (Product::Hazelcast, _) => {
                let classpath = JavaGrid::Hazelcast.classpath(self.jar);
                let jvms = Jvms { jdk: self.jdk, jar: self.jar, classpath, heap, members: servers };
                let mut jvm = Jvm::grid_member(&jvms, JavaGrid::Hazelcast, nth)?;
                // The others would not find it before.
                jvm.answer()?;
                Server::Jvm { jvm }
            }
            _ => Server::Process { _process: ServerProcess::member(nth as u16, servers as u16)? },
        })
    }

    /// Waits until the member shares the data.
    fn wait(&mut self, nth: usize) -> anyhow::Result<()> {
        match &mut self.servers[nth] {
            Some(Server::Jvm { jvm }) => jvm.release().map(drop),
            _ => Ok(()),
        }
    }
}
