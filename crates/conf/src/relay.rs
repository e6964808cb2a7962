//! The protocol for other sites in a stack.

use std::path::{Path, PathBuf};

use consort_group::config::{ProtocolConfig, StackConfig};

use crate::error::{ConfigError, Fault};

const RELAYS: [&str; 2] = ["RELAY2", "RELAY3"];

pub(crate) fn is_relay(short_name: &str) -> bool {
    RELAYS.contains(&short_name)
}

/// Returns the stack's RELAY2 or RELAY3.
///
/// # Errors
///
/// If it has several: a message would reach its site over one of them only.
pub fn relay_of(stack: &StackConfig) -> Result<Option<&ProtocolConfig>, ConfigError> {
    let mut relays = stack.protocols.iter().filter(|protocol| is_relay(protocol.short_name()));
    match (relays.next(), relays.next()) {
        (Some(first), Some(second)) => {
            let what = format!(
                "the stack has {} and {}, of which a site needs one: leave one of them out",
                first.short_name(),
                second.short_name()
            );
            Err(ConfigError::at(stack, second.position, Fault::Structure(what)))
        }
        (first, _) => Ok(first),
    }
}

/// Returns the path of a file, which is relative to the current directory or, if it is not there, to that of `other`.
pub(crate) fn path_near(file: &str, other: &Path) -> String {
    let near = other.parent().map(|directory| directory.join(file));
    match near {
        Some(near) if !Path::new(file).exists() && near.exists() => near.display().to_string(),
        _ => file.to_owned(),
    }
}

/// Completes the path of the file with the sites, which the file `source` names or is. That one is in this directory.
pub(crate) fn complete_sites(protocol: &mut ProtocolConfig, source: &str, directory: Option<&Path>) {
    if !is_relay(protocol.short_name()) {
        return;
    }
    let name = Path::new(source).file_name().unwrap_or_default();
    let path = directory.map_or_else(|| PathBuf::from(source), |directory| directory.join(name));
    for (_, value, _) in protocol.attributes.iter_mut().filter(|(name, ..)| name == "config") {
        *value = if value == source { path.display().to_string() } else { path_near(value, &path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Variables, check_required_layers, load_site, load_stack, parse_stack};

    #[test]
    fn stack_with_both_protocols_is_refused() {
        let text = "<config><TCP/>\n<RELAY2 site=\"a\" config=\"r.xml\"/>\n<relay.RELAY3 site=\"a\" config=\"r.xml\"/></config>";
        let both = parse_stack("my.xml", text, &Variables::new()).unwrap().config;
        let error = relay_of(&both).unwrap_err().to_string();
        assert!(error.starts_with("my.xml:3:1: the stack has RELAY2 and RELAY3"), "{error}");
        for name in RELAYS {
            let text = format!("<config><TCP/><{name} site=\"a\" config=\"r.xml\"/></config>");
            let one = parse_stack("my.xml", &text, &Variables::new()).unwrap().config;
            assert_eq!(relay_of(&one).unwrap().unwrap().short_name(), name);
        }
        let none = parse_stack("my.xml", "<config><TCP/></config>", &Variables::new()).unwrap().config;
        assert!(relay_of(&none).unwrap().is_none());
    }

    #[test]
    fn files_with_both_protocols_are_refused_with_the_place_of_the_second_one() {
        let root = std::env::temp_dir().join(format!("consort-conf-relays-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        let relay = |name: &str| format!("<relay.{name} site=\"a\" config=\"r.xml\"/>");
        write("inner.xml", &format!("<config>{}</config>", relay("RELAY3")));
        let outer = root.join("outer.xml").display().to_string();
        for second in [relay("RELAY3"), "<include file=\"inner.xml\"/>".to_owned()] {
            let below = "<TCP/><PING/><NAKACK2/><UNICAST3/><GMS/>";
            write("outer.xml", &format!("<config>{below}{}\n{second}</config>", relay("RELAY2")));
            let stack =
                load_stack(&outer, &Variables::new()).unwrap_or_else(|error| panic!("{error}")).config;
            let place =
                if second.contains("include") { "inner.xml:1:9".to_owned() } else { format!("{outer}:2:1") };
            let error = check_required_layers(&stack).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{place}: the stack has RELAY2 and RELAY3")), "{error}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn sites_are_beside_the_included_file_that_names_or_contains_them() {
        let root = std::env::temp_dir().join(format!("consort-conf-relay-{}", std::process::id()));
        std::fs::create_dir_all(root.join("sub/deep")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        write("outer.xml", "<config><TCP/><include file=\"sub/mid.xml\"/></config>");
        write("sub/mid.xml", "<config><include file=\"deep/inner.xml\"/></config>");
        let sites = "<RelayConfiguration><sites><site name=\"a\"><bridges><bridge name=\"b\" config=\"b.xml\"/></bridges>\
                     </site></sites></RelayConfiguration>";
        write("sub/deep/b.xml", "<config><TCP/></config>");
        let outer = root.join("outer.xml").display().to_string();
        for (inner, file) in [
            (format!("<config><relay.RELAY3 site=\"a\">{sites}</relay.RELAY3></config>"), "inner.xml"),
            ("<config><relay.RELAY3 site=\"a\" config=\"relay.xml\"/></config>".to_owned(), "relay.xml"),
        ] {
            write("sub/deep/inner.xml", &inner);
            write("sub/deep/relay.xml", sites);
            let stack =
                load_stack(&outer, &Variables::new()).unwrap_or_else(|error| panic!("{error}")).config;
            let config = relay_of(&stack).unwrap().unwrap().get("config").unwrap();
            assert_eq!(config, root.join("sub/deep").join(file).display().to_string());
            let site = load_site(config, "a", &Variables::new()).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(site.bridges[0].stack, root.join("sub/deep/b.xml").display().to_string());
        }
        // An attribute of the include replaces the one of the included file, and is that of the file with the include.
        write("sub/mid.xml", "<config><include file=\"deep/inner.xml\" config=\"sites.xml\"/></config>");
        write("sub/sites.xml", sites);
        let stack = load_stack(&outer, &Variables::new()).unwrap_or_else(|error| panic!("{error}")).config;
        let config = relay_of(&stack).unwrap().unwrap().get("config").unwrap();
        assert_eq!(config, root.join("sub/sites.xml").display().to_string());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
