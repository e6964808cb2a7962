//! Listeners, with writes only, and while members join, leave, crash and are cut off.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, CapacityFactor, EVENT_BYTES_MAX, EntryEvent, Event, EventKind,
    ListenError, ListenOptions, OperationError, Outcome, PartitionHandling, Scope, Transform, Write,
};

use crate::clients::{Clients, TIMEOUT};
use crate::cluster::Cluster;
use crate::faults::Faults;
use crate::listening::{Reader, put, remove};
use crate::persistence::{config, memory_stores, start};
use crate::seeds::every_seed;

pub(crate) fn key(n: u64) -> Bytes {
    Bytes::from(format!("k{n}"))
}

/// A settled cluster.
pub(crate) fn settled(seed: u64, members: usize, owners: u16) -> Cluster {
    let mut config = CacheConfig::new("heard");
    config.segments = 8;
    config.mode = CacheMode::Distributed { owners };
    Cluster::settled(seed, config, members)
}

pub(crate) fn listen(cluster: &mut Cluster, member: usize, options: ListenOptions) -> Reader {
    let mut reader = Reader::begin(cluster, member, options);
    for _ in 0..50 {
        cluster.run(Duration::from_millis(20));
        reader.poll(cluster);
    }
    assert!(reader.ready.is_some(), "{}", cluster.state());
    reader
}

fn with_state() -> ListenOptions {
    ListenOptions { with_state: true, ..ListenOptions::default() }
}

pub(crate) fn write(cluster: &mut Cluster, member: usize, n: u64, action: Action) {
    let at = cluster.submit(member, key(n), action, TIMEOUT);
    cluster.run(Duration::from_millis(100));
    assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{:?}", cluster.history[at]);
}

pub(crate) fn kinds(reader: &Reader) -> Vec<EventKind> {
    reader.entries().map(|event| event.kind).collect()
}

#[test]
fn every_kind_of_change_sends_one_event_to_each_member_with_listeners() {
    for owners in [1, 2, 3] {
        let mut cluster = settled(1, 4, owners);
        let mut readers: Vec<Reader> =
            (0..4).map(|n| listen(&mut cluster, n, ListenOptions::default())).collect();
        for n in 0..20 {
            write(&mut cluster, n as usize % 4, n, put("one", None));
            write(&mut cluster, n as usize % 3, n, put("two", Some(Duration::from_secs(20))));
            write(&mut cluster, n as usize % 2, n, if n < 10 { remove() } else { put("three", None) });
        }
        for reader in &mut readers {
            reader.poll(&mut cluster);
            assert_eq!(reader.events.len(), 60);
            let of = |kind| kinds(reader).into_iter().filter(|other| *other == kind).count();
            let counts = [EventKind::Created, EventKind::Modified, EventKind::Removed].map(of);
            assert_eq!(counts, [20, 30, 10]);
            reader.check_order();
            reader.check_changes(&cluster);
        }
    }
}

#[test]
fn expiry_event_is_sent_once_even_if_the_primary_is_lost() {
    let mut cluster = settled(2, 4, 2);
    let mut reader = listen(&mut cluster, 0, ListenOptions::default());
    for n in 0..40 {
        write(&mut cluster, 0, n, put("mortal", Some(Duration::from_secs(10))));
    }
    cluster.crash(2);
    cluster.deliver_views(false);
    cluster.run(Duration::from_secs(20));
    reader.poll(&mut cluster);
    let of = |kind| kinds(&reader).into_iter().filter(|other| *other == kind).count();
    assert_eq!([of(EventKind::Created), of(EventKind::Expired), reader.gaps()], [40, 40, 0]);
    reader.check_order();
    let held: u64 = cluster.members.iter().flatten().map(|member| member.container.len()).sum();
    assert_eq!(held, 0);
}

