//! FILE_PING: finds members through files in a shared directory. The file of a coordinator lists the members of its
//! view.
//!
//! A file says where members may be, and outlives its writer if that crashes. So each listed address gets a request,
//! and only members that respond count.

use super::*;
use crate::{Effect, Uuid};

crate::properties! {
    /// FILE_PING's properties.
    FilePingConfig {
        /// The directory shared by all members. Each cluster has a subdirectory.
        location: String = "/tmp/jgroups".to_owned(),
        /// Whether the coordinator removes all files but its own on a view change.
        remove_all_data_on_view_change: bool = false,
        /// Whether the coordinator removes the file of the previous view's coordinator on a view change.
        remove_old_coords_on_view_change: bool = false,
        /// Whether a coordinator writes its file again if a discovery finds that the file is gone. Only with
        /// one of the two attributes above, because then coordinators remove each other's files.
        write_data_on_find: bool = false,
        /// Whether the coordinator writes its file on each view change. If not, it writes it when it becomes
        /// coordinator and when members leave.
        update_store_on_view_change: bool = true,
        /// How often the coordinator writes its file again after a view change with which it removes files of
        /// others, which may have removed its own.
        info_writer_max_writes_after_view: u32 = 2,
        /// The longest time before such a write; the shortest is 1 s.
        info_writer_sleep_time: Duration = Duration::from_secs(10),
        /// How often a joining member reads the directory before it takes itself for the first member.
        num_read_loops: u32 = 5,
        /// The time between two of these reads.
        read_sleep: Duration = Duration::from_millis(200),
    }
}

const ENDING: &str = ".list";

/// The longest time between two requests of a join. A member that responded as a mere member may have become
/// coordinator meanwhile.
const REPEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Entries that a discovery asks, those of coordinators first. Files of crashed members accumulate.
const ADDRESSES_MAX: usize = 2_000;

/// The shortest time before the coordinator writes its file again.
const INFO_WRITER_SLEEP_MIN: Duration = Duration::from_secs(1);

/// The source of FILE_PING.
pub struct Files {
    config: FilePingConfig,
    /// The last request.
    request: Option<Message>,
    /// The read in progress.
    reading: Option<Token>,
    /// Reads of a join that may find no member before this one takes itself for the first.
    reads_left: u32,
    /// The coordinator of the previous view.
    coordinator: Option<Address>,
    members: Vec<Address>,
    /// Whether this member has written its file and not removed it.
    has_file: bool,
    writes_left: u32,
    /// When a failure was logged last.
    warned: Option<Time>,
}

impl Files {
    /// Creates a source that reads the directory of `config`.
    pub const fn new(config: FilePingConfig) -> Self {
        Self {
            config,
            request: None,
            reading: None,
            reads_left: 0,
            coordinator: None,
            members: Vec::new(),
            has_file: false,
            writes_left: 0,
            warned: None,
        }
    }

    /// Returns how often the request of a join is sent within its timeout.
    pub(super) fn begin_join(&mut self, runs: u32, timeout: Duration) -> u32 {
        self.reads_left = self.config.num_read_loops.max(1);
        let repeats = timeout.as_millis() / REPEAT_INTERVAL.as_millis();
        runs.max(u32::try_from(repeats).unwrap_or(u32::MAX))
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, request: Message) {
        self.request = Some(request);
        if !cx.is_armed(READ_FILES) {
            self.read(cx);
        }
    }

    /// Begins to read. A read in progress serves this request, too.
    fn read(&mut self, cx: &mut Cx<'_>) {
        if self.reading.is_none() {
            let directory = self.directory(cx);
            self.reading = Some(cx.request(Effect::ReadFiles { directory, ending: ENDING }));
        }
    }

