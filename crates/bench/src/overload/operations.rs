use bytes::Bytes;
use consort_hotrod::ops::{
    auth, bulk, counter, iteration, listener, map, multimap, server, stream, task, transaction,
};
use consort_hotrod::{BitSet, Expiration, Family, Opcode, RequestBody};

/// The id of operations that continue another one.
const UNKNOWN: i32 = 7;

const TRANSACTION_MS: i64 = 60_000;

fn assignment(key: &Bytes) -> map::Assignment {
    map::Assignment {
        key: key.clone(),
        expiration: Expiration::INFINITE,
        value: Bytes::from_static(b"value"),
    }
}

fn target(key: &Bytes) -> stream::Target {
    stream::Target { key: key.clone(), expiration: Expiration::INFINITE, version: 0 }
}

/// `nth` distinguishes requests whose ids have to differ.
pub(super) fn request(opcode: Opcode, key: &Bytes, nth: u64) -> RequestBody {
    match opcode.family() {
        Family::Map => RequestBody::Map(map_request(opcode, key)),
        Family::Bulk => RequestBody::Bulk(bulk_request(opcode, key)),
        Family::Server if opcode == Opcode::Stats => RequestBody::Server(server::Request::Stats),
        Family::Server => RequestBody::Server(server::Request::Ping),
        Family::Task if opcode == Opcode::Exec => {
            RequestBody::Task(task::Request::Exec("@@cache@names".into(), Vec::new()))
        }
        Family::Task => {
            RequestBody::Task(task::Request::Query(Bytes::from_static(b"\x0a\x0fFROM any.Entity")))
        }
        Family::Auth if opcode == Opcode::Auth => RequestBody::Auth(auth::Request::Step(
            "SCRAM-SHA-256".into(),
            Bytes::from_static(b"n,,n=user,r=nonce"),
        )),
        Family::Auth => RequestBody::Auth(auth::Request::Mechanisms),
        Family::Listener => RequestBody::Listener(listener_request(opcode, nth)),
        Family::Iteration => RequestBody::Iteration(iteration_request(opcode)),
        Family::Stream => RequestBody::Stream(stream_request(opcode, key)),
        Family::Transaction => RequestBody::Transaction(transaction_request(opcode, key, nth)),
        Family::Counter => RequestBody::Counter(counter_request(opcode, nth)),
        Family::Multimap => RequestBody::Multimap(multimap_request(opcode, key)),
    }
}

fn map_request(opcode: Opcode, key: &Bytes) -> map::Request {
    use map::Request;
    let (assignment, key) = (assignment(key), key.clone());
    match opcode {
        Opcode::Put => Request::Put(assignment),
        Opcode::PutIfAbsent => Request::PutIfAbsent(assignment),
        Opcode::Replace => Request::Replace(assignment),
        Opcode::ReplaceIfUnmodified => Request::ReplaceIfUnmodified(assignment, 1),
        Opcode::Remove => Request::Remove(key),
        Opcode::RemoveIfUnmodified => Request::RemoveIfUnmodified(key, 1),
        Opcode::ContainsKey => Request::ContainsKey(key),
        Opcode::GetWithVersion => Request::GetWithVersion(key),
        Opcode::GetWithMetadata => Request::GetWithMetadata(key),
        _ => Request::Get(key),
    }
}

fn bulk_request(opcode: Opcode, key: &Bytes) -> bulk::Request {
    use bulk::Request;
    match opcode {
        Opcode::Clear => Request::Clear,
        Opcode::Size => Request::Size,
        Opcode::BulkGet => Request::BulkGet(0),
        Opcode::BulkGetKeys => Request::BulkGetKeys(0),
        Opcode::PutAll => {
            Request::PutAll(Expiration::INFINITE, vec![(key.clone(), Bytes::from_static(b"value"))])
        }
        _ => Request::GetAll(vec![key.clone()]),
    }
}

fn listener_request(opcode: Opcode, nth: u64) -> listener::Request {
    use listener::{Interests, Listener, Request};
    let id = Bytes::copy_from_slice(&nth.to_be_bytes());
    match opcode {
        Opcode::AddClientListener => Request::Add(Listener {
            id,
            includes_state: true,
            filter: None,
            converter: None,
            is_raw: false,
            interests: Interests::ALL,
        }),
        Opcode::RemoveClientListener => Request::Remove(id),
        Opcode::AddBloomListener => Request::AddBloom(id, 1 << 16),
        _ => Request::UpdateBloom(BitSet::default()),
    }
}

