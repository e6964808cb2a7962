//! Searches compared with conditions, over entities in memory.

use std::collections::BTreeMap;

use consort_protostream::wire::{
    EIGHT, FOUR, LENGTH, MESSAGE, TYPE_ID, TYPE_NAME, VARINT, put_bytes, put_tag, put_varint,
};
use proptest::prelude::*;
use protox::prost_reflect::{DescriptorPool, MessageDescriptor};

use super::*;
use crate::limits::INDEXED_BYTES_MAX;
use crate::{Plan, Statement, Types};

const SCHEMA: &str = r#"
syntax = "proto2";
package shop;

/** @Indexed */
message Maker {
    /** @Keyword */
    optional string name = 1;
    /** @Basic */
    optional int32 founded = 2;
}

/**
 * @Indexed
 * @TypeId(7)
 */

message Item {
    /** @Keyword(projectable = true) */
    optional string name = 1;
    /** @Basic */
    optional int32 price = 2;
    /** @Embedded */
    optional Maker maker = 4;
    /** @Basic */
    repeated string tags = 5;
    /** @Embedded */
    repeated Maker others = 6;
    /** @Decimal */
    optional double weight = 7;

    // @Basic
    optional int32 stars = 8 [default = 3];
    optional int32 hidden = 9;
    /** @Text */
    optional string about = 10;
    /** @Basic */
    optional float size = 11;
    /** @Basic */
    optional bool sold = 12;
    /** @Basic */
    optional int64 stock = 13;
}

message Plain {
    optional int32 a = 1;
}
"#;

struct Shop(DescriptorPool);

impl Shop {
    fn open() -> Self {
        let file = protox::file::File::from_source("shop.proto", SCHEMA).unwrap();
        let mut files = DescriptorPool::new();
        files.add_file_descriptor_proto(file.file_descriptor_proto().clone()).unwrap();
        Self(files)
    }

    fn index(&self) -> IndexSchema {
        IndexSchema::new(self, ["shop.Maker", "shop.Item"]).0
    }

    fn plan(&self, query: &str) -> Plan {
        Statement::parse(query).unwrap().compile(self, &BTreeMap::new()).unwrap().plan
    }
}

impl Types for Shop {
    fn message(&self, name: &str) -> Option<MessageDescriptor> {
        self.0.get_message_by_name(name)
    }

    fn id(&self, name: &str) -> Option<u32> {
        (name == "shop.Item").then_some(7)
    }

    fn names(&self) -> Vec<String> {
        self.0.all_messages().map(|message| message.full_name().to_owned()).collect()
    }
}

/// Whether a search finds an entity. An entity with unknown fields is always found.
fn finds(index: &IndexSchema, search: &Search, entity: &[u8]) -> bool {
    let mut values = Vec::new();
    if index.read(entity, |field, value| values.push((field, value.to_vec()))).is_err() {
        return true;
    }
    matches(search, &values)
}

fn matches(search: &Search, values: &[(u16, Vec<u8>)]) -> bool {
    let some = |field: &u16, is_it: &dyn Fn(&[u8]) -> bool| {
        values.iter().any(|(of, value)| of == field && is_it(value))
    };
    match search {
        Search::Equal { field, value } => some(field, &|own| own == &value[..]),
        Search::Range { field, from, to } => some(field, &|own| {
            own >= &from[..]
                && match to {
                    RangeEnd::Value(to) => own <= &to[..],
                    RangeEnd::Prefix(to) => own.starts_with(to) || own < &to[..],
                }
        }),
        Search::All(all) => all.iter().all(|one| matches(one, values)),
        Search::Any(any) => any.iter().any(|one| matches(one, values)),
    }
}

#[derive(Clone, Default, Debug)]
struct Item {
    name: Option<String>,
    price: Option<i32>,
    maker: Option<(Option<String>, Option<i32>)>,
    tags: Vec<String>,
    others: Vec<(Option<String>, Option<i32>)>,
    weight: Option<f64>,
    stars: Option<i32>,
    size: Option<f32>,
    sold: Option<bool>,
    stock: Option<i64>,
    has_id: bool,
}