    /// Handles a timer of this source.
    pub(super) fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == READ_FILES {
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
        match outcome {
            Outcome::Files(files) if is_read => self.found(cx, &files, is_joining),
            Outcome::Failed(why) => {
                let now = cx.now();
                if self.warned.is_none_or(|at| now.since(at) >= crate::Drops::WARN_INTERVAL) {
                    self.warned = Some(now);
                    let location = &self.config.location;
                    tracing::warn!(location, why, "FILE_PING: cannot read or write the files of members");
                }
                is_read && is_joining && self.found_no_member(cx)
            }
            _ => false,
        }
    }

    fn found(&mut self, cx: &mut Cx<'_>, files: &[(String, String)], is_joining: bool) -> bool {
        let Some(request) = self.request.clone() else { return false };
        let listed: Vec<PingData> = files.iter().flat_map(|(_, text)| parse_file(text)).collect();
        self.remove_files_of_predecessors(cx, files, is_joining);
        let (local, own) = (cx.local().clone(), Some(cx.shared().phys));
        let mut others: Vec<&PingData> =
            listed.iter().filter(|data| data.sender != local && data.phys != own).collect();
        others.sort_by_key(|data| !data.is_coordinator);
        others.truncate(ADDRESSES_MAX);
        let addresses: BTreeSet<PhysAddr> = others.iter().filter_map(|data| data.phys).collect();
        for data in others {
            cx.book().learn(&data.sender, data.name.as_deref(), data.phys);
        }
        if addresses.is_empty() && is_joining {
            return self.found_no_member(cx);
        }
        let has_entry = listed.iter().any(|data| data.sender == local && data.is_coordinator);
        if !is_joining && cx.is_coordinator() && !has_entry && self.may_write_on_find(cx, listed.is_empty()) {
            self.write_view(cx);
        }
        source::send_to(cx, &request, addresses);
        false
    }

    /// Returns whether a coordinator whose entry a discovery has not found writes it. A coordinator of another
    /// partition may have removed the file.
    fn may_write_on_find(&self, cx: &Cx<'_>, is_directory_empty: bool) -> bool {
        let are_files_removed =
            self.config.remove_all_data_on_view_change || self.config.remove_old_coords_on_view_change;
        is_directory_empty
            || (self.config.write_data_on_find && are_files_removed && !cx.is_armed(WRITE_FILE))
    }

    /// A join that found no file of another member: this member writes its own file, so that members that start at
    /// the same time find each other, and reads again for a while.
    fn found_no_member(&mut self, cx: &mut Cx<'_>) -> bool {
        if !self.has_file && cx.view().is_none() {
            let shared = cx.shared();
            let phys = file_address(shared.phys);
            let content = format!("{} \t{} \t{phys} \tF\n", shared.name, shared.local);
            self.write(cx, content);
        }
        self.reads_left = self.reads_left.saturating_sub(1);
        if self.reads_left == 0 {
            return true;
        }
        cx.arm(READ_FILES, self.config.read_sleep);
        false
    }

