//! JDBC_PING2: finds members through the rows of a table. Each member has a row. The coordinator writes those of its
//! view's members.

use super::document::Document;
use super::*;
use crate::config::{Password, Property};
use crate::database::{DatabaseSettings, JdbcUrl, MemberRow, RowRequest, SqlStatement, address_text};
use crate::{Effect, View};

fn statement(text: &str) -> SqlStatement {
    SqlStatement::parse(text).unwrap_or_default()
}

crate::properties! {
    /// JDBC_PING2's properties.
    JdbcPing2Config {
        /// The database, as `jdbc:postgresql://HOST:PORT/DATABASE?PARAMETER=VALUE`. Only PostgreSQL is supported.
        connection_url: JdbcUrl = JdbcUrl::default(),
        /// The user of the database, unless the URL has the parameter user.
        connection_username: String = String::new(),
        /// The user's password, unless the URL has the parameter password.
        connection_password: Password = Password::new(""),
        /// Java's class of the driver; only that of PostgreSQL, org.postgresql.Driver, which is not needed here.
        connection_driver: String = String::new(),
        /// Creates the table, at the start and whenever the table is missing. A failure is not fatal. Nothing is
        /// created if it is empty.
        initialize_sql: String = "CREATE TABLE jgroups (address varchar(200) NOT NULL, name varchar(200), cluster \
            varchar(200) NOT NULL, ip varchar(200) NOT NULL, coord boolean, PRIMARY KEY (address) )".to_owned(),
        /// Inserts a row. The parameters are address, name, cluster, ip and coord.
        insert_single_sql: SqlStatement = statement("INSERT INTO jgroups values (?, ?, ?, ?, ?)"),
        /// Deletes a row. The parameter is the address.
        delete_single_sql: SqlStatement = statement("DELETE FROM jgroups WHERE address=?"),
        /// Selects address, name, ip and coord of a cluster's rows. The parameter is the cluster.
        select_all_pingdata_sql: SqlStatement =
            statement("SELECT address, name, ip, coord FROM jgroups WHERE cluster=?"),
        /// Creates a stored procedure that replaces a row, at the start. A failure is not fatal.
        insert_sp: String = String::new(),
        /// Calls the procedure of insert_sp, in place of a deletion and an insertion, with the parameters of
        /// insert_single_sql. Only together with insert_sp.
        call_insert_sp: SqlStatement = SqlStatement::default(),
    }
}

const DRIVERS: &[&str] = &["", "org.postgresql.Driver"];

impl JdbcPing2Config {
    /// Checks the attributes that need others, and the numbers of parameters.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if !DRIVERS.contains(&self.connection_driver.trim()) {
            let why = "only PostgreSQL's is supported (org.postgresql.Driver); use FILE_PING in a directory that all \
                       members share, DNS_PING or TCPPING";
            return Err(("connection_driver", format!("attribute connection_driver: {why}")));
        }
        for (name, statement, expected) in [
            ("insert_single_sql", &self.insert_single_sql, 5),
            ("delete_single_sql", &self.delete_single_sql, 1),
            ("select_all_pingdata_sql", &self.select_all_pingdata_sql, 1),
            ("call_insert_sp", &self.call_insert_sp, 5),
        ] {
            let (parameters, is_optional) = (statement.parameters(), name == "call_insert_sp");
            if parameters != expected && !(is_optional && statement.is_empty()) {
                let why =
                    format!("attribute {name}: it has {parameters} parameters (`?`) in place of {expected}");
                return Err((name, why));
            }
        }
        if self.connection_url.is_empty() {
            let why = "connection_url is missing; set it to jdbc:postgresql://HOST:PORT/DATABASE";
            return Err(("connection_url", why.to_owned()));
        }
        Ok(())
    }
}

/// The table of JDBC_PING2.
pub(super) struct Table {
    config: JdbcPing2Config,
    settings: Arc<DatabaseSettings>,
}