fn iteration_request(opcode: Opcode) -> iteration::Request {
    use iteration::{Request, Start};
    match opcode {
        Opcode::IterationStart => {
            Request::Start(Start { segments: None, filter: None, batch: 1_000, with_metadata: true })
        }
        Opcode::IterationNext => Request::Next("unknown".into()),
        _ => Request::End("unknown".into()),
    }
}

fn stream_request(opcode: Opcode, key: &Bytes) -> stream::Request {
    use stream::Request;
    let piece = Bytes::from_static(b"piece");
    match opcode {
        Opcode::GetStream => Request::Get(key.clone(), 0),
        Opcode::PutStream => Request::Put(target(key), vec![piece]),
        Opcode::StartGetStream => Request::StartGet(key.clone(), 1 << 20),
        Opcode::NextGetStream => Request::NextGet(UNKNOWN),
        Opcode::EndGetStream => Request::EndGet(UNKNOWN),
        Opcode::StartPutStream => Request::StartPut(target(key)),
        Opcode::NextPutStream => Request::NextPut(UNKNOWN, true, piece),
        _ => Request::EndPut(UNKNOWN),
    }
}

fn transaction_request(opcode: Opcode, key: &Bytes, nth: u64) -> transaction::Request {
    use transaction::{Modification, Prepare, Recovery, Request, Seen, Xid};
    let id = Bytes::copy_from_slice(&nth.to_be_bytes());
    let xid = Xid { format: 1, global: id.clone(), branch: id };
    match opcode {
        Opcode::PrepareTx | Opcode::PrepareTx2 => {
            let change = Some((Expiration::INFINITE, Bytes::from_static(b"value")));
            let modifications = vec![Modification { key: key.clone(), seen: Seen::NotRead, change }];
            let recovery = Recovery { is_recoverable: false, timeout: TRANSACTION_MS };
            let recovery = (opcode == Opcode::PrepareTx2).then_some(recovery);
            Request::Prepare(Prepare { xid, is_one_phase: true, modifications }, recovery)
        }
        Opcode::CommitTx => Request::Commit(xid),
        Opcode::RollbackTx => Request::Rollback(xid),
        Opcode::ForgetTx => Request::Forget(xid),
        _ => Request::FetchRecovery,
    }
}

fn counter_request(opcode: Opcode, nth: u64) -> counter::Request {
    use counter::{Action, CounterConfig, CounterKind, Request};
    let listener = Bytes::copy_from_slice(&nth.to_be_bytes());
    let action = match opcode {
        Opcode::CounterCreate => {
            Action::Create(CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 0 })
        }
        Opcode::CounterGetConfiguration => Action::Configuration,
        Opcode::CounterIsDefined => Action::IsDefined,
        Opcode::CounterAddAndGet => Action::AddAndGet(1),
        Opcode::CounterReset => Action::Reset,
        Opcode::CounterGet => Action::Get,
        Opcode::CounterCas => Action::CompareAndSwap(0, 1),
        Opcode::CounterAddListener => Action::AddListener(listener),
        Opcode::CounterRemoveListener => Action::RemoveListener(listener),
        Opcode::CounterRemove => Action::Remove,
        Opcode::CounterGetAndSet => Action::GetAndSet(1),
        _ => return Request::Names,
    };
    Request::Of("overload".into(), action)
}

fn multimap_request(opcode: Opcode, key: &Bytes) -> multimap::Request {
    use multimap::{Action, Request};
    let (assignment, key) = (assignment(key), key.clone());
    let action = match opcode {
        Opcode::MultimapGet => Action::Get(key),
        Opcode::MultimapGetWithMetadata => Action::GetWithMetadata(key),
        Opcode::MultimapPut => Action::Put(assignment),
        Opcode::MultimapRemoveKey => Action::RemoveKey(key),
        Opcode::MultimapRemoveEntry => Action::RemoveEntry(assignment),
        Opcode::MultimapSize => Action::Size,
        Opcode::MultimapContainsEntry => Action::ContainsEntry(assignment),
        Opcode::MultimapContainsKey => Action::ContainsKey(key),
        _ => Action::ContainsValue(Expiration::INFINITE, assignment.value),
    };
    Request { action, allows_duplicates: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_request_of_its_own() {
        for &opcode in Opcode::ALL {
            let body = request(opcode, &Bytes::from_static(b"key"), 1);
            assert_eq!(body.opcode(), opcode);
        }
    }
}
