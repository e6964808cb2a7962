//! A manager by a file.

use std::time::Duration;

use consort_cache::{
    CacheManager, CacheMode, CapacityFactor, Flags, Lifetime, MergePolicy, OpenError, PartitionHandling,
    RawCache,
};
use consort_conf::Variables;

mod members;
use members::{Cluster, within_timeout};

fn example() -> String {
    format!("{}/examples/caches.xml", env!("CARGO_MANIFEST_DIR"))
}

/// The example in the documentation: it loads, a member starts with it, and its caches have its settings.
#[tokio::test]
async fn a_manager_starts_by_its_file() {
    let data = std::env::temp_dir().join(format!("consort-caches-{}", std::process::id()));
    let variables = Cluster::tcp("file").variables.with("shop.cluster", "file-test");
    let variables = variables.with("shop.data", data.to_str().unwrap());
    let manager = CacheManager::from_file_with(&example(), &variables).unwrap().start();
    let manager = within_timeout("start", manager).await.unwrap();
    assert_eq!(manager.name(), "A");
    assert!(manager.defined_caches().eq(["orders", "pages", "parsed", "rates", "sessions"]));
    let orders: RawCache = within_timeout("orders", manager.named("orders").unwrap().raw()).await.unwrap();
    assert_eq!(orders.config().mode, CacheMode::Distributed { owners: 3 });
    assert_eq!(orders.config().partitions, PartitionHandling::DenyReadWrites);
    let sessions = within_timeout("sessions", manager.cache::<String, String>("sessions")).await.unwrap();
    assert_eq!(sessions.config().mode, CacheMode::Distributed { owners: 2 });
    let hours = |hours: u64| Some(Duration::from_secs(hours * 3_600));
    let lifetime = Lifetime { lifespan: hours(12), max_idle: Some(Duration::from_secs(1_800)) };
    assert_eq!(sessions.options().lifetime, lifetime);
    let topology = sessions.topology().unwrap();
    assert_eq!(topology.members[0].member.capacity, CapacityFactor::from_thousandths(2_000));
    assert_eq!(topology.members[0].member.location.rack.as_deref(), Some("r1"));
    within_timeout("put", sessions.put("id", "Ada")).await.unwrap();
    let entry = within_timeout("get", sessions.get_with_metadata("id")).await.unwrap().unwrap();
    assert_eq!(entry.lifetime, lifetime);
    let rates = within_timeout("rates", manager.cache::<String, u64>("rates")).await.unwrap();
    assert_eq!(rates.options().flags, Flags::ASYNC);
    assert_eq!(rates.config().merge, MergePolicy::PreferredAlways);
    within_timeout("put", rates.put("EUR", &1)).await.unwrap();
    assert!(data.join("rates").is_dir() && manager.store_stats("rates").is_some());
    let unknown = manager.cache::<String, String>("session").await.unwrap_err();
    assert!(matches!(&unknown, OpenError::NotInFile { .. }));
    let effects = unknown.to_string();
    assert!(
        effects.ends_with("has no cache session; it has orders, pages, parsed, rates, sessions"),
        "{effects}"
    );
    within_timeout("close", manager.close()).await.unwrap();
    std::fs::remove_dir_all(&data).unwrap();
}

#[test]
fn an_invalid_file_starts_no_cache() {
    let text = std::fs::read_to_string(example()).unwrap();
    let path = std::env::temp_dir().join(format!("consort-caches-{}.xml", std::process::id()));
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let loaded = CacheManager::from_file_with(path.to_str().unwrap(), &Variables::new());
        loaded.err().map(|error| error.to_string())
    };
    let wrong_name = load(&text.replace("when-split", "when-splitt"));
    let wrong_value = load(&text.replace("owners=\"3\"", "owners=\"many\""));
    let right = load(&text);
    std::fs::remove_file(&path).unwrap();
    let line = "caches-";
    let effects = wrong_name.unwrap();
    assert!(
        effects.contains(line) && effects.contains(".xml:19:33: unknown attribute `when-splitt`"),
        "{effects}"
    );
    let effects = wrong_value.unwrap();
    assert!(effects.contains("attribute owners of distributed-cache-configuration: `many`"), "{effects}");
    assert_eq!(right, None);
}