/// At any time, also after the former primary's last check for expired entries and before the new primary's first
/// one.
#[test]
fn expiry_during_a_transfer_is_sent_once() {
    for pause in (0..30).map(|n| Duration::from_millis(10 * n)) {
        let mut cluster = settled(13, 1, 1);
        let mut reader =
            listen(&mut cluster, 0, ListenOptions { with_previous: true, ..ListenOptions::default() });
        for n in 0..20 {
            cluster.submit(0, key(n), put("mortal", Some(Duration::from_millis(500))), TIMEOUT);
        }
        cluster.run(Duration::from_millis(300) + pause);
        cluster.start();
        cluster.run(Duration::from_secs(4));
        reader.poll(&mut cluster);
        reader.check_order();
        let expired = reader.entries().filter(|event| event.kind == EventKind::Expired);
        assert_eq!(expired.count(), 20, "a member joins after {pause:?}");
    }
}

/// Entries that a member receives in an interrupted transfer are not taken for stale entries of a store when the
/// segment is requested again: its new primary delivers the events of their expiry.
#[test]
fn expiry_during_a_repeated_transfer_is_sent_once() {
    for seed in 0..4 {
        let stores = memory_stores(4);
        let mut cluster = Cluster::new(seed, config());
        for store in &stores[..3] {
            start(&mut cluster, store, None, false);
            cluster.run(Duration::from_millis(50));
        }
        cluster.run(Duration::from_secs(2));
        let mut reader = listen(&mut cluster, 0, ListenOptions::default());
        // The joining member asks two of the others in vain.
        cluster.mute.extend([(3, 1), (3, 2)]);
        start(&mut cluster, &stores[3], None, false);
        cluster.run(Duration::from_millis(200));
        for n in 0..60 {
            let lifespan = Duration::from_millis(500 + 30 * n);
            cluster.submit(0, key(n), put("mortal", Some(lifespan)), TIMEOUT);
        }
        cluster.run(Duration::from_millis(1_600));
        cluster.mute.clear();
        cluster.run(Duration::from_secs(8));
        reader.poll(&mut cluster);
        reader.check_order();
        let expired = reader.entries().filter(|event| event.kind == EventKind::Expired);
        assert_eq!((expired.count(), reader.gaps()), (60, 0), "seed {seed}");
    }
}

/// A listener with that option gets the previous value, also of expired entries; writers and other listeners do not.
#[test]
fn previous_value_is_sent_to_listeners_that_request_it() {
    for owners in [1, 2, 3] {
        let mut cluster = settled(12, 4, owners);
        let asking = ListenOptions { with_previous: true, ..ListenOptions::default() };
        let mut readers: Vec<Reader> = (0..4).map(|n| listen(&mut cluster, n, asking.clone())).collect();
        let mut other = listen(&mut cluster, 1, ListenOptions::default());
        for n in 0..12 {
            write(&mut cluster, n as usize % 4, n, put("one", None));
            write(&mut cluster, n as usize % 3, n, put("two", None));
            write(&mut cluster, n as usize % 2, n, remove());
            write(&mut cluster, n as usize % 4, n, put("mortal", Some(Duration::from_secs(5))));
        }
        cluster.run(Duration::from_secs(8));
        let previous = |event: &EntryEvent| Some(event.previous.clone()?.value);
        let text = |value: &'static str| Some(Bytes::from_static(value.as_bytes()));
        let wanted = [
            (EventKind::Created, text("one"), None),
            (EventKind::Modified, text("two"), text("one")),
            (EventKind::Removed, None, text("two")),
            (EventKind::Created, text("mortal"), None),
            (EventKind::Expired, None, text("mortal")),
        ];
        for reader in &mut readers {
            reader.poll(&mut cluster);
            for n in 0..12 {
                let of_key = reader.entries().filter(|event| event.key == key(n));
                let told: Vec<_> =
                    of_key.map(|event| (event.kind, event.value.clone(), previous(event))).collect();
                assert_eq!(told, wanted, "owners {owners}, k{n}");
            }
        }
        other.poll(&mut cluster);
        assert_eq!(other.events.len(), 60);
        other.check_order();
        for done in &cluster.history {
            let Some(Ok(Outcome::Written(written))) = &done.result else { panic!("{done:?}") };
            assert_eq!(written.previous, None, "{done:?}");
        }
    }
}

