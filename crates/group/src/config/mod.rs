//! Properties of protocols: one declaration gives the struct, defaults, parsing and listing.
//!
//! ```
//! use std::time::Duration;
//!
//! use consort_group::config::Properties;
//!
//! consort_group::properties! {
//!     /// The properties of the protocol.
//!     Config {
//!         /// The time between two checks of the windows.
//!         xmit_interval: Duration = Duration::from_millis(500),
//!     }
//! }
//!
//! let mut config = Config::default();
//! assert_eq!(config.set("xmit_interval", "2s"), Some(Ok(())));
//! assert_eq!(config.xmit_interval, Duration::from_secs(2));
//! assert_eq!(config.set("xmit_intervall", "2s"), None);
//! ```

mod password;
mod stack;
mod units;

pub use password::Password;
pub use stack::{Position, ProtocolConfig, StackConfig};
pub use units::{Bytes, HostPort, Property, parse_bytes, parse_duration};

/// The interface of a configuration struct.
pub trait Properties {
    /// Sets a property; `None` if there is none. The error explains the invalid value.
    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>>;
    /// Returns names and values, in order.
    fn show(&self) -> Vec<(&'static str, String)>;
    /// Returns names, defaults and descriptions.
    fn list() -> Vec<PropertyInfo>
    where
        Self: Sized;
}

/// `None`: no such property.
pub(crate) fn changed<C: Properties + Clone>(
    config: &C,
    name: &str,
    value: &str,
    check: impl FnOnce(&C) -> Result<(), (&'static str, String)>,
) -> Option<Result<C, String>> {
    let mut copy = config.clone();
    let set = copy.set(name, value)?;
    Some(set.and_then(|()| check(&copy).map_err(|(_, why)| why)).map(|()| copy))
}

/// A property in the manual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PropertyInfo {
    /// The name in configurations.
    pub name: &'static str,
    /// The default.
    pub default: String,
    /// The description.
    pub doc: String,
}

/// Declares a configuration struct; see the module's example.
#[macro_export]
macro_rules! properties {
    ($(#[$struct_doc:meta])* $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident : $type:ty = $default:expr),* $(,)?
    }) => {
        $(#[$struct_doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::config::Properties for $name {
            fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
                $(if name == stringify!($field) {
                    let parsed = <$type as $crate::config::Property>::parse(value);
                    return Some(parsed.map(|value| self.$field = value));
                })*
                let _ = (name, value);
                None
            }

            fn show(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), $crate::config::Property::show(&self.$field)),)*]
            }

            fn list() -> Vec<$crate::config::PropertyInfo> {
                let default = Self::default();
                let _ = &default;
                vec![$($crate::config::PropertyInfo {
                    name: stringify!($field),
                    default: $crate::config::Property::show(&default.$field),
                    doc: concat!($($doc),+).trim().to_owned(),
                },)*]
            }
        }
    };
}
