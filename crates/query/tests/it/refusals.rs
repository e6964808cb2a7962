//! Invalid queries, with the position of the error.

use consort_query::{QueryErrorKind, Statement};

use crate::shop::Shop;

#[test]
fn errors_name_their_position_and_suggest_a_correction() {
    let shop = Shop::open();
    for (query, expected) in [
        ("", "SELECT, FROM or DELETE is expected, not the end (line 1, character 1)"),
        ("FROM", "the name of a type is expected, not the end"),
        ("FROM Item", "ISPN028510: Unknown entity name Item Did you mean shop.Item? (line 1, character 6)"),
        ("FROM shop.Itme", "Did you mean shop.Item?"),
        (
            "FROM shop.Item WHERE\n  prize = 1",
            "property named 'prize'. Did you mean price? (line 2, character 3)",
        ),
        (
            "FROM shop.Item i WHERE i.maker.nam = 'x'",
            "The type shop.Maker does not have an accessible property named 'nam'. Did you mean name?",
        ),
        ("FROM shop.Item i WHERE j.name = 'x'", "ISPN028502: Unknown alias: j. Did you mean i?"),
        (
            "FROM shop.Item WHERE price = 'x'",
            "ISPN028505: Invalid numeric literal 'x' (line 1, character 30)",
        ),
        ("FROM shop.Item WHERE price = 12L", "Invalid numeric literal '12L'"),
        (
            "FROM shop.Item WHERE kind = 'BOK'",
            "Invalid enum literal 'BOK' for enum type shop.Kind Did you mean BOOK?",
        ),
        ("FROM shop.Item WHERE sold = 'maybe'", "ISPN028507"),
        (
            "FROM shop.Item WHERE price = :p",
            "ISPN014825: Query parameter 'p' was not set (line 1, character 30)",
        ),
        ("FROM shop.Item WHERE price", "a comparison, IS, IN, BETWEEN or LIKE is expected, not the end"),
        ("FROM shop.Item WHERE price >", "a value such as 'text'"),
        ("FROM shop.Item WHERE 12 < price", "a field on the left of a comparison is expected, not '12'"),
        ("FROM shop.Item WHERE price = NULL", "use IS NULL for fields without one"),
        ("FROM shop.Item WHERE (price > 1", "')' is expected, not the end"),
        ("FROM shop.Item WHERE price > 1)", "the end is expected, not ')'"),
        ("FROM shop.Item WHERE maker = 'x'", "ISPN028504"),
        ("FROM shop.Item i WHERE i = 1", "ISPN028519"),
        ("FROM shop.Item WHERE name LIKE 7", ""),
        ("FROM shop.Item WHERE price LIKE '7'", "cannot compute pattern of 'price': its type is"),
        ("FROM shop.Item WHERE name : 'x'", "a full-text search needs an index"),
        ("FROM shop.Item WHERE +name : 'x'", "a full-text condition needs an index"),
        ("FROM shop.Item WHERE weight <-> [1, 2]~3", "a vector search needs an index"),
        ("FROM shop.Item WHERE maker WITHIN CIRCLE(1, 2, 3)", "a spatial search needs an index"),
        ("FROM shop.Item ORDER BY tags", "ISPN014024"),
        ("FROM shop.Item ORDER BY code", "cannot compute order of 'code': its type is bytes"),
        ("SELECT tags FROM shop.Item", "ISPN014027"),
        ("SELECT maker FROM shop.Item", "ISPN028503"),
        ("SELECT SUM(name) FROM shop.Item", "cannot compute sum of 'name': its type is"),
        ("SELECT name, COUNT(*) FROM shop.Item", "ISPN014026"),
        ("FROM shop.Item GROUP BY kind", "ISPN014021"),
        ("FROM shop.Item WHERE SUM(price) > 1", "ISPN028515"),
        ("SELECT kind FROM shop.Item GROUP BY SUM(price)", "ISPN028516"),
        ("FROM shop.Item, shop.Maker", "a query has one type"),
        ("DELETE FROM shop.Item ORDER BY name", "WHERE or the end is expected"),
        ("UPDATE shop.Item", "SELECT, FROM or DELETE is expected, not 'UPDATE'"),
    ] {
        match shop.compile(query, &[]) {
            Ok(_) => assert_eq!(expected, "", "{query} is right"),
            Err(error) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{query}: {error}");
            }
        }
    }
}

#[test]
fn nothing_is_read_that_is_nested_or_goes_on_without_end() {
    let deep =
        |depth: usize| format!("FROM shop.Item WHERE {}price = 1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Statement::parse(&deep(64)).is_ok());
    assert_eq!(Statement::parse(&deep(65)).unwrap_err().kind, QueryErrorKind::Deep);
    assert_eq!(Statement::parse(&"(".repeat(60_000)).unwrap_err().place, Some((1, 1)));
    assert!(Statement::parse(&format!("FROM shop.Item WHERE {} price = 1", "NOT ".repeat(10_000))).is_ok());
    assert_eq!(Statement::parse(&" ".repeat(70_000)).unwrap_err().kind, QueryErrorKind::Long(70_000));
    let path = format!("FROM shop.Item WHERE {} = 1", ["maker"; 40].join("."));
    assert_eq!(Statement::parse(&path).unwrap_err().kind, QueryErrorKind::Path);
    let shop = Shop::open();
    // A plan of maximum depth is encoded and decoded.
    let both = "(price = 1 OR name = 'a' AND NOT (".repeat(32) + "price = 2" + &"))".repeat(32);
    let compiled = shop.compile(&format!("FROM shop.Item WHERE {both}"), &[]).unwrap();
    assert_eq!(consort_query::Plan::from_bytes(&compiled.plan.to_bytes()).as_ref(), Some(&compiled.plan));
}
