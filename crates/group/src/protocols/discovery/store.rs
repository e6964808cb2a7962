//! Discovery through a store that all members read and write: files (FILE_PING) or rows of a database (JDBC_PING2).
//!
//! An entry says where a member may be, and outlives its writer if that crashes. So each listed address gets a request,
//! and only members that respond count.

use super::document::Document;
use super::files::Directory;
use super::table::Table;
use super::*;

crate::properties! {
    /// The properties that FILE_PING and JDBC_PING2 share.
    StoreConfig {
        /// Whether the coordinator removes entries on a view change: all files but its own (FILE_PING), or all rows
        /// but those of its view's members (JDBC_PING2).
        remove_all_data_on_view_change: bool = false,
        /// Whether the coordinator removes the entry of the previous view's coordinator on a view change.
        remove_old_coords_on_view_change: bool = false,
        /// Whether a coordinator writes its entries again if a discovery finds that they are gone. Only with
        /// one of the two attributes above, because then coordinators remove each other's entries.
        write_data_on_find: bool = false,
        /// Whether the coordinator writes entries on each view change. If not, it writes them when it becomes
        /// coordinator and when members leave.
        update_store_on_view_change: bool = true,
        /// How often the coordinator writes again after a view change with which it removes entries of
        /// others, which may have removed its own.
        info_writer_max_writes_after_view: u32 = 2,
        /// The longest time before such a write; the shortest is 1 s.
        info_writer_sleep_time: Duration = Duration::from_secs(10),
        /// How often a joining member reads the store before it takes itself for the first member.
        num_read_loops: u32 = 5,
        /// The time between two of these reads.
        read_sleep: Duration = Duration::from_millis(200),
    }
}

/// The longest time between two requests of a join. A member that responded as a mere member may have become
/// coordinator meanwhile.
const REPEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Entries that a discovery asks, those of coordinators first. Entries of crashed members accumulate.
const ADDRESSES_MAX: usize = 2_000;

/// The shortest time before the coordinator writes again.
const INFO_WRITER_SLEEP_MIN: Duration = Duration::from_secs(1);

/// The time before the coordinator repeats a write that failed.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Failures with texts of their own that are warned of within a minute.
const WARNINGS_MAX: usize = 8;

pub(super) enum Medium {
    Files(Directory),
    Table(Box<Table>),
}

/// The source of FILE_PING and JDBC_PING2.
pub struct Store {
    config: StoreConfig,
    medium: Medium,
    /// The last request.
    request: Option<Message>,
    /// The read in progress.
    reading: Option<Token>,
    /// The last write of the coordinator's entries, until it has succeeded.
    writing: Option<Token>,
    /// Reads of a join that may find no member before this one takes itself for the first.
    reads_left: u32,
    /// The coordinator of the previous view.
    coordinator: Option<Address>,
    members: Vec<Address>,
    /// Whether this member has written its entry and not removed it.
    has_entry: bool,
    writes_left: u32,
    /// Why the last read failed.
    read_failure: Option<String>,
    /// When each failure was logged last.
    warned: BTreeMap<String, Time>,
}

impl Store {
    /// Creates a source that reads files.
    pub fn of_files(config: StoreConfig, files: FilePingConfig) -> Self {
        Self::new(config, Medium::Files(Directory::new(files)))
    }

    /// Creates a source that reads a table.
    pub fn of_table(config: StoreConfig, table: JdbcPing2Config) -> Self {
        Self::new(config, Medium::Table(Box::new(Table::new(table))))
    }

