//! The sites of RELAY2 and their bridges: JGroups' `RelayConfiguration` files.

use std::path::Path;

use crate::error::ConfigError;
use crate::tree::{Node, Tree};
use crate::variables::Variables;

/// A site has one or two.
const BRIDGES_MAX: usize = 100;

/// A site: the bridges that its site masters join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteConfig {
    /// The name.
    pub name: String,
    /// The bridges, in the file's order.
    pub bridges: Vec<BridgeConfig>,
}

/// A bridge: a cluster of site masters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeConfig {
    /// The cluster's name.
    pub cluster: String,
    /// The file of its stack, or a stock stack's name.
    pub stack: String,
}

/// Reads a site from a file with `RelayConfiguration`. The file is relative to the current directory, or to that of
/// `stack`, the stack's file. Files of bridges are relative to the current directory, or to that of this file.
///
/// # Errors
///
/// If the file is unreadable or no `RelayConfiguration`, if it does not have the site, or if the site has forwards, which
/// RELAY2 ignores in JGroups.
pub fn load_site(
    file: &str,
    site: &str,
    stack: &str,
    variables: &Variables,
) -> Result<SiteConfig, ConfigError> {
    let file = beside(file, stack);
    let tree = Tree::load(Path::new(&file), variables)?;
    let mut found = site_of(&tree, site)?;
    for bridge in &mut found.bridges {
        bridge.stack = beside(&bridge.stack, &file);
    }
    Ok(found)
}

/// Returns the path of `file`, which may be in the directory of `other`.
fn beside(file: &str, other: &str) -> String {
    let near = Path::new(other).parent().map(|directory| directory.join(file));
    match near {
        Some(near) if !Path::new(file).exists() && near.exists() => near.display().to_string(),
        _ => file.to_owned(),
    }
}

fn site_of(tree: &Tree, wanted: &str) -> Result<SiteConfig, ConfigError> {
    if tree.root.name != "RelayConfiguration" {
        let what = format!("the outermost element has to be RelayConfiguration, not {}", tree.root.name);
        return Err(tree.wrong(tree.root.position, what));
    }
    let mut sites: Vec<SiteConfig> = Vec::new();
    for list in &tree.root.children {
        named(tree, &tree.root, list, &["sites"])?;
        for node in &list.children {
            named(tree, list, node, &["site"])?;
            tree.check_attributes(node, &["name"])?;
            let name = required(tree, node, "name")?;
            if sites.iter().any(|site| site.name == name) {
                return Err(tree.wrong(node.position, format!("site `{name}` is defined twice")));
            }
            sites.push(SiteConfig { bridges: bridges(tree, node, name == wanted)?, name });
        }
    }
    let names: Vec<String> = sites.iter().map(|site| format!("`{}`", site.name)).collect();
    match sites.into_iter().find(|site| site.name == wanted) {
        Some(site) if site.bridges.is_empty() => {
            let what =
                format!("site `{wanted}` has no bridge to other sites: add <bridges><bridge …/></bridges>");
            Err(tree.wrong(tree.root.position, what))
        }
        Some(site) => Ok(site),
        None => {
            let what = format!("there is no site `{wanted}`; there are: {}", names.join(", "));
            Err(tree.wrong(tree.root.position, what))
        }
    }
}

fn bridges(tree: &Tree, site: &Node, is_own: bool) -> Result<Vec<BridgeConfig>, ConfigError> {
    let mut bridges: Vec<BridgeConfig> = Vec::new();
    for list in &site.children {
        named(tree, site, list, &["bridges", "forwards"])?;
        if list.name == "forwards" {
            if is_own && !list.children.is_empty() {
                let what =
                    "forwards have no effect on RELAY2, in JGroups either: give both sites a common bridge";
                return Err(tree.wrong(list.position, what));
            }
            continue;
        }
        for node in &list.children {
            named(tree, list, node, &["bridge"])?;
            tree.check_attributes(node, &["name", "config"])?;
            let cluster = required(tree, node, "name")?;
            if bridges.iter().any(|bridge| bridge.cluster == cluster) {
                return Err(tree.wrong(node.position, format!("bridge `{cluster}` is defined twice")));
            }
            if bridges.len() >= BRIDGES_MAX {
                return Err(tree.wrong(node.position, format!("more than {BRIDGES_MAX} bridges of a site")));
            }
            bridges.push(BridgeConfig { cluster, stack: required(tree, node, "config")? });
        }
    }
    Ok(bridges)
}

