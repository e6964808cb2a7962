//! Results of queries.

use consort_protostream::{QueryRequest, QueryResponse, Wrapped};
use consort_query::QueryResult;

use crate::shop::{Item, Shop, items};

fn names(query: &str) -> Vec<String> {
    Shop::open().results(&items(), &format!("SELECT name FROM shop.Item i {query} ORDER BY name"))
}

#[test]
fn conditions_hold_or_not_and_nothing_is_neither_less_nor_more() {
    for (query, found) in [
        ("", &["-", "Alien", "Emma", "Go"][..]),
        ("WHERE price > 12", &["Alien", "Go"]),
        ("WHERE i.price >= 12 AND NOT name LIKE 'E%'", &["Alien", "Go"]),
        ("WHERE kind = 'BOOK' OR kind = 2", &["Alien", "Emma"]),
        ("WHERE kind != 'BOOK'", &["-", "Alien", "Go"]),
        ("WHERE NOT (kind > 'NONE' AND price < 14)", &["Alien", "Go"]),
        ("WHERE kind < 2 OR NOT kind < 2", &["Alien", "Emma"]),
        ("WHERE name IS NULL", &["-"]),
        ("WHERE maker IS NOT NULL", &["Alien", "Emma"]),
        ("WHERE maker.name IS NULL", &["-", "Alien", "Go"]),
        ("WHERE i.maker.founded BETWEEN 1930 AND 1940", &["Emma"]),
        ("WHERE price NOT BETWEEN 10 AND 20", &["-", "Go"]),
        ("WHERE price IN (7, 30)", &["-", "Go"]),
        ("WHERE price NOT IN (7, 30)", &["Alien", "Emma"]),
        ("WHERE stars = 3", &["-", "Emma", "Go"]),
        // As in Java, which has two zeros.
        ("WHERE weight < 0", &["Go"]),
        ("WHERE weight <= 0 AND sold = TRUE", &["Go"]),
        ("WHERE false OR price = 12", &["Emma"]),
        ("WHERE false", &[]),
    ] {
        assert_eq!(names(query), found, "{query}");
    }
}

#[test]
fn one_of_several_values_is_enough() {
    for (query, found) in [
        ("WHERE tags = 'classic'", &["Emma"][..]),
        ("WHERE tags != 'space'", &["-", "Emma", "Go"]),
        ("WHERE NOT tags = 'classic'", &["-", "Alien", "Emma", "Go"]),
        ("WHERE tags IS EMPTY", &["-", "Go"]),
        ("WHERE sizes > 6 AND sizes < 2", &["Alien"]),
        ("WHERE others.founded = 1 AND others.name = 'B'", &["Go"]),
        ("WHERE others.founded IS NULL", &["-", "Alien", "Emma", "Go"]),
        ("JOIN i.others o WHERE o.name > 'A'", &["Go"]),
    ] {
        assert_eq!(names(query), found, "{query}");
    }
}

#[test]
fn groups_are_counted_summed_and_held_against_what_they_are_to_have() {
    let shop = Shop::open();
    for (query, results) in [
        (
            "SELECT COUNT(*), SUM(price), AVG(price), MIN(name), MAX(weight) FROM shop.Item",
            &["4L 64L 16.0 Alien 0.5"][..],
        ),
        ("SELECT COUNT(name), SUM(weight), COUNT(sizes), SUM(sizes) FROM shop.Item", &["3L 0.75 2L 8L"]),
        ("SELECT SUM(price), COUNT(*) FROM shop.Item WHERE price > 100", &["- 0L"]),
        ("SELECT kind, COUNT(*) FROM shop.Item GROUP BY kind ORDER BY kind DESC", &["2 1L", "1 1L", "- 2L"]),
        ("SELECT COUNT(*) FROM shop.Item GROUP BY kind HAVING SUM(price) > 20", &["2L"]),
        (
            "SELECT kind FROM shop.Item GROUP BY kind HAVING kind = 'BOOK' OR COUNT(*) = 2 ORDER BY COUNT(*)",
            &["1", "-"],
        ),
        ("SELECT COUNT(DISTINCT stars) FROM shop.Item", &["2L"]),
        ("SELECT DISTINCT stars FROM shop.Item ORDER BY stars DESC", &["5", "3"]),
        ("SELECT COUNT(*) FROM shop.Item GROUP BY kind HAVING false", &[]),
    ] {
        assert_eq!(shop.results(&items(), query), results, "{query}");
    }
}

