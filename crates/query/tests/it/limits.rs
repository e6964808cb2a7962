//! The limits of a query: each has an error with its number.

use bytes::Bytes;
use consort_protostream::Wrapped;
use consort_query::limits::{
    CONSTANTS_BYTES_MAX, ENTITY_STEPS_MAX, JOINS_MAX, MISSPELLED_MAX, PATTERNS_MAX, TEXT_MAX,
};
use consort_query::{Exceeded, MergeError, ResultMerger, Work};

use crate::shop::{Item, Shop};

fn item_with_sizes(count: usize) -> Bytes {
    let sizes = (0..count).fold(Item::default(), |item, nth| item.number(10, nth as i64));
    sizes.wrapped()
}

#[test]
fn entity_with_many_values_and_a_long_list_takes_no_more_steps_than_the_limit() {
    let shop = Shop::open();
    let mut query = "FROM shop.Item WHERE sizes IN (-1".to_owned();
    while query.len() < TEXT_MAX - 4 {
        query.push_str(",-2");
    }
    query.push(')');
    let compiled = shop.compile(&query, &[]).unwrap();
    let entity = item_with_sizes(100_000);
    let mut work = Work::default();
    assert_eq!(compiled.plan.examine(&entity, 1, &mut work), Err(Exceeded));
    assert!(work.done() <= ENTITY_STEPS_MAX + 1_000, "{} steps", work.done());
    // The same list passes with another entity.
    assert_eq!(compiled.plan.examine(&item_with_sizes(3), 1, &mut Work::default()), Ok(None));
}

#[test]
fn query_fails_with_the_limit_where_an_owner_could_not_examine_an_entity() {
    let shop = Shop::open();
    let entity = item_with_sizes(1_050_000);
    for query in [
        "FROM shop.Item WHERE sizes = -1",
        "FROM shop.Item WHERE sizes = -1 ORDER BY price",
        "SELECT COUNT(*) FROM shop.Item WHERE sizes = -1",
        "SELECT price, MAX(stars) FROM shop.Item WHERE sizes = -1 GROUP BY price",
    ] {
        let compiled = shop.compile(query, &[]).unwrap();
        let mut merger = ResultMerger::new(&compiled, 0, 10);
        let row = Bytes::from(compiled.plan.row(&entity, 1).expect("it says that it could not be made"));
        let error = merger.row(row).unwrap_err();
        assert_eq!(error, MergeError::Exceeded(Exceeded), "{query}");
        assert!(error.to_string().contains(&ENTITY_STEPS_MAX.to_string()), "{error}");
        let mut made = Vec::new();
        compiled.plan.reduce(&mut made, &entity, 1);
        let made = Bytes::from(made);
        assert_eq!(
            ResultMerger::new(&compiled, 0, 10).part(&made),
            Err(MergeError::Exceeded(Exceeded)),
            "{query}"
        );
        assert_eq!(
            ResultMerger::new(&compiled, 0, 10).more(&made),
            Err(MergeError::Exceeded(Exceeded)),
            "{query}"
        );
        assert_eq!(compiled.plan.holds(&entity), Err(Exceeded), "{query}");
    }
}

#[test]
fn row_with_the_same_long_text_in_many_columns_is_not_made() {
    let shop = Shop::open();
    let entity = Item::named(&"x".repeat(1024 * 1024)).wrapped();
    let query = format!("SELECT name{} FROM shop.Item", ",name".repeat(900));
    let compiled = shop.compile(&query, &[]).unwrap();
    let row = compiled.plan.row(&entity, 1).expect("it says that it could not be made");
    assert!(row.len() < 100, "{} bytes", row.len());
    assert_eq!(ResultMerger::new(&compiled, 0, 10).row(row.into()), Err(MergeError::Exceeded(Exceeded)));
}

#[test]
fn query_with_too_many_patterns_constants_or_joins_is_refused_with_the_limit() {
    let shop = Shop::open();
    let refused = |query: &str, parameters: &[(&str, Wrapped)], limit: usize| {
        let error = shop.compile(query, parameters).unwrap_err().to_string();
        assert!(error.contains(&limit.to_string()), "{error}");
    };
    let likes =
        |count| format!("FROM shop.Item WHERE name LIKE '%a%'{}", " OR name LIKE 'b%'".repeat(count - 1));
    shop.compile(&likes(PATTERNS_MAX), &[]).unwrap();
    refused(&likes(PATTERNS_MAX + 1), &[], PATTERNS_MAX);
    // A parameter counts once per use.
    let text = ("p", Wrapped::Text("x".repeat(CONSTANTS_BYTES_MAX / 2)));
    let uses = |count: usize| format!("FROM shop.Item WHERE name = :p{}", " OR name = :p".repeat(count - 1));
    shop.compile(&uses(2), std::slice::from_ref(&text)).unwrap();
    refused(&uses(3), &[text], CONSTANTS_BYTES_MAX);
    let joins = |count: usize| format!("FROM shop.Item i{}", " JOIN i.others o".repeat(count));
    shop.compile(&joins(JOINS_MAX), &[]).unwrap();
    refused(&joins(JOINS_MAX + 1), &[], JOINS_MAX);
}

#[test]
fn name_that_is_too_long_to_be_a_misspelled_one_is_compared_with_none() {
    let shop = Shop::open();
    let name = format!("shop.Item{}", "x".repeat(3));
    assert!(shop.compile(&format!("FROM {name}"), &[]).unwrap_err().to_string().contains("Did you mean"));
    let name = format!("shop.Item{}", "x".repeat(MISSPELLED_MAX));
    assert!(!shop.compile(&format!("FROM {name}"), &[]).unwrap_err().to_string().contains("Did you mean"));
}
