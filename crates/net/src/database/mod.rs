//! Rows of members in a PostgreSQL database (JDBC_PING2). Each request has a connection of its own, so that members hold
//! none between two discoveries, and a server that has failed over is found.

mod bounded_stream;
mod failure;
mod flag;
mod tls;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use consort_group::Outcome;
use consort_group::config::HostPort;
use consort_group::database::{DatabaseSettings, MemberRow, RowRequest, SqlStatement, TlsMode};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config};

use self::bounded_stream::{BoundedStream, ByteRoom};
use self::failure::{Failure, describe, is_conflict, is_missing_table, text_of};
use self::flag::Flag;
use self::tls::HostTls;

/// Time for a connection to a server with its login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for one statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a request: connections to several servers, and all its statements.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the server to close a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// There is a row per member of the largest cluster, and there are stale ones.
const ROWS_MAX: usize = 4096;

/// Bytes that a request reads from all servers together: [`ROWS_MAX`] rows of 1,000 bytes, errors and notices.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// How often rows are written that another member changes at the same time.
const WRITES_MAX: u32 = 3;

/// The time after a failed connection without another attempt; it doubles with each further failure.
const BACK_OFF_MIN: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// The time between two warnings of one cause.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The state of a layer's database between requests.
#[derive(Default)]
pub(crate) struct Database {
    /// The last failed connection: no attempt before this time, the delay, and the failure.
    back_off: Option<(Instant, Duration, String)>,
    is_initialized: bool,
    /// Why the table could not be created.
    creation_failure: Option<String>,
    warned_of_rows: Option<Instant>,
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl Database {
    /// Carries out a request. The outcome is `Rows`, `Done` or `Failed`.
    pub(crate) async fn perform(&mut self, settings: &DatabaseSettings, request: RowRequest) -> Outcome {
        if let Some((until, _, why)) = &self.back_off
            && Instant::now() < *until
        {
            return Outcome::Failed(why.clone());
        }
        let performed = timeout(REQUEST_TIMEOUT, self.perform_at_any_server(settings, &request)).await;
        let too_slow = || Failure::Other(format!("cannot {request} within {REQUEST_TIMEOUT:?}"));
        let failure = match performed.unwrap_or_else(|_| Err(too_slow())) {
            Ok(outcome) => {
                self.back_off = None;
                return outcome;
            }
            Err(failure) => failure,
        };
        if failure.code().is_some_and(is_missing_table) {
            self.is_initialized = false;
        }
        let why = describe(&failure, settings, self.creation_failure.as_deref());
        let is_statement = failure.code().is_some_and(|code| !is_login(code));
        self.back_off = if is_statement {
            None
        } else {
            let last = self.back_off.as_ref().map_or(Duration::ZERO, |(_, delay, _)| *delay);
            let delay = (last * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
            Some((Instant::now() + delay, delay, why.clone()))
        };
        Outcome::Failed(why)
    }

    async fn perform_at_any_server(
        &mut self,
        settings: &DatabaseSettings,
        request: &RowRequest,
    ) -> Result<Outcome, Failure> {
        let url = settings.url.clone();
        // Files may be on a slow disk.
        let read = tokio::task::spawn_blocking(move || tls::settings(&url)).await;
        let tls =
            read.map_err(|error| error.to_string()).and_then(|tls| tls.map_err(|error| error.to_string()));
        let tls = tls.map_err(|why| Failure::Other(format!("{why}; correct the URL's parameters of TLS")))?;
        let mut last = Failure::Connect("connection_url has no host".to_owned());
        let room = ByteRoom::new(BYTES_MAX);
        for host in &settings.url.hosts {
            match self.perform_at(settings, host, tls.clone(), &room, request).await {
                Err(failure @ Failure::Connect(_)) => last = failure,
                outcome => return outcome,
            }
        }
        Err(last)
    }

    async fn perform_at(
        &mut self,
        settings: &DatabaseSettings,
        host: &HostPort,
        tls: Option<Arc<ClientConfig>>,
        room: &ByteRoom,
        request: &RowRequest,
    ) -> Result<Outcome, Failure> {
        let limit = settings.url.connect_timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT);
        let fail = |why: String| Failure::Connect(format!("cannot connect to {host}: {why}"));
        let connected = timeout(limit, connect(settings, host, tls, room)).await;
        let connected = connected.map_err(|_| fail(format!("no response within {limit:?}")))?;
        let (mut client, connection) = connected.map_err(|failure| match failure {
            Failure::Database(error) if error.as_db_error().is_none() => fail(text_of(&error)),
            Failure::Connect(why) => fail(why),
            failure => failure,
        })?;
        let mut connection = pin!(connection);
        let outcome = {
            let work = pin!(self.run(&mut client, settings, request));
            tokio::select! {
                biased;
                outcome = work => outcome,
                ended = &mut connection => Err(match ended {
                    Ok(()) => Failure::Connect(format!("{host} has closed the connection")),
                    Err(error) => Failure::Database(error),
                }),
            }
        };
        // The end of the client sends that the connection ends.
        drop(client);
        match outcome {
            Err(Failure::Database(error)) if error.is_closed() => {
                let ended = timeout(CLOSE_TIMEOUT, connection).await;
                Err(ended.ok().and_then(Result::err).map_or(Failure::Database(error), Failure::Database))
            }
            Err(failure) => Err(failure),
            Ok(outcome) => {
                let _ = timeout(CLOSE_TIMEOUT, connection).await;
                Ok(outcome)
            }
        }
    }

    async fn run(
        &mut self,
        client: &mut Client,
        settings: &DatabaseSettings,
        request: &RowRequest,
    ) -> Result<Outcome, Failure> {
        let limit = settings.url.socket_timeout.unwrap_or(STATEMENT_TIMEOUT).min(STATEMENT_TIMEOUT);
        let session = Session { settings, limit };
        if settings.url.is_primary_wanted && session.is_read_only(client).await? {
            return Err(Failure::Connect("no server of connection_url takes writes".to_owned()));
        }
        if !self.is_initialized {
            self.is_initialized = true;
            self.creation_failure = session.create(client, &settings.initialize).await;
            let procedure = session.create(client, &settings.create_procedure).await;
            if let Some(why) = procedure {
                tracing::debug!(why, "insert_sp creates no procedure; it may have been created before");
            }
        }
        match request {
            RowRequest::Read { cluster } => {
                let mut rows = session.select(client, cluster).await?;
                self.bound_rows(&mut rows);
                Ok(Outcome::Rows(rows))
            }
            RowRequest::Write { cluster, rows } => {
                session.write(client, cluster, rows).await.map(|()| Outcome::Done)
            }
            RowRequest::Remove { address } => {
                session.remove(client, std::slice::from_ref(address)).await.map(|()| Outcome::Done)
            }
            RowRequest::RemoveOthers { cluster, kept } => {
                let rows = session.select(client, cluster).await?;
                let kept: BTreeSet<&str> = kept.iter().map(String::as_str).collect();
                let addresses = rows.into_iter().map(|row| row.address);
                let others: Vec<String> = addresses.filter(|address| !kept.contains(&**address)).collect();
                session.remove(client, &others).await.map(|()| Outcome::Done)
            }
        }
    }

    /// Keeps the rows of coordinators first.
    fn bound_rows(&mut self, rows: &mut Vec<MemberRow>) {
        let count = rows.len();
        if count <= ROWS_MAX {
            return;
        }
        rows.sort_by_key(|row| !row.is_coordinator);
        rows.truncate(ROWS_MAX);
        if self.warned_of_rows.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned_of_rows = Some(Instant::now());
            tracing::warn!(
                rows = count,
                rows_max = ROWS_MAX,
                "JDBC_PING2: the cluster has more rows than are read; delete the rows of members that have crashed, or \
                 set remove_all_data_on_view_change"
            );
        }
    }
}

