//! The grouping of keys in segments.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The part of a key that determines its segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// The whole key.
    #[default]
    None,
    /// The text between the first `{` and the next `}`, unless empty or incomplete, as Redis Cluster's hash
    /// tags. `{user7}.name` and `{user7}.cart` share a segment.
    Tag,
    /// The result of a function.
    Custom(Grouper),
}

/// A named function for a key's group; members check that the name is the same.
#[derive(Clone)]
pub struct Grouper {
    name: Arc<str>,
    /// None if the grouper comes from another member.
    group: Option<Arc<GroupFn>>,
}

/// The group of an encoded key, called for every operation. It must be the same on every member and not
/// panic.
pub type GroupFn = dyn for<'k> Fn(&'k [u8]) -> Cow<'k, [u8]> + Send + Sync;

impl Grouper {
    /// Creates a named grouper.
    pub fn new(
        name: &str,
        group: impl for<'k> Fn(&'k [u8]) -> Cow<'k, [u8]> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), group: Some(Arc::new(group)) }
    }

    pub(crate) fn named(name: Arc<str>) -> Self {
        Self { name, group: None }
    }

    /// Returns the name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl PartialEq for Grouper {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Grouper {}

impl fmt::Debug for Grouper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Grouping {
    /// Returns the part that determines the segment.
    #[inline]
    pub fn group_of<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        match self {
            Self::None => Cow::Borrowed(key),
            Self::Tag => Cow::Borrowed(tag_of(key)),
            Self::Custom(Grouper { group: Some(group), .. }) => group(key),
            Self::Custom(Grouper { group: None, .. }) => Cow::Borrowed(key),
        }
    }
}

fn tag_of(key: &[u8]) -> &[u8] {
    let is = |wanted: u8| move |byte: &u8| *byte == wanted;
    let tag = key.iter().position(is(b'{')).and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(is(b'}')).map(|length| &rest[..length])
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_tag_is_parsed_as_in_redis_cluster() {
        let tags = [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{", "foo}bar{"),
            ("", ""),
        ];
        for (key, tag) in tags {
            assert_eq!(*Grouping::Tag.group_of(key.as_bytes()), *tag.as_bytes(), "{key}");
        }
    }

    #[test]
    fn grouping_functions_are_compared_by_name() {
        let first = |key: &[u8]| Cow::Owned(key[..1].to_vec());
        let ours = Grouping::Custom(Grouper::new("first byte", move |key| first(key)));
        assert_eq!(*ours.group_of(b"key"), *b"k");
        assert_eq!(ours, Grouping::Custom(Grouper::named("first byte".into())));
        assert_ne!(ours, Grouping::Custom(Grouper::named("last byte".into())));
        assert_eq!(format!("{ours:?}"), "Custom(\"first byte\")");
    }
}
