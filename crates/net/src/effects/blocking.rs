//! Work beside the driver. Files (FILE_PING) are read and written on the runtime's blocking threads, one job after the other.
//! Host names (TCPPING, TCPGOSSIP, DNS_PING, KUBE_PING) and pods (KUBE_PING) are looked up there, several at a time. Rows of a
//! database (JDBC_PING2) are read and written on tasks, one request after the other.

use std::collections::VecDeque;
use std::fs;
use std::future::Future;
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use consort_group::database::{DatabaseSettings, RowRequest};
use consort_group::{DnsRecord, KubernetesQuery, Outcome, PodList, Token};
use tokio::task::JoinHandle;

use super::Outcomes;
use crate::signals::{Key, Owner, Signals, SourceWaker};

/// A layer has one or two.
const JOBS_MAX: usize = 256;

/// Bytes of contents of files and rows that wait to be written, beside one job of any size. Further writes fail, and the
/// coordinator repeats them.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The time between two warnings of one cause.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Look-ups at a time: a name server that does not respond delays its names for seconds, and must not delay others.
const LOOK_UPS_MAX: usize = 8;

/// There is one per member of the largest cluster, and there are stale ones.
const FILES_MAX: usize = 4096;

/// A file has a line per member.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// Bytes of all files of a directory: a line per member of the largest cluster in each of many stale files.
const FILES_BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(super) enum Job {
    Read { directory: String, ending: &'static str },
    Write { directory: String, name: String, content: String },
    Remove { directory: String, name: String },
    RemoveAll { directory: String, ending: &'static str, except: String },
    LookUp { name: String },
    QueryDns { name: String, record: DnsRecord, server: Option<String> },
    ListPods(Box<KubernetesQuery>),
    Rows { settings: Arc<DatabaseSettings>, request: RowRequest },
}

/// Jobs of a kind wait for each other; those of other kinds do not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobKind {
    Files,
    LookUp,
    Rows,
}

impl JobKind {
    /// Jobs at a time. Changes of files and rows keep their order.
    fn jobs_max(self) -> usize {
        if self == Self::LookUp { LOOK_UPS_MAX } else { 1 }
    }
}

pub(super) struct Jobs {
    waiting: VecDeque<(Token, Job)>,
    running: Vec<Running>,
    waker: Waker,
    rows: rows::Rows,
}

struct Running {
    token: Token,
    work: JoinHandle<Outcome>,
    kind: JobKind,
    changes_nothing: bool,
}

impl Jobs {
    pub(super) fn new(signals: &Arc<Signals>) -> Self {
        let waker = SourceWaker::waker(signals, Key { owner: Owner::Jobs, index: 0 });
        Self { waiting: VecDeque::new(), running: Vec::new(), waker, rows: rows::Rows::default() }
    }

    pub(super) fn add(&mut self, token: Token, job: Job, outcomes: &mut Outcomes) {
        // Each protocol looks a name up once at a time, and the configuration limits the names.
        if self.waiting.len() >= JOBS_MAX && job.kind() != JobKind::LookUp {
            outcomes.push_back((token, Outcome::Failed("too many jobs are queued".into())));
            return;
        }
        let bytes = job.bytes();
        let waiting: usize = self.waiting.iter().map(|(_, job)| job.bytes()).sum();
        if bytes > 0 && waiting > 0 && waiting + bytes > WAITING_BYTES_MAX {
            let why = format!("writes of more than {WAITING_BYTES_MAX} bytes are queued");
            outcomes.push_back((token, Outcome::Failed(why)));
            return;
        }
        self.waiting.push_back((token, job));
        self.poll(outcomes);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn poll(&mut self, outcomes: &mut Outcomes) {
        loop {
            let Self { running, waker, .. } = self;
            running.retain_mut(|Running { token, work, .. }| {
                match Pin::new(work).poll(&mut Context::from_waker(waker)) {
                    Poll::Pending => true,
                    Poll::Ready(result) => {
                        let outcome = result.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
                        outcomes.push_back((*token, outcome));
                        false
                    }
                }
            });
            if !self.start() {
                return;
            }
        }
    }

    /// Starts the first job that need not wait; returns whether there is one.
    fn start(&mut self) -> bool {
        let may_start = |job: &Job| {
            let running = self.running.iter().filter(|running| running.kind == job.kind());
            running.count() < job.kind().jobs_max()
        };
        let Some(at) = self.waiting.iter().position(|(_, job)| may_start(job)) else { return false };
        let Some((token, job)) = self.waiting.remove(at) else { return false };
        let (kind, changes_nothing) = (job.kind(), job.changes_nothing());
        let work = match job {
            Job::Rows { settings, request } => self.rows.spawn(settings, request),
            job => tokio::task::spawn_blocking(move || job.run()),
        };
        self.running.push(Running { token, work, kind, changes_nothing });
        true
    }

    /// Only jobs that change files or rows still run. They begin at once, in place of reads that may take seconds.
    pub(super) fn begin_close(&mut self, outcomes: &mut Outcomes) {
        self.waiting.retain(|(_, job)| !job.changes_nothing());
        self.running.retain(|running| {
            if running.changes_nothing {
                running.work.abort();
            }
            !running.changes_nothing
        });
        self.poll(outcomes);
    }
}

impl Job {
    fn kind(&self) -> JobKind {
        match self {
            Self::LookUp { .. } | Self::QueryDns { .. } | Self::ListPods(_) => JobKind::LookUp,
            Self::Rows { .. } => JobKind::Rows,
            _ => JobKind::Files,
        }
    }

    fn changes_nothing(&self) -> bool {
        match self {
            Self::Rows { request, .. } => request.changes_nothing(),
            Self::Read { .. } => true,
            job => job.kind() == JobKind::LookUp,
        }
    }

    /// Returns the bytes of what the job writes.
    fn bytes(&self) -> usize {
        match self {
            Self::Write { content, .. } => content.len(),
            Self::Rows { request, .. } => request.bytes(),
            _ => 0,
        }
    }

    fn run(self) -> Outcome {
        let result = match self {
            Self::Read { directory, ending } => read_all(Path::new(&directory), ending).map(Outcome::Files),
            Self::Write { directory, name, content } => {
                write(Path::new(&directory), &name, &content).map(|()| Outcome::Done)
            }
            Self::Remove { directory, name } => remove(Path::new(&directory), &name).map(|()| Outcome::Done),
            Self::RemoveAll { directory, ending, except } => {
                remove_all(Path::new(&directory), ending, &except).map(|()| Outcome::Done)
            }
            Self::LookUp { name } => look_up(&name).map(Outcome::Addresses),
            Self::QueryDns { name, record, server } => {
                query_dns(&name, record, server.as_deref()).map(Outcome::Services)
            }
            Self::ListPods(query) => list_pods(&query).map(Outcome::Pods),
            Self::Rows { .. } => Err(io::Error::from(io::ErrorKind::Unsupported)),
        };
        result.unwrap_or_else(|error| Outcome::Failed(error.to_string()))
    }
}

#[cfg(feature = "dns")]
fn query_dns(name: &str, record: DnsRecord, server: Option<&str>) -> io::Result<Vec<(IpAddr, u16)>> {
    crate::dns::query(name, record, server)
}

#[cfg(not(feature = "dns"))]
fn query_dns(name: &str, _: DnsRecord, _: Option<&str>) -> io::Result<Vec<(IpAddr, u16)>> {
    let why = "SRV records and dns_address need the feature `dns` of the crate consort or consort-channel";
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("{name}: {why}")))
}