    fn new(config: StoreConfig, medium: Medium) -> Self {
        Self {
            config,
            medium,
            request: None,
            reading: None,
            writing: None,
            reads_left: 0,
            coordinator: None,
            members: Vec::new(),
            has_entry: false,
            writes_left: 0,
            read_failure: None,
            warned: BTreeMap::new(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.medium {
            Medium::Files(_) => "FILE_PING",
            Medium::Table(_) => "JDBC_PING2",
        }
    }

    pub(super) fn id(&self) -> ProtocolId {
        match self.medium {
            Medium::Files(_) => ProtocolId::FILE_PING,
            Medium::Table(_) => ProtocolId::JDBC_PING2,
        }
    }

    fn is_table(&self) -> bool {
        matches!(self.medium, Medium::Table(_))
    }

    /// Returns whether a join waits for a read. A database may need seconds for a connection.
    pub(super) fn is_reading(&self) -> bool {
        self.is_table() && self.reading.is_some()
    }

    /// Returns how often the request of a join is sent within its timeout.
    pub(super) fn begin_join(&mut self, runs: u32, timeout: Duration) -> u32 {
        self.reads_left = self.config.num_read_loops.max(1);
        let repeats = timeout.as_millis() / REPEAT_INTERVAL.as_millis();
        runs.max(u32::try_from(repeats).unwrap_or(u32::MAX))
    }

    /// Warns if a join ends without a member because the store cannot be read: this member begins a cluster of its own.
    pub(super) fn end_join(&self, has_responses: bool) {
        if let Some(why) = self.read_failure.as_deref().filter(|_| !has_responses) {
            tracing::warn!(
                protocol = self.name(),
                why,
                "a join has found no member, because the addresses of members cannot be read; without a member that \
                 responds, this member begins a cluster of its own, and joins the others by a merge once they can be \
                 read"
            );
        }
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, request: Message) {
        self.request = Some(request);
        if !cx.is_armed(READ_STORE) {
            self.read(cx);
        }
    }

    /// Begins to read. A read in progress serves this request, too.
    fn read(&mut self, cx: &mut Cx<'_>) {
        if self.reading.is_none() {
            self.reading = Some(match &self.medium {
                Medium::Files(directory) => directory.read(cx),
                Medium::Table(table) => table.read(cx),
            });
        }
    }

    /// Handles a timer of this source.
    pub(super) fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == READ_STORE {
            self.read(cx);
        } else if cx.is_coordinator() && self.writes_left > 0 {
            self.writes_left -= 1;
            self.write_view(cx);
            self.arm_info_writer(cx);
        }
    }

    /// Handles an outcome. `is_joining`: a join waits for the last request. Returns whether the join has to go on
    /// without any other member.
    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome, is_joining: bool) -> bool {
        let is_read = self.reading == Some(token);
        if is_read {
            self.reading = None;
        }
        let is_write = self.writing.take_if(|writing| *writing == token).is_some();
        let documents = match (&self.medium, outcome) {
            (_, Outcome::Failed(why)) if is_read => return self.note_read_failure(cx, why, is_joining),
            (_, Outcome::Failed(why)) => {
                self.warn(cx.now(), &why);
                // A later write replaces this one, and a removal is repeated by the next discovery or view.
                if is_write && cx.is_coordinator() {
                    self.writes_left = self.writes_left.max(1);
                    if !cx.is_armed(WRITE_STORE) {
                        cx.arm(WRITE_STORE, WRITE_RETRY_INTERVAL);
                    }
                }
                return false;
            }
            (Medium::Files(directory), Outcome::Files(files)) if is_read => directory.documents(files),
            (Medium::Table(table), Outcome::Rows(rows)) if is_read => table.documents(rows),
            _ => return false,
        };
        if self.read_failure.take().is_some() {
            tracing::info!(protocol = self.name(), "the addresses of members can be read again");
        }
        self.found(cx, &documents, is_joining)
    }

    fn warn(&mut self, now: Time, why: &str) {
        self.warned.retain(|_, at| now.since(*at) < crate::Drops::WARN_INTERVAL);
        if !self.warned.contains_key(why) && self.warned.len() < WARNINGS_MAX {
            self.warned.insert(why.to_owned(), now);
            match &self.medium {
                Medium::Files(directory) => directory.warn(why),
                Medium::Table(table) => table.warn(why),
            }
        }
    }

    fn note_read_failure(&mut self, cx: &mut Cx<'_>, why: String, is_joining: bool) -> bool {
        self.warn(cx.now(), &why);
        self.read_failure = Some(why);
        if !is_joining {
            return false;
        }
        if !self.is_table() {
            return self.found_no_member(cx);
        }
        // The join's timeout is the only limit: members would form clusters of their own while a database restarts.
        cx.arm(READ_STORE, self.config.read_sleep);
        false
    }

    fn found(&mut self, cx: &mut Cx<'_>, documents: &[Document], is_joining: bool) -> bool {
        let Some(request) = self.request.clone() else { return false };
        self.remove_entries_of_predecessors(cx, documents, is_joining);
        let (local, own) = (cx.local().clone(), Some(cx.shared().phys));
        let listed = || documents.iter().flat_map(|document| &document.listed);
        let mut others: Vec<&PingData> =
            listed().filter(|data| data.sender != local && data.phys != own).collect();
        others.sort_by_key(|data| !data.is_coordinator);
        others.truncate(ADDRESSES_MAX);
        let addresses: BTreeSet<PhysAddr> = others.iter().filter_map(|data| data.phys).collect();
        for data in others.into_iter().filter(|data| !matches!(data.sender, Address::Ip(_))) {
            cx.book().learn(&data.sender, data.name.as_deref(), data.phys);
        }
        // Each member has a row from its start on, by which members that start at the same time find each other.
        let has_row = || listed().any(|data| data.sender == local);
        if self.is_table() && is_joining && cx.view().is_none() && !has_row() {
            self.write_own(cx);
        }
        if addresses.is_empty() && is_joining {
            return self.found_no_member(cx);
        }
        let has_entry = listed().any(|data| data.sender == local && data.is_coordinator);
        let is_empty = listed().next().is_none();
        if !is_joining && cx.is_coordinator() && !has_entry && self.may_write_on_find(cx, is_empty) {
            self.write_view(cx);
        }
        source::send_to(cx, &request, addresses);
        false
    }

    /// Returns whether a coordinator whose entry a discovery has not found writes it. A coordinator of another
    /// partition may have removed the entry.
    fn may_write_on_find(&self, cx: &Cx<'_>, is_store_empty: bool) -> bool {
        let are_entries_removed =
            self.config.remove_all_data_on_view_change || self.config.remove_old_coords_on_view_change;
        is_store_empty || (self.config.write_data_on_find && are_entries_removed && !cx.is_armed(WRITE_STORE))
    }

