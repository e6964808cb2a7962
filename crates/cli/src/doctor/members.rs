//! Members that respond to probes, and their clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::findings::Findings;
use crate::probe::Probe;

/// Members of one host that are queried over TCP: each has the next port.
const MEMBERS_PER_HOST: u16 = 4;

/// Silent hosts take the whole time limit each.
const HOSTS_AT_ONCE: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) cluster: String,
    view: String,
    version: String,
}

impl Member {
    #[cfg(test)]
    pub(super) fn at(address: std::net::SocketAddr) -> Self {
        let text = format!("A (ip={address})\nview=[A|0] (1) [A]\ncluster=shop\nversion=5.5.7\n");
        Self::read(&text).expect("a response")
    }

    /// Reads the response to a probe without keys (facts section 25).
    fn read(answer: &str) -> Option<Self> {
        let first = answer.lines().next()?;
        let (name, rest) = first.split_once(" (ip=")?;
        let line = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some(Self {
            name: name.trim().to_owned(),
            address: rest.trim_end().trim_end_matches(')').trim_start_matches('/').to_owned(),
            cluster: line("cluster=")?.to_owned(),
            view: line("view=").unwrap_or("null").to_owned(),
            version: line("version=").unwrap_or_default().to_owned(),
        })
    }

    /// Major and minor version of the wire format.
    fn wire(&self) -> Option<(u16, u16)> {
        let mut parts = self.version.split(['.', ' ']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

pub(super) async fn query_members(hosts: Vec<IpAddr>, time_limit: Duration) -> Vec<Member> {
    let multicast = tokio::task::spawn_blocking(move || {
        Probe::for_views(time_limit).by_multicast("", |_| ()).unwrap_or_default()
    });
    let mut answers = multicast.await.unwrap_or_default();
    for part in hosts.chunks(HOSTS_AT_ONCE) {
        let asking = part.iter().map(|&host| {
            tokio::task::spawn_blocking(move || {
                let probe = Probe::for_views(time_limit);
                let ask = |nth| probe.ask((&host.to_string(), probe.port() + nth), "").ok();
                (0..MEMBERS_PER_HOST).map_while(ask).collect::<Vec<String>>()
            })
        });
        for asked in asking.collect::<Vec<_>>() {
            answers.extend(asked.await.unwrap_or_default());
        }
    }
    newest(&answers)
}

/// The last response of each member: views change meanwhile.
fn newest(answers: &[String]) -> Vec<Member> {
    let members = answers.iter().filter_map(|answer| Member::read(answer));
    let by_place: BTreeMap<(String, String), Member> =
        members.map(|member| ((member.name.clone(), member.address.clone()), member)).collect();
    by_place.into_values().collect()
}

/// Without a cluster, each cluster of the members is checked. `is_expected`: there should be members.
pub(super) fn check_members(
    members: &[Member],
    cluster: Option<&str>,
    own: (u16, u16),
    is_expected: bool,
    findings: &mut Findings,
) {
    let all: BTreeSet<&str> = members.iter().map(|member| &*member.cluster).collect();
    match cluster {
        Some(cluster) => check_cluster(members, cluster, own, is_expected, findings),
        None if all.is_empty() => no_response("members", is_expected, findings),
        None => all.into_iter().for_each(|cluster| check_cluster(members, cluster, own, true, findings)),
    }
}

fn no_response(checked: impl Into<String>, is_expected: bool, findings: &mut Findings) {
    if is_expected {
        findings.warning(
            checked,
            "no member responds to probe, although a program listens",
            "servers answer with --diagnostics only; other transports may have diag.enabled=\"false\", or the program that listens there is \
             no member",
        );
    } else {
        findings.warning(
            checked,
            "no member responds: a member that starts now is the first",
            "that is right for the first member; if others run, mend the lines above, or let them have diag.enabled=\"true\"",
        );
    }
}

fn check_cluster(
    members: &[Member],
    cluster: &str,
    own: (u16, u16),
    is_expected: bool,
    findings: &mut Findings,
) {
    let checked = format!("members of cluster {cluster}");
    let ours: Vec<&Member> = members.iter().filter(|member| member.cluster == cluster).collect();
    let listed = |members: &[&Member]| {
        members
            .iter()
            .map(|member| format!("{} at {}", member.name, member.address))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if ours.is_empty() {
        let others: BTreeSet<&str> = members.iter().map(|member| &*member.cluster).collect();
        let others: Vec<&str> = others.into_iter().collect();
        let all: Vec<&Member> = members.iter().collect();
        if !others.is_empty() {
            findings.bad(
                checked,
                format!(
                    "no member responds; the members that respond ({}) are of cluster {}",
                    listed(&all),
                    others.join(", ")
                ),
                format!("members find only those with the same name: --cluster {}", others[0]),
            );
        } else {
            no_response(checked, is_expected, findings);
        }
        return;
    }
    findings.good(checked, listed(&ours));
    let views: BTreeSet<&str> = ours.iter().map(|member| &*member.view).collect();
    if views.len() > 1 {
        findings.bad(
            format!("view of cluster {cluster}"),
            format!("members have {} views: {}", views.len(), views.into_iter().collect::<Vec<_>>().join("; ")),
            "they do not find each other: each has to reach the others' addresses, and hosts to ask have to name one of each view; \
             MERGE3 then makes one of them within a minute",
        );
    } else {
        findings.good(format!("view of cluster {cluster}"), views.into_iter().next().unwrap_or_default());
    }
    for member in ours.iter().filter(|member| member.wire().is_some_and(|wire| wire != own)) {
        findings.bad(
            format!("version of {}", member.name),
            format!("{}, and this is {}.{}", member.version, own.0, own.1),
            "members of one cluster have the same major and minor version, unless the transport has accept_any_version=\"true\"",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Verdict;
    use super::*;

    const CONSORT: &str =
        "A (ip=127.0.0.1:7800)\nview=[A|0] (1) [A]\ncluster=shop\nversion=5.5.7 (Consort 0.1.0)\n";
    const JAVA: &str = "host-123 (ip=/10.0.0.1:7800)\nview=[host-123|1] (2) [host-123, B]\ncluster=shop\n\
                        version=5.4.2.Final (Schiener Berg) (java 21)\n";

    fn checked_members(members: &[Member], cluster: &str, is_expected: bool) -> (usize, usize, String) {
        let mut findings = Findings::new(false);
        check_members(members, Some(cluster), (5, 5), is_expected, &mut findings);
        let counts = (findings.count(Verdict::Bad), findings.count(Verdict::Warning));
        (counts.0, counts.1, findings.json().unwrap())
    }

    #[test]
    fn responses_of_both_kinds_of_member_are_read() {
        let consort = Member::read(CONSORT).unwrap();
        assert_eq!(
            (&*consort.name, &*consort.address, consort.wire()),
            ("A", "127.0.0.1:7800", Some((5, 5)))
        );
        let java = Member::read(JAVA).unwrap();
        assert_eq!((&*java.address, &*java.cluster, java.wire()), ("10.0.0.1:7800", "shop", Some((5, 4))));
        assert_eq!(Member::read("local_addr=A\n"), None);
    }

    #[test]
    fn two_responses_of_a_member_count_once() {
        let later = CONSORT.replace("[A|0] (1) [A]", "[B|1] (2) [B, A]");
        let members = newest(&[CONSORT.to_owned(), JAVA.to_owned(), later]);
        let views: Vec<&str> = members.iter().map(|member| &*member.view).collect();
        assert_eq!(views, ["[B|1] (2) [B, A]", "[host-123|1] (2) [host-123, B]"]);
    }

    #[test]
    fn another_name_another_view_and_another_version_are_distinguished() {
        let (a, java) = (Member::read(CONSORT).unwrap(), Member::read(JAVA).unwrap());
        assert_eq!(checked_members(&[], "shop", true).1, 1);
        let (bad, warnings, text) = checked_members(&[], "shop", false);
        assert!((bad, warnings) == (0, 1) && text.contains("is the first"), "{text}");
        let (bad, _, text) = checked_members(std::slice::from_ref(&a), "stop", true);
        assert!(bad == 1 && text.contains("--cluster shop"), "{text}");
        assert_eq!(checked_members(std::slice::from_ref(&a), "shop", true).0, 0);
        let mut findings = Findings::new(false);
        let stop = Member { cluster: "stop".to_owned(), ..a.clone() };
        check_members(&[a.clone(), stop], None, (5, 5), false, &mut findings);
        let text = findings.json().unwrap();
        assert!(
            text.contains("members of cluster shop") && text.contains("members of cluster stop"),
            "{text}"
        );
        let (bad, _, text) = checked_members(&[a, java], "shop", true);
        assert!(bad == 2 && text.contains("2 views") && text.contains("5.4.2.Final"), "{text}");
    }
}
