//! Strategies for requests and responses of every operation and version, for tests of the codec and its fuzz targets.

use std::sync::Arc;

use bytes::Bytes;
use consort_hotrod::ops::event::{CounterEvent, CounterState, Event, EventData, EventKind};
use consort_hotrod::ops::{
    auth, bulk, counter, iteration, listener, map, multimap, server, stream, task, transaction,
};
use consort_hotrod::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Some are long enough to be shared.
fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![30 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 4_000..5_000)].prop_map(Bytes::from)
}

fn some_bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 1..20).prop_map(Bytes::from)
}

fn text() -> impl Strategy<Value = Text> {
    any::<String>().prop_map(|text| Text::from(&text[..text.floor_char_boundary(40)]))
}

fn some_text() -> impl Strategy<Value = Text> {
    text().prop_map(|text| if text.is_empty() { Text::from("ä") } else { text })
}

fn bit_set() -> impl Strategy<Value = BitSet> {
    vec(0..300_usize, 0..20).prop_map(|bits| bits.into_iter().collect())
}

fn media_type() -> impl Strategy<Value = MediaType> {
    let params = || vec((text(), text()), 0..3);
    prop_oneof![
        Just(MediaType::Unspecified),
        (0..20_u32, params()).prop_map(|(id, params)| MediaType::Known { id, params }),
        (text(), params()).prop_map(|(name, params)| MediaType::Named { name, params }),
    ]
}

fn span(version: ProtocolVersion) -> BoxedStrategy<Span> {
    let constant = prop_oneof![Just(Span::Default), Just(Span::Infinite)];
    if version < ProtocolVersion::V2_2 {
        let seconds = (1..1_u64 << 31).prop_map(|amount| Span::Of(amount, TimeUnit::Seconds));
        prop_oneof![constant, seconds].boxed()
    } else {
        let of = (any::<u64>(), 0..7_usize).prop_map(|(amount, unit)| Span::Of(amount, TimeUnit::ALL[unit]));
        prop_oneof![constant, of].boxed()
    }
}

fn expiration(version: ProtocolVersion) -> impl Strategy<Value = Expiration> {
    (span(version), span(version)).prop_map(|(lifespan, max_idle)| Expiration { lifespan, max_idle })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let timed =
        || option::of((any::<i64>(), any::<u32>()).prop_map(|(since, seconds)| Timed { since, seconds }));
    (timed(), timed(), any::<i64>()).prop_map(|(lifespan, max_idle, version)| Metadata {
        lifespan,
        max_idle,
        version,
    })
}

fn previous(version: ProtocolVersion) -> impl Strategy<Value = Option<Previous>> {
    option::of((metadata(), some_bytes()).prop_map(move |(metadata, value)| Previous {
        metadata: (version >= ProtocolVersion::V4_0).then_some(metadata),
        value,
    }))
}

fn assignment(version: ProtocolVersion) -> impl Strategy<Value = map::Assignment> {
    (bytes(), expiration(version), bytes()).prop_map(|(key, expiration, value)| map::Assignment {
        key,
        expiration,
        value,
    })
}

fn factory() -> impl Strategy<Value = listener::Factory> {
    (some_text(), vec(bytes(), 0..4)).prop_map(|(name, params)| listener::Factory { name, params })
}

fn xid() -> impl Strategy<Value = transaction::Xid> {
    let part = || vec(any::<u8>(), 0..=64).prop_map(Bytes::from);
    (any::<i32>(), part(), part()).prop_map(|(format, global, branch)| transaction::Xid {
        format,
        global,
        branch,
    })
}

fn entries() -> impl Strategy<Value = Vec<(Bytes, Bytes)>> {
    vec((bytes(), bytes()), 0..8)
}

