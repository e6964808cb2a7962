use std::collections::BTreeMap;
use std::fmt;

use protox::prost_reflect::{DescriptorPool, EnumDescriptor, MessageDescriptor};

/// Types by names, and by the numbers (TypeIds) that stand for them in wrapped entities.
#[derive(Default)]
pub(crate) struct Types {
    pool: DescriptorPool,
    names: BTreeMap<u32, String>,
    ids: BTreeMap<String, u32>,
}

const TYPE_ID: &str = "@TypeId";

fn type_id(comment: &str) -> Option<u32> {
    let (_, rest) = comment.split_once(TYPE_ID)?;
    let (number, _) = rest.trim_start().strip_prefix('(')?.split_once(')')?;
    number.trim().parse().ok()
}

impl Types {
    /// If two types have the same number, the number stands for one of them.
    pub(crate) fn new(pool: DescriptorPool) -> Self {
        let mut types = Self { pool: pool.clone(), ..Self::default() };
        for file in pool.files() {
            let proto = file.file_descriptor_proto();
            let comments: BTreeMap<&[i32], u32> = proto
                .source_code_info
                .iter()
                .flat_map(|info| &info.location)
                .filter_map(|at| Some((&at.path[..], type_id(at.leading_comments.as_deref()?)?)))
                .collect();
            if comments.is_empty() {
                continue;
            }
            let of_file = |parent: &str| parent == file.name();
            let messages = pool.all_messages().filter(|one| of_file(one.parent_file().name()));
            let messages = messages.map(|one| (one.path().to_vec(), one.full_name().to_owned()));
            let enums = pool.all_enums().filter(|one| of_file(one.parent_file().name()));
            let enums = enums.map(|one| (one.path().to_vec(), one.full_name().to_owned()));
            for (path, name) in messages.chain(enums) {
                if let Some(id) = comments.get(&path[..]) {
                    types.names.insert(*id, name.clone());
                    types.ids.insert(name, *id);
                }
            }
        }
        types
    }

    pub(crate) fn message(&self, name: &str) -> Option<MessageDescriptor> {
        self.pool.get_message_by_name(name)
    }

    pub(crate) fn enumeration(&self, name: &str) -> Option<EnumDescriptor> {
        self.pool.get_enum_by_name(name)
    }

    pub(crate) fn name_of(&self, id: u32) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    pub(crate) fn id_of(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }
}

impl consort_query::Types for Types {
    fn message(&self, name: &str) -> Option<MessageDescriptor> {
        self.message(name)
    }

    fn id(&self, name: &str) -> Option<u32> {
        self.id_of(name)
    }

    fn names(&self) -> Vec<String> {
        self.pool.all_messages().map(|message| message.full_name().to_owned()).collect()
    }
}

impl fmt::Debug for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} types of schemas", self.pool.all_messages().len() + self.pool.all_enums().len())
    }
}

impl PartialEq for Types {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Types {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_gives_a_type_its_number() {
        for (comment, id) in [
            (" @TypeId(1000042)", Some(1_000_042)),
            ("*\n * A book.\n * @TypeId ( 7 )\n", Some(7)),
            ("@TypeId(x)", None),
            ("@TypeId", None),
            ("a book", None),
        ] {
            assert_eq!(type_id(comment), id, "{comment}");
        }
    }
}