fn put_text(out: &mut Vec<u8>, number: u32, text: &str) {
    put_tag(out, number, LENGTH);
    put_bytes(out, text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, number: u32, of: i64) {
    put_tag(out, number, VARINT);
    put_varint(out, of.cast_unsigned());
}

fn maker((name, founded): &(Option<String>, Option<i32>)) -> Vec<u8> {
    let mut out = Vec::new();
    name.iter().for_each(|name| put_text(&mut out, 1, name));
    founded.iter().for_each(|founded| put_number(&mut out, 2, (*founded).into()));
    out
}

impl Item {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.name.iter().for_each(|name| put_text(&mut out, 1, name));
        self.price.iter().for_each(|price| put_number(&mut out, 2, (*price).into()));
        for (number, one) in
            self.maker.iter().map(|one| (4, one)).chain(self.others.iter().map(|one| (6, one)))
        {
            put_tag(&mut out, number, LENGTH);
            put_bytes(&mut out, &maker(one));
        }
        self.tags.iter().for_each(|tag| put_text(&mut out, 5, tag));
        if let Some(weight) = self.weight {
            put_tag(&mut out, 7, EIGHT);
            out.extend(weight.to_le_bytes());
        }
        self.stars.iter().for_each(|stars| put_number(&mut out, 8, (*stars).into()));
        if let Some(size) = self.size {
            put_tag(&mut out, 11, FOUR);
            out.extend(size.to_le_bytes());
        }
        self.sold.iter().for_each(|sold| put_number(&mut out, 12, (*sold).into()));
        self.stock.iter().for_each(|stock| put_number(&mut out, 13, *stock));
        let mut wrapped = Vec::new();
        if self.has_id {
            put_number(&mut wrapped, TYPE_ID, 7);
        } else {
            put_text(&mut wrapped, TYPE_NAME, "shop.Item");
        }
        put_tag(&mut wrapped, MESSAGE, LENGTH);
        put_bytes(&mut wrapped, &out);
        wrapped
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["", "a", "ab", "abc", "b", "\u{ffee}", "\u{1f600}", "ab\u{e000}"])
            .prop_map(str::to_owned),
        Just("x".repeat(INDEXED_BYTES_MAX + 2)),
        Just("x".repeat(INDEXED_BYTES_MAX + 2) + "y"),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let maker = || (prop::option::of(text()), prop::option::of(-2..3_i32));
    let weights = prop::sample::select(vec![0.0, -0.0, -1.5, 2.0, f64::NAN, -f64::NAN, f64::INFINITY]);
    let sizes = prop::sample::select(vec![0.0_f32, -0.0, -1.5, 2.0, f32::NAN]);
    let stock = prop::sample::select(vec![i64::MIN, -1, 0, 1, i64::MAX]);
    let first = (prop::option::of(text()), prop::option::of(-2..3_i32), prop::option::of(maker()));
    let second = (
        prop::collection::vec(text(), 0..3),
        prop::collection::vec(maker(), 0..3),
        prop::option::of(weights),
    );
    let third = (
        prop::option::of(0..5_i32),
        prop::option::of(sizes),
        any::<Option<bool>>(),
        prop::option::of(stock),
        any::<bool>(),
    );
    (first, second, third).prop_map(
        |((name, price, maker), (tags, others, weight), (stars, size, sold, stock, has_id))| Item {
            name,
            price,
            maker,
            tags,
            others,
            weight,
            stars,
            size,
            sold,
            stock,
            has_id,
        },
    )
}

fn condition() -> impl Strategy<Value = String> {
    let texts = ["name", "maker.name", "tags", "others.name"].map(|path| (path, "'"));
    let numbers = ["price", "maker.founded", "others.founded", "stars", "weight", "size", "stock", "hidden"]
        .map(|path| (path, ""));
    let field = prop::sample::select(texts.into_iter().chain(numbers).collect::<Vec<_>>());
    let value = (prop::sample::select(vec!["", "a", "ab", "b", "\u{1f600}"]), -2..4_i32);
    let operator = prop::sample::select(vec![
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "BETWEEN",
        "IN",
        "IS NULL",
        "IS NOT NULL",
        "LIKE",
    ]);
    let test = (field, operator, value.clone(), value).prop_map(|((path, quote), operator, one, other)| {
        let of = |(text, number): (&str, i32)| {
            if quote.is_empty() { number.to_string() } else { format!("'{text}'") }
        };
        let (one_text, one, other) = (one.0, of(one), of(other));
        match operator {
            "BETWEEN" => format!("{path} BETWEEN {one} AND {other}"),
            "IN" => format!("{path} IN ({one}, {other})"),
            "LIKE" if quote.is_empty() => format!("{path} > {one}"),
            "LIKE" => format!("{path} LIKE '{one_text}%'"),
            "IS NULL" | "IS NOT NULL" => format!("{path} {operator}"),
            _ => format!("{path} {operator} {one}"),
        }
    });
    test.prop_recursive(3, 12, 3, |inner| {
        (prop::collection::vec(inner, 1..4), prop::sample::select(vec![" AND ", " OR "]), any::<bool>())
            .prop_map(|(all, operator, is_negated)| {
                format!("{}({})", if is_negated { "NOT " } else { "" }, all.join(operator))
            })
    })
}

