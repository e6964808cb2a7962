//! The sites of RELAY2 and RELAY3 and their bridges: JGroups' `RelayConfiguration`, in a file of its own or in the stack.

use std::path::Path;

use consort_group::{FORWARDS_MAX, ForwardRule};

use crate::error::{ConfigError, Fault};
use crate::relay::path_near;
use crate::tree::{Node, Tree, root_name, stack_tree};
use crate::variables::Variables;
use crate::xml::SITES_ROOT as ROOT;

/// A site has one or two.
const BRIDGES_MAX: usize = 100;

/// A site: the bridges that its site masters join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteConfig {
    /// The name.
    pub name: String,
    /// The bridges, in the file's order.
    pub bridges: Vec<BridgeConfig>,
    /// The ways to sites without a common bridge, in the file's order.
    pub forwards: Vec<ForwardRule>,
}

/// A bridge: a cluster of site masters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeConfig {
    /// The cluster's name.
    pub cluster: String,
    /// The file of its stack, or a stock stack's name.
    pub stack: String,
}

/// Reads a site from a file with `RelayConfiguration`, or from a stack that contains it. Files of bridges are relative to the
/// current directory, or to that of this file. A stack that is read from a file has the path of the file with its sites.
///
/// # Errors
///
/// If the file is unreadable or has no `RelayConfiguration`, or if it does not have the site.
pub fn load_site(file: &str, site: &str, variables: &Variables) -> Result<SiteConfig, ConfigError> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| {
        ConfigError::new(file, None, Fault::Structure(format!("cannot be read: {error}")))
    })?;
    let mut found = parse_site(file, &text, site, variables)?;
    for bridge in &mut found.bridges {
        bridge.stack = path_near(&bridge.stack, Path::new(file));
    }
    Ok(found)
}

/// Reads a site from the text of a file with `RelayConfiguration`, or of a stack that contains it. Files of bridges are as the text
/// names them.
///
/// # Errors
///
/// If the text has no `RelayConfiguration`, or if it does not have the site.
pub fn parse_site(
    file: &str,
    text: &str,
    site: &str,
    variables: &Variables,
) -> Result<SiteConfig, ConfigError> {
    site_of(&tree_of(file, text, variables)?, site)
}

/// Reads the element with the sites.
fn tree_of(file: &str, text: &str, variables: &Variables) -> Result<Tree, ConfigError> {
    if root_name(text).as_deref() != Some("config") {
        return Tree::parse(file, text, variables);
    }
    let mut problems = Vec::new();
    let stack = stack_tree(file, 0, text, variables, &mut problems)?;
    if let Some(problem) = ConfigError::combine(problems) {
        return Err(problem);
    }
    let position = stack.position;
    let found =
        stack.children.into_iter().flat_map(|protocol| protocol.children).find(|node| node.name == ROOT);
    let root = found.ok_or_else(|| {
        ConfigError::new(file, position, Fault::Structure(format!("no protocol of the stack has a {ROOT}")))
    })?;
    Ok(Tree { file: file.to_owned(), root })
}