#[test]
fn a_key_that_is_written_when_its_time_is_over_has_expired_before() {
    let mut cluster = settled(3, 2, 2);
    let mut reader = listen(&mut cluster, 1, ListenOptions::default());
    write(&mut cluster, 0, 1, put("mortal", Some(Duration::from_millis(300))));
    cluster.run(Duration::from_millis(250));
    write(&mut cluster, 0, 1, put("again", None));
    cluster.run(Duration::from_secs(3));
    reader.poll(&mut cluster);
    assert_eq!(kinds(&reader), [EventKind::Created, EventKind::Expired, EventKind::Created]);
}

#[test]
fn state_is_sent_before_the_changes() {
    let mut cluster = settled(4, 3, 2);
    for n in 0..100 {
        write(&mut cluster, n as usize % 3, n, put("there", None));
    }
    let mut reader = Reader::begin(&mut cluster, 2, with_state());
    for n in 0..50 {
        let at = n as usize % 3;
        cluster.submit(at, key(3 * n), if n % 2 == 0 { put("changed", None) } else { remove() }, TIMEOUT);
        cluster.run(Duration::from_micros(700));
        reader.poll(&mut cluster);
    }
    cluster.run(Duration::from_secs(2));
    reader.poll(&mut cluster);
    reader.check_order();
    reader.check_replica(&cluster);
    reader.check_changes(&cluster);
    assert_eq!(reader.events.iter().filter(|(_, event)| *event == Event::Complete).count(), 1);
    assert_eq!(reader.gaps(), 0);
}

#[test]
fn local_listeners_share_the_changes_and_cost_no_frame() {
    let mut cluster = settled(5, 3, 2);
    let local = || ListenOptions { scope: Scope::Local, ..ListenOptions::default() };
    let mut readers: Vec<Reader> = (0..3).map(|n| Reader::begin(&mut cluster, n, local())).collect();
    assert!(readers.iter().all(|reader| reader.ready.is_some()));
    let before = cluster.frames;
    for n in 0..60 {
        write(&mut cluster, 0, n, put("one", None));
    }
    let with = cluster.frames - before;
    readers.iter_mut().for_each(|reader| reader.poll(&mut cluster));
    let told: Vec<usize> = readers.iter().map(|reader| reader.events.len()).collect();
    assert_eq!(told.iter().sum::<usize>(), 60);
    assert!(told.iter().all(|count| *count > 0), "{told:?}");
    assert_eq!(cluster.with(0, |node, _| node.topology(CacheConfig::new("heard").id()).unwrap().id), {
        let mut other = settled(5, 3, 2);
        let before = other.frames;
        for n in 0..60 {
            write(&mut other, 0, n, put("one", None));
        }
        assert_eq!(other.frames - before, with);
        other.with(0, |node, _| node.topology(CacheConfig::new("heard").id()).unwrap().id)
    });
}

#[test]
fn transform_filters_and_maps_present_entries_and_changes() {
    let mut cluster = settled(6, 3, 2);
    let cache = cluster.cache();
    for n in 0..3 {
        cluster.with(n, |node, _| {
            let ending = |key: &[u8], entry: &consort_grid::Entry, ending: &[u8]| {
                key.ends_with(ending).then(|| Bytes::from(entry.value.len().to_string()))
            };
            node.register_transform(cache, "length where key ends with", Arc::new(ending));
        });
    }
    for n in 0..20 {
        write(&mut cluster, 0, n, put("four", None));
    }
    let transform =
        Transform { name: "length where key ends with".into(), arguments: Bytes::from_static(b"7") };
    let options = ListenOptions { transform: Some(transform), with_values: false, ..with_state() };
    let mut reader = listen(&mut cluster, 1, options);
    for n in 0..20 {
        write(&mut cluster, 1, n, put("fifty", None));
    }
    write(&mut cluster, 1, 17, remove());
    reader.poll(&mut cluster);
    let values: Vec<(Bytes, Option<Bytes>)> =
        reader.entries().map(|event| (event.key.clone(), event.value.clone())).collect();
    let mut existing = values[..2].to_vec();
    existing.sort();
    let of = |n, value: &'static str| (key(n), Some(Bytes::from_static(value.as_bytes())));
    assert_eq!(existing, [of(17, "4"), of(7, "4")]);
    assert_eq!(values[2..], [of(7, "5"), of(17, "5"), of(17, "0")]);
    let unknown = ListenOptions {
        transform: Some(Transform { name: "nothing".into(), arguments: Bytes::new() }),
        ..ListenOptions::default()
    };
    let failed = cluster.with(0, |node, now| node.listen(now, cache, unknown)).unwrap().unwrap_err();
    assert_eq!(failed.to_string(), "this member has no transform nothing");
}

