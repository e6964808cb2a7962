//! A cluster of one member without sockets, for tests.

use std::sync::Arc;

use consort_cache::{CacheManager, Channel};
use consort_conf::{Variables, parse_stack};
use consort_hotrod::ServerAddress;

use crate::catalog::caches::{Caches, CachesSettings};
use crate::memory::Memory;
use crate::metrics::telemetry::Telemetry;
use crate::ops::register_transforms;
use crate::security::{Security, SecuritySettings};

const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
    <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";

/// Each test has a cluster of its own name, because all are in one process.
pub(crate) async fn manager(cluster: &str) -> CacheManager {
    connect(cluster, STACK).await
}

async fn connect(cluster: &str, stack: &str) -> CacheManager {
    let stack = parse_stack("single member", stack, &Variables::new()).unwrap();
    CacheManager::from_channel(Channel::from_config(stack.config)).connect(cluster).await.unwrap()
}

pub(crate) async fn caches(cluster: &str, telemetry: Arc<Telemetry>) -> Caches {
    open(manager(cluster).await, telemetry).await
}

/// Those of a further member, which has to find the first.
pub(crate) async fn joining(cluster: &str) -> Caches {
    let stack = STACK.replace("join_timeout=\"10\"", "join_timeout=\"30s\"");
    open(connect(cluster, &stack).await, Arc::default()).await
}

async fn open(manager: CacheManager, telemetry: Arc<Telemetry>) -> Caches {
    let settings = CachesSettings {
        endpoint: ServerAddress { host: "localhost".into(), port: 1 },
        security: Arc::new(Security::new(SecuritySettings::default()).unwrap()),
        data: None,
        default_cache: None,
        telemetry,
        memory: Memory::default(),
        register_transforms,
    };
    Caches::open(manager, settings).await.unwrap()
}
