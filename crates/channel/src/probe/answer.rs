use std::fmt::Write as _;

use consort_group::{Answer, Query, Stack, Time};
use regex_lite::Regex;

use super::{keys, layers};
use crate::up_handler::UpHandlers;

/// Further keys are ignored: a request can name one a thousand times.
pub const ANSWER_LEN_MAX: usize = 1024 * 1024;

/// Responds from the stack and up handlers.
#[derive(Clone, Default)]
pub struct Answerer {
    pub(crate) handlers: UpHandlers,
}

impl Answerer {
    /// Returns the response; `None` for another cluster.
    pub fn answer(&self, stack: &mut Stack, now: Time, request: &str) -> Option<String> {
        let mut keys = Vec::new();
        for token in request.split_whitespace() {
            match token.strip_prefix("cluster=") {
                Some(pattern) => {
                    let regex = Regex::new(&format!("^(?:{pattern})$")).ok()?;
                    if !regex.is_match(stack.shared().cluster.as_deref().unwrap_or_default()) {
                        return None;
                    }
                }
                None => keys.push(token),
            }
        }
        let group = stack.shared();
        let view = group.view.as_ref().map_or_else(|| "null".to_owned(), |view| view.display(&group.book));
        let version = format!("{} (Consort {})", group.version, env!("CARGO_PKG_VERSION"));
        let (name, phys, cluster) = (&group.name, group.phys, group.cluster.as_deref().unwrap_or("null"));
        if keys.is_empty() {
            return Some(format!("{name} (ip={phys})\nview={view}\ncluster={cluster}\nversion={version}\n"));
        }
        let members = group.view.as_ref().map_or(0, consort_group::View::len);
        let mut text =
            format!("{name} [ip={phys}, {members} mbr(s), cluster={cluster}, version={version}]\n");
        for key in keys {
            if text.len() > ANSWER_LEN_MAX {
                break;
            }
            let mut values = self.values(stack, now, key);
            if values.is_empty() {
                values.push((key.to_owned(), keys::unanswered(key)));
            }
            for (key, value) in values {
                let _ = write!(text, "{key}={value}\r\n");
            }
        }
        Some(text)
    }

    /// Returns the keys that may change the member.
    pub fn changes(request: &str) -> Vec<&str> {
        request.split_whitespace().filter(|key| is_change(key)).collect()
    }

    fn values(&self, stack: &mut Stack, now: Time, key: &str) -> Vec<(String, String)> {
        let one = |value: String| vec![(key.to_owned(), value)];
        if let Some(value) = self.handlers.probe(key) {
            return one(value);
        }
        let (word, rest) = key.split_once('=').unwrap_or((key, ""));
        match word {
            "keys" => one(keys::all(&self.handlers)),
            "member-addrs" => one(member_addrs(stack)),
            "uuids" => one(uuids(stack)),
            "print-protocols" | "pp" => {
                let mut names: Vec<&str> = stack.layers().map(|(name, _)| name).collect();
                names.reverse();
                one(format!("\n{}", names.join("\n")))
            }
            "props" | "jmx" if rest.is_empty() => {
                let names: Vec<&'static str> = stack.layers().map(|(name, _)| name).collect();
                names.into_iter().filter_map(|name| attributes(stack, name, None)).collect()
            }
            "props" => attributes(stack, rest, None).into_iter().collect(),
            "jmx" => attribute_request(stack, rest),
            "op" | "invoke" => one(operation(stack, now, rest)),
            "ops" => layers::operations(stack, rest),
            "metrics" => layers::metrics(stack),
            "reset-stats" => {
                let layers = layers::reset(stack, now);
                let calls = self.handlers.probe("rpcs-reset").map(|text| format!("; calls: {text}"));
                one(layers + &calls.unwrap_or_default())
            }
            "threads" => one(layers::threads()),
            "insert-protocol" => one(layers::insert(stack, now, rest)),
            "remove-protocol" => one(layers::remove(stack, now, rest)),
            "dump-digest" => match stack.ask(&Query::Digest) {
                Some(Answer::Digest(digest)) => {
                    let book = &stack.shared().book;
                    let rows = digest.entries.iter().map(|row| {
                        let member = book.display(&row.member);
                        format!("{member}: [{} ({})]", row.highest_delivered, row.highest_received)
                    });
                    one(rows.collect::<Vec<_>>().join(", "))
                }
                _ => one("none".to_owned()),
            },
            "drops" => {
                let rows =
                    stack.shared().drops.iter().map(|(layer, why, count)| format!("{layer}.{why}={count}"));
                one(rows.collect::<Vec<_>>().join(", "))
            }
            _ if word.contains('[') => one(operation(stack, now, key)),
            _ => attribute_request(stack, key),
        }
    }
}

