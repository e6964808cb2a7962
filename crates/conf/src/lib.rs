//! JGroups' XML stacks with `${name:default}` substitution and the place of each attribute; other XML as a [`Tree`].
//!
//! ```
//! use consort_conf::{Variables, load_stack};
//!
//! let variables = Variables::new().with("jgroups.tcpping.initial_hosts", "10.0.0.1[7800]");
//! let stack = load_stack("tcp.xml", &variables)?;
//! assert_eq!(stack.config.protocols[0].short_name(), "TCP");
//! assert_eq!(stack.config.protocols[1].get("initial_hosts"), Some("10.0.0.1[7800]"));
//! # Ok::<(), consort_conf::ConfigError>(())
//! ```

#![forbid(unsafe_code)]

mod alternatives;
mod earlier_names;
mod error;
mod infinispan;
mod key_exchange;
mod known_names;
mod properties;
mod relay;
mod required_layers;
mod sites;
mod stacks;
mod tree;
mod unused_attributes;
mod variables;
mod xml;

pub use earlier_names::RenamedAttribute;
pub use error::{ConfigError, Fault};
pub use known_names::{IgnoredAttribute, TRANSPORT_ATTRIBUTES, check};
pub use properties::{PropertiesError, Property, read_properties, write_property};
pub use relay::relay_of;
pub use sites::{BridgeConfig, SiteConfig, load_site, parse_site};
pub use stacks::{STOCK, Stack, load_stack, parse_stack, parse_stack_at};

pub use required_layers::check_required_layers;
pub use tree::{Node, Tree, root_name};
pub use unused_attributes::UnusedAttribute;
pub use variables::Variables;
pub use xml::Attribute;
