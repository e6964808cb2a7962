use protox::prost_reflect::{FieldDescriptor, MessageDescriptor};

use super::annotations::{Annotation, Comments};
use super::indexed_type::IndexedType;
use super::lookup::{Search, search};
use super::ordered::encode;
use crate::entity::entity;
use crate::field_reader::FieldReader;
use crate::limits::{EMBEDDED_DEPTH_MAX, INDEX_STEPS_MAX, INDEXED_FIELDS_MAX};
use crate::plan::Plan;
use crate::scope::Types;
use crate::work::Work;

/// The indexed fields of the entities of a cache.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct IndexSchema {
    types: Vec<IndexedType>,
}

/// A part of a schema that is not indexed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexSchemaError {
    /// No schema has the type.
    #[error("type '{0}' is not in the registered schemas: its entities are not indexed before it is")]
    NoType(String),
    /// The type is not annotated.
    #[error("type '{0}' has no annotation @Indexed: its entities are not indexed")]
    NotIndexed(String),
    /// The annotation is not supported.
    #[error("field '{field}' of '{name}' is not indexed: there is no index for {annotation}")]
    Unsupported {
        /// The type.
        name: String,
        /// The field.
        field: String,
        /// The annotation.
        annotation: &'static str,
    },
    /// A part of the annotation has no effect.
    #[error("field '{field}' of '{name}': {note}")]
    Note {
        /// The type.
        name: String,
        /// The field.
        field: String,
        /// The reason.
        note: &'static str,
    },
    /// Too many fields.
    #[error(
        "field '{field}' of '{name}' is not indexed: a cache has at most {INDEXED_FIELDS_MAX} indexed fields"
    )]
    TooMany {
        /// The type.
        name: String,
        /// The field.
        field: String,
    },
}

/// The fields of an entity are not known: an invalid message, or too many values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the indexed fields of the entity are not known")]
pub struct UnknownFields;

impl IndexSchema {
    /// Reads the annotations of these types, and returns the parts that are not indexed.
    pub fn new<'n>(
        types: &dyn Types,
        names: impl IntoIterator<Item = &'n str>,
    ) -> (Self, Vec<IndexSchemaError>) {
        let (mut schema, mut errors, mut fields) = (Self::default(), Vec::new(), 0);
        for name in names {
            let Some(message) = types.message(name) else {
                errors.push(IndexSchemaError::NoType(name.to_owned()));
                continue;
            };
            let file = message.parent_file();
            if !Comments::of(&file).is_indexed(&message) {
                errors.push(IndexSchemaError::NotIndexed(name.to_owned()));
                continue;
            }
            let first = fields as u16;
            let mut collector = Collector {
                name,
                room: INDEXED_FIELDS_MAX - fields,
                reader: FieldReader::default(),
                is_single: Vec::new(),
                errors: &mut errors,
            };
            collector.message(&message, &mut Vec::new());
            let Collector { reader, is_single, .. } = collector;
            fields += is_single.len();
            let (name, id) = (message.full_name().into(), types.id(name));
            schema.types.push(IndexedType { name, id, reader, is_single, first });
        }
        (schema, errors)
    }

    /// Whether no field is indexed.
    pub fn is_empty(&self) -> bool {
        self.types.iter().all(|one| one.is_single.is_empty())
    }

    /// Returns the names of the indexed types.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(|one| &*one.name)
    }

    /// Passes on the number and value of each indexed field of an entity, as bytes in the order of the values. An entity of
    /// another type has none.
    pub fn read(&self, value: &[u8], mut give: impl FnMut(u16, &[u8])) -> Result<(), UnknownFields> {
        let Some((entity, message)) = entity(value) else { return Ok(()) };
        let is_it = |one: &&IndexedType| entity.is(&one.name, one.id);
        let mut encoded = Vec::new();
        for one in self.types.iter().filter(is_it) {
            let slots = one.reader.read(message, one.is_single.len(), &mut Work::up_to(INDEX_STEPS_MAX));
            let slots = slots.ok().flatten().ok_or(UnknownFields)?;
            for ((number, slot), is_single) in (one.first..).zip(&slots).zip(&one.is_single) {
                // The search relies on it.
                if *is_single && slot.len() > 1 {
                    return Err(UnknownFields);
                }
                for value in slot {
                    encode(value.as_ref(), &mut encoded);
                    give(number, &encoded);
                }
            }
        }
        Ok(())
    }

    /// Returns a search that finds at least all entities of a plan; `None` if the index cannot answer it.
    pub fn search(&self, plan: &Plan) -> Option<Search> {
        let one = self.types.iter().find(|one| *one.name == *plan.type_name && one.id == plan.type_id)?;
        search(one, plan)
    }
}

struct Collector<'s> {
    name: &'s str,
    room: usize,
    reader: FieldReader,
    is_single: Vec<bool>,
    errors: &'s mut Vec<IndexSchemaError>,
}

impl Collector<'_> {
    fn message(&mut self, message: &MessageDescriptor, path: &mut Vec<FieldDescriptor>) {
        let file = message.parent_file();
        let comments = Comments::of(&file);
        for field in message.fields() {
            let Some(annotation) = comments.of_field(field.path()) else { continue };
            path.push(field.clone());
            self.field(&field, annotation, path);
            path.pop();
        }
    }

    fn field(&mut self, field: &FieldDescriptor, annotation: Annotation, path: &mut Vec<FieldDescriptor>) {
        let (name, names) = (self.name.to_owned(), path.iter().map(|field| field.name().to_owned()));
        let shown = names.collect::<Vec<_>>().join(".");
        // Older schemas annotate embedded messages like other fields.
        if let Some(inner) = field.kind().as_message() {
            match annotation {
                Annotation::Unsupported(annotation) => {
                    self.errors.push(IndexSchemaError::Unsupported { name, field: shown, annotation });
                }
                _ if path.len() <= EMBEDDED_DEPTH_MAX => self.message(inner, path),
                _ => {}
            }
            return;
        }
        let note = match annotation {
            Annotation::Indexed { note } => note,
            Annotation::Embedded => None,
            Annotation::Unsupported(annotation) => {
                return self.errors.push(IndexSchemaError::Unsupported { name, field: shown, annotation });
            }
        };
        if self.is_single.len() == self.room {
            return self.errors.push(IndexSchemaError::TooMany { name, field: shown });
        }
        let free = self.is_single.len();
        if self.reader.add(path, free) == Some(free) {
            self.is_single.push(!path.iter().any(|field| field.is_list() || field.is_map()));
        }
        if let Some(note) = note {
            self.errors.push(IndexSchemaError::Note { name, field: shown, note });
        }
    }
}
