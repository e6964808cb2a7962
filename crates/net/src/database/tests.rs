use consort_group::config::Property as _;
use consort_group::database::JdbcUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::database_settings::database_settings;

async fn read(database: &mut Database, settings: &DatabaseSettings) -> String {
    match database.perform(settings, RowRequest::Read { cluster: "demo".to_owned() }).await {
        Outcome::Failed(why) => {
            assert!(!why.contains("geheim"), "{why}");
            why
        }
        other => panic!("{other:?}"),
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    (listener, place)
}

#[tokio::test]
async fn attempts_to_connect_are_delayed_more_and_more_while_they_fail() {
    let (listener, place) = listen().await;
    drop(listener);
    let settings = database_settings(&format!("{place}/grid"));
    let mut database = Database::default();
    let mut delays = Vec::new();
    for _ in 0..8 {
        let why = read(&mut database, &settings).await;
        assert!(
            why.starts_with(&format!("cannot connect to {place}: ")) && why.contains("start the"),
            "{why}"
        );
        let (until, delay, _) = database.back_off.clone().unwrap();
        delays.push(delay.as_millis());
        // No attempt, and the same failure. An hour, so that a slow host does not reach the end of the delay.
        let until = until + Duration::from_secs(3_600);
        database.back_off.as_mut().unwrap().0 = until;
        assert_eq!(read(&mut database, &settings).await, why);
        assert_eq!(database.back_off.as_ref().unwrap().0, until);
        database.back_off.as_mut().unwrap().0 = Instant::now();
    }
    assert_eq!(delays, [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
}

#[tokio::test]
async fn server_that_does_not_respond_is_given_up_and_the_next_one_tried() {
    let (_listener, silent) = listen().await;
    let (listener, closed) = listen().await;
    drop(listener);
    let settings = database_settings(&format!("{silent},{closed}/grid?connectTimeout=1"));
    let why = read(&mut Database::default(), &settings).await;
    assert!(why.starts_with(&format!("cannot connect to {closed}: ")), "{why}");
    let settings = database_settings(&format!("{silent}/grid?connectTimeout=1"));
    let why = read(&mut Database::default(), &settings).await;
    assert!(why.starts_with(&format!("cannot connect to {silent}: no response within 1s")), "{why}");
}

#[tokio::test]
async fn response_beyond_the_bound_of_bytes_is_not_read() {
    let (listener, place) = listen().await;
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        // Authentication without a password, and a parameter of 1 GB.
        stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 0, b'S', 0x40, 0, 0, 0]).await.unwrap();
        let mut written = 0;
        while stream.write_all(&[b'x'; 65_536]).await.is_ok() {
            written += 65_536;
        }
        written
    });
    let settings = database_settings(&format!("{place}/grid?sslmode=disable"));
    let why = read(&mut Database::default(), &settings).await;
    assert!(why.contains("too many bytes"), "{why}");
    assert!(served.await.unwrap() < 4 * BYTES_MAX);
}

/// Returns a message of the server: its type and its content after the length.
fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len() + 4).unwrap();
    [&[kind][..], &len.to_be_bytes(), content].concat()
}

#[tokio::test]
async fn text_of_a_servers_failure_is_bounded_and_has_no_control_characters() {
    let (listener, place) = listen().await;
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        let text = format!("no\u{1b}[2J {}", "ä".repeat(100_000));
        let fields = [&b"SFATAL\0C42501\0M"[..], text.as_bytes(), b"\0\0"].concat();
        stream.write_all(&message(b'E', &fields)).await.unwrap();
        stream
    });
    let settings = database_settings(&format!("{place}/grid?sslmode=disable"));
    let why = read(&mut Database::default(), &settings).await;
    assert!(why.starts_with("no [2J ä") && why.contains("SQLSTATE 42501") && why.len() < 1_200, "{why}");
    drop(served.await.unwrap());
}

#[tokio::test]
async fn server_without_tls_is_refused_unless_the_mode_admits_it() {
    for mode in ["require", "verify-full&sslrootcert=/missing.pem"] {
        let (listener, place) = listen().await;
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 8];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(b"N").await.unwrap();
            stream.read(&mut request).await.unwrap()
        });
        let settings = database_settings(&format!("{place}/grid?sslmode={mode}"));
        let why = read(&mut Database::default(), &settings).await;
        if mode == "require" {
            assert!(why.contains("server does not support TLS"), "{why}");
            assert_eq!(served.await.unwrap(), 0, "no password is sent");
        } else {
            assert!(why.starts_with("/missing.pem: ") && why.contains("parameters of TLS"), "{why}");
        }
    }
}

#[test]
fn url_wins_over_the_attributes_and_the_user_names_the_database() {
    let config = |place: &str| config(&database_settings(place)).unwrap();
    let plain = config("db");
    assert_eq!((plain.get_user(), plain.get_dbname()), (Some("grid"), Some("grid")));
    assert_eq!((plain.get_password(), plain.get_options()), (Some(&b"geheim"[..]), None));
    assert_eq!(plain.get_application_name(), Some("consort"));
    let named = config("db/a?user=b&password=c&ApplicationName=d&currentSchema=e%20f&options=-c%20g=h");
    assert_eq!((named.get_user(), named.get_dbname()), (Some("b"), Some("a")));
    assert_eq!((named.get_password(), named.get_application_name()), (Some(&b"c"[..]), Some("d")));
    assert_eq!(named.get_options(), Some("-c g=h -c search_path=e\\ f"));
    let nameless = DatabaseSettings { user: String::new(), ..database_settings("db") };
    assert!(
        matches!(super::config(&nameless), Err(Failure::Other(why)) if why.contains("connection_username"))
    );
}