fn site_of(tree: &Tree, wanted: &str) -> Result<SiteConfig, ConfigError> {
    if tree.root.name != ROOT {
        let what = format!("the outermost element has to be {ROOT}, not {}", tree.root.name);
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
            let (bridges, forwards) = ways(tree, node)?;
            sites.push(SiteConfig { name, bridges, forwards });
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

fn ways(tree: &Tree, site: &Node) -> Result<(Vec<BridgeConfig>, Vec<ForwardRule>), ConfigError> {
    let mut bridges: Vec<BridgeConfig> = Vec::new();
    let mut forwards: Vec<ForwardRule> = Vec::new();
    for list in &site.children {
        named(tree, site, list, &["bridges", "forwards"])?;
        for node in &list.children {
            if list.name == "forwards" {
                named(tree, list, node, &["forward"])?;
                tree.check_attributes(node, &["to", "gateway"])?;
                if forwards.len() >= FORWARDS_MAX {
                    return Err(
                        tree.wrong(node.position, format!("more than {FORWARDS_MAX} forwards of a site"))
                    );
                }
                let rule = ForwardRule::new(&required(tree, node, "to")?, &required(tree, node, "gateway")?);
                forwards.push(rule.map_err(|why| tree.wrong(node.position, format!("attribute to: {why}")))?);
                continue;
            }
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
    Ok((bridges, forwards))
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
                    <site name=\"nyc\"><bridges><bridge config=\"b.xml\" name=\"east\"/></bridges><forwards><forward to=\"sfo\" gateway=\"lon\"/></forwards></site>";
        let bridge =
            |cluster: &str, stack: &str| BridgeConfig { cluster: cluster.into(), stack: stack.into() };
        assert_eq!(
            read(text, "lon"),
            Ok(SiteConfig {
                name: "lon".into(),
                bridges: vec![bridge("global", "tcp.xml"), bridge("east", "b.xml")],
                forwards: Vec::new(),
            })
        );
        assert_eq!(
            read(text, "sfo").unwrap_err(),
            "relay.xml:2:1: there is no site `sfo`; there are: `lon`, `nyc`"
        );
        assert_eq!(read(text, "nyc").unwrap().forwards, [ForwardRule::new("sfo", "lon").unwrap()]);
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
            (
                "<site name=\"lon\"><forwards><forward to=\"nyc\"/></forwards></site>",
                "attribute gateway of forward is missing",
            ),
            (
                "<site name=\"lon\"><forwards><forward to=\"(\" gateway=\"nyc\"/></forwards></site>",
                "attribute to: `(` is no regular expression",
            ),
        ] {
            let error = read(text, "lon").unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let tree = Tree::parse("x.xml", "<config/>", &Variables::new()).unwrap();
        let error = site_of(&tree, "lon").unwrap_err().to_string();
        assert!(error.contains("has to be RelayConfiguration, not config"), "{error}");
    }

    #[test]
    fn rules_of_a_site_are_limited_in_number() {
        let text = |rules: usize| {
            let rules = "<forward to=\"sfo\" gateway=\"nyc\"/>".repeat(rules);
            format!(
                "<site name=\"lon\"><bridges><bridge name=\"a\" config=\"x\"/></bridges><forwards>{rules}</forwards></site>"
            )
        };
        assert_eq!(read(&text(FORWARDS_MAX), "lon").unwrap().forwards.len(), FORWARDS_MAX);
        let error = read(&text(FORWARDS_MAX + 1), "lon").unwrap_err();
        assert!(error.contains("more than 500 forwards of a site"), "{error}");
    }

    #[test]
    fn sites_may_be_in_the_stack_itself() {
        let directory = std::env::temp_dir().join(format!("consort-conf-sites-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("net1.xml").display().to_string();
        let stack = |attribute: &str| {
            format!(
                "<config><TCP/><PING/><NAKACK2/><GMS/>\n<relay.RELAY3 site=\"net1\" {attribute}>\n<!-- inside -->\n\
                 <RelayConfiguration xmlns=\"urn:jgroups:relay:1.0\"><sites><site name=\"net1\"><bridges>\
                 <bridge name=\"b\" config=\"b.xml\"/></bridges><forwards><forward to=\".*\" gateway=\"net2\"/></forwards>\
                 </site></sites></RelayConfiguration></relay.RELAY3></config>"
            )
        };
        std::fs::write(&file, stack("")).unwrap();
        let loaded = crate::load_stack(&file, &Variables::new()).unwrap_or_else(|error| panic!("{error}"));
        let relay = loaded.config.protocols.last().unwrap();
        assert_eq!(relay.get("config"), Some(&*file));
        let site = load_site(&file, "net1", &Variables::new()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((&*site.bridges[0].cluster, site.forwards[0].gateway()), ("b", "net2"));
        let misplaced = stack("")
            .replace("</RelayConfiguration>", "</RelayConfiguration><forwards><forward/></forwards>");
        let error = crate::parse_stack("x.xml", &misplaced, &Variables::new()).unwrap_err().to_string();
        assert!(error.contains("an element within a protocol is not supported"), "{error}");
        let both = stack("config=\"relay.xml\"");
        let error = crate::parse_stack("x.xml", &both, &Variables::new()).unwrap_err().to_string();
        assert!(error.contains("leave one of them out"), "{error}");
        std::fs::write(&file, "<config><TCP/></config>").unwrap();
        let error = load_site(&file, "net1", &Variables::new()).unwrap_err().to_string();
        assert!(error.contains("no protocol of the stack has a RelayConfiguration"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