    /// Removes the files that processes before this one wrote at this member's physical address. A joining member keeps
    /// those that list others, too: it finds the survivors by them until their new coordinator has written its file.
    fn remove_files_of_predecessors(&self, cx: &mut Cx<'_>, files: &[(String, String)], is_joining: bool) {
        let (local, own) = (cx.local().clone(), Some(cx.shared().phys));
        for (name, text) in files {
            let is_writer = |data: &PingData| name.starts_with(&data.sender.to_string());
            let is_predecessor =
                |data: PingData| data.sender != local && data.phys == own && is_writer(&data);
            let listed = parse_file(text);
            let lists_others = listed.iter().any(|data| data.phys != own);
            if listed.into_iter().any(is_predecessor) && !(is_joining && lists_others) {
                let (directory, name) = (self.directory(cx), name.clone());
                cx.request(Effect::RemoveFile { directory, name });
            }
        }
    }

    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let was_coordinator = self.coordinator.as_ref() == Some(cx.local());
        let previous = std::mem::replace(&mut self.coordinator, view.coordinator().cloned());
        let members = std::mem::replace(&mut self.members, view.members().to_vec());
        if !cx.is_coordinator() {
            cx.disarm(WRITE_FILE);
            if self.has_file {
                self.remove_own_file(cx);
            }
            return;
        }
        let has_left = members.iter().any(|member| !view.contains(member));
        let removes_all = self.config.remove_all_data_on_view_change;
        let removes_old = self.config.remove_old_coords_on_view_change;
        if !was_coordinator || has_left || self.config.update_store_on_view_change {
            self.write_view(cx);
            if removes_all || removes_old {
                self.writes_left = self.config.info_writer_max_writes_after_view;
                self.arm_info_writer(cx);
            }
        }
        // After the write, so that a joining member always finds a file.
        let (directory, own) = (self.directory(cx), file_name(cx, cx.local()));
        if removes_all {
            cx.request(Effect::RemoveFiles { directory, ending: ENDING, except: own });
        } else if removes_old && let Some(previous) = previous.filter(|previous| !cx.is_local(previous)) {
            let name = file_name(cx, &previous);
            cx.request(Effect::RemoveFile { directory, name });
        }
    }

    fn arm_info_writer(&self, cx: &mut Cx<'_>) {
        if self.writes_left > 0 {
            let longest = self.config.info_writer_sleep_time.max(INFO_WRITER_SLEEP_MIN);
            let after = cx.rng().duration(INFO_WRITER_SLEEP_MIN, longest);
            cx.arm(WRITE_FILE, after);
        }
    }

    fn write_view(&mut self, cx: &mut Cx<'_>) {
        let content = cx.view().map(|view| file_content(cx, view));
        if let Some(content) = content {
            self.write(cx, content);
        }
    }

    fn write(&mut self, cx: &mut Cx<'_>, content: String) {
        self.has_file = true;
        let (directory, name) = (self.directory(cx), file_name(cx, cx.local()));
        cx.request(Effect::WriteFile { directory, name, content });
    }

    fn remove_own_file(&mut self, cx: &mut Cx<'_>) {
        self.has_file = false;
        let (directory, name) = (self.directory(cx), file_name(cx, cx.local()));
        cx.request(Effect::RemoveFile { directory, name });
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(READ_FILES);
        cx.disarm(WRITE_FILE);
        self.request = None;
        self.reading = None;
        self.coordinator = None;
        self.members.clear();
        self.remove_own_file(cx);
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }

    fn directory(&self, cx: &Cx<'_>) -> String {
        format!("{}/{}", self.config.location, sanitized(&cluster_of(cx)))
    }
}

/// Returns the name of a member's file.
fn file_name(cx: &Cx<'_>, member: &Address) -> String {
    let name = if cx.is_local(member) { Some(&cx.shared().name) } else { cx.shared().book.name(member) };
    sanitized(&match name {
        Some(name) => format!("{member}.{name}{ENDING}"),
        None => format!("{member}{ENDING}"),
    })
}

/// Replaces characters that some file system refuses by dashes, as JGroups does.
fn sanitized(name: &str) -> String {
    name.chars()
        .map(|c| if matches!(c, '\0' | '<' | '>' | ':' | '"' | '/' | '|' | '?' | '*') { '-' } else { c })
        .collect()
}

fn file_address(phys: PhysAddr) -> String {
    match phys.ip {
        Some(ip) => format!("{ip}:{}", phys.port),
        None => format!("?:{}", phys.port),
    }
}

fn file_content(cx: &Cx<'_>, view: &View) -> String {
    let book = &cx.shared().book;
    view.members()
        .iter()
        .filter_map(|member| {
            let flag = if view.coordinator() == Some(member) { 'T' } else { 'F' };
            let phys = file_address(book.phys(member)?);
            Some(format!("{} \t{member} \t{phys} \t{flag}\n", book.name(member)?))
        })
        .collect()
}

