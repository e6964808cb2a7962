//! Any text is parsed or refused without a panic.

use bytes::Bytes;
use consort_protostream::{QueryRequest, QueryResponse};
use consort_query::Plan;
use proptest::prelude::*;

use crate::shop::{Shop, items};

/// Random sequences of query fragments.
fn pieces() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "FROM",
        "shop.Item",
        "i",
        "WHERE",
        "price",
        "name",
        "tags",
        "maker",
        ".",
        "=",
        "<",
        ">=",
        "<>",
        "12",
        "-1.5",
        "'x%'",
        ":p",
        "AND",
        "OR",
        "NOT",
        "(",
        ")",
        "IN",
        "BETWEEN",
        "LIKE",
        "IS",
        "NULL",
        "SELECT",
        "COUNT",
        "SUM",
        "*",
        ",",
        "GROUP",
        "BY",
        "HAVING",
        "ORDER",
        "DESC",
        "DELETE",
        "JOIN",
        "AS",
        "TRUE",
        ";",
        "\n",
        "é",
    ]);
    prop::collection::vec(pieces, 0..20).prop_map(|pieces| pieces.join(" "))
}

/// Random valid conditions.
fn condition() -> impl Strategy<Value = String> {
    let test = prop::sample::select(vec![
        "price > 12",
        "price = 7",
        "name LIKE '%a%'",
        "kind IN ('BOOK', 2)",
        "tags = 'novel'",
        "tags != 'space'",
        "maker.founded BETWEEN 1900 AND 1950",
        "name IS NULL",
        "sizes > 3",
        "others.name = 'B'",
        "stars = 3",
        "true",
    ]);
    test.prop_map(str::to_owned).prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("({one} AND {other})")),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("({one} OR {other})")),
            inner.prop_map(|one| format!("NOT ({one})")),
        ]
    })
}

proptest! {
    #[test]
    fn texts_are_read_or_refused_where_they_are_wrong(text in prop_oneof![any::<String>(), pieces()]) {
        match Shop::open().compile(&text, &[("p", "x".into())]) {
            Ok(compiled) => prop_assert_eq!(Plan::from_bytes(&compiled.plan.to_bytes()), Some(compiled.plan)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn both_and_either_are_what_they_say(one in condition(), other in condition()) {
        let shop = Shop::open();
        let holds = |condition: &str| -> Vec<bool> {
            let compiled = shop.compile(&format!("FROM shop.Item WHERE {condition}"), &[]).unwrap();
            let plan = Plan::from_bytes(&compiled.plan.to_bytes()).unwrap();
            items().iter().map(|item| plan.holds(item).unwrap()).collect()
        };
        let of_type = holds("true");
        let (ones, others) = (holds(&one), holds(&other));
        let pairs = || ones.iter().zip(&others);
        prop_assert_eq!(holds(&format!("{one} AND {other}")), pairs().map(|(a, b)| *a && *b).collect::<Vec<_>>());
        prop_assert_eq!(holds(&format!("{one} OR {other}")), pairs().map(|(a, b)| *a || *b).collect::<Vec<_>>());
        prop_assert_eq!(holds(&format!("NOT NOT ({one})")), ones.clone());
        prop_assert_eq!(
            holds(&format!("NOT ({one} AND {other})")),
            holds(&format!("NOT ({one}) OR NOT ({other})"))
        );
        prop_assert!(ones.iter().zip(&of_type).all(|(one, of_type)| *of_type || !one));
    }

    #[test]
    fn bytes_are_a_plan_an_entity_a_request_or_nothing(bytes: Vec<u8>) {
        let plan = Shop::open().compile("SELECT tags, others.name FROM shop.Item", &[]);
        prop_assert!(plan.is_err());
        let plan = Shop::open().compile("SELECT COUNT(tags), COUNT(others.name) FROM shop.Item", &[]).unwrap().plan;
        let _ = plan.row(&bytes, 1);
        if let Some(plan) = Plan::from_bytes(&bytes) {
            let _ = plan.row(&items()[0], 1);
        }
        let _ = (QueryRequest::read(&bytes), QueryResponse::read(&Bytes::from(bytes)));
    }

    #[test]
    fn a_plan_that_was_damaged_is_a_plan_or_nothing(at in 0_usize..400, with: u8) {
        let query = "SELECT name, i FROM shop.Item i WHERE tags LIKE 'a%' AND (maker.founded > 3 OR kind = 2) ORDER BY price";
        let mut bytes = Shop::open().compile(query, &[]).unwrap().plan.to_bytes();
        let at = at % bytes.len();
        bytes[at] = with;
        if let Some(plan) = Plan::from_bytes(&bytes) {
            items().iter().for_each(|item| drop(plan.row(item, 1)));
        }
    }
}
