//! `<counters>`: counters that a server creates before it serves.

use consort_hotrod::ops::counter::{CounterConfig, CounterKind};

use super::document::Node;
use super::problem::{Place, Problems};
use super::section::Section;
use crate::catalog::counter::Counter;
use crate::limits::{COUNTER_NAME_MAX, COUNTERS_MAX};

/// Infinispan's default of `concurrency-level`.
const CONCURRENCY: u32 = 16;

pub(super) struct CounterElement {
    pub(super) name: String,
    pub(super) config: CounterConfig,
    pub(super) place: Place,
}

pub(super) fn read(node: &Node, problems: &mut Problems) -> Vec<CounterElement> {
    let mut section = Section::new(node);
    let mut found: Vec<CounterElement> = Vec::new();
    section.warn(
        &[("num-owners", "a counter has two owners; with persistent storage all servers have it")],
        problems,
    );
    match section.text("reliability") {
        None | Some("CONSISTENT") => {}
        Some("AVAILABLE") => {
            let place = section.node.get("reliability").map_or(node.place, |attribute| attribute.place);
            problems.warn(
                place,
                "reliability of counters: AVAILABLE has no effect: counters are always CONSISTENT",
            );
        }
        Some(other) => problems.refuse(node.place, format!("reliability of counters cannot be `{other}`")),
    }
    let by_element = section.children("strong-counter").chain(section.children("weak-counter"));
    let named: Vec<(Option<String>, &Node)> = by_element.map(|counter| (None, counter)).collect();
    // In JSON and YAML each counter is an object under its name.
    let mut all = named;
    for counter in &node.children {
        if let [inner] = &counter.children[..]
            && matches!(&inner.name[..], "strong-counter" | "weak-counter")
        {
            section.mark(&counter.name);
            all.push((Some(counter.written.clone()), inner));
        }
    }
    section.finish(problems);
    for (name, counter) in all {
        let Some(counter) = read_one(name, counter, problems) else { continue };
        if found.iter().any(|other| other.name == counter.name) {
            problems.refuse(counter.place, format!("counter `{}` is defined more than once", counter.name));
        } else if found.len() >= COUNTERS_MAX {
            problems.refuse(counter.place, format!("more than {COUNTERS_MAX} counters"));
        } else {
            found.push(counter);
        }
    }
    found
}

fn read_one(name: Option<String>, node: &Node, problems: &mut Problems) -> Option<CounterElement> {
    let mut section = Section::new(node);
    let name = match name {
        Some(name) => name,
        None => section.required("name", problems)?.to_owned(),
    };
    let initial = section.parsed("initial-value", problems).unwrap_or(0);
    let is_persistent = match section.text("storage") {
        Some("PERSISTENT") => true,
        None | Some("VOLATILE") => false,
        Some(other) => {
            problems.refuse(node.place, format!("storage of counter `{name}` cannot be `{other}`"));
            false
        }
    };
    let kind = if node.name == "weak-counter" {
        CounterKind::Weak {
            concurrency: section.parsed("concurrency-level", problems).unwrap_or(CONCURRENCY),
        }
    } else {
        let lower = bound("lower-bound", &mut section, problems);
        let upper = bound("upper-bound", &mut section, problems);
        match (lower, upper) {
            (None, None) => CounterKind::Strong,
            (lower, upper) => {
                CounterKind::Bounded { lower: lower.unwrap_or(i64::MIN), upper: upper.unwrap_or(i64::MAX) }
            }
        }
    };
    if let Some(lifespan) = section.attribute("lifespan").filter(|lifespan| lifespan.value != "-1") {
        let text =
            format!("lifespan of counter `{name}`: counters do not expire; reset or remove it from a client");
        problems.refuse(lifespan.place, text);
    }
    section.finish(problems);
    let config = CounterConfig { kind, is_persistent, initial };
    if Counter::new(config).is_none() {
        let text = format!(
            "counter `{name}`: its bounds have to be lower and upper, with its initial value between them"
        );
        problems.refuse(node.place, text);
        return None;
    }
    if name.len() > COUNTER_NAME_MAX {
        problems.refuse(node.place, format!("the name of a counter has 1 to {COUNTER_NAME_MAX} bytes"));
        return None;
    }
    Some(CounterElement { name, config, place: node.place })
}

/// Reads a bound: in recent files an attribute, in older ones an element with a value.
fn bound(name: &str, section: &mut Section<'_>, problems: &mut Problems) -> Option<i64> {
    if let Some(element) = section.child(name, problems) {
        let mut bound = Section::new(element);
        let value = bound.required("value", problems).is_some().then(|| bound.parsed("value", problems));
        bound.finish(problems);
        return value.flatten();
    }
    section.parsed(name, problems)
}
