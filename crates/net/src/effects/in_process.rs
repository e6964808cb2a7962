//! Members in this process, by cluster (LOCAL_PING).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use consort_group::{Address, PingData};

type Clusters = BTreeMap<Arc<str>, BTreeMap<Address, (u64, PingData)>>;

/// The end of an older announcement must not remove a newer one.
static NEXT: AtomicU64 = AtomicU64::new(0);

static CLUSTERS: Mutex<Clusters> = Mutex::new(BTreeMap::new());

fn clusters() -> MutexGuard<'static, Clusters> {
    CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A drop removes the entry.
pub(super) struct Announcement {
    cluster: Arc<str>,
    member: Address,
    number: u64,
}

impl Announcement {
    pub(super) fn new(cluster: Arc<str>, data: PingData) -> Self {
        let member = data.sender.clone();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        clusters().entry(cluster.clone()).or_default().insert(member.clone(), (number, data));
        Self { cluster, member, number }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let mut clusters = clusters();
        if let Some(members) = clusters.get_mut(&self.cluster) {
            if members.get(&self.member).is_some_and(|(number, _)| *number == self.number) {
                members.remove(&self.member);
            }
            if members.is_empty() {
                clusters.remove(&self.cluster);
            }
        }
    }
}

pub(super) fn find(cluster: &str) -> Vec<PingData> {
    clusters()
        .get(cluster)
        .map(|members| members.values().map(|(_, data)| data.clone()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    #[test]
    fn members_are_found_by_cluster_until_they_retract() {
        let data = |least| PingData {
            sender: Address::Uuid(Uuid { most: 0, least }),
            is_server: true,
            is_coordinator: false,
            name: None,
            phys: None,
            wanted: None,
        };
        let first = Announcement::new("local-test".into(), data(1));
        let _second = Announcement::new("local-test".into(), data(2));
        let _other = Announcement::new("local-other".into(), data(3));
        assert_eq!(find("local-test"), [data(1), data(2)]);
        let again = Announcement::new("local-test".into(), data(1));
        drop(first);
        assert_eq!(find("local-test"), [data(1), data(2)], "the newer announcement holds");
        drop(again);
        assert_eq!(find("local-test"), [data(2)]);
    }
}