/// A key changes the member unless it is known to only read.
fn is_change(key: &str) -> bool {
    let (word, rest) = key.split_once('=').unwrap_or((key, ""));
    match word {
        "cluster" | "keys" | "member-addrs" | "uuids" | "print-protocols" | "pp" | "props" | "ops"
        | "metrics" | "threads" | "dump-digest" | "drops" | "rpcs" | "rpcs-details" | "rtt" | "stats"
        | "requests" | "reqtable-info" => false,
        "jmx" => rest.contains(['=', '[']),
        // An attribute of a layer, by its name alone; keys of handlers are lower case.
        word => key.contains(['=', '[']) || !word.starts_with(|first: char| first.is_ascii_uppercase()),
    }
}

fn member_addrs(stack: &Stack) -> String {
    let shared = stack.shared();
    let members = shared.view.iter().flat_map(|view| view.members().iter());
    let addresses = members.filter_map(|member| Some(shared.book.phys(member)?.to_string()));
    addresses.collect::<Vec<_>>().join(", ")
}

fn uuids(stack: &Stack) -> String {
    let shared = stack.shared();
    let mut text = format!("local_addr={} [{}]", shared.name, shared.local);
    for (member, name, phys) in shared.book.iter() {
        let name = name.map_or("?", |name| name);
        let phys = phys.map_or_else(|| "?".to_owned(), |phys| phys.to_string());
        let _ = write!(text, "\n{name}: {member}: {phys}");
    }
    text
}

/// The format is `NAME={attr=value, …}`.
fn attributes(stack: &Stack, layer: &str, only: Option<&[&str]>) -> Option<(String, String)> {
    let probed = stack.probe(layer)?;
    let wanted = probed
        .attributes
        .iter()
        .filter(|(name, _)| only.is_none_or(|only| only.iter().any(|prefix| name.starts_with(prefix))));
    let text: Vec<String> = wanted.map(|(name, value)| format!("{name}={}", value.trim())).collect();
    Some((layer.to_owned(), format!("{{{}}}", text.join(", "))))
}

/// The formats are `PROT`, `PROT.attr,attr` and `PROT.attr=value`.
fn attribute_request(stack: &mut Stack, request: &str) -> Vec<(String, String)> {
    let (path, value) = match request.split_once('=') {
        Some((path, value)) => (path, Some(value)),
        None => (request, None),
    };
    let (layer, names) = path.split_once('.').unwrap_or((path, ""));
    if let Some(value) = value {
        let outcome = match stack.set_attribute(layer, names, value) {
            Some(Ok(())) => value.to_owned(),
            Some(Err(why)) => why,
            None => format!("{layer} has no attribute {names} that can be set"),
        };
        return vec![(path.to_owned(), outcome)];
    }
    let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    attributes(stack, layer, (!names.is_empty()).then_some(&names)).into_iter().collect()
}

