//! Which part of a key decides where it is: keys of one group are in one segment, so on the same members.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// What a key's segment is taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// The whole key.
    #[default]
    None,
    /// What stands between the first `{` and the `}` that follows, unless that is nothing or one of them is missing: Redis
    /// Cluster's hash tags. `{user7}.name` and `{user7}.cart` are together.
    Tag,
    /// What a function says.
    Custom(Grouper),
}

/// A function that gives the group of a key, and the name by which members tell whether they mean the same.
#[derive(Clone)]
pub struct Grouper {
    name: Arc<str>,
    /// None if it is another member's.
    group: Option<Arc<GroupFn>>,
}

/// Gives the group of a key in its encoded form. It must give every member the same; it is called for every operation, and
/// must not panic.
pub type GroupFn = dyn for<'k> Fn(&'k [u8]) -> Cow<'k, [u8]> + Send + Sync;

impl Grouper {
    /// A function under a name.
    pub fn new(
        name: &str,
        group: impl for<'k> Fn(&'k [u8]) -> Cow<'k, [u8]> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), group: Some(Arc::new(group)) }
    }

    /// What another member calls its function.
    pub(crate) fn named(name: Arc<str>) -> Self {
        Self { name, group: None }
    }

    /// Its name.
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
    /// What of a key decides its segment.
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
    fn tag_is_what_redis_cluster_takes_for_one() {
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
    fn functions_are_told_by_their_names() {
        let first = |key: &[u8]| Cow::Owned(key[..1].to_vec());
        let ours = Grouping::Custom(Grouper::new("first byte", move |key| first(key)));
        assert_eq!(*ours.group_of(b"key"), *b"k");
        assert_eq!(ours, Grouping::Custom(Grouper::named("first byte".into())));
        assert_ne!(ours, Grouping::Custom(Grouper::named("last byte".into())));
        assert_eq!(format!("{ours:?}"), "Custom(\"first byte\")");
    }
}