#[test]
fn pages_are_parts_of_one_order() {
    let shop = Shop::open();
    let many: Vec<_> =
        (0..50).map(|at| Item::named(&format!("n{:02}", at * 7 % 50)).number(2, at % 3).wrapped()).collect();
    for query in [
        "SELECT name FROM shop.Item ORDER BY price DESC",
        "SELECT name, COUNT(*) FROM shop.Item GROUP BY name ORDER BY name",
        "FROM shop.Item ORDER BY price, name DESC",
    ] {
        let all = shop.page(&many, query, 0, usize::MAX);
        assert_eq!((all.rows.len(), all.count), (50, 50));
        for (offset, max) in [(0, 0), (0, 7), (7, 7), (45, 7), (60, 7), (3, usize::MAX)] {
            let page = shop.page(&many, query, offset, max);
            let rows: Vec<_> = all.rows.iter().skip(offset).take(max).cloned().collect();
            assert_eq!((page.rows, page.count), (rows, 50), "{query} from {offset}");
        }
    }
    assert_eq!(shop.page(&many, "FROM shop.Item", 5, 7).rows.len(), 7);
}

#[test]
fn parameters_become_what_they_stand_beside() {
    let shop = Shop::open();
    let holds = |query: &str, value: Wrapped| {
        let compiled = shop.compile(&format!("FROM shop.Item WHERE {query}"), &[("p", value)]).unwrap();
        items().iter().filter(|item| compiled.plan.holds(item).unwrap()).count()
    };
    for (query, value, found) in [
        ("price > :p", Wrapped::from(12), 2),
        ("price > :p", 14.9.into(), 2),
        ("price > : p", "12".into(), 2),
        ("name = :p", "Emma".into(), 1),
        ("name LIKE :p", "%a%".into(), 1),
        ("sold = :p", "TRUE".into(), 1),
        ("sold = :p", true.into(), 1),
        ("kind = :p", 1_i64.into(), 1),
        ("kind = :p", "FILM".into(), 1),
        ("weight = :p", 0.25.into(), 1),
        ("price IN (:p, 7)", 30.into(), 2),
        ("code = :p", Wrapped::Bytes(b"x"[..].into()), 0),
    ] {
        assert_eq!(holds(query, value.clone()), found, "{query} with {value:?}");
    }
}

#[test]
fn requests_and_answers_are_read_as_they_were_written() {
    let request = QueryRequest {
        query: "FROM a.B WHERE c = :c".to_owned(),
        offset: Some(7),
        max: Some(0),
        accuracy: Some(9),
        is_local: true,
        parameters: [("c".to_owned(), Wrapped::from("d")), ("e".to_owned(), 1.5.into())].into(),
    };
    assert_eq!(QueryRequest::read(&request.write()), Ok(request.clone()));
    let json = r#"{"queryString":"FROM a.B WHERE c = :c","startOffset":7,"maxResults":0,"hitCountAccuracy":9,"local":true,
        "namedParameters":[{"name":"c","value":"d"},{"name":"e","value":1.5}]}"#;
    assert_eq!(QueryRequest::from_json(json), Ok(request));
    assert!(QueryRequest::from_json("{}").is_err());
    let shop = Shop::open();
    for (query, columns) in [("FROM shop.Item", 0), ("SELECT i, name FROM shop.Item i ORDER BY price", 2)] {
        let QueryResult { rows, count } = shop.page(&items(), query, 1, 2);
        let response = QueryResponse { columns, rows, count, is_exact: true };
        let read = QueryResponse::read(&response.write(|column| column == 0)).unwrap();
        assert_eq!(read, response, "{query}");
        assert_eq!((read.count, read.rows.len()), (4, 2));
    }
}
