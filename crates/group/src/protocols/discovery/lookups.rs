//! Look-ups of host names, and warnings about names that cannot be resolved.

use std::net::IpAddr;

use super::*;
use crate::{Drops, Effect};

/// The look-ups of a discovery protocol. Each request resolves all names again, because addresses change.
pub(in crate::protocols) struct LookUps {
    protocol: &'static str,
    running: BTreeMap<Token, String>,
    failures: BTreeMap<String, Failure>,
}

/// The last failed look-up of a name.
struct Failure {
    warned: Time,
    is_resolved: bool,
}

impl LookUps {
    pub(super) const fn new(protocol: &'static str) -> Self {
        Self { protocol, running: BTreeMap::new(), failures: BTreeMap::new() }
    }

    /// Begins to resolve a host name, as [`Self::begin`].
    pub(super) fn begin_host(&mut self, cx: &mut Cx<'_>, name: &str) {
        self.begin(cx, Effect::LookUp { name: name.to_owned() });
    }

    /// Begins a look-up. Does nothing while its name is being resolved.
    pub(super) fn begin(&mut self, cx: &mut Cx<'_>, look_up: Effect) {
        let (Effect::LookUp { name } | Effect::QueryDns { name, .. }) = &look_up else { return };
        if !self.running.values().any(|running| running == name) {
            let name = name.clone();
            self.running.insert(cx.request(look_up), name);
        }
    }

    /// Returns whether a token is that of a look-up in progress.
    pub(super) fn is_running(&self, token: Token) -> bool {
        self.running.contains_key(&token)
    }

    pub(super) fn is_any_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Handles the outcome of a look-up. Returns the name with its addresses and ports, none after a failure. A
    /// port that is not known is 0. Returns `None` if the outcome is that of another effect, or of a look-up that was cancelled.
    pub(super) fn finish(
        &mut self,
        now: Time,
        token: Token,
        outcome: Outcome,
    ) -> Option<(String, Vec<(IpAddr, u16)>)> {
        let name = self.running.remove(&token)?;
        let found: Result<Vec<(IpAddr, u16)>, String> = match outcome {
            Outcome::Addresses(found) => Ok(found.into_iter().map(|ip| (ip, 0)).collect()),
            Outcome::Services(found) => Ok(found),
            Outcome::Failed(why) => Err(why),
            _ => Ok(Vec::new()),
        };
        let why = match found {
            Ok(found) if !found.is_empty() => {
                if let Some(failure) = self.failures.get_mut(&name) {
                    failure.is_resolved = true;
                }
                return Some((name, found));
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(why) => why,
        };
        if self.is_warning_due(now, &name) {
            tracing::warn!(
                protocol = self.protocol,
                name,
                why,
                "cannot resolve a host name; the member goes on without it and tries again at each discovery"
            );
        }
        Some((name, Vec::new()))
    }

    /// Notes a failure. Returns whether it is logged: the first one of a name, and then one a minute.
    fn is_warning_due(&mut self, now: Time, name: &str) -> bool {
        let failure = self.failures.get_mut(name);
        match failure {
            Some(failure) => {
                failure.is_resolved = false;
                let is_due = now.since(failure.warned) >= Drops::WARN_INTERVAL;
                if is_due {
                    failure.warned = now;
                }
                is_due
            }
            None => {
                self.failures.insert(name.to_owned(), Failure { warned: now, is_resolved: false });
                true
            }
        }
    }

    /// Forgets the look-ups in progress, whose outcomes are ignored then.
    pub(super) fn cancel(&mut self) {
        self.running.clear();
    }

    /// Returns the names whose last look-up failed, separated by commas.
    pub(in crate::protocols) fn unresolved(&self) -> String {
        let failing = self.failures.iter().filter(|(_, failure)| !failure.is_resolved);
        failing.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Returns the addresses at which a host's members can be: those of the address family of this member, if there
/// are any. `localhost` includes this member's own address, whatever the host's tables say. Thus a stock stack
/// finds other members on a host that has IPv6 only, or an interface that the stack prefers to the loopback.
pub(super) fn reachable(name: &str, found: &[(IpAddr, u16)], own: Option<IpAddr>) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = found.iter().map(|(ip, _)| *ip).collect();
    found.extend(own.filter(|_| name.eq_ignore_ascii_case("localhost")));
    found.sort();
    found.dedup();
    let is_ours = |ip: &IpAddr| own.is_none_or(|own| own.is_ipv4() == ip.is_ipv4());
    if found.iter().any(is_ours) {
        found.retain(is_ours);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresolvable_name_is_logged_once_and_then_every_minute() {
        let mut lookups = LookUps::new("TCPPING");
        let due_after = |lookups: &mut LookUps, seconds| {
            lookups.is_warning_due(Time::ZERO + Duration::from_secs(seconds), "nowhere")
        };
        assert!(due_after(&mut lookups, 0));
        assert!(!due_after(&mut lookups, 2));
        assert!(!due_after(&mut lookups, 59));
        assert!(due_after(&mut lookups, 60));
        assert!(!due_after(&mut lookups, 119));
        assert!(lookups.is_warning_due(Time::ZERO, "elsewhere"), "each name has its own warning");
        assert_eq!(lookups.unresolved(), "elsewhere,nowhere");
    }

    #[test]
    fn addresses_of_the_members_family_are_preferred_and_localhost_includes_its_own() {
        let [four, six, own] = ["10.0.0.7", "::1", "10.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let reachable = |name, found: &[IpAddr], own| {
            reachable(name, &found.iter().map(|ip| (*ip, 0)).collect::<Vec<_>>(), own)
        };
        assert_eq!(reachable("host", &[six, four], Some(own)), [four]);
        assert_eq!(reachable("host", &[six], Some(own)), [six]);
        assert_eq!(reachable("LocalHost", &[six], Some(own)), [own]);
        assert_eq!(reachable("host", &[six, four, six], None), [four, six]);
    }
}