/// The format is `PROT.method[arg,arg]`.
fn operation(stack: &mut Stack, now: Time, request: &str) -> String {
    let (path, args) = match request.split_once('[') {
        Some((path, args)) => (path, args.trim_end_matches(']')),
        None => (request, ""),
    };
    let Some((layer, method)) = path.split_once('.') else {
        return format!("`{request}` is not of the form PROTOCOL.method[arguments]");
    };
    let args: Vec<&str> =
        args.split(',').map(|arg| arg.trim().trim_matches('"')).filter(|arg| !arg.is_empty()).collect();
    match stack.operation(now, layer, method, &args) {
        Some(Ok(result)) => result,
        Some(Err(why)) => why,
        None => format!("{layer} has no operation {method}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_group::protocols::registry;
    use consort_group::{Address, PhysAddr, Protocol, StackSetup, Uuid, Version};

    fn stack() -> Stack {
        let names = ["FD_ALL3", "NAKACK2", "UNICAST3", "STABLE", "GMS", "UFC", "MFC"];
        let position = consort_group::config::Position::default();
        let config = |name: &str| consort_group::config::ProtocolConfig {
            name: name.to_owned(),
            attributes: Vec::new(),
            position,
        };
        let (transport, version) = registry::transport(&config("TCP")).unwrap().unwrap();
        let mut layers: Vec<Box<dyn Protocol>> = vec![Box::new(transport)];
        layers.extend(
            names.map(|name| registry::layer(&config(name), &mut |_: &str| Ok(Vec::new())).unwrap().unwrap()),
        );
        let setup = StackSetup {
            local: Address::Uuid(Uuid { most: 1, least: 2 }),
            name: "A".into(),
            phys: PhysAddr { ip: None, scope_id: 0, port: 7800 },
            has_multicast: false,
            seed: 1,
            version,
        };
        assert_eq!(version, Version::V5_5_7);
        Stack::new(setup, layers)
    }

    fn answer(stack: &mut Stack, request: &str) -> String {
        Answerer::default().answer(stack, Time::ZERO, request).unwrap()
    }

    #[test]
    fn an_unknown_key_gets_a_response_that_says_so() {
        let mut stack = stack();
        let response = answer(&mut stack, "frobnicate jmx=FROB dump rpcs keys");
        assert!(response.contains("frobnicate=no such key and no such protocol"), "{response}");
        assert!(response.contains("jmx=FROB=no such key and no such protocol"), "{response}");
        assert!(response.contains("dump=not supported: no threads"), "{response}");
        assert!(response.contains("rpcs=this member counts no calls"), "{response}");
        assert!(
            response.contains("\ndrops") && !response.contains("\nrpcs-details"),
            "only what is answered: {response}"
        );
    }

    #[test]
    fn keys_that_may_change_the_member_are_recognised() {
        let reads = "keys member-addrs uuids pp print-protocols props props=UFC jmx jmx=UFC jmx=UFC.max_credits UFC \
                     UFC.max_credits,min_credits ops ops=GMS metrics threads dump-digest drops rpcs rpcs-details \
                     cluster=a.*";
        assert_eq!(Answerer::changes(reads), [""; 0]);
        let changes = "jmx=UFC.max_credits=1 UFC.max_credits=1 op=GMS.suspect[\"A\"] invoke=GMS.suspect GMS.suspect[A] \
                       jmx=GMS.suspect[A] reset-stats insert-protocol=RED=above=GMS remove-protocol=RED rpcs-reset \
                       rpcs-enable-details rpcs-disable-details anything-new";
        assert_eq!(Answerer::changes(changes), changes.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn operations_and_numbers_of_layers_are_listed() {
        let mut stack = stack();
        let response = answer(&mut stack, "ops");
        assert!(response.contains("GMS={printPreviousViews, suspect}"), "{response}");
        assert!(!response.contains("STABLE"), "it has none: {response}");
        assert!(answer(&mut stack, "ops=STABLE").contains("STABLE={}"));
        let response = answer(&mut stack, "metrics");
        assert!(response.contains("num_views=0") && !response.contains("is_coordinator"), "{response}");
    }

    #[test]
    fn optional_layers_are_inserted_and_removed() {
        let mut stack = stack();
        let response = answer(&mut stack, "insert-protocol=DELIVERY_TIME=above=GMS");
        assert!(response.contains("inserted above GMS"), "{response}");
        assert!(answer(&mut stack, "pp").contains("DELIVERY_TIME\nGMS"));
        assert!(answer(&mut stack, "reset-stats").contains("reset: DELIVERY_TIME."));
        let again = answer(&mut stack, "insert-protocol=DELIVERY_TIME=below=GMS");
        assert!(again.contains("is already in the stack"), "{again}");
        assert!(answer(&mut stack, "remove-protocol=DELIVERY_TIME").contains("=removed"));
        assert!(!answer(&mut stack, "pp").contains("DELIVERY_TIME"));
        for refused in ["remove-protocol=GMS", "insert-protocol=STATE_TRANSFER=above=GMS", "remove-protocol="]
        {
            assert!(
                answer(&mut stack, refused).contains("cannot be inserted or removed while a member runs"),
                "{refused}"
            );
        }
        for wrong in ["RED", "RED=beside=GMS", "RED=below=TCP", "RED=above=ROOF", "RED=above=GMS=x"] {
            assert!(!answer(&mut stack, &format!("insert-protocol={wrong}")).contains("inserted"), "{wrong}");
        }
    }

    #[test]
    fn a_request_that_names_a_key_a_thousand_times_gets_a_bounded_answer() {
        let mut stack = stack();
        let one = answer(&mut stack, "props").len();
        assert!(one > 500, "{one}");
        let all = answer(&mut stack, &"props ".repeat(1_660)).len();
        assert!(all <= ANSWER_LEN_MAX + one, "{all}");
    }
}