impl Table {
    pub(super) fn new(config: JdbcPing2Config) -> Self {
        let has_procedure = !config.insert_sp.trim().is_empty() && !config.call_insert_sp.is_empty();
        let settings = DatabaseSettings {
            url: config.connection_url.clone(),
            user: config.connection_username.clone(),
            password: config.connection_password.clone(),
            initialize: config.initialize_sql.clone(),
            create_procedure: config.insert_sp.clone(),
            insert: config.insert_single_sql.clone(),
            call: Some(config.call_insert_sp.clone()).filter(|_| has_procedure),
            delete: config.delete_single_sql.clone(),
            select: config.select_all_pingdata_sql.clone(),
        };
        Self { config, settings: Arc::new(settings) }
    }

    fn request(&self, cx: &mut Cx<'_>, request: RowRequest) -> Token {
        cx.request(Effect::Database { settings: self.settings.clone(), request })
    }

    pub(super) fn read(&self, cx: &mut Cx<'_>) -> Token {
        let cluster = cluster_of(cx).to_string();
        self.request(cx, RowRequest::Read { cluster })
    }

    pub(super) fn documents(&self, rows: Vec<MemberRow>) -> Vec<Document> {
        let documents = rows.into_iter().map(|row| {
            let listed = row.data().into_iter().collect();
            Document { name: row.address, listed }
        });
        documents.collect()
    }

    pub(super) fn warn(&self, why: &str) {
        let url = &self.config.connection_url;
        tracing::warn!(
            ?url,
            why,
            "JDBC_PING2: the database of members' addresses does not work; members that are in a view stay together, \
             and others find them once it works"
        );
    }

    pub(super) fn write_view(&self, cx: &mut Cx<'_>, view: &View) -> Token {
        let book = &cx.shared().book;
        let rows = view.members().iter().filter_map(|member| {
            let name = book.name(member).map(|name| &**name);
            MemberRow::new(member, name, book.phys(member)?, view.coordinator() == Some(member))
        });
        let rows = rows.collect();
        self.write(cx, rows)
    }

    pub(super) fn write_own(&self, cx: &mut Cx<'_>) -> Token {
        let shared = cx.shared();
        let row = MemberRow::new(&shared.local, Some(&shared.name), shared.phys, false);
        self.write(cx, row.into_iter().collect())
    }

    /// Sorts the rows, so that two members that write the same ones do not wait for each other.
    fn write(&self, cx: &mut Cx<'_>, mut rows: Vec<MemberRow>) -> Token {
        rows.sort_by(|a, b| a.address.cmp(&b.address));
        let cluster = cluster_of(cx).to_string();
        self.request(cx, RowRequest::Write { cluster, rows })
    }

    pub(super) fn remove(&self, cx: &mut Cx<'_>, address: String) {
        self.request(cx, RowRequest::Remove { address });
    }

    pub(super) fn remove_row_of(&self, cx: &mut Cx<'_>, member: &Address) {
        self.remove(cx, address_text(member));
    }

    pub(super) fn remove_others(&self, cx: &mut Cx<'_>, view: &View) {
        let cluster = cluster_of(cx).to_string();
        let kept = view.members().iter().map(address_text).collect();
        self.request(cx, RowRequest::RemoveOthers { cluster, kept });
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, phys, view};
    use crate::protocols::{Store, StoreConfig};

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn harness(config: StoreConfig) -> Harness {
        let url = JdbcUrl::parse("jdbc:postgresql://db/grid?password=geheim").unwrap();
        let table = JdbcPing2Config { connection_url: url, ..JdbcPing2Config::default() };
        let source = Source::Store(Box::new(Store::of_table(config, table)));
        let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness
    }

    fn search(harness: &mut Harness, is_initial: bool) {
        harness.lower(Event::FindMembers { is_initial, timeout: TIMEOUT });
    }

    fn number(address: &str) -> u64 {
        (1..=9).find(|&n| address == address_text(&member(n))).expect("a member's address")
    }