proptest! {
    #[test]
    fn search_finds_each_entity_for_which_the_condition_holds(
        items in prop::collection::vec(item(), 1..12),
        condition in condition(),
    ) {
        let shop = Shop::open();
        let (index, plan) = (shop.index(), shop.plan(&format!("FROM shop.Item WHERE {condition}")));
        if let Some(search) = index.search(&plan) {
            for item in items {
                let entity = item.write();
                if plan.holds(&entity).unwrap() {
                    prop_assert!(finds(&index, &search, &entity), "{condition}: {search:?} misses {item:?}");
                }
            }
        }
    }
}

proptest! {
    /// Clients write any bytes: they are read without a panic, and damaged entities are found as long as a scan finds them.
    #[test]
    fn damaged_entities_are_found_as_by_a_scan(
        item in item(),
        condition in condition(),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let shop = Shop::open();
        let (index, plan) = (shop.index(), shop.plan(&format!("FROM shop.Item WHERE {condition}")));
        let mut entity = item.write();
        for (at, byte) in damages {
            let at = at.index(entity.len());
            entity[at] = byte;
        }
        if is_cut {
            entity.truncate(cut.index(entity.len() + 1));
        }
        let _ = index.read(&entity, |_, _| ());
        if let Some(search) = index.search(&plan)
            && plan.holds(&entity) == Ok(true)
        {
            prop_assert!(finds(&index, &search, &entity), "{condition}: {search:?} misses {entity:?}");
        }
    }
}

#[test]
fn selective_conditions_have_a_search_and_others_none() {
    let shop = Shop::open();
    let index = shop.index();
    let search = |condition: &str| index.search(&shop.plan(&format!("FROM shop.Item i WHERE {condition}")));
    for condition in [
        "i.name = 'a'",
        "i.price > 3",
        "i.price BETWEEN 1 AND 3",
        "i.maker.founded IN (1, 2)",
        "i.tags = 'x' OR i.price < 0",
        "i.hidden = 3 AND i.price = 2",
        "i.name LIKE 'ab%'",
        "i.name IS NULL",
        "NOT (i.price < 2)",
        "i.weight <= 2.5 AND i.weight > 1",
    ] {
        assert!(search(condition).is_some(), "{condition}");
    }
    for condition in
        ["i.hidden = 3", "i.hidden = 3 OR i.price = 2", "i.name <> 'a'", "NOT (i.name = 'a' AND i.price = 2)"]
    {
        assert!(search(condition).is_none(), "{condition}");
    }
    assert!(index.search(&shop.plan("FROM shop.Item")).is_none());
    assert!(index.search(&shop.plan("FROM shop.Plain WHERE a = 1")).is_none());
    // Both ends belong to one range; with several values per entity each end may be met by another one.
    assert!(matches!(search("i.price > 1 AND i.price < 3"), Some(Search::Range { .. })));
    assert!(matches!(search("i.tags > 'a' AND i.tags < 'c'"), Some(Search::All(_))));
    assert!(matches!(search("i.price >= 2 AND i.price <= 2"), Some(Search::Equal { .. })));
}

#[test]
fn parts_of_schemas_without_an_index_are_named() {
    let shop = Shop::open();
    let (index, errors) = IndexSchema::new(&shop, ["shop.Item", "shop.Plain", "shop.Missing"]);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "field 'about' of 'shop.Item' is not indexed: there is no index for @Text",
            "type 'shop.Plain' has no annotation @Indexed: its entities are not indexed",
            "type 'shop.Missing' is not in the registered schemas: its entities are not indexed before it is",
        ]
    );
    assert_eq!(index.types().collect::<Vec<_>>(), ["shop.Item"]);
    assert!(!index.is_empty() && IndexSchema::default().is_empty());
}

#[test]
fn invalid_messages_have_unknown_fields_and_other_values_none() {
    let shop = Shop::open();
    let index = shop.index();
    let read = |value: &[u8]| {
        let mut fields = 0;
        index.read(value, |_, _| fields += 1).map(|()| fields)
    };
    let entity = Item { price: Some(1), ..Item::default() }.write();
    assert!(read(&entity).unwrap() >= 11);
    assert_eq!(read(b"text"), Ok(0));
    let mut odd = Vec::new();
    put_text(&mut odd, TYPE_NAME, "shop.Item");
    put_tag(&mut odd, MESSAGE, LENGTH);
    put_bytes(&mut odd, &[0xff, 0xff]);
    assert_eq!(read(&odd), Err(UnknownFields));
    // A message twice has two values where queries expect one.
    let mut twice = Vec::new();
    put_text(&mut twice, TYPE_NAME, "shop.Item");
    let mut message = Vec::new();
    for founded in [1, 2] {
        put_tag(&mut message, 4, LENGTH);
        put_bytes(&mut message, &maker(&(None, Some(founded))));
    }
    put_tag(&mut twice, MESSAGE, LENGTH);
    put_bytes(&mut twice, &message);
    assert_eq!(read(&twice), Err(UnknownFields));
}