#[test]
fn slow_reader_gets_a_gap_and_the_present_entries_again() {
    let mut cluster = settled(7, 3, 2);
    let mut quick = listen(&mut cluster, 1, ListenOptions::default());
    let mut slow = listen(&mut cluster, 1, ListenOptions { events_max: 50, ..with_state() });
    assert_eq!(slow.events.len(), 1, "{:?}", slow.events);
    for n in 0..120 {
        write(&mut cluster, 0, n % 70, put("one", None));
    }
    quick.poll(&mut cluster);
    assert_eq!((quick.events.len(), quick.gaps()), (120, 0));
    slow.poll(&mut cluster);
    cluster.run(Duration::from_secs(1));
    slow.poll(&mut cluster);
    assert_eq!((slow.events[1].1.clone(), slow.gaps()), (Event::Gap, 1));
    slow.check_order();
    slow.check_replica(&cluster);
}

#[test]
fn member_without_listeners_gets_no_events_after_a_while() {
    let mut cluster = settled(8, 3, 2);
    let cache = cluster.cache();
    let listening = |cluster: &mut Cluster| {
        cluster.with(0, |node, _| node.topology(cache).unwrap().listening().count()).unwrap()
    };
    let reader = listen(&mut cluster, 2, ListenOptions::default());
    assert_eq!(listening(&mut cluster), 1);
    cluster.with(2, |node, now| node.end_listener(now, cache, reader.id));
    let again = listen(&mut cluster, 2, ListenOptions::default());
    cluster.run(Duration::from_secs(60));
    assert_eq!(listening(&mut cluster), 1);
    cluster.with(2, |node, now| node.end_listener(now, cache, again.id));
    cluster.run(Duration::from_secs(60));
    assert_eq!(listening(&mut cluster), 0);
    let wakes = cluster.members.iter().flatten().filter(|one| one.node.poll_timeout().is_some()).count();
    assert_eq!(wakes, 0, "nothing is left to wait for");
}

#[test]
fn stopped_member_delays_writes_for_seconds_and_gets_a_gap() {
    let mut cluster = settled(9, 3, 2);
    let config = cluster.config.clone();
    let listener = cluster.start_as(config, CapacityFactor::ZERO);
    cluster.run(Duration::from_secs(2));
    let mut reader = listen(&mut cluster, listener, with_state());
    write(&mut cluster, 0, 1, put("before", None));
    // The listener's member gets no frames, and no member has excluded it yet.
    cluster.sides[listener] = 1;
    let at = cluster.submit(0, key(2), put("meanwhile", None), TIMEOUT);
    cluster.run(Duration::from_secs(4));
    assert_eq!(cluster.history[at].result, None);
    cluster.run(Duration::from_secs(3));
    assert!(matches!(cluster.history[at].result, Some(Ok(_))), "{}", cluster.state());
    cluster.sides[listener] = 0;
    cluster.run(Duration::from_secs(10));
    reader.poll(&mut cluster);
    assert!(reader.gaps() > 0);
    cluster.run(Duration::from_secs(1));
    reader.poll(&mut cluster);
    write(&mut cluster, 1, 3, put("after", None));
    reader.poll(&mut cluster);
    reader.check_replica(&cluster);
    reader.check_changes(&cluster);
}

