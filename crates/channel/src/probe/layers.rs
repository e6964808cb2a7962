use consort_group::config::{Position, ProtocolConfig};
use consort_group::protocols::registry;
use consort_group::{Stack, Time};

/// Not all members need them, so they can be inserted and removed.
const MOVABLE: &[&str] = &["DELAY", "DELIVERY_TIME", "DISCARD", "DUPL", "RED", "SHUFFLE", "TIME"];

fn names(stack: &Stack) -> Vec<&'static str> {
    stack.layers().map(|(name, _)| name).collect()
}

pub(super) fn metrics(stack: &Stack) -> Vec<(String, String)> {
    let row = |name: &'static str| {
        let attributes = stack.probe(name)?.attributes;
        let numbers = attributes.into_iter().filter(|(_, value)| value.trim().parse::<f64>().is_ok());
        let text: Vec<String> = numbers.map(|(name, value)| format!("{name}={}", value.trim())).collect();
        (!text.is_empty()).then(|| (name.to_owned(), format!("{{{}}}", text.join(", "))))
    };
    names(stack).into_iter().filter_map(row).collect()
}

pub(super) fn operations(stack: &Stack, only: &str) -> Vec<(String, String)> {
    let wanted = names(stack).into_iter().filter(|name| only.is_empty() || *name == only);
    let rows = wanted.filter_map(|name| Some((name, stack.operations(name)?)));
    let listed = rows.filter(|(_, operations)| !only.is_empty() || !operations.is_empty());
    listed.map(|(name, operations)| (name.to_owned(), format!("{{{}}}", operations.join(", ")))).collect()
}

pub(super) fn reset(stack: &mut Stack, now: Time) -> String {
    let mut done = Vec::new();
    for name in names(stack) {
        if stack.operation(now, name, "resetStats", &[]).is_some() {
            done.push(name);
        }
    }
    let done = if done.is_empty() { "no layer".to_owned() } else { done.join(", ") };
    format!("reset: {done}. Other layers' counters only grow: compare two readings")
}

/// The format is `NAME=above|below=OTHER`.
pub(super) fn insert(stack: &mut Stack, now: Time, request: &str) -> String {
    let mut words = request.split('=');
    let (Some(name), Some(place), Some(other), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return format!("`{request}` is not of the form NAME=above=OTHER or NAME=below=OTHER");
    };
    if let Some(why) = unmovable(name) {
        return why;
    }
    let all = names(stack);
    if all.contains(&name) {
        return format!("{name} is already in the stack");
    }
    let at = all.iter().position(|layer| *layer == other);
    let below = match (place, at) {
        (_, None) => return format!("there is no {other}"),
        ("above", Some(at)) => at,
        ("below", Some(at @ 1..)) => at - 1,
        ("below", Some(_)) => return "nothing is below the transport".to_owned(),
        _ => return format!("`{place}` is neither above nor below"),
    };
    let config =
        ProtocolConfig { name: name.to_owned(), attributes: Vec::new(), position: Position::default() };
    let made = registry::layer(&config, &mut |_: &str| Ok(Vec::new()));
    let Some(Ok(layer)) = made else { return format!("{name} cannot be made without attributes") };
    stack.insert_above(now, all[below], layer);
    format!("inserted above {}", all[below])
}

pub(super) fn remove(stack: &mut Stack, now: Time, name: &str) -> String {
    if let Some(why) = unmovable(name) {
        return why;
    }
    if stack.remove(now, name) { "removed".to_owned() } else { format!("there is no {name}") }
}

fn unmovable(name: &str) -> Option<String> {
    let is_movable = MOVABLE.contains(&name);
    (!is_movable).then(|| {
        format!("{name} cannot be inserted or removed while a member runs, only {}", MOVABLE.join(", "))
    })
}

/// Members are tasks, so the process' threads count.
pub(super) fn threads() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:")).map(str::trim);
    format!("{} in this process; a member is a task of one of them", count.unwrap_or("unknown"))
}
