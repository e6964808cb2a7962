//! A schema with entities, and queries over them as members run them.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_protostream::Wrapped;
use consort_protostream::wire::{
    EIGHT, LENGTH, MESSAGE, TYPE_ID, TYPE_NAME, VARINT, put_bytes, put_tag, put_varint,
};
use consort_query::{Compiled, Plan, QueryError, QueryResult, ResultMerger, Source, Statement, Types, Value};
use protox::prost_reflect::{DescriptorPool, MessageDescriptor};

const SCHEMA: &str = "syntax = \"proto2\"; package shop;\n\
    enum Kind { NONE = 0; BOOK = 1; FILM = 2; }\n\
    message Maker { optional string name = 1; optional int32 founded = 2; }\n\
    message Item { optional string name = 1; optional int32 price = 2; optional Kind kind = 3; optional Maker maker = 4;\n\
    repeated string tags = 5; repeated Maker others = 6; optional double weight = 7; optional int32 stars = 8 [default = 3];\n\
    optional bytes code = 9; repeated int32 sizes = 10; optional bool sold = 11; }";

/// The type id.
const ID: u32 = 1_000_042;

pub(crate) struct Shop(DescriptorPool);

impl Shop {
    pub(crate) fn open() -> Self {
        let file = protox::file::File::from_source("shop.proto", SCHEMA).unwrap();
        let mut files = DescriptorPool::new();
        files.add_file_descriptor_proto(file.file_descriptor_proto().clone()).unwrap();
        Self(files)
    }

    pub(crate) fn compile(
        &self,
        query: &str,
        parameters: &[(&str, Wrapped)],
    ) -> Result<Compiled, QueryError> {
        let parameters: BTreeMap<String, Wrapped> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Statement::parse(query)?.compile(self, &parameters)
    }

    /// Runs a query over these entities and returns a page of the result.
    pub(crate) fn page(&self, entities: &[Bytes], query: &str, offset: usize, max: usize) -> QueryResult {
        let compiled = self.compile(query, &[]).unwrap_or_else(|error| panic!("{query}: {error}"));
        let plan = Plan::from_bytes(&compiled.plan.to_bytes()).expect("what was written is read");
        assert_eq!(plan, compiled.plan);
        let mut merger = ResultMerger::new(&compiled, offset, max);
        match compiled.source {
            Source::Nothing => return QueryResult { rows: Vec::new(), count: 0 },
            Source::Rows => {
                for (version, entity) in (1..).zip(entities) {
                    if let Some(row) = plan.row(entity, version) {
                        merger.row(row.into()).unwrap();
                    }
                }
            }
            // Two owners with some of the entities each.
            Source::Parts => {
                for (version, entities) in (1..).zip(entities.chunks(entities.len().div_ceil(2).max(1))) {
                    let mut made = Vec::new();
                    entities.iter().for_each(|entity| plan.reduce(&mut made, entity, version));
                    if !made.is_empty() {
                        merger.part(&made.into()).unwrap();
                    }
                }
            }
        }
        merger.finish().unwrap()
    }

    /// Returns all results as text.
    pub(crate) fn results(&self, entities: &[Bytes], query: &str) -> Vec<String> {
        let result = self.page(entities, query, 0, usize::MAX);
        assert_eq!(result.count, result.rows.len() as u64, "{query}");
        let results = |cell: &Bytes| match Value::read(cell.clone()) {
            None => "-".to_owned(),
            Some(Value::Text(text)) => text.into_owned(),
            Some(Value::Int(number)) => number.to_string(),
            Some(Value::Long(number)) => format!("{number}L"),
            Some(Value::Double(number)) => format!("{number:?}"),
            Some(other) => format!("{other:?}"),
        };
        result.rows.iter().map(|row| row.iter().map(results).collect::<Vec<_>>().join(" ")).collect()
    }
}

impl Types for Shop {
    fn message(&self, name: &str) -> Option<MessageDescriptor> {
        self.0.get_message_by_name(name)
    }

    fn id(&self, name: &str) -> Option<u32> {
        (name == "shop.Item").then_some(ID)
    }

    fn names(&self) -> Vec<String> {
        self.0.all_messages().map(|message| message.full_name().to_owned()).collect()
    }
}

/// An entity under construction.
#[derive(Clone, Default)]
pub(crate) struct Item(Vec<u8>);

impl Item {
    pub(crate) fn named(name: &str) -> Self {
        Self::default().text(1, name)
    }

    pub(crate) fn text(mut self, field: u32, text: &str) -> Self {
        put_tag(&mut self.0, field, LENGTH);
        put_bytes(&mut self.0, text.as_bytes());
        self
    }

    pub(crate) fn number(mut self, field: u32, number: i64) -> Self {
        put_tag(&mut self.0, field, VARINT);
        put_varint(&mut self.0, number.cast_unsigned());
        self
    }

    pub(crate) fn weight(mut self, weight: f64) -> Self {
        put_tag(&mut self.0, 7, EIGHT);
        self.0.extend(weight.to_le_bytes());
        self
    }

    pub(crate) fn maker(mut self, field: u32, name: Option<&str>, founded: Option<i64>) -> Self {
        let maker = name.map_or_else(Self::default, |name| Self::default().text(1, name));
        let maker = founded.map_or_else(|| maker.clone(), |founded| maker.clone().number(2, founded));
        put_tag(&mut self.0, field, LENGTH);
        put_bytes(&mut self.0, &maker.0);
        self
    }

    /// Wrapped with the type id.
    pub(crate) fn wrapped(&self) -> Bytes {
        let mut out = Vec::new();
        put_tag(&mut out, TYPE_ID, VARINT);
        put_varint(&mut out, ID.into());
        put_tag(&mut out, MESSAGE, LENGTH);
        put_bytes(&mut out, &self.0);
        out.into()
    }

    /// Wrapped with a type name.
    pub(crate) fn wrapped_as(&self, name: &str) -> Bytes {
        let mut out = Vec::new();
        put_tag(&mut out, TYPE_NAME, LENGTH);
        put_bytes(&mut out, name.as_bytes());
        put_tag(&mut out, MESSAGE, LENGTH);
        put_bytes(&mut out, &self.0);
        out.into()
    }
}

/// The entities of the shop.
pub(crate) fn items() -> Vec<Bytes> {
    vec![
        Item::named("Emma")
            .number(2, 12)
            .number(3, 1)
            .maker(4, Some("Penguin"), Some(1935))
            .text(5, "novel")
            .text(5, "classic")
            .weight(0.5)
            .wrapped(),
        Item::named("Alien")
            .number(2, 15)
            .number(3, 2)
            .maker(4, None, Some(1979))
            .text(5, "space")
            .number(8, 5)
            .weight(0.25)
            .number(10, 1)
            .number(10, 7)
            .wrapped_as("shop.Item"),
        Item::named("Go")
            .number(2, 30)
            .maker(6, Some("A"), Some(1))
            .maker(6, Some("B"), None)
            .weight(-0.0)
            .number(11, 1)
            .wrapped(),
        Item::default().number(2, 7).wrapped(),
        Item::named("Maker").wrapped_as("shop.Maker"),
        Bytes::from_static(b"\x4a\x04Emma"),
        Bytes::from_static(b"\x98\x01"),
    ]
}
