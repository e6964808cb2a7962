//! Beside Infinispan and Hazelcast.

mod contest;
mod iterate;
mod load;
mod rebalance;
mod stream;

pub(crate) use self::iterate::iterate;
pub(crate) use self::load::measure;
pub(crate) use self::rebalance::rebalance;

use consort_testbed::{Jar, JavaGrid};

use crate::java::{self, JavaCluster, Jvms};
use crate::options::Options;

fn start(grid: JavaGrid, members: usize, jar: &Jar, options: &Options) -> anyhow::Result<JavaCluster> {
    let jdk = java::find()?;
    let heap = &options.java_heap;
    JavaCluster::start_grid(&Jvms { jdk: &jdk, jar, classpath: grid.classpath(jar), heap, members }, grid)
}

fn populate(cluster: &mut JavaCluster, keys: u32, size: usize) -> anyhow::Result<()> {
    let answer = cluster.ask_first(&format!("populate keys={keys} size={size}"))?;
    anyhow::ensure!(answer["size"] == keys, "{} of {keys} keys were put", answer["size"]);
    Ok(())
}