fn named(tree: &Tree, parent: &Node, node: &Node, known: &[&'static str]) -> Result<(), ConfigError> {
    if known.contains(&&*node.name) { Ok(()) } else { Err(tree.unknown_element(parent, node, known)) }
}

fn required(tree: &Tree, node: &Node, name: &str) -> Result<String, ConfigError> {
    match node.get(name) {
        Some((value, _)) if !value.is_empty() => Ok(value.to_owned()),
        _ => Err(tree.wrong(node.position, format!("attribute {name} of {} is missing", node.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sites: &str, site: &str) -> Result<SiteConfig, String> {
        let text = format!(
            "<?xml version='1.0'?>\n<RelayConfiguration xmlns=\"urn:jgroups:relay:1.0\">\n<sites>{sites}</sites>\n\
             </RelayConfiguration>"
        );
        let variables = Variables::new().with("bridge.config", "tcp.xml");
        let tree = Tree::parse("relay.xml", &text, &variables).map_err(|error| error.to_string())?;
        site_of(&tree, site).map_err(|error| error.to_string())
    }

    #[test]
    fn site_has_its_bridges_in_order() {
        let text = "<site name=\"lon\"><bridges><bridge config=\"${bridge.config}\" name=\"global\"/>\
                    <bridge config=\"b.xml\" name=\"east\"/></bridges></site>\
                    <site name=\"nyc\"><bridges/><forwards><forward to=\"sfo\" gateway=\"lon\"/></forwards></site>";
        let bridge =
            |cluster: &str, stack: &str| BridgeConfig { cluster: cluster.into(), stack: stack.into() };
        assert_eq!(
            read(text, "lon"),
            Ok(SiteConfig {
                name: "lon".into(),
                bridges: vec![bridge("global", "tcp.xml"), bridge("east", "b.xml")]
            })
        );
        assert_eq!(
            read(text, "sfo").unwrap_err(),
            "relay.xml:2:1: there is no site `sfo`; there are: `lon`, `nyc`"
        );
        let error = read(text, "nyc").unwrap_err();
        assert!(error.contains("forwards have no effect on RELAY2"), "{error}");
    }

    #[test]
    fn errors_name_the_place_and_the_alternative() {
        for (text, expected) in [
            ("<site name=\"lon\"/>", "site `lon` has no bridge"),
            ("<site/>", "relay.xml:3:8: attribute name of site is missing"),
            ("<site name=\"lon\"/><site name=\"lon\"/>", "site `lon` is defined twice"),
            ("<site name=\"lon\"><bridge/></site>", "bridge"),
            (
                "<site name=\"lon\"><bridges><bridge name=\"a\"/></bridges></site>",
                "attribute config of bridge is missing",
            ),
            ("<site name=\"lon\"><bridges><bridge nam=\"a\"/></bridges></site>", "did you mean `name`?"),
            (
                "<site name=\"lon\"><bridges><bridge name=\"a\" config=\"x\"/><bridge name=\"a\" config=\"x\"/></bridges></site>",
                "bridge `a` is defined twice",
            ),
        ] {
            let error = read(text, "lon").unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let tree = Tree::parse("x.xml", "<config/>", &Variables::new()).unwrap();
        let error = site_of(&tree, "lon").unwrap_err().to_string();
        assert!(error.contains("has to be RelayConfiguration, not config"), "{error}");
    }
}