/// Parses a file of FILE_PING: lines of `name uuid ip:port T|F`. Other lines are skipped.
pub fn parse_file(text: &str) -> Vec<PingData> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, uuid, phys, flag) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let (host, port) = phys.rsplit_once(':')?;
            let phys = PhysAddr::new(host.trim_matches(['[', ']']).parse().ok()?, port.parse().ok()?);
            Some(PingData {
                sender: Address::Uuid(parse_uuid(uuid)?),
                is_server: true,
                is_coordinator: flag == "T",
                name: Some(name.into()),
                phys: Some(phys),
                wanted: None,
            })
        })
        .collect()
}

fn parse_uuid(text: &str) -> Option<Uuid> {
    if let Ok(least) = text.parse::<u64>() {
        return Some(Uuid { most: 0, least });
    }
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == 32)?;
    Some(Uuid { most: (value >> 64) as u64, least: value as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, phys, view};

    const TIMEOUT: Duration = Duration::from_secs(2);
    const DIRECTORY: &str = "/tmp/jgroups/demo";

    fn harness(config: FilePingConfig) -> Harness {
        let source = Source::FilePing(Files::new(config));
        let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness
    }

    fn search(harness: &mut Harness, is_initial: bool) {
        harness.lower(Event::FindMembers { is_initial, timeout: TIMEOUT });
    }

    /// Returns the only read among the effects, and a text of each other one.
    fn effects(harness: &mut Harness) -> (Option<Token>, Vec<String>) {
        let (mut read, mut others) = (None, Vec::new());
        for (token, effect) in harness.take_effects() {
            match effect {
                Effect::ReadFiles { directory, ending: ".list" } if directory == DIRECTORY => {
                    assert_eq!(read.replace(token), None);
                }
                Effect::WriteFile { directory, name, content } if directory == DIRECTORY => {
                    let entries = parse_file(&content).into_iter().map(|data| {
                        let number = (1..=9).find(|&n| data.sender == member(n)).expect("a member");
                        format!("{number}{}", if data.is_coordinator { "T" } else { "F" })
                    });
                    assert_eq!(name, file_of(1));
                    others.push(format!("write {}", entries.collect::<Vec<_>>().join(" ")));
                }
                Effect::RemoveFile { directory, name } if directory == DIRECTORY => {
                    others.push(format!("remove {name}"));
                }
                Effect::RemoveFiles { directory, ending: ".list", except } if directory == DIRECTORY => {
                    assert_eq!(except, file_of(1));
                    others.push("remove others".to_owned());
                }
                other => panic!("{other:?}"),
            }
        }
        (read, others)
    }

    /// The file of a member whose name is the letter of its number.
    fn file_of(n: u64) -> String {
        format!("{}.{}.list", member(n), char::from(b'@' + n as u8))
    }

    fn line(n: u64, at: u16, flag: char) -> String {
        format!("{} \t{} \t127.0.0.1:{} \t{flag}\n", char::from(b'@' + n as u8), member(n), phys(at).port)
    }

    /// Answers the read in progress, and returns the texts of the effects that follow.
    fn answer(harness: &mut Harness, files: &[(u64, String)]) -> Vec<String> {
        let (read, before) = effects(harness);
        assert_eq!(before, [""; 0]);
        let files = files.iter().map(|(n, text)| (file_of(*n), text.clone())).collect();
        harness.done(read.expect("a read"), Outcome::Files(files));
        let (read, after) = effects(harness);
        assert_eq!(read, None);
        after
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
            .with_header(ProtocolId::FILE_PING, HeaderBody::Ping(Box::new(header)));
        harness.up(response.sent_by(n));
    }

    fn found(harness: &mut Harness) -> Option<Vec<Address>> {
        harness.take_up_events().into_iter().find_map(|event| match event {
            Event::Found(list) => Some(list.into_iter().map(|data| data.sender).collect()),
            _ => None,
        })
    }

    /// Member 1 is started again at the address of member 9, the coordinator, which was killed. Member 2 becomes
    /// coordinator a moment later.
    #[test]
    fn restarted_coordinator_joins_the_next_one_in_its_second_round() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        let files = [(9, line(9, 1, 'T') + &line(2, 2, 'F'))];
        assert_eq!(answer(&mut harness, &files), [""; 0], "it lists the survivors");
        assert_eq!(asked(&mut harness), [phys(2)], "not its predecessor, which is itself by its address");
        respond(&mut harness, 2, false);
        assert_eq!(found(&mut harness), None);
        harness.advance(REPEAT_INTERVAL);
        assert_eq!(answer(&mut harness, &files), [""; 0]);
        assert_eq!(asked(&mut harness), [phys(2)], "until the new coordinator has written its file");
        harness.advance(REPEAT_INTERVAL);
        let both = [(9, line(9, 1, 'T') + &line(2, 2, 'F')), (2, line(2, 2, 'T'))];
        assert_eq!(answer(&mut harness, &both), [""; 0]);
        respond(&mut harness, 2, true);
        assert_eq!(found(&mut harness), Some(vec![member(2)]));
        search(&mut harness, false);
        assert_eq!(answer(&mut harness, &both), [format!("remove {}", file_of(9))], "once it has joined");
    }

    #[test]
    fn file_of_a_predecessor_that_lists_no_other_member_is_removed_by_a_join() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        let removed = answer(&mut harness, &[(9, line(9, 1, 'T'))]);
        assert_eq!(removed, [format!("remove {}", file_of(9)), "write 1F".to_owned()]);
    }

    #[test]
    fn at_most_2000_entries_are_asked_and_coordinators_first() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        let entry = |n: u64| format!("X \t{} \t127.0.0.1:{} \tF\n", member(100 + n), 10_000 + n);
        let stale: String = (0..ADDRESSES_MAX as u64).map(entry).collect();
        answer(&mut harness, &[(9, stale), (2, line(2, 2, 'T'))]);
        let asked = asked(&mut harness);
        assert_eq!(asked.len(), ADDRESSES_MAX);
        assert!(asked.contains(&phys(2)));
    }

    #[test]
    fn listed_members_that_do_not_respond_do_not_count() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        answer(&mut harness, &[(2, line(2, 2, 'T') + &line(3, 3, 'F'))]);
        assert_eq!(asked(&mut harness), [phys(2), phys(3)]);
        assert_eq!(found(&mut harness), None);
        harness.advance(TIMEOUT);
        assert_eq!(found(&mut harness), Some(vec![]));
    }

    #[test]
    fn first_member_writes_its_file_and_reads_num_read_loops_times() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        assert_eq!(answer(&mut harness, &[]), ["write 1F"]);
        for _ in 0..4 {
            assert_eq!(found(&mut harness), None);
            harness.advance(Duration::from_millis(200));
            assert_eq!(answer(&mut harness, &[(1, line(1, 1, 'F'))]), [""; 0]);
        }
        assert_eq!(found(&mut harness), Some(vec![]));
    }

    #[test]
    fn members_that_start_at_the_same_time_find_each_other() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        answer(&mut harness, &[]);
        harness.advance(Duration::from_millis(200));
        answer(&mut harness, &[(1, line(1, 1, 'F')), (2, line(2, 2, 'F'))]);
        assert_eq!(asked(&mut harness), [phys(2)]);
        // Another member than the coordinator removes the file that it wrote as the first.
        harness.install(view(1, &[2, 1]));
        assert_eq!(effects(&mut harness), (None, vec![format!("remove {}", file_of(1))]));
    }

    #[test]
    fn unreadable_directory_is_read_num_read_loops_times_and_leaves_the_member_alone() {
        let mut harness = harness(FilePingConfig::default());
        search(&mut harness, true);
        for _ in 0..5 {
            assert_eq!(found(&mut harness), None);
            let (read, _) = effects(&mut harness);
            harness.done(read.unwrap(), Outcome::Failed("Permission denied".to_owned()));
            harness.advance(Duration::from_millis(200));
        }
        assert_eq!(found(&mut harness), Some(vec![]));
    }

    /// Joins as the coordinator of a view with member 9 and takes over with member 2 after it.
    fn successor(config: FilePingConfig) -> (Harness, Vec<String>) {
        let mut harness = harness(config);
        harness.learn(2).learn(9);
        harness.install(view(1, &[9, 1, 2]));
        assert_eq!(effects(&mut harness), (None, vec![]));
        harness.install(view(2, &[1, 2]));
        let (_, texts) = effects(&mut harness);
        (harness, texts)
    }

    #[test]
    fn new_coordinator_removes_the_files_that_the_attributes_name() {
        let plain = FilePingConfig::default();
        let all = FilePingConfig { remove_all_data_on_view_change: true, ..plain.clone() };
        let old = FilePingConfig { remove_old_coords_on_view_change: true, ..plain.clone() };
        // The harness knows no names of other members, whose entries are incomplete.
        assert_eq!(successor(plain).1, ["write 1T"]);
        assert_eq!(successor(all).1, ["write 1T", "remove others"]);
        assert_eq!(successor(old).1, ["write 1T".to_owned(), format!("remove {}.list", member(9))]);
    }

    #[test]
    fn coordinator_that_removes_files_writes_its_own_twice_more() {
        let config = FilePingConfig { remove_all_data_on_view_change: true, ..FilePingConfig::default() };
        let (mut harness, _) = successor(config);
        harness.advance(Duration::from_millis(999));
        assert_eq!(effects(&mut harness).1, [""; 0]);
        harness.advance(Duration::from_secs(60));
        assert_eq!(effects(&mut harness).1, ["write 1T", "write 1T"]);
    }

    #[test]
    fn former_coordinator_removes_its_file() {
        let (mut harness, _) = successor(FilePingConfig::default());
        harness.install(view(3, &[2, 1]));
        assert_eq!(effects(&mut harness), (None, vec![format!("remove {}", file_of(1))]));
    }

    #[test]
    fn coordinator_without_updates_writes_its_file_only_when_members_leave() {
        let config = FilePingConfig { update_store_on_view_change: false, ..FilePingConfig::default() };
        let (mut harness, texts) = successor(config);
        assert_eq!(texts, ["write 1T"]);
        harness.install(view(3, &[1, 2, 3]));
        assert_eq!(effects(&mut harness).1, [""; 0]);
        harness.install(view(4, &[1, 3]));
        assert_eq!(effects(&mut harness).1, ["write 1T"]);
    }

    #[test]
    fn coordinator_whose_file_is_gone_writes_it_again_if_the_attributes_say_so() {
        let plain = FilePingConfig {
            remove_all_data_on_view_change: true,
            info_writer_max_writes_after_view: 0,
            ..FilePingConfig::default()
        };
        for (write_data_on_find, expected) in [(false, vec![]), (true, vec!["write 1T".to_owned()])] {
            let (mut harness, _) = successor(FilePingConfig { write_data_on_find, ..plain.clone() });
            search(&mut harness, false);
            assert_eq!(answer(&mut harness, &[(5, line(5, 5, 'T'))]), expected);
            assert_eq!(asked(&mut harness), [phys(5)]);
            search(&mut harness, false);
            assert_eq!(answer(&mut harness, &[(1, line(1, 1, 'T'))]), [""; 0]);
            search(&mut harness, false);
            assert_eq!(answer(&mut harness, &[]), ["write 1T"], "no member can join otherwise");
        }
    }

    #[test]
    fn a_line_of_file_ping_names_a_member() {
        let line = "A \t01020304-0506-0708-1112-131415161718 \t127.0.0.1:7800 \tT\nnonsense\n";
        let found = parse_file(line);
        assert_eq!(found.len(), 1);
        assert!(found[0].is_coordinator);
        assert_eq!(found[0].sender.to_string(), "01020304-0506-0708-1112-131415161718");
        assert_eq!(sanitized("a/b:c"), "a-b-c");
    }
}