fn map_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<map::Request> {
    use map::Request as R;
    let to = assignment(version);
    match opcode {
        Opcode::Put => to.prop_map(R::Put).boxed(),
        Opcode::PutIfAbsent => to.prop_map(R::PutIfAbsent).boxed(),
        Opcode::Replace => to.prop_map(R::Replace).boxed(),
        Opcode::ReplaceIfUnmodified => {
            (to, any::<i64>()).prop_map(|(to, version)| R::ReplaceIfUnmodified(to, version)).boxed()
        }
        Opcode::Remove => bytes().prop_map(R::Remove).boxed(),
        Opcode::RemoveIfUnmodified => {
            (bytes(), any::<i64>()).prop_map(|(key, version)| R::RemoveIfUnmodified(key, version)).boxed()
        }
        Opcode::ContainsKey => bytes().prop_map(R::ContainsKey).boxed(),
        Opcode::GetWithVersion => bytes().prop_map(R::GetWithVersion).boxed(),
        Opcode::GetWithMetadata => bytes().prop_map(R::GetWithMetadata).boxed(),
        _ => bytes().prop_map(R::Get).boxed(),
    }
}

fn bulk_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<bulk::Request> {
    use bulk::Request as R;
    match opcode {
        Opcode::Clear => Just(R::Clear).boxed(),
        Opcode::Size => Just(R::Size).boxed(),
        Opcode::BulkGet => any::<u32>().prop_map(R::BulkGet).boxed(),
        Opcode::BulkGetKeys => any::<u32>().prop_map(R::BulkGetKeys).boxed(),
        Opcode::PutAll => (expiration(version), entries())
            .prop_map(|(expiration, entries)| R::PutAll(expiration, entries))
            .boxed(),
        _ => vec(bytes(), 0..8).prop_map(R::GetAll).boxed(),
    }
}

fn listener_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<listener::Request> {
    use listener::Request as R;
    let listener =
        (some_bytes(), any::<bool>(), option::of(factory()), option::of(factory()), any::<bool>(), 0..16_u32)
            .prop_map(move |(id, includes_state, filter, converter, is_raw, interests)| listener::Listener {
                id,
                includes_state,
                filter,
                converter,
                is_raw: is_raw && version >= ProtocolVersion::V2_1,
                interests: match version >= ProtocolVersion::V2_6 {
                    true => listener::Interests::from_bits(interests),
                    false => listener::Interests::ALL,
                },
            });
    match opcode {
        Opcode::AddClientListener => listener.prop_map(R::Add).boxed(),
        Opcode::AddBloomListener => {
            (some_bytes(), any::<u32>()).prop_map(|(id, bits)| R::AddBloom(id, bits)).boxed()
        }
        Opcode::UpdateBloomFilter => bit_set().prop_map(R::UpdateBloom).boxed(),
        _ => some_bytes().prop_map(R::Remove).boxed(),
    }
}

fn iteration_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<iteration::Request> {
    use iteration::Request as R;
    let start = (option::of(bit_set()), option::of(factory()), any::<u32>(), any::<bool>()).prop_map(
        move |(segments, filter, batch, with_metadata)| iteration::Start {
            segments,
            filter,
            batch,
            with_metadata: with_metadata && version >= ProtocolVersion::V2_4,
        },
    );
    match opcode {
        Opcode::IterationStart => start.prop_map(R::Start).boxed(),
        Opcode::IterationNext => text().prop_map(R::Next).boxed(),
        _ => text().prop_map(R::End).boxed(),
    }
}

fn stream_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<stream::Request> {
    use stream::Request as R;
    let target = (bytes(), expiration(version), any::<i64>())
        .prop_map(|(key, expiration, version)| stream::Target { key, expiration, version });
    match opcode {
        Opcode::GetStream => (bytes(), any::<u32>()).prop_map(|(key, from)| R::Get(key, from)).boxed(),
        Opcode::PutStream => {
            (target, vec(some_bytes(), 0..5)).prop_map(|(target, chunks)| R::Put(target, chunks)).boxed()
        }
        Opcode::StartGetStream => {
            (bytes(), any::<u32>()).prop_map(|(key, batch)| R::StartGet(key, batch)).boxed()
        }
        Opcode::NextGetStream => any::<i32>().prop_map(R::NextGet).boxed(),
        Opcode::StartPutStream => target.prop_map(R::StartPut).boxed(),
        Opcode::NextPutStream => (any::<i32>(), any::<bool>(), bytes())
            .prop_map(|(stream, is_last, bytes)| R::NextPut(stream, is_last, bytes))
            .boxed(),
        Opcode::EndPutStream => any::<i32>().prop_map(R::EndPut).boxed(),
        _ => any::<i32>().prop_map(R::EndGet).boxed(),
    }
}