    /// Returns the token of the only read, and a text of each other request: `write 1T 2F`, `remove 2`,
    /// `keep 1 2`.
    fn requests(harness: &mut Harness) -> (Option<Token>, Vec<(Token, String)>) {
        let (mut read, mut others) = (None, Vec::new());
        for (token, effect) in harness.take_effects() {
            let Effect::Database { request, settings } = effect else { panic!("{effect:?}") };
            assert!(!format!("{settings:?}").contains("geheim"));
            let text = match request {
                RowRequest::Read { cluster } => {
                    assert_eq!((&*cluster, read.replace(token)), ("demo", None));
                    continue;
                }
                RowRequest::Write { cluster, rows } => {
                    assert_eq!(cluster, "demo");
                    let rows = rows.iter().map(|row| {
                        format!(" {}{}", number(&row.address), if row.is_coordinator { 'T' } else { 'F' })
                    });
                    format!("write{}", rows.collect::<String>())
                }
                RowRequest::Remove { address } => format!("remove {}", number(&address)),
                RowRequest::RemoveOthers { cluster, kept } => {
                    assert_eq!(cluster, "demo");
                    format!(
                        "keep{}",
                        kept.iter().map(|kept| format!(" {}", number(kept))).collect::<String>()
                    )
                }
            };
            others.push((token, text));
        }
        (read, others)
    }

    fn texts(harness: &mut Harness) -> Vec<String> {
        let (read, others) = requests(harness);
        assert_eq!(read, None);
        others.into_iter().map(|(_, text)| text).collect()
    }

    /// The row of member `n` at the address of member `at`.
    fn row(n: u64, at: u16, is_coordinator: bool) -> MemberRow {
        MemberRow::new(&member(n), Some("X"), phys(at), is_coordinator).unwrap()
    }

    /// Ends the read in progress, and returns the texts of the requests that follow.
    fn answer(harness: &mut Harness, rows: &[MemberRow]) -> Vec<String> {
        let (read, before) = requests(harness);
        assert!(before.is_empty(), "{before:?}");
        harness.done(read.expect("a read"), Outcome::Rows(rows.to_vec()));
        texts(harness)
    }

    fn fail(harness: &mut Harness) {
        let (read, before) = requests(harness);
        assert!(before.is_empty(), "{before:?}");
        harness.done(read.expect("a read"), Outcome::Failed("the database is down".to_owned()));
    }

    fn asked(harness: &mut Harness) -> Vec<PhysAddr> {
        let sent = harness.take_down().into_iter();
        let addresses = sent.map(|message| match message.dest {
            Some(Address::Ip(phys)) => phys,
            other => panic!("{other:?}"),
        });
        addresses.collect()
    }

    fn respond(harness: &mut Harness, n: u64, is_coordinator: bool) {
        let data = PingData {
            sender: member(n),
            is_server: true,
            is_coordinator,
            name: None,
            phys: Some(phys(n as u16)),
            wanted: None,
        };
        let header = PingHeader { kind: PingKind::Response, cluster: None, initial_discovery: false };
        let response = Message::bytes(Some(member(1)), wire::encode_ping_data(&[data]))
            .with_header(ProtocolId::JDBC_PING2, HeaderBody::Ping(Box::new(header)));
        harness.up(response.sent_by(n));
    }

    fn found(harness: &mut Harness) -> Option<Vec<Address>> {
        harness.take_up_events().into_iter().find_map(|event| match event {
            Event::Found(list) => Some(list.into_iter().map(|data| data.sender).collect()),
            _ => None,
        })
    }