    /// A join that found no entry of another member: this member writes its own, so that members that start at
    /// the same time find each other, and reads again for a while.
    fn found_no_member(&mut self, cx: &mut Cx<'_>) -> bool {
        if !self.has_entry && cx.view().is_none() {
            self.write_own(cx);
        }
        self.reads_left = self.reads_left.saturating_sub(1);
        if self.reads_left == 0 {
            return true;
        }
        cx.arm(READ_STORE, self.config.read_sleep);
        false
    }

    /// Removes the entries that processes before this one wrote at this member's physical address. A joining member keeps
    /// those that list others, too: it finds the survivors by them until their new coordinator has written its entries.
    /// Rows list others if any row is of another member.
    fn remove_entries_of_predecessors(&self, cx: &mut Cx<'_>, documents: &[Document], is_joining: bool) {
        let (local, own) = (cx.local().clone(), Some(cx.shared().phys));
        let lists_others = |document: &Document| document.listed.iter().any(|data| data.phys != own);
        let keeps_all = is_joining && self.is_table() && documents.iter().any(lists_others);
        for document in documents {
            let is_writer = |data: &PingData| match &self.medium {
                Medium::Files(_) => document.name.starts_with(&data.sender.to_string()),
                Medium::Table(_) => true,
            };
            let is_predecessor =
                |data: &PingData| data.sender != local && data.phys == own && is_writer(data);
            let is_kept = keeps_all || (is_joining && lists_others(document));
            if !is_kept && document.listed.iter().any(is_predecessor) {
                match &self.medium {
                    Medium::Files(directory) => directory.remove(cx, document.name.clone()),
                    Medium::Table(table) => table.remove(cx, document.name.clone()),
                }
            }
        }
    }

    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let was_coordinator = self.coordinator.as_ref() == Some(cx.local());
        let previous = std::mem::replace(&mut self.coordinator, view.coordinator().cloned());
        let members = std::mem::replace(&mut self.members, view.members().to_vec());
        let removes_all = self.config.remove_all_data_on_view_change;
        let removes_old = self.config.remove_old_coords_on_view_change;
        if !cx.is_coordinator() {
            cx.disarm(WRITE_STORE);
            match self.medium {
                Medium::Files(_) if self.has_entry => self.remove_own(cx),
                // Otherwise the new coordinator writes the rows of its members, and removes the others.
                Medium::Table(_) if was_coordinator && !removes_all => self.write_own(cx),
                _ => {}
            }
            return;
        }
        let has_left = members.iter().any(|member| !view.contains(member));
        if !was_coordinator || has_left || self.config.update_store_on_view_change {
            self.write_view(cx);
            if removes_all || removes_old {
                self.writes_left = self.config.info_writer_max_writes_after_view;
                self.arm_info_writer(cx);
            }
        }
        // After the write, so that a joining member always finds an entry.
        let previous = previous.filter(|previous| removes_old && !cx.is_local(previous));
        match (&self.medium, previous) {
            (Medium::Files(directory), _) if removes_all => directory.remove_others(cx),
            (Medium::Table(table), _) if removes_all => table.remove_others(cx, view),
            (Medium::Files(directory), Some(previous)) => directory.remove_file_of(cx, &previous),
            (Medium::Table(table), Some(previous)) if !view.contains(&previous) => {
                table.remove_row_of(cx, &previous);
            }
            _ => {}
        }
    }

    fn arm_info_writer(&self, cx: &mut Cx<'_>) {
        if self.writes_left > 0 {
            let longest = self.config.info_writer_sleep_time.max(INFO_WRITER_SLEEP_MIN);
            let after = cx.rng().duration(INFO_WRITER_SLEEP_MIN, longest);
            cx.arm(WRITE_STORE, after);
        }
    }

    fn write_view(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = cx.view().cloned() else { return };
        self.has_entry = true;
        self.writing = Some(match &self.medium {
            Medium::Files(directory) => directory.write_view(cx, &view),
            Medium::Table(table) => table.write_view(cx, &view),
        });
    }

    /// Writes the entry of this member as one that is not coordinator.
    fn write_own(&mut self, cx: &mut Cx<'_>) {
        self.has_entry = true;
        match &self.medium {
            Medium::Files(directory) => directory.write_own(cx),
            Medium::Table(table) => table.write_own(cx),
        };
    }

    fn remove_own(&mut self, cx: &mut Cx<'_>) {
        self.has_entry = false;
        let local = cx.local().clone();
        match &self.medium {
            Medium::Files(directory) => directory.remove_file_of(cx, &local),
            Medium::Table(table) => table.remove_row_of(cx, &local),
        }
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(READ_STORE);
        cx.disarm(WRITE_STORE);
        self.request = None;
        self.reading = None;
        self.writing = None;
        self.coordinator = None;
        self.members.clear();
        self.read_failure = None;
        self.remove_own(cx);
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        match &self.medium {
            Medium::Files(directory) => directory.probe(out),
            Medium::Table(table) => table.probe(out),
        }
    }
}