#[test]
fn registration_without_reachable_primaries_reports_them_and_may_wait() {
    let mut cluster = settled(10, 3, 2);
    write(&mut cluster, 0, 1, put("before", None));
    cluster.cut(vec![0, 0, 1]);
    let mut reader = Reader::begin(&mut cluster, 2, with_state());
    let (cache, id) = (cluster.cache(), reader.id);
    let is_listening =
        |cluster: &mut Cluster| cluster.with(2, |node, _| node.is_listening(cache, id)).unwrap();
    assert_eq!(is_listening(&mut cluster), Ok(false));
    cluster.run(Duration::from_secs(10));
    assert!(cluster.members[2].as_ref().unwrap().told.contains(&id), "its reader was woken");
    let refused = is_listening(&mut cluster);
    assert!(matches!(refused, Err(ListenError::Operation(OperationError::Degraded { .. }))), "{refused:?}");
    cluster.heal();
    for _ in 0..100 {
        cluster.run(Duration::from_millis(100));
        reader.poll(&mut cluster);
    }
    assert_eq!(is_listening(&mut cluster), Ok(true));
    write(&mut cluster, 1, 2, put("after", None));
    reader.poll(&mut cluster);
    assert_eq!(kinds(&reader), [EventKind::Existing, EventKind::Created]);
}

/// Clients write, readers listen, members join and leave.
fn run(seed: u64, is_told: bool) -> (Cluster, Vec<Reader>) {
    let mut config = CacheConfig::new("heard");
    let mut cluster = Cluster::new(seed, config.clone());
    let owners = 1 + cluster.rng.below(3) as u16;
    let faults = if owners == 1 { 0 } else { cluster.rng.below(8) };
    config.segments = 1 + cluster.rng.below(12) as u16;
    config.mode =
        if cluster.rng.chance(0.2) { CacheMode::Replicated } else { CacheMode::Distributed { owners } };
    if cluster.rng.chance(0.5) {
        config.partitions = PartitionHandling::DenyReadWrites;
    }
    let has_cuts = cluster.rng.chance(0.4);
    cluster.config = config;
    let count = 1 + cluster.rng.below(5);
    let mut clients = Clients::start(&mut cluster, count, 1);
    let keys = 1 + cluster.rng.below(20);
    let mut readers: Vec<Reader> = Vec::new();
    let end = cluster.now + Duration::from_secs(4);
    let mut faults = Faults::new(&cluster, faults, has_cuts);
    let mut nth = 0;
    while cluster.now < end {
        clients.begin(&mut cluster, |cluster| {
            if !cluster.rng.chance(0.3) {
                return None;
            }
            nth += 1;
            let action = match cluster.rng.below(8) {
                0..5 => put(format!("v{nth}"), None),
                5 => put(format!("v{nth}"), Some(Duration::from_millis(400))),
                _ => remove(),
            };
            Some((key(cluster.rng.below(keys)), action))
        });
        if readers.len() < 6 && cluster.rng.chance(0.005) {
            let alive = cluster.live_members();
            let member = alive[cluster.rng.below(alive.len() as u64) as usize];
            let cache = cluster.cache();
            let options = ListenOptions {
                with_state: cluster.rng.chance(0.6),
                with_values: cluster.rng.chance(0.7),
                with_previous: cluster.rng.chance(0.4),
                events_max: if cluster.rng.chance(0.1) { 5 } else { 4_096 },
                ..ListenOptions::default()
            };
            if cluster.with(member, |node, _| node.topology(cache).is_some()) == Some(true) {
                readers.push(Reader::begin(&mut cluster, member, options));
            }
        }
        clients.pass(&mut cluster);
        for reader in &mut readers {
            if cluster.rng.chance(0.5) {
                reader.poll(&mut cluster);
            }
        }
        if let Some(member) = faults.strike(&mut cluster) {
            clients.add(member, 1);
        }
    }
    faults.end(&mut cluster);
    for _ in 0..30 {
        cluster.run(Duration::from_secs(1));
        readers.iter_mut().for_each(|reader| reader.poll(&mut cluster));
    }
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    (cluster, readers)
}