#[cfg(feature = "kubernetes")]
fn list_pods(query: &KubernetesQuery) -> io::Result<PodList> {
    crate::kubernetes::list_pods(query).map_err(io::Error::other)
}

#[cfg(not(feature = "kubernetes"))]
fn list_pods(_: &KubernetesQuery) -> io::Result<PodList> {
    let why = "KUBE_PING needs the feature `kubernetes` of the crate consort or consort-channel";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

#[cfg(feature = "jdbc")]
mod rows {
    use std::sync::Arc;

    use consort_group::Outcome;
    use consort_group::database::{DatabaseSettings, RowRequest};
    use tokio::sync::Mutex;
    use tokio::task::JoinHandle;

    use crate::database::Database;

    /// The database of a stack, which has at most one.
    #[derive(Default)]
    pub(super) struct Rows(Arc<Mutex<Database>>);

    impl Rows {
        pub(super) fn spawn(
            &self,
            settings: Arc<DatabaseSettings>,
            request: RowRequest,
        ) -> JoinHandle<Outcome> {
            let database = self.0.clone();
            tokio::spawn(async move { database.lock().await.perform(&settings, request).await })
        }
    }
}

#[cfg(not(feature = "jdbc"))]
mod rows {
    use std::sync::Arc;

    use consort_group::Outcome;
    use consort_group::database::{DatabaseSettings, RowRequest};
    use tokio::task::JoinHandle;

    #[derive(Default)]
    pub(super) struct Rows(());

    impl Rows {
        pub(super) fn spawn(&self, _: Arc<DatabaseSettings>, _: RowRequest) -> JoinHandle<Outcome> {
            let why = "JDBC_PING2 needs the feature `jdbc` of the crate consort or consort-channel";
            tokio::spawn(async move { Outcome::Failed(why.to_owned()) })
        }
    }
}

fn read_all(directory: &Path, ending: &str) -> io::Result<Vec<(String, String)>> {
    let (mut files, mut unreadable, mut room) = (Vec::new(), None, FILES_BYTES_MAX);
    for name in names(directory, ending)? {
        // A member may remove its file meanwhile.
        match read_file(&directory.join(&name)) {
            Ok(content) if content.len() as u64 > room => {
                let why = format!(
                    "{name} and later files: all files together have more than {FILES_BYTES_MAX} bytes"
                );
                unreadable = Some(io::Error::new(io::ErrorKind::FileTooLarge, why));
                break;
            }
            Ok(content) => {
                room -= content.len() as u64;
                files.push((name, content));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => unreadable = Some(io::Error::new(error.kind(), format!("{name}: {error}"))),
        }
    }
    match unreadable {
        Some(error) if files.is_empty() => Err(error),
        Some(error) => {
            warn_of_unreadable(directory, &error);
            Ok(files)
        }
        None => Ok(files),
    }
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(FILE_LEN_MAX).read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// Logs the first unreadable file beside readable ones, and then one a minute.
fn warn_of_unreadable(directory: &Path, error: &io::Error) {
    static WARNED: Mutex<Option<Instant>> = Mutex::new(None);
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
        *warned = Some(Instant::now());
        tracing::warn!(?directory, %error, "a file of the directory is left out, because it cannot be read");
    }
}

fn write(directory: &Path, name: &str, content: &str) -> io::Result<()> {
    let target = plain(directory, name)?;
    fs::create_dir_all(directory)?;
    // Readers see the old file or the new one, never a part. One member writes files of one name.
    let draft = plain(directory, &format!("{name}.{}.draft", std::process::id()))?;
    fs::write(&draft, content)?;
    fs::rename(&draft, &target)
}

fn remove(directory: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(plain(directory, name)?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn remove_all(directory: &Path, ending: &str, except: &str) -> io::Result<()> {
    for name in names(directory, ending)?.iter().filter(|name| *name != except) {
        remove(directory, name)?;
    }
    Ok(())
}

fn names(directory: &Path, ending: &str) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries.take(FILES_MAX) {
        let name = entry?.file_name().to_str().map(str::to_owned);
        names.extend(name.filter(|name| name.ends_with(ending)));
    }
    names.sort();
    Ok(names)
}

fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = (name, 0).to_socket_addrs();
    let found = found.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
    let mut all: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    all.sort();
    all.dedup();
    Ok(all)
}

/// A name that leads elsewhere is an error, because it contains members' names.
fn plain(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
    if is_plain {
        Ok(directory.join(name))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not a file name: {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use consort_group::database::MemberRow;

    use super::*;
    use crate::database_settings::database_settings;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("consort-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn written_files_are_read_in_name_order() {
        let directory = scratch("order");
        assert_eq!(read_all(&directory, ".list").unwrap(), []);
        write(&directory, "b.list", "2").unwrap();
        write(&directory, "a.list", "old").unwrap();
        write(&directory, "a.list", "1").unwrap();
        write(&directory, "c.other", "3").unwrap();
        let files = [("a.list".to_owned(), "1".to_owned()), ("b.list".to_owned(), "2".to_owned())];
        assert_eq!(read_all(&directory, ".list").unwrap(), files);
        remove(&directory, "a.list").unwrap();
        remove(&directory, "a.list").unwrap();
        assert_eq!(read_all(&directory, ".list").unwrap(), files[1..]);
        write(&directory, "a.list", "1").unwrap();
        remove_all(&directory, ".list", "a.list").unwrap();
        assert_eq!(read_all(&directory, ".list").unwrap(), files[..1]);
        assert_eq!(read_all(&directory, ".other").unwrap().len(), 1, "files with another suffix stay");
        fs::remove_dir_all(&directory).unwrap();
        remove_all(&directory, ".list", "a.list").unwrap();
    }

    #[test]
    fn file_that_cannot_be_read_is_left_out_and_an_error_if_it_is_the_only_one() {
        let directory = scratch("unreadable");
        fs::create_dir_all(directory.join("b.list")).unwrap();
        let error = read_all(&directory, ".list").unwrap_err().to_string();
        assert!(error.starts_with("b.list: "), "{error}");
        write(&directory, "a.list", "1").unwrap();
        assert_eq!(read_all(&directory, ".list").unwrap(), [("a.list".to_owned(), "1".to_owned())]);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn files_of_a_directory_have_at_most_16_mib_together() {
        let directory = scratch("large");
        let content = " ".repeat(FILE_LEN_MAX as usize);
        for n in 10..28 {
            write(&directory, &format!("{n}.list"), &content).unwrap();
        }
        let read = read_all(&directory, ".list").unwrap();
        assert_eq!(read.iter().map(|(_, content)| content.len() as u64).sum::<u64>(), FILES_BYTES_MAX);
        fs::remove_dir_all(&directory).unwrap();
    }

    fn rows(request: RowRequest) -> Job {
        rows_at("db", request)
    }

    fn rows_at(place: &str, request: RowRequest) -> Job {
        let settings = database_settings(&format!("{place}/grid?sslmode=disable"));
        Job::Rows { settings: Arc::new(settings), request }
    }

    fn read_rows() -> RowRequest {
        RowRequest::Read { cluster: "demo".to_owned() }
    }

    fn remove_row() -> RowRequest {
        RowRequest::Remove { address: "a".to_owned() }
    }

    fn write_rows(bytes: usize) -> RowRequest {
        let row = MemberRow {
            address: String::new(),
            name: Some(" ".repeat(bytes)),
            ip: String::new(),
            is_coordinator: true,
        };
        RowRequest::Write { cluster: "demo".to_owned(), rows: vec![row] }
    }

    fn token(number: u64) -> Token {
        Token::new(3, number)
    }

    /// The test's runtime has one thread, so that no job ends before the test waits.
    #[tokio::test]
    async fn writes_that_wait_have_at_most_4_mib_together_beside_one_of_any_size() {
        let (mut jobs, mut outcomes) = (Jobs::new(&Arc::default()), Outcomes::new());
        jobs.add(token(0), rows(read_rows()), &mut outcomes);
        jobs.add(token(1), rows(write_rows(WAITING_BYTES_MAX / 2)), &mut outcomes);
        jobs.add(token(2), rows(write_rows(WAITING_BYTES_MAX / 2)), &mut outcomes);
        assert_eq!(
            outcomes.pop_front(),
            Some((token(2), Outcome::Failed("writes of more than 4194304 bytes are queued".to_owned())))
        );
        jobs.add(token(3), rows(write_rows(WAITING_BYTES_MAX / 4)), &mut outcomes);
        jobs.add(token(4), rows(remove_row()), &mut outcomes);
        assert_eq!((jobs.waiting.len(), outcomes.len()), (3, 0));

        let mut jobs = Jobs::new(&Arc::default());
        jobs.add(token(0), rows(read_rows()), &mut outcomes);
        jobs.add(token(1), rows(write_rows(2 * WAITING_BYTES_MAX)), &mut outcomes);
        assert_eq!((jobs.waiting.len(), outcomes.len()), (1, 0));
    }

    #[tokio::test]
    async fn close_begins_waiting_changes_at_once_in_place_of_reads() {
        let (mut jobs, mut outcomes) = (Jobs::new(&Arc::default()), Outcomes::new());
        jobs.add(token(0), rows(read_rows()), &mut outcomes);
        jobs.add(token(1), rows(read_rows()), &mut outcomes);
        jobs.add(token(2), rows(remove_row()), &mut outcomes);
        jobs.begin_close(&mut outcomes);
        let running: Vec<Token> = jobs.running.iter().map(|running| running.token).collect();
        assert_eq!((running, jobs.waiting.len()), (vec![token(2)], 0));
    }

    /// A read of a database that does not respond would keep the removal waiting, and its failure would delay it.
    #[cfg(feature = "jdbc")]
    #[tokio::test]
    async fn close_aborts_a_read_of_rows_so_that_the_removal_connects() {
        use tokio::net::TcpListener;

        let (mut jobs, mut outcomes) = (Jobs::new(&Arc::default()), Outcomes::new());
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let next = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        jobs.add(token(0), rows_at(&place(&silent), read_rows()), &mut outcomes);
        jobs.add(token(1), rows_at(&place(&next), remove_row()), &mut outcomes);
        let _stream = silent.accept().await.unwrap();
        jobs.begin_close(&mut outcomes);
        let connected = tokio::time::timeout(Duration::from_secs(60), next.accept()).await;
        assert!(connected.is_ok_and(|accepted| accepted.is_ok()), "the removal connects");
    }

    #[test]
    fn a_name_cannot_leave_the_directory() {
        let directory = scratch("leave");
        for name in ["../x", "a/b", "..", ".", "", "a\\b"] {
            assert!(write(&directory, name, "").is_err(), "{name:?}");
            assert!(remove(&directory, name).is_err(), "{name:?}");
        }
        assert!(!directory.exists());
    }

    #[test]
    fn a_name_stands_for_its_addresses() {
        assert_eq!(look_up("127.0.0.1").unwrap(), [IpAddr::from([127, 0, 0, 1])]);
        assert!(look_up("localhost").unwrap().iter().all(IpAddr::is_loopback));
        let error = look_up("no.such.host.invalid").unwrap_err().to_string();
        assert!(error.starts_with("no.such.host.invalid: "), "{error}");
    }
}
