use consort_cache::{Availability, Topology};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::catalog::admin_error::AdminError;
use crate::catalog::caches::{Caches, OWN};
use crate::catalog::segment_owners::segments_without_owner;
use crate::limits::AVAILABLE_TIMEOUT;
use crate::transactions;

fn is_degraded(topology: &Option<Topology>) -> bool {
    topology.as_ref().is_some_and(|topology| topology.availability != Availability::Available)
}

type Degraded = (String, watch::Receiver<Option<Topology>>);

impl Caches {
    fn degraded(&self, name: Option<&str>) -> Result<Vec<Degraded>, AdminError> {
        let names: Vec<String> = match name {
            Some(name) => vec![name.to_owned()],
            None => {
                let own = OWN.iter().chain(&transactions::CACHES).map(|name| (*name).to_owned());
                own.chain(self.all().into_iter().map(|(name, _)| name)).collect()
            }
        };
        let mut degraded = Vec::new();
        for own in names {
            let Some(topology) = self.manager().watch_topology(&own) else {
                match name {
                    Some(_) => return Err(AdminError::None(own)),
                    // Not every server has opened all internal caches.
                    None => continue,
                }
            };
            let is_one = is_degraded(&topology.borrow());
            if is_one {
                degraded.push((own, topology));
            }
        }
        Ok(degraded)
    }

    /// The losses of `make_available`, in JSON.
    pub(crate) fn losses(&self, name: Option<&str>) -> Result<String, AdminError> {
        let degraded = self.degraded(name)?;
        let loss = |(name, topology): &Degraded| {
            let topology = topology.borrow();
            let topology = topology.as_ref()?;
            let away =
                topology.away().iter().map(|member| self.manager().name_of(member)).collect::<Vec<_>>();
            Some(json!({
                "cache": name,
                "segments": topology.read_owners().segment_count(),
                "segments_without_owner": segments_without_owner(topology),
                "away": away,
            }))
        };
        Ok(json!(degraded.iter().filter_map(loss).collect::<Vec<_>>()).to_string())
    }

    /// Fails if a cache is still degraded after [`crate::limits::AVAILABLE_TIMEOUT`].
    pub(crate) async fn make_available(&self, name: Option<&str>) -> Result<Vec<String>, AdminError> {
        let degraded = self.degraded(name)?;
        for (own, topology) in &degraded {
            if let Some(topology) = &*topology.borrow() {
                let (lost, segments) =
                    (segments_without_owner(topology), topology.read_owners().segment_count());
                tracing::warn!(
                    cache = own,
                    "made available by a client: {lost} of {segments} segments have no owner, and their entries \
                     are lost"
                );
            }
            self.manager().make_available(own);
        }
        let until = Instant::now() + AVAILABLE_TIMEOUT;
        let mut made = Vec::new();
        for (own, mut topology) in degraded {
            let made_so = topology.wait_for(|topology| !is_degraded(topology));
            if !matches!(timeout_at(until, made_so).await, Ok(Ok(_))) {
                return Err(AdminError::StillDegraded(own));
            }
            made.push(own);
        }
        Ok(made)
    }
}