fn check(seed: u64, is_told: bool) -> (usize, usize) {
    let (cluster, readers) = run(seed, is_told);
    assert!(cluster.is_settled(), "no stable topology:\n{}", cluster.state());
    cluster.check_agreement();
    let mut counts = (0, 0);
    for reader in &readers {
        reader.check_order();
        if reader.is_alive(&cluster) {
            reader.check_changes(&cluster);
            if reader.options.with_state {
                reader.check_replica(&cluster);
            }
            counts.0 += reader.entries().count();
            counts.1 += reader.gaps();
        }
    }
    for reader in &readers {
        let is_left = cluster.members[reader.member].as_ref().is_none_or(|member| member.is_left);
        let is_degraded = |error: &ListenError| matches!(error, ListenError::State(_));
        assert!(
            reader.failed.as_ref().is_none_or(|error| is_left || is_degraded(error)),
            "{:?}",
            reader.failed
        );
    }
    counts
}

/// Each acknowledged change is delivered exactly once, in the order of versions of its key, unless the reader gets a
/// gap.
#[test]
fn every_acknowledged_change_sends_one_event_in_order_whatever_happens() {
    let counts = every_seed(40, check);
    let (events, gaps) = counts.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    assert!(events > 20 * gaps, "{events} events, {gaps} gaps: gaps are for cuts and slow readers");
}

/// Two of three owners are lost one after the other, the second while the unfinished writes of the first are still
/// being repeated.
pub(crate) fn lose_two(seed: u64, is_told: bool) -> usize {
    let mut config = CacheConfig { segments: 4, ..CacheConfig::new("heard") };
    config.mode = CacheMode::Distributed { owners: 3 };
    let mut cluster = Cluster::settled(seed, config, 5);
    cluster.delay_max = Duration::from_millis(cluster.rng.between(3, 60));
    let mut readers: Vec<Reader> = (0..5)
        .map(|member| {
            let with_previous = cluster.rng.chance(0.5);
            listen(&mut cluster, member, ListenOptions { with_previous, ..with_state() })
        })
        .collect();
    let mut clients = Clients::default();
    (0..5).for_each(|member| clients.add(member, 2));
    let mut victims: Vec<usize> = (0..5).collect();
    cluster.rng.shuffle(&mut victims);
    let first = cluster.now + cluster.rng.duration(Duration::from_millis(200), Duration::from_millis(500));
    let second = first + cluster.rng.duration(Duration::from_millis(1), Duration::from_millis(400));
    let mut crashes = [(first, victims[0]), (second, victims[1])].into_iter().peekable();
    // Their last frames to some members are lost, because a crash also drops queued frames.
    let mut mutes = Vec::new();
    for (at, victim) in crashes.clone() {
        let ago = cluster.rng.duration(Duration::ZERO, Duration::from_millis(150));
        let deaf: Vec<usize> = (0..5).filter(|_| cluster.rng.chance(0.5)).collect();
        mutes.push((at, ago, victim, deaf));
    }
    let end = second + Duration::from_millis(500);
    while cluster.now < end {
        clients.begin(&mut cluster, |cluster| {
            let value = format!("v{}", cluster.history.len());
            let action = if cluster.rng.chance(0.7) { put(value, None) } else { remove() };
            let key = key(cluster.rng.below(10));
            cluster.rng.chance(0.2).then_some((key, action))
        });
        clients.pass(&mut cluster);
        readers.iter_mut().for_each(|reader| reader.poll(&mut cluster));
        let now = cluster.now;
        for (.., victim, deaf) in mutes.extract_if(.., |(at, ago, ..)| *at <= now + *ago) {
            cluster.mute.extend(deaf.into_iter().map(|to| (victim, to)));
        }
        if let Some((_, victim)) = crashes.next_if(|(at, _)| *at <= cluster.now) {
            cluster.crash(victim);
            cluster.deliver_views(false);
        }
    }
    for _ in 0..20 {
        cluster.run(Duration::from_secs(1));
        readers.iter_mut().for_each(|reader| reader.poll(&mut cluster));
    }
    if is_told {
        println!("{}", cluster.story.join("\n"));
    }
    assert!(cluster.is_settled(), "no stable topology:\n{}", cluster.state());
    cluster.check_agreement();
    for reader in readers.iter().filter(|reader| reader.is_alive(&cluster)) {
        reader.check_order();
        reader.check_changes(&cluster);
        reader.check_replica(&cluster);
    }
    readers.iter().map(Reader::gaps).sum()
}

#[test]
fn loss_of_owners_one_after_the_other_is_reported_as_a_gap() {
    every_seed(40, lose_two);
}