/// A wrong password or a missing database does not become right at once: attempts are delayed.
fn is_login(code: &str) -> bool {
    code.starts_with("28") || code.starts_with("53") || code.starts_with("57") || code == "3D000"
}

type Connection =
    tokio_postgres::Connection<BoundedStream<TcpStream>, tls::Encrypted<BoundedStream<TcpStream>>>;

async fn connect(
    settings: &DatabaseSettings,
    host: &HostPort,
    tls: Option<Arc<ClientConfig>>,
    room: &ByteRoom,
) -> Result<(Client, Connection), Failure> {
    let stream = TcpStream::connect((&*host.host, host.port)).await;
    let stream = stream.map_err(|error| Failure::Connect(error.to_string()))?;
    // Statements are small, and each waits for its response.
    let _ = stream.set_nodelay(true);
    let tls = HostTls { config: tls, host: host.host.clone() };
    let config = config(settings)?;
    config.connect_raw(BoundedStream::new(stream, room), tls).await.map_err(Failure::Database)
}

fn config(settings: &DatabaseSettings) -> Result<Config, Failure> {
    let url = &settings.url;
    let user = url.user.as_deref().unwrap_or(&settings.user);
    let database = url.database.as_deref().unwrap_or(user);
    if user.is_empty() {
        return Err(Failure::Other("there is no user; set connection_username".to_owned()));
    }
    let mut config = Config::new();
    config.user(user).dbname(database).password(url.password.as_ref().unwrap_or(&settings.password).text());
    config.application_name(url.application_name.as_deref().unwrap_or("consort"));
    let schema = url.schema.as_ref().map(|schema| {
        // The server splits options at spaces.
        format!("-c search_path={}", schema.replace('\\', "\\\\").replace(' ', "\\ "))
    });
    let options: Vec<String> = url.options.clone().into_iter().chain(schema).collect();
    if !options.is_empty() {
        config.options(options.join(" "));
    }
    config.ssl_mode(match url.tls {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    Ok(config)
}

/// The statements of one request.
struct Session<'a> {
    settings: &'a DatabaseSettings,
    limit: Duration,
}

impl Session<'_> {
    async fn within<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        match timeout(self.limit, statement).await {
            Ok(outcome) => outcome.map_err(Failure::Database),
            Err(_) => {
                let limit = self.limit;
                Err(Failure::Other(format!(
                    "a statement has no result within {limit:?}; is the table locked?"
                )))
            }
        }
    }

    async fn is_read_only(&self, client: &Client) -> Result<bool, Failure> {
        let rows = self.within(client.query_typed("SHOW transaction_read_only", &[])).await?;
        Ok(rows.first().is_some_and(|row| row.try_get::<_, &str>(0).is_ok_and(|value| value == "on")))
    }

    /// Executes a statement that creates a table or a procedure. Returns why it has failed, which is usual, because it
    /// exists after the first time.
    async fn create(&self, client: &Client, statement: &str) -> Option<String> {
        if statement.trim().is_empty() {
            return None;
        }
        match self.within(client.query_typed(statement, &[])).await {
            Ok(_) => None,
            Err(Failure::Database(error)) => Some(text_of(&error)),
            Err(failure) => Some(describe(&failure, self.settings, None)),
        }
    }

    async fn select(&self, client: &Client, cluster: &str) -> Result<Vec<MemberRow>, Failure> {
        let statement = self.settings.select.numbered();
        let rows = self.within(client.query_typed(statement, &[(&cluster, Type::VARCHAR)])).await?;
        let read = rows.iter().map(|row| {
            let text = |column| row.try_get::<_, Option<&str>>(column);
            Ok(MemberRow {
                address: text(0)?.unwrap_or_default().trim().to_owned(),
                name: text(1)?.map(|name| name.trim().to_owned()),
                ip: text(2)?.unwrap_or_default().trim().to_owned(),
                is_coordinator: row.try_get::<_, Option<Flag>>(3)?.is_some_and(|Flag(is_set)| is_set),
            })
        });
        let read: Result<Vec<MemberRow>, tokio_postgres::Error> = read.collect();
        read.map_err(|error| {
            let why = text_of(&error);
            Failure::Other(format!(
                "select_all_pingdata_sql has to return the texts address, name and ip, and the boolean coord: {why}"
            ))
        })
    }

    /// Replaces the rows in one transaction, so that readers see the old ones or the new ones.
    async fn write(&self, client: &mut Client, cluster: &str, rows: &[MemberRow]) -> Result<(), Failure> {
        let mut writes_left = WRITES_MAX;
        loop {
            writes_left -= 1;
            match self.try_write(client, cluster, rows).await {
                Err(failure) if writes_left > 0 && failure.code().is_some_and(is_conflict) => {}
                outcome => return outcome,
            }
        }
    }

    async fn try_write(&self, client: &mut Client, cluster: &str, rows: &[MemberRow]) -> Result<(), Failure> {
        // The end of a transaction without a commit undoes its changes.
        let transaction = self.within(client.transaction()).await?;
        let execute = async |statement: &SqlStatement, parameters: &[Parameter<'_>]| {
            self.within(transaction.execute_typed(statement.numbered(), parameters)).await
        };
        for MemberRow { address, name, ip, is_coordinator } in rows {
            let row: [Parameter<'_>; 5] = [
                (address, Type::VARCHAR),
                (name, Type::VARCHAR),
                (&cluster, Type::VARCHAR),
                (ip, Type::VARCHAR),
                (is_coordinator, Type::BOOL),
            ];
            match &self.settings.call {
                Some(call) => execute(call, &row).await?,
                None => {
                    execute(&self.settings.delete, &[(address, Type::VARCHAR)]).await?;
                    execute(&self.settings.insert, &row).await?
                }
            };
        }
        self.within(transaction.commit()).await
    }

    async fn remove(&self, client: &Client, addresses: &[String]) -> Result<(), Failure> {
        for address in addresses {
            let statement = self.settings.delete.numbered();
            self.within(client.execute_typed(statement, &[(address, Type::VARCHAR)])).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
