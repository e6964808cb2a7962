//! FILE_PING: finds members through files in a shared directory. The file of a coordinator lists the members of its
//! view.

use super::document::Document;
use super::*;
use crate::{Effect, Uuid};

crate::properties! {
    /// FILE_PING's properties.
    FilePingConfig {
        /// The directory shared by all members. Each cluster has a subdirectory.
        location: String = "/tmp/jgroups".to_owned(),
    }
}

const ENDING: &str = ".list";

/// The directory of FILE_PING.
pub(super) struct Directory {
    config: FilePingConfig,
}

impl Directory {
    pub(super) const fn new(config: FilePingConfig) -> Self {
        Self { config }
    }

    pub(super) fn read(&self, cx: &mut Cx<'_>) -> Token {
        let directory = self.path(cx);
        cx.request(Effect::ReadFiles { directory, ending: ENDING })
    }

    pub(super) fn documents(&self, files: Vec<(String, String)>) -> Vec<Document> {
        files.into_iter().map(|(name, text)| Document { name, listed: parse_file(&text) }).collect()
    }

    pub(super) fn warn(&self, why: &str) {
        let location = &self.config.location;
        tracing::warn!(location, why, "FILE_PING: cannot read or write the files of members");
    }

    pub(super) fn write_view(&self, cx: &mut Cx<'_>, view: &View) -> Token {
        let content = file_content(cx, view);
        self.write(cx, content)
    }

    pub(super) fn write_own(&self, cx: &mut Cx<'_>) -> Token {
        let shared = cx.shared();
        let phys = file_address(shared.phys);
        let content = format!("{} \t{} \t{phys} \tF\n", shared.name, shared.local);
        self.write(cx, content)
    }

    fn write(&self, cx: &mut Cx<'_>, content: String) -> Token {
        let (directory, name) = (self.path(cx), file_name(cx, cx.local()));
        cx.request(Effect::WriteFile { directory, name, content })
    }

    pub(super) fn remove(&self, cx: &mut Cx<'_>, name: String) {
        let directory = self.path(cx);
        cx.request(Effect::RemoveFile { directory, name });
    }

    pub(super) fn remove_file_of(&self, cx: &mut Cx<'_>, member: &Address) {
        let name = file_name(cx, member);
        self.remove(cx, name);
    }

    pub(super) fn remove_others(&self, cx: &mut Cx<'_>) {
        let (directory, own) = (self.path(cx), file_name(cx, cx.local()));
        cx.request(Effect::RemoveFiles { directory, ending: ENDING, except: own });
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }

    fn path(&self, cx: &Cx<'_>) -> String {
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
    use crate::protocols::{Store, StoreConfig};

    const TIMEOUT: Duration = Duration::from_secs(2);
    const DIRECTORY: &str = "/tmp/jgroups/demo";

    fn harness(config: StoreConfig) -> Harness {
        let source = Source::Store(Box::new(Store::of_files(config, FilePingConfig::default())));
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
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        let files = [(9, line(9, 1, 'T') + &line(2, 2, 'F'))];
        assert_eq!(answer(&mut harness, &files), [""; 0], "it lists the survivors");
        assert_eq!(asked(&mut harness), [phys(2)], "not its predecessor, which is itself by its address");
        respond(&mut harness, 2, false);
        assert_eq!(found(&mut harness), None);
        harness.advance(Duration::from_millis(500));
        assert_eq!(answer(&mut harness, &files), [""; 0]);
        assert_eq!(asked(&mut harness), [phys(2)], "until the new coordinator has written its file");
        harness.advance(Duration::from_millis(500));
        let both = [(9, line(9, 1, 'T') + &line(2, 2, 'F')), (2, line(2, 2, 'T'))];
        assert_eq!(answer(&mut harness, &both), [""; 0]);
        respond(&mut harness, 2, true);
        assert_eq!(found(&mut harness), Some(vec![member(2)]));
        search(&mut harness, false);
        assert_eq!(answer(&mut harness, &both), [format!("remove {}", file_of(9))], "once it has joined");
    }

    #[test]
    fn file_of_a_predecessor_that_lists_no_other_member_is_removed_by_a_join() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        let removed = answer(&mut harness, &[(9, line(9, 1, 'T'))]);
        assert_eq!(removed, [format!("remove {}", file_of(9)), "write 1F".to_owned()]);
    }