#[test]
fn rows_beyond_the_bound_are_left_out_and_those_of_coordinators_stay() {
    let row = |n: usize, is_coordinator| MemberRow {
        address: n.to_string(),
        name: None,
        ip: String::new(),
        is_coordinator,
    };
    let mut rows: Vec<MemberRow> = (0..ROWS_MAX).map(|n| row(n, false)).collect();
    let mut database = Database::default();
    database.bound_rows(&mut rows);
    assert!(rows.len() == ROWS_MAX && database.warned_of_rows.is_none());
    rows.push(row(ROWS_MAX, true));
    database.bound_rows(&mut rows);
    assert!(rows.len() == ROWS_MAX && rows[0].is_coordinator && database.warned_of_rows.is_some());
}

/// Serves one connection as a server that accepts each statement without rows. Returns the statements.
async fn serve(listener: TcpListener) -> Vec<String> {
    let (mut stream, _) = listener.accept().await.unwrap();
    let len = stream.read_u32().await.unwrap();
    let mut content = vec![0; len as usize - 4];
    stream.read_exact(&mut content).await.unwrap();
    let (authenticated, ready) = (message(b'R', &[0; 4]), message(b'Z', b"I"));
    stream.write_all(&[authenticated, ready.clone()].concat()).await.unwrap();
    let mut statements = Vec::new();
    while let Ok(kind) = stream.read_u8().await {
        let len = stream.read_u32().await.unwrap();
        let mut content = vec![0; len as usize - 4];
        stream.read_exact(&mut content).await.unwrap();
        let text =
            |at: &[u8]| String::from_utf8(at.split(|byte| *byte == 0).next().unwrap().to_vec()).unwrap();
        let complete = message(b'C', b"OK\0");
        let answer = match kind {
            b'Q' => {
                statements.push(text(&content));
                [complete, ready.clone()].concat()
            }
            b'P' => {
                // The statement's name is empty.
                statements.push(text(&content[1..]));
                continue;
            }
            b'S' => {
                let (parsed, bound, no_data) = (message(b'1', b""), message(b'2', b""), message(b'n', b""));
                [parsed, bound, no_data, complete, ready.clone()].concat()
            }
            b'X' => break,
            _ => continue,
        };
        stream.write_all(&answer).await.unwrap();
    }
    statements
}

fn row(address: &str) -> MemberRow {
    MemberRow {
        address: address.to_owned(),
        name: None,
        ip: "10.0.0.1:7800".to_owned(),
        is_coordinator: true,
    }
}

#[tokio::test]
async fn procedure_is_created_at_the_start_and_called_in_place_of_deletion_and_insertion() {
    for has_procedure in [false, true] {
        let (listener, place) = listen().await;
        let served = tokio::spawn(serve(listener));
        let mut settings = database_settings(&format!("{place}/grid?sslmode=disable"));
        settings.initialize = "CREATE TABLE jgroups".to_owned();
        if has_procedure {
            settings.create_procedure = "CREATE PROCEDURE p".to_owned();
            settings.call = Some(SqlStatement::parse("call p(?, ?, ?, ?, ?)").unwrap());
        }
        let request = RowRequest::Write { cluster: "demo".to_owned(), rows: vec![row("a")] };
        assert_eq!(Database::default().perform(&settings, request).await, Outcome::Done);
        let (delete, insert) =
            ("DELETE FROM jgroups WHERE address=$1", "INSERT INTO jgroups values ($1, $2, $3, $4, $5)");
        let (created, written) = match has_procedure {
            true => (vec!["CREATE PROCEDURE p"], vec!["call p($1, $2, $3, $4, $5)"]),
            false => (vec![], vec![delete, insert]),
        };
        let mut statements = served.await.unwrap();
        statements.retain(|statement| !statement.starts_with("START") && !statement.starts_with("BEGIN"));
        assert_eq!(statements, [vec!["CREATE TABLE jgroups"], created, written, vec!["COMMIT"]].concat());
    }
}

#[tokio::test]
async fn login_and_socket_timeouts_of_the_url_end_a_connection_and_a_statement() {
    let (_listener, silent) = listen().await;
    let why =
        read(&mut Database::default(), &database_settings(&format!("{silent}/grid?loginTimeout=1"))).await;
    assert!(why.contains("no response within 1s"), "{why}");
    let (listener, place) = listen().await;
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(&[message(b'R', &[0; 4]), message(b'Z', b"I")].concat()).await.unwrap();
        // No statement has a result.
        while stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
    });
    let settings = database_settings(&format!("{place}/grid?sslmode=disable&socketTimeout=1"));
    let why = read(&mut Database::default(), &settings).await;
    assert!(why.starts_with("a statement has no result within 1s"), "{why}");
    served.await.unwrap();
}

#[tokio::test]
async fn client_certificate_of_the_url_is_shown_to_the_server() {
    let (_listener, place) = listen().await;
    let of = |certificate: &str, key: &str| {
        let url = format!("{place}/grid?sslmode=require&sslcert={certificate}&sslkey={key}");
        JdbcUrl::parse(&format!("jdbc:postgresql://{url}")).unwrap()
    };
    let authority = consort_testkit::Authority::new("database-client");
    let files = authority.certify("member", &["member"]);
    let (certificate, key) = (files.cert.to_str().unwrap(), files.key.to_str().unwrap());
    let config = tls::settings(&of(certificate, key)).unwrap().unwrap();
    assert!(config.client_auth_cert_resolver.has_certs());
    for (certificate, key, missing) in
        [("/none.pem", key, "/none.pem"), (certificate, "/none.key", "/none.key")]
    {
        let error = tls::settings(&of(certificate, key)).unwrap_err().to_string();
        assert!(error.contains(missing), "{error}");
    }
}