fn transaction_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<transaction::Request> {
    use transaction::{Modification, Prepare, Recovery, Request as R, Seen};
    let seen = prop_oneof![Just(Seen::NotRead), Just(Seen::Absent), any::<i64>().prop_map(Seen::Version)];
    // One flag for all entries: default spans occur only from 2.2 on, because older versions have no
    // transactions.
    let spans = expiration(version.max(ProtocolVersion::V2_2));
    let spans =
        if version < ProtocolVersion::V2_2 { Just(Expiration::INFINITE).boxed() } else { spans.boxed() };
    let modification = (bytes(), seen, option::of((spans, bytes())))
        .prop_map(|(key, seen, change)| Modification { key, seen, change });
    let prepare = (xid(), any::<bool>(), vec(modification, 0..5))
        .prop_map(|(xid, is_one_phase, modifications)| Prepare { xid, is_one_phase, modifications });
    match opcode {
        Opcode::PrepareTx => prepare.prop_map(|prepare| R::Prepare(prepare, None)).boxed(),
        Opcode::PrepareTx2 => (prepare, any::<bool>(), any::<i64>())
            .prop_map(|(prepare, is_recoverable, timeout)| {
                R::Prepare(prepare, Some(Recovery { is_recoverable, timeout }))
            })
            .boxed(),
        Opcode::CommitTx => xid().prop_map(R::Commit).boxed(),
        Opcode::RollbackTx => xid().prop_map(R::Rollback).boxed(),
        Opcode::ForgetTx => xid().prop_map(R::Forget).boxed(),
        _ => Just(R::FetchRecovery).boxed(),
    }
}

fn counter_config() -> impl Strategy<Value = counter::CounterConfig> {
    use counter::{CounterConfig, CounterKind};
    let kind = prop_oneof![
        Just(CounterKind::Strong),
        (any::<i64>(), any::<i64>()).prop_map(|(lower, upper)| CounterKind::Bounded { lower, upper }),
        any::<u32>().prop_map(|concurrency| CounterKind::Weak { concurrency }),
    ];
    (kind, any::<bool>(), any::<i64>()).prop_map(|(kind, is_persistent, initial)| CounterConfig {
        kind,
        is_persistent,
        initial,
    })
}

fn counter_body(opcode: Opcode) -> BoxedStrategy<counter::Request> {
    use counter::{Action, Request as R};
    let action = match opcode {
        Opcode::CounterGetNames => return Just(R::Names).boxed(),
        Opcode::CounterCreate => counter_config().prop_map(Action::Create).boxed(),
        Opcode::CounterGetConfiguration => Just(Action::Configuration).boxed(),
        Opcode::CounterIsDefined => Just(Action::IsDefined).boxed(),
        Opcode::CounterAddAndGet => any::<i64>().prop_map(Action::AddAndGet).boxed(),
        Opcode::CounterReset => Just(Action::Reset).boxed(),
        Opcode::CounterCas => {
            (any::<i64>(), any::<i64>()).prop_map(|(old, new)| Action::CompareAndSwap(old, new)).boxed()
        }
        Opcode::CounterAddListener => some_bytes().prop_map(Action::AddListener).boxed(),
        Opcode::CounterRemoveListener => some_bytes().prop_map(Action::RemoveListener).boxed(),
        Opcode::CounterRemove => Just(Action::Remove).boxed(),
        Opcode::CounterGetAndSet => any::<i64>().prop_map(Action::GetAndSet).boxed(),
        _ => Just(Action::Get).boxed(),
    };
    (text(), action).prop_map(|(name, action)| R::Of(name, action)).boxed()
}