    #[test]
    fn at_most_2000_entries_are_asked_and_coordinators_first() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        let entry = |n: u64| format!("X \t{} \t127.0.0.1:{} \tF\n", member(100 + n), 10_000 + n);
        let stale: String = (0..2_000).map(entry).collect();
        answer(&mut harness, &[(9, stale), (2, line(2, 2, 'T'))]);
        let asked = asked(&mut harness);
        assert_eq!(asked.len(), 2_000);
        assert!(asked.contains(&phys(2)));
    }

    #[test]
    fn listed_members_that_do_not_respond_do_not_count() {
        let mut harness = harness(StoreConfig::default());
        search(&mut harness, true);
        answer(&mut harness, &[(2, line(2, 2, 'T') + &line(3, 3, 'F'))]);
        assert_eq!(asked(&mut harness), [phys(2), phys(3)]);
        assert_eq!(found(&mut harness), None);
        harness.advance(TIMEOUT);
        assert_eq!(found(&mut harness), Some(vec![]));
    }

    #[test]
    fn first_member_writes_its_file_and_reads_num_read_loops_times() {
        let mut harness = harness(StoreConfig::default());
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
        let mut harness = harness(StoreConfig::default());
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
        let mut harness = harness(StoreConfig::default());
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
    fn successor(config: StoreConfig) -> (Harness, Vec<String>) {
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
        let plain = StoreConfig::default();
        let all = StoreConfig { remove_all_data_on_view_change: true, ..plain.clone() };
        let old = StoreConfig { remove_old_coords_on_view_change: true, ..plain.clone() };
        // The harness knows no names of other members, whose entries are incomplete.
        assert_eq!(successor(plain).1, ["write 1T"]);
        assert_eq!(successor(all).1, ["write 1T", "remove others"]);
        assert_eq!(successor(old).1, ["write 1T".to_owned(), format!("remove {}.list", member(9))]);
    }

    #[test]
    fn coordinator_that_removes_files_writes_its_own_twice_more() {
        let config = StoreConfig { remove_all_data_on_view_change: true, ..StoreConfig::default() };
        let (mut harness, _) = successor(config);
        harness.advance(Duration::from_millis(999));
        assert_eq!(effects(&mut harness).1, [""; 0]);
        harness.advance(Duration::from_secs(60));
        assert_eq!(effects(&mut harness).1, ["write 1T", "write 1T"]);
    }

    /// A removal that fails each time, as that of a file of another user, must not cause a write each time.
    #[test]
    fn failed_removal_of_a_file_repeats_no_write() {
        let config = StoreConfig {
            remove_old_coords_on_view_change: true,
            info_writer_max_writes_after_view: 0,
            ..StoreConfig::default()
        };
        let mut harness = harness(config);
        harness.install(view(1, &[9, 1]));
        harness.install(view(2, &[1]));
        let all = harness.take_effects();
        let [(write, Effect::WriteFile { .. }), (removal, Effect::RemoveFile { .. })] = &all[..] else {
            panic!("{all:?}")
        };
        harness.done(*write, Outcome::Done);
        harness.done(*removal, Outcome::Failed("Permission denied".to_owned()));
        harness.advance(Duration::from_secs(60));
        assert_eq!(effects(&mut harness), (None, vec![]));
    }

    #[test]
    fn former_coordinator_removes_its_file() {
        let (mut harness, _) = successor(StoreConfig::default());
        harness.install(view(3, &[2, 1]));
        assert_eq!(effects(&mut harness), (None, vec![format!("remove {}", file_of(1))]));
    }

    #[test]
    fn coordinator_without_updates_writes_its_file_only_when_members_leave() {
        let config = StoreConfig { update_store_on_view_change: false, ..StoreConfig::default() };
        let (mut harness, texts) = successor(config);
        assert_eq!(texts, ["write 1T"]);
        harness.install(view(3, &[1, 2, 3]));
        assert_eq!(effects(&mut harness).1, [""; 0]);
        harness.install(view(4, &[1, 3]));
        assert_eq!(effects(&mut harness).1, ["write 1T"]);
    }

    #[test]
    fn coordinator_whose_file_is_gone_writes_it_again_if_the_attributes_say_so() {
        let plain = StoreConfig {
            remove_all_data_on_view_change: true,
            info_writer_max_writes_after_view: 0,
            ..StoreConfig::default()
        };
        for (write_data_on_find, expected) in [(false, vec![]), (true, vec!["write 1T".to_owned()])] {
            let (mut harness, _) = successor(StoreConfig { write_data_on_find, ..plain.clone() });
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