#[test]
fn full_resend_before_the_next_loss_leaves_no_gap() {
    let mut cluster = settled(15, 5, 3);
    let mut readers: Vec<Reader> = (0..3).map(|member| listen(&mut cluster, member, with_state())).collect();
    for (nth, lost) in [4, 3].into_iter().enumerate() {
        for n in 0..20 {
            write(&mut cluster, n as usize % 3, n, put(format!("before {nth}"), None));
        }
        cluster.crash(lost);
        cluster.deliver_views(false);
        cluster.run(Duration::from_secs(3));
    }
    for reader in &mut readers {
        reader.poll(&mut cluster);
        reader.check_changes(&cluster);
        assert_eq!(reader.gaps(), 0);
    }
}

#[test]
fn event_larger_than_the_queue_is_delivered() {
    let mut cluster = settled(14, 1, 1);
    let mut reader = listen(&mut cluster, 0, ListenOptions::default());
    write(&mut cluster, 0, 1, put(vec![0; EVENT_BYTES_MAX + 1], None));
    reader.poll(&mut cluster);
    assert_eq!(kinds(&reader), [EventKind::Created]);
    for n in 2..4 {
        write(&mut cluster, 0, n, put(vec![0; EVENT_BYTES_MAX], None));
    }
    reader.poll(&mut cluster);
    assert_eq!(reader.gaps(), 1);
}

#[test]
fn conditional_write_without_effect_sends_no_event() {
    let mut cluster = settled(10, 2, 2);
    let mut reader = listen(&mut cluster, 0, ListenOptions::default());
    write(&mut cluster, 0, 1, remove());
    let absent = match put("one", None) {
        Action::Write(write) => Action::Write(Write { condition: consort_grid::Condition::Present, ..write }),
        read @ Action::Read(_) => read,
    };
    write(&mut cluster, 1, 1, absent);
    reader.poll(&mut cluster);
    assert_eq!(reader.events, []);
}

/// The segments whose owners are all reachable are written meanwhile.
#[test]
fn listener_of_a_cache_that_stays_degraded_gets_events_after_a_change_of_coordinators() {
    let mut cluster = settled(21, 5, 1);
    let mut reader = listen(&mut cluster, 2, ListenOptions::default());
    cluster.cut(vec![0, 0, 0, 0, 1]);
    cluster.run(Duration::from_secs(5));
    for lost in [0, 1] {
        cluster.cut((0..5).map(|n| u8::from(n <= lost || n == 4)).collect());
        cluster.run(Duration::from_secs(5));
        reader.poll(&mut cluster);
        let before = reader.entries().count();
        let writes: Vec<usize> =
            (0..40).map(|n| cluster.submit(2, key(n), put("new", None), TIMEOUT)).collect();
        cluster.run(Duration::from_secs(2));
        reader.poll(&mut cluster);
        let is_done = |at: &&usize| matches!(cluster.history[**at].result, Some(Ok(_)));
        let done = writes.iter().filter(is_done).count();
        assert!(0 < done && done < writes.len(), "{done} writes: {}", cluster.state());
        assert_eq!(reader.entries().count() - before, done, "{}", cluster.state());
    }
    reader.check_order();
}

/// It moves from one degraded side to the other, and the changes of both are known to no side alone.
#[test]
fn listener_that_comes_to_another_degraded_side_gets_a_gap() {
    let mut cluster = settled(22, 4, 1);
    let mut reader = listen(&mut cluster, 1, ListenOptions::default());
    // Each side writes the segments whose owner it has.
    let mut gaps = 0;
    for sides in [vec![0, 0, 1, 1], vec![0, 1, 1, 1]] {
        cluster.cut(sides);
        gaps = reader.gaps();
        for at in 0..5 {
            for n in 0..40 {
                cluster.submit(if at % 2 == 0 { 0 } else { 2 }, key(n), put(format!("{at}"), None), TIMEOUT);
            }
            cluster.run(Duration::from_secs(1));
        }
        reader.poll(&mut cluster);
    }
    assert!(reader.gaps() > gaps, "{}", cluster.state());
    reader.check_order();
    check(1034, false);
}