    #[test]
    fn joining_member_writes_its_row_and_asks_the_members_of_other_rows() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        assert_eq!(answer(&mut harness, &[row(2, 2, true), row(3, 3, false)]), ["write 1F"]);
        assert_eq!(asked(&mut harness), [phys(2), phys(3)]);
        assert_eq!(found(&mut harness), None, "a row alone does not count");
        respond(&mut harness, 2, true);
        assert_eq!(found(&mut harness), Some(vec![member(2)]));
    }

    /// The coordinator may remove all rows of members that are not in its view.
    #[test]
    fn joining_member_whose_row_was_removed_writes_it_again() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        answer(&mut harness, &[row(2, 2, true)]);
        harness.advance(Duration::from_millis(500));
        assert_eq!(answer(&mut harness, &[row(2, 2, true), row(1, 1, false)]), [""; 0]);
        harness.advance(Duration::from_millis(500));
        assert_eq!(answer(&mut harness, &[row(2, 2, true)]), ["write 1F"]);
    }

    #[test]
    fn first_member_reads_num_read_loops_times_and_leaves_its_row_behind() {
        let mut harness = harness(StoreConfig { num_read_loops: 2, ..StoreConfig::default() });
        search(&mut harness, true);
        assert_eq!(answer(&mut harness, &[]), ["write 1F"]);
        assert_eq!(found(&mut harness), None);
        harness.advance(Duration::from_millis(200));
        assert_eq!(answer(&mut harness, &[row(1, 1, false)]), [""; 0]);
        assert_eq!(found(&mut harness), Some(vec![]));
        harness.install(view(1, &[1]));
        assert_eq!(texts(&mut harness), ["write 1T"]);
    }

    /// Member 1 is started again at the address of member 9, the coordinator, which was killed. A Java member that joins
    /// in this time finds the survivors by the rows.
    #[test]
    fn restarted_coordinator_keeps_its_predecessors_row_until_it_has_joined() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        let rows = [row(9, 1, true), row(2, 2, false)];
        assert_eq!(answer(&mut harness, &rows), ["write 1F"]);
        assert_eq!(asked(&mut harness), [phys(2)], "not its predecessor, which is itself by its address");
        respond(&mut harness, 2, false);
        harness.advance(Duration::from_millis(500));
        assert_eq!(answer(&mut harness, &[row(9, 1, true), row(2, 2, true), row(1, 1, false)]), [""; 0]);
        respond(&mut harness, 2, true);
        assert_eq!(found(&mut harness), Some(vec![member(2)]));
        search(&mut harness, false);
        assert_eq!(answer(&mut harness, &rows), ["remove 9"]);
    }

    #[test]
    fn row_of_a_predecessor_is_removed_by_a_join_if_there_is_no_other_row() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        assert_eq!(answer(&mut harness, &[row(9, 1, true)]), ["remove 9", "write 1F"]);
    }

    /// Joins with coordinator 9, and takes over with member 2 after it.
    fn successor(config: StoreConfig) -> (Harness, Vec<String>) {
        let mut harness = harness(config);
        harness.learn(2).learn(9);
        harness.install(view(1, &[9, 1, 2]));
        assert_eq!(texts(&mut harness), [""; 0]);
        harness.install(view(2, &[1, 2]));
        let texts = texts(&mut harness);
        (harness, texts)
    }

    #[test]
    fn new_coordinator_writes_the_rows_of_its_view_and_removes_those_that_the_attributes_name() {
        let plain = StoreConfig::default();
        let all = StoreConfig { remove_all_data_on_view_change: true, ..plain.clone() };
        let old = StoreConfig { remove_old_coords_on_view_change: true, ..plain.clone() };
        assert_eq!(successor(plain).1, ["write 1T 2F"]);
        assert_eq!(successor(all).1, ["write 1T 2F", "keep 1 2"]);
        assert_eq!(successor(old).1, ["write 1T 2F", "remove 9"]);
    }

    #[test]
    fn former_coordinator_writes_that_it_is_a_mere_member_unless_its_successor_does() {
        for (removes_all, expected) in [(false, vec!["write 1F"]), (true, vec![])] {
            let config =
                StoreConfig { remove_all_data_on_view_change: removes_all, ..StoreConfig::default() };
            let (mut harness, _) = successor(config);
            harness.install(view(3, &[2, 1]));
            assert_eq!(texts(&mut harness), expected);
        }
    }

    #[test]
    fn leaving_member_removes_its_row() {
        let (mut harness, _) = successor(StoreConfig::default());
        harness.stack.handle_disconnect(harness.now);
        harness.stack.run(harness.now);
        assert_eq!(texts(&mut harness), ["remove 1"]);
    }

    #[test]
    fn join_reads_until_its_timeout_while_the_database_fails() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        for _ in 0..9 {
            fail(&mut harness);
            assert_eq!(found(&mut harness), None);
            harness.advance(Duration::from_millis(200));
        }
        assert_eq!(answer(&mut harness, &[row(2, 2, true)]), ["write 1F"]);
        assert_eq!(asked(&mut harness), [phys(2)]);
        respond(&mut harness, 2, false);
        harness.advance(TIMEOUT);
        assert_eq!(found(&mut harness), Some(vec![member(2)]));
    }

    #[test]
    fn join_ends_without_a_member_if_the_database_fails_until_its_timeout() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        for _ in 0..10 {
            assert_eq!(found(&mut harness), None);
            fail(&mut harness);
            harness.advance(Duration::from_millis(200));
        }
        harness.advance(TIMEOUT);
        assert_eq!(found(&mut harness), Some(vec![]));
    }

    #[test]
    fn join_waits_for_a_slow_read_and_then_for_responses() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        let (read, _) = requests(&mut harness);
        harness.advance(TIMEOUT + Duration::from_secs(1));
        assert_eq!(found(&mut harness), None);
        harness.done(read.unwrap(), Outcome::Rows(vec![row(2, 2, true)]));
        assert_eq!(asked(&mut harness), [phys(2)]);
        harness.advance(TIMEOUT / 2);
        respond(&mut harness, 2, true);
        assert_eq!(found(&mut harness), Some(vec![member(2)]));
    }

    #[test]
    fn coordinator_repeats_a_write_that_failed() {
        let mut harness = harness(StoreConfig::default());
        for _ in 0..3 {
            harness.install(view(1, &[1]));
            let (_, written) = requests(&mut harness);
            let [(token, _)] = written[..] else { panic!("{written:?}") };
            harness.done(token, Outcome::Failed("the database is read-only".to_owned()));
            harness.advance(Duration::from_secs(5));
            assert_eq!(texts(&mut harness), ["write 1T"]);
        }
    }

    #[test]
    fn coordinator_whose_rows_are_gone_writes_them_again() {
        let (mut harness, _) = successor(StoreConfig::default());
        search(&mut harness, false);
        assert_eq!(answer(&mut harness, &[]), ["write 1T 2F"]);
        search(&mut harness, false);
        assert_eq!(answer(&mut harness, &[row(5, 5, true)]), [""; 0], "without write_data_on_find");
    }

    #[test]
    fn unusable_attributes_are_refused() {
        let url = JdbcUrl::parse("jdbc:postgresql://db/grid").unwrap();
        let plain = JdbcPing2Config { connection_url: url, ..JdbcPing2Config::default() };
        assert_eq!(plain.check(), Ok(()));
        let four = statement("INSERT INTO jgroups values (?, ?, ?, ?)");
        for (config, name, text) in [
            (JdbcPing2Config::default(), "connection_url", "is missing"),
            (
                JdbcPing2Config { connection_driver: "com.mysql.cj.jdbc.Driver".to_owned(), ..plain.clone() },
                "connection_driver",
                "use FILE_PING",
            ),
            (
                JdbcPing2Config { insert_single_sql: four.clone(), ..plain.clone() },
                "insert_single_sql",
                "has 4 parameters (`?`) in place of 5",
            ),
            (
                JdbcPing2Config { call_insert_sp: four, ..plain.clone() },
                "call_insert_sp",
                "has 4 parameters (`?`) in place of 5",
            ),
            (
                JdbcPing2Config { delete_single_sql: SqlStatement::default(), ..plain.clone() },
                "delete_single_sql",
                "has 0 parameters (`?`) in place of 1",
            ),
        ] {
            let (attribute, why) = config.check().unwrap_err();
            assert!(attribute == name && why.contains(text), "{why}");
        }
    }

    #[test]
    fn procedure_is_called_only_if_both_attributes_are_set() {
        let call = statement("call p(?, ?, ?, ?, ?)");
        let has_call = |insert_sp: &str, call: &SqlStatement| {
            let config = JdbcPing2Config {
                insert_sp: insert_sp.to_owned(),
                call_insert_sp: call.clone(),
                ..JdbcPing2Config::default()
            };
            Table::new(config).settings.call.is_some()
        };
        assert!(has_call("CREATE PROCEDURE p", &call));
        assert!(!has_call("", &call) && !has_call("CREATE PROCEDURE p", &SqlStatement::default()));
    }
}
