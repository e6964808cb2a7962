//! Look-ups of host names, and warnings about names that cannot be resolved.

use std::net::IpAddr;

use super::*;
use crate::{Drops, Effect};

/// The look-ups of a discovery protocol. Each request resolves all names again, because addresses change.
pub(super) struct LookUps {
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

    /// Begins to resolve a name. Does nothing while the name is being resolved.
    pub(super) fn begin(&mut self, cx: &mut Cx<'_>, name: &str) {
        if !self.running.values().any(|running| running == name) {
            let token = cx.request(Effect::LookUp { name: name.to_owned() });
            self.running.insert(token, name.to_owned());
        }
    }

    /// Returns whether a token is that of a look-up in progress.
    pub(super) fn is_running(&self, token: Token) -> bool {
        self.running.contains_key(&token)
    }

    /// Handles the outcome of a look-up. Returns the name with its addresses, none after a failure. Returns `None`
    /// if the outcome is that of another effect, or of a look-up that was cancelled.
    pub(super) fn finish(
        &mut self,
        now: Time,
        token: Token,
        outcome: Outcome,
    ) -> Option<(String, Vec<IpAddr>)> {
        let name = self.running.remove(&token)?;
        let why = match outcome {
            Outcome::Addresses(found) if !found.is_empty() => {
                if let Some(failure) = self.failures.get_mut(&name) {
                    failure.is_resolved = true;
                }
                return Some((name, found));
            }
            Outcome::Failed(why) => why,
            _ => "the name has no address".to_owned(),
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
    pub(super) fn unresolved(&self) -> String {
        let failing = self.failures.iter().filter(|(_, failure)| !failure.is_resolved);
        failing.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Returns the addresses at which a host's members can be: those of the address family of this member, if there
/// are any. `localhost` includes this member's own address, whatever the host's tables say. Thus a stock stack
/// finds other members on a host that has IPv6 only, or an interface that the stack prefers to the loopback.
pub(super) fn reachable(name: &str, mut found: Vec<IpAddr>, own: Option<IpAddr>) -> Vec<IpAddr> {
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
        assert_eq!(reachable("host", vec![six, four], Some(own)), [four]);
        assert_eq!(reachable("host", vec![six], Some(own)), [six]);
        assert_eq!(reachable("LocalHost", vec![six], Some(own)), [own]);
        assert_eq!(reachable("host", vec![six, four, six], None), [four, six]);
    }
}