fn multimap_body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<multimap::Request> {
    use multimap::Action;
    let to = assignment(version);
    let action = match opcode {
        Opcode::MultimapGet => bytes().prop_map(Action::Get).boxed(),
        Opcode::MultimapGetWithMetadata => bytes().prop_map(Action::GetWithMetadata).boxed(),
        Opcode::MultimapPut => to.prop_map(Action::Put).boxed(),
        Opcode::MultimapRemoveKey => bytes().prop_map(Action::RemoveKey).boxed(),
        Opcode::MultimapRemoveEntry => to.prop_map(Action::RemoveEntry).boxed(),
        Opcode::MultimapSize => Just(Action::Size).boxed(),
        Opcode::MultimapContainsEntry => to.prop_map(Action::ContainsEntry).boxed(),
        Opcode::MultimapContainsKey => bytes().prop_map(Action::ContainsKey).boxed(),
        _ => (expiration(version), bytes())
            .prop_map(|(expiration, value)| Action::ContainsValue(expiration, value))
            .boxed(),
    };
    (action, any::<bool>())
        .prop_map(move |(action, allows)| multimap::Request {
            action,
            allows_duplicates: allows && version >= ProtocolVersion::V4_0,
        })
        .boxed()
}

fn body(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<RequestBody> {
    let name = opcode.name();
    match opcode {
        Opcode::Ping => Just(RequestBody::Server(server::Request::Ping)).boxed(),
        Opcode::Stats => Just(RequestBody::Server(server::Request::Stats)).boxed(),
        Opcode::Query => bytes().prop_map(|query| RequestBody::Task(task::Request::Query(query))).boxed(),
        Opcode::Exec => (text(), vec((text(), bytes()), 0..5))
            .prop_map(|(name, params)| RequestBody::Task(task::Request::Exec(name, params)))
            .boxed(),
        Opcode::AuthMechList => Just(RequestBody::Auth(auth::Request::Mechanisms)).boxed(),
        Opcode::Auth => (text(), bytes())
            .prop_map(|(name, response)| RequestBody::Auth(auth::Request::Step(name, response)))
            .boxed(),
        Opcode::Clear
        | Opcode::Size
        | Opcode::BulkGet
        | Opcode::BulkGetKeys
        | Opcode::PutAll
        | Opcode::GetAll => bulk_body(version, opcode).prop_map(RequestBody::Bulk).boxed(),
        Opcode::AddClientListener
        | Opcode::RemoveClientListener
        | Opcode::AddBloomListener
        | Opcode::UpdateBloomFilter => listener_body(version, opcode).prop_map(RequestBody::Listener).boxed(),
        _ if name.starts_with("ITERATION") => {
            iteration_body(version, opcode).prop_map(RequestBody::Iteration).boxed()
        }
        _ if name.ends_with("STREAM") => stream_body(version, opcode).prop_map(RequestBody::Stream).boxed(),
        _ if name.contains("_TX") => {
            transaction_body(version, opcode).prop_map(RequestBody::Transaction).boxed()
        }
        _ if name.starts_with("COUNTER") => counter_body(opcode).prop_map(RequestBody::Counter).boxed(),
        _ if name.starts_with("MULTIMAP") => {
            multimap_body(version, opcode).prop_map(RequestBody::Multimap).boxed()
        }
        _ => map_body(version, opcode).prop_map(RequestBody::Map).boxed(),
    }
}

fn intelligence() -> impl Strategy<Value = Intelligence> {
    prop_oneof![Just(Intelligence::Basic), Just(Intelligence::Topology), Just(Intelligence::Hash)]
}

fn header(version: ProtocolVersion) -> impl Strategy<Value = RequestHeader> {
    let types = (media_type(), media_type());
    (any::<u64>(), text(), any::<u32>(), intelligence(), any::<i32>(), types, vec((text(), bytes()), 0..3))
        .prop_map(move |(id, cache, flags, intelligence, topology_id, (key_type, value_type), params)| {
            let mut header = RequestHeader::new(id, version);
            header.cache = cache;
            // The flags of default spans are set by the spans.
            header.flags = Flags(flags & !6);
            header.intelligence = intelligence;
            header.topology_id = topology_id;
            if version >= ProtocolVersion::V2_8 {
                (header.key_type, header.value_type) = (key_type, value_type);
            }
            if version >= ProtocolVersion::V4_0 {
                header.params = params;
            }
            header
        })
}

/// Returns a strategy for requests of this operation and version.
pub fn request(version: ProtocolVersion, opcode: Opcode) -> impl Strategy<Value = Request> {
    (header(version), body(version, opcode)).prop_map(|(header, body)| Request { header, body })
}

fn topology(intelligence: Intelligence) -> impl Strategy<Value = Option<Arc<CacheTopology>>> {
    let servers = vec((text(), any::<u16>()).prop_map(|(host, port)| ServerAddress { host, port }), 1..4);
    let topology = servers.prop_flat_map(move |servers| {
        let owners = vec(vec(0..servers.len() as u32, 1..4).prop_map(Owners::from), 1..6);
        (Just(servers), any::<i32>(), option::of(owners)).prop_map(move |(servers, id, owners)| {
            let owners = owners.filter(|_| intelligence == Intelligence::Hash);
            Arc::new(CacheTopology { id, servers, owners })
        })
    });
    option::of(topology)
}

fn one_of_these(statuses: &'static [Status]) -> impl Strategy<Value = Status> {
    (0..statuses.len()).prop_map(|at| statuses[at])
}

const NONE: &[Status] = &[Status::NotExecuted, Status::NotFound];
const PREVIOUS: &[Status] = &[
    Status::SuccessWithPrevious,
    Status::NotExecutedWithPrevious,
    Status::SuccessWithPreviousObject,
    Status::NotExecutedWithPreviousObject,
];
const SUCCESS: &[Status] = &[Status::Success];

fn batch(version: ProtocolVersion) -> impl Strategy<Value = iteration::Batch> {
    let projections = if version >= ProtocolVersion::V2_4 { 0..4_u32 } else { 1..2 };
    projections.prop_flat_map(move |projections| {
        let values = vec(bytes(), projections as usize);
        let entry = (option::of(metadata()), bytes(), values).prop_map(move |(metadata, key, values)| {
            let metadata = metadata.filter(|_| version >= ProtocolVersion::V2_5);
            iteration::Entry { metadata, key, values: values.into() }
        });
        (bit_set(), vec(entry, 0..5)).prop_map(move |(finished, entries)| {
            let projections = if entries.is_empty() { 1 } else { projections };
            iteration::Batch { finished, projections, entries }
        })
    })
}

fn pong(version: ProtocolVersion) -> BoxedStrategy<ResponseBody> {
    if version < ProtocolVersion::V2_9 {
        return Just(ResponseBody::Empty).boxed();
    }
    (media_type(), media_type(), any::<u8>(), vec(any::<u16>(), 0..5))
        .prop_map(move |(key_type, value_type, newest, opcodes)| {
            let tells_more = version >= ProtocolVersion::V3_0;
            let newest = if tells_more { newest } else { 0 };
            let opcodes = if tells_more { opcodes } else { Vec::new() };
            let pong = server::Pong { key_type, value_type, newest, opcodes };
            ResponseBody::Server(server::Response::Pong(pong))
        })
        .boxed()
}

fn answer(version: ProtocolVersion, opcode: Opcode) -> BoxedStrategy<ResponseBody> {
    use ResponseBody as B;
    let of_map = |response: BoxedStrategy<map::Response>| response.prop_map(B::Map).boxed();
    let of_bulk = |response: BoxedStrategy<bulk::Response>| response.prop_map(B::Bulk).boxed();
    let of_stream = |response: BoxedStrategy<stream::Response>| response.prop_map(B::Stream).boxed();
    let values = || vec(bytes(), 0..5);
    let piece = |has_metadata: bool| {
        let piece = (any::<i32>(), any::<bool>(), metadata(), bytes()).prop_map(
            move |(stream, is_last, metadata, bytes)| {
                let metadata = has_metadata.then_some(metadata);
                stream::Response::Piece(stream::Piece { stream, is_last, metadata, bytes })
            },
        );
        piece.prop_map(B::Stream).boxed()
    };
    match opcode {
        Opcode::Get => of_map(bytes().prop_map(map::Response::Value).boxed()),
        Opcode::GetWithVersion => of_map(
            (any::<i64>(), bytes()).prop_map(|(v, value)| map::Response::WithVersion(v, value)).boxed(),
        ),
        Opcode::GetWithMetadata => {
            of_map((metadata(), bytes()).prop_map(|(m, value)| map::Response::WithMetadata(m, value)).boxed())
        }
        Opcode::Size => of_bulk(any::<u64>().prop_map(bulk::Response::Size).boxed()),
        Opcode::BulkGet => of_bulk(entries().prop_map(bulk::Response::Entries).boxed()),
        Opcode::BulkGetKeys => of_bulk(values().prop_map(bulk::Response::Keys).boxed()),
        Opcode::GetAll => of_bulk(entries().prop_map(bulk::Response::Found).boxed()),
        Opcode::Ping => pong(version),
        Opcode::Stats => {
            vec((text(), text()), 0..4).prop_map(|stats| B::Server(server::Response::Stats(stats))).boxed()
        }
        Opcode::Query | Opcode::Exec => bytes().prop_map(B::Result).boxed(),
        Opcode::AuthMechList => {
            vec(text(), 0..4).prop_map(|names| B::Auth(auth::Response::Mechanisms(names))).boxed()
        }
        Opcode::Auth => {
            let challenge = bytes().prop_map(auth::Response::Challenge);
            prop_oneof![challenge, Just(auth::Response::Done)].prop_map(B::Auth).boxed()
        }
        Opcode::IterationStart => {
            text().prop_map(|id| B::Iteration(iteration::Response::Started(id))).boxed()
        }
        Opcode::IterationNext => {
            batch(version).prop_map(|batch| B::Iteration(iteration::Response::Batch(batch))).boxed()
        }
        Opcode::GetStream => {
            of_stream((metadata(), bytes()).prop_map(|(m, value)| stream::Response::Value(m, value)).boxed())
        }
        Opcode::StartGetStream => piece(true),
        Opcode::NextGetStream => piece(false),
        Opcode::StartPutStream => of_stream(any::<i32>().prop_map(stream::Response::Started).boxed()),
        _ => answer_of_object(opcode),
    }
}

/// For transactions, counters and multimaps, or an empty one.
fn answer_of_object(opcode: Opcode) -> BoxedStrategy<ResponseBody> {
    use ResponseBody as B;
    let values = || vec(bytes(), 0..5);
    match opcode {
        Opcode::PrepareTx | Opcode::PrepareTx2 | Opcode::CommitTx | Opcode::RollbackTx => {
            any::<i32>().prop_map(|code| B::Transaction(transaction::Response::Code(code))).boxed()
        }
        Opcode::FetchTxRecovery => {
            vec(xid(), 0..3).prop_map(|xids| B::Transaction(transaction::Response::Prepared(xids))).boxed()
        }
        Opcode::CounterGetConfiguration => {
            counter_config().prop_map(|config| B::Counter(counter::Response::Configuration(config))).boxed()
        }
        Opcode::CounterGetNames => {
            vec(text(), 0..4).prop_map(|names| B::Counter(counter::Response::Names(names))).boxed()
        }
        Opcode::CounterAddAndGet | Opcode::CounterGet | Opcode::CounterCas | Opcode::CounterGetAndSet => {
            any::<i64>().prop_map(|value| B::Counter(counter::Response::Value(value))).boxed()
        }
        Opcode::MultimapGet => {
            values().prop_map(|values| B::Multimap(multimap::Response::Values(values))).boxed()
        }
        Opcode::MultimapGetWithMetadata => (metadata(), values())
            .prop_map(|(metadata, values)| B::Multimap(multimap::Response::WithMetadata(metadata, values)))
            .boxed(),
        Opcode::MultimapSize => {
            any::<u64>().prop_map(|size| B::Multimap(multimap::Response::Size(size))).boxed()
        }
        Opcode::MultimapRemoveKey
        | Opcode::MultimapRemoveEntry
        | Opcode::MultimapContainsEntry
        | Opcode::MultimapContainsKey
        | Opcode::MultimapContainsValue => {
            any::<bool>().prop_map(|is| B::Multimap(multimap::Response::Is(is))).boxed()
        }
        _ => Just(B::Empty).boxed(),
    }
}

/// Returns a strategy for responses of this operation and version, with the request's context.
pub fn response(
    version: ProtocolVersion,
    opcode: Opcode,
) -> impl Strategy<Value = (RequestContext, Response)> {
    let done = (one_of_these(SUCCESS), answer(version, opcode)).boxed();
    // Batches have a body with every status.
    let not_done = match opcode {
        Opcode::IterationNext => done.clone(),
        _ => (one_of_these(NONE), Just(ResponseBody::Empty)).boxed(),
    };
    let error = one_of_these(&Status::ALL[9..]);
    let failed = (error, text().prop_map(ResponseBody::Error)).boxed();
    let writes_with_previous = [
        Opcode::Put,
        Opcode::PutIfAbsent,
        Opcode::Replace,
        Opcode::ReplaceIfUnmodified,
        Opcode::Remove,
        Opcode::RemoveIfUnmodified,
    ];
    let with_previous = match opcode {
        Opcode::PutStream => {
            let body = previous(version).prop_map(stream::Response::Previous).prop_map(ResponseBody::Stream);
            (one_of_these(PREVIOUS), body).boxed()
        }
        opcode if writes_with_previous.contains(&opcode) => {
            let body = previous(version).prop_map(map::Response::Previous).prop_map(ResponseBody::Map);
            (one_of_these(PREVIOUS), body).boxed()
        }
        _ => done.clone(),
    };
    let of = prop_oneof![4 => done, 1 => not_done, 1 => failed, 2 => with_previous];
    intelligence().prop_flat_map(move |intelligence| {
        let of = of.clone();
        (any::<u64>(), topology(intelligence), of).prop_map(move |(id, topology, (status, body))| {
            let topology = topology
                .filter(|_| intelligence > Intelligence::Basic && !matches!(body, ResponseBody::Error(_)));
            (RequestContext { version, opcode, intelligence }, Response { id, status, topology, body })
        })
    })
}

/// Returns a strategy for events of listeners.
pub fn event() -> impl Strategy<Value = Event> {
    let kinds = [EventKind::Created, EventKind::Modified, EventKind::Removed, EventKind::Expired];
    (any::<u64>(), 0..4_usize, some_bytes(), any::<bool>(), bytes(), any::<i64>(), 0..3).prop_map(
        move |(id, kind, listener, is_retried, bytes, version, what)| {
            let kind = kinds[kind];
            let has_version = matches!(kind, EventKind::Created | EventKind::Modified);
            let data = match what {
                0 => EventData::Key(bytes, has_version.then_some(version)),
                1 => EventData::Custom(bytes),
                _ => EventData::Raw(bytes),
            };
            Event { id, kind, listener, is_retried, data }
        },
    )
}

/// Returns a strategy for events of counters.
pub fn counter_event() -> impl Strategy<Value = CounterEvent> {
    let states = [CounterState::Valid, CounterState::LowerBound, CounterState::UpperBound];
    let value = move || (any::<i64>(), (0..3_usize).prop_map(move |at| states[at]));
    (text(), some_bytes(), value(), value()).prop_map(|(counter, listener, old, new)| CounterEvent {
        counter,
        listener,
        old,
        new,
    })
}
