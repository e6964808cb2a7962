//! The dispatcher: it chooses the part of the server and the cache for a request.

use std::sync::Arc;

use consort_cache::{RawCache, ReadFrom};
use consort_hotrod::ops::bulk::Request as BulkRequest;
use consort_hotrod::ops::counter::{self, Action};
use consort_hotrod::ops::multimap::Action as MultimapAction;
use consort_hotrod::ops::{iteration, listener, map, server, task};
use consort_hotrod::{
    CacheTopology, Opcode, ProtocolVersion, Request, RequestBody, RequestContext, RequestHeader, Response,
    ResponseBody, Status,
};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::catalog::{client_topology, cluster_stats, default_cache, schemas};
use crate::media::{Conversion, ConversionError};
use crate::ops::cached_lookup::CachedLookup;
use crate::ops::query::{self, IterationQuery, ListenerQuery};
use crate::ops::session::Session;
use crate::ops::{admin, bulk, multimap, transactions, value_pieces};
use crate::reply::ResponseBytes;
use crate::reply::{Answer, Refusal};
use crate::security::access::{acts_on, task_of};
use crate::security::role::Permission;
use crate::security::scope::{ActsOn, Scope};

const OPCODES: &[Opcode] = &[
    Opcode::Put,
    Opcode::Get,
    Opcode::PutIfAbsent,
    Opcode::Replace,
    Opcode::ReplaceIfUnmodified,
    Opcode::Remove,
    Opcode::RemoveIfUnmodified,
    Opcode::ContainsKey,
    Opcode::GetWithVersion,
    Opcode::Clear,
    Opcode::Stats,
    Opcode::Ping,
    Opcode::AuthMechList,
    Opcode::Auth,
    Opcode::BulkGet,
    Opcode::GetWithMetadata,
    Opcode::BulkGetKeys,
    Opcode::Size,
    Opcode::Exec,
    Opcode::Query,
    Opcode::PutAll,
    Opcode::GetAll,
    Opcode::IterationStart,
    Opcode::IterationNext,
    Opcode::IterationEnd,
    Opcode::AddClientListener,
    Opcode::RemoveClientListener,
    Opcode::AddBloomListener,
    Opcode::UpdateBloomFilter,
    Opcode::CounterCreate,
    Opcode::CounterGetConfiguration,
    Opcode::CounterIsDefined,
    Opcode::CounterAddAndGet,
    Opcode::CounterReset,
    Opcode::CounterGet,
    Opcode::CounterCas,
    Opcode::CounterAddListener,
    Opcode::CounterRemoveListener,
    Opcode::CounterRemove,
    Opcode::CounterGetNames,
    Opcode::CounterGetAndSet,
    Opcode::MultimapGet,
    Opcode::MultimapGetWithMetadata,
    Opcode::MultimapPut,
    Opcode::MultimapRemoveKey,
    Opcode::MultimapRemoveEntry,
    Opcode::MultimapSize,
    Opcode::MultimapContainsEntry,
    Opcode::MultimapContainsKey,
    Opcode::MultimapContainsValue,
    Opcode::GetStream,
    Opcode::PutStream,
    Opcode::StartGetStream,
    Opcode::NextGetStream,
    Opcode::EndGetStream,
    Opcode::StartPutStream,
    Opcode::NextPutStream,
    Opcode::EndPutStream,
    Opcode::PrepareTx,
    Opcode::PrepareTx2,
    Opcode::CommitTx,
    Opcode::RollbackTx,
    Opcode::ForgetTx,
    Opcode::FetchTxRecovery,
];

/// Answers most requests: reads of local entries without conversion, and writes without another member. `None` for those that
/// [`answer`] answers.
pub(crate) fn try_dispatch_local(
    session: &Session,
    recent: &CachedLookup,
    request: &Request,
) -> Option<(RequestContext, Response)> {
    let Request { header, body } = request;
    let RequestBody::Map(asked) = body else { return None };
    let is_plain = matches!(recent.served.encoding.conversion(header), Ok(None));
    if !is_plain {
        return None;
    }
    let scope = Scope::Cache(recent.served.cache.name());
    if session.access.refusal(header.cache.as_str(), body, scope).is_some() {
        return None;
    }
    let answer = crate::ops::map::try_answer_local(&recent.served, asked, header.version, header.flags)?;
    if answer.status.is_error() {
        session.caches.note_error(header, answer.status);
    }
    let is_news = |topology: &&Arc<_>| client_topology::differs(topology, header);
    let topology = recent.topology.as_ref().filter(is_news).cloned();
    Some((request.context(), Response { topology, ..Response::new(header.id, answer.status, answer.body) }))
}

pub(crate) async fn answer(
    session: Arc<Session>,
    request: Request,
) -> (RequestContext, Response, Option<Box<ResponseBytes>>) {
    let asked = request.context();
    let Request { header, body } = request;
    let (answer, topology) = answer_body(&session, &header, body).await;
    let Answer { status, body, held } = answer;
    if status.is_error() {
        session.caches.note_error(&header, status);
    }
    (asked, Response { topology, ..Response::new(header.id, status, body) }, held)
}

async fn answer_body(
    session: &Arc<Session>,
    header: &RequestHeader,
    body: RequestBody,
) -> (Answer, Option<Arc<CacheTopology>>) {
    let caches = &session.caches;
    let served = match permitted(session, header, &body).await {
        Ok(served) => served,
        Err(answer) => return (answer, None),
    };
    // A near cache knows the key as its client does.
    let is_told = match &body {
        RequestBody::Map(map::Request::GetWithMetadata(key)) => {
            session.listeners.note_read(&header.cache, key)
        }
        _ => false,
    };
    let conversion = match &served {
        Some(served) if has_data(&body) => served.encoding.conversion(header),
        _ => Ok(None),
    };
    let converted = match conversion {
        Ok(None) => Ok((None, body)),
        // Boxed, because few requests need it and it would enlarge the state of all.
        Ok(Some(conversion)) => Box::pin(convert(caches, conversion, body)).await,
        Err(error) => Err(error),
    };
    let (conversion, body) = match converted {
        Ok(converted) => converted,
        Err(error) => return (error.into(), None),
    };
    if let Some(served) = &served
        && served.schemas.is_some()
        && let Some(refusal) = refusal_of_schema(served, &body).await
    {
        return (refusal.into(), None);
    }
    // A closed semaphore is impossible: the session owns it. Without a permit the request runs as before.
    let _permit = if is_scan(&body) { session.scans.acquire().await.ok() } else { None };
    let answer = match (body, &served) {
        (RequestBody::Server(server::Request::Ping), served) => pong(served.as_deref()),
        (RequestBody::Map(request), Some(served)) => {
            let limited = &served.limited;
            let cache = if is_told { &limited.with_read_from(ReadFrom::Primary) } else { limited };
            let (version, flags) = (header.version, header.flags);
            let answered =
                crate::ops::map::answer(&session.responses, served, cache, request, version, flags);
            answered.await.unwrap_or_else(Answer::from)
        }
        (body, served) => answer_other(session, served.as_ref(), conversion.as_deref(), body, header).await,
    };
    let answer = match &conversion {
        None => answer,
        Some(conversion) => Box::pin(conversion.answer_offloaded(answer)).await.unwrap_or_else(Answer::from),
    };
    let topology = served.and_then(|served| caches.topology_for(&served, header));
    (answer, topology)
}

async fn convert(
    caches: &Caches,
    conversion: Box<Conversion>,
    body: RequestBody,
) -> Result<(Option<Box<Conversion>>, RequestBody), ConversionError> {
    let conversion = if conversion.needs_types() {
        Box::new(conversion.with_types(caches.types().await))
    } else {
        conversion
    };
    let body = conversion.request_offloaded(body).await?;
    Ok((Some(conversion), body))
}

async fn answer_other(
    session: &Arc<Session>,
    served: Option<&Arc<ServedCache>>,
    conversion: Option<&Conversion>,
    body: RequestBody,
    header: &RequestHeader,
) -> Answer {
    match (body, served) {
        (RequestBody::Task(task::Request::Exec(name, params)), _) => {
            Box::pin(admin::answer(session, name.as_str(), params)).await
        }
        (RequestBody::Task(task::Request::Query(query)), Some(served)) => {
            let answered =
                query::answer((&*session.caches, &session.access, &session.responses), served, query, header);
            Box::pin(answered).await.unwrap_or_else(Answer::from)
        }
        (RequestBody::Server(server::Request::Stats), Some(served)) => {
            answer_stats(&session.caches, served, header.version)
        }
        (RequestBody::Listener(request), Some(served)) => {
            answer_listener(session, served, conversion, request, header).await
        }
        (RequestBody::Bulk(request), Some(served)) => {
            // Boxed, because few requests need it and it would enlarge the state of all.
            let answered = Box::pin(bulk::answer(&session.responses, served, conversion, request, header));
            answered.await.unwrap_or_else(Answer::from)
        }
        (RequestBody::Iteration(request), Some(served)) => {
            answer_iteration(session, served, conversion, request).await
        }
        (RequestBody::Multimap(request), Some(served)) => {
            Box::pin(multimap::answer(&session.responses, served, request)).await.unwrap_or_else(Answer::from)
        }
        (RequestBody::Stream(request), _) => {
            let answered = value_pieces::answer(session, served, conversion, request, header);
            Box::pin(answered).await.unwrap_or_else(Answer::from)
        }
        (RequestBody::Transaction(request), _) => {
            let answered = transactions::answer(session, served, request, header);
            Box::pin(answered).await.unwrap_or_else(Answer::from)
        }
        (RequestBody::Counter(request), _) => answer_counter(session, request, header).await,
        (RequestBody::Auth(request), _) => session.access.answer(&request),
        (body, _) => {
            let text = format!("{} is not supported by this server", body.opcode().name());
            Answer::error(Status::ServerError, text)
        }
    }
}

/// Sums over all servers are for clients from 2.4 on, as in Infinispan.
fn answer_stats(caches: &Caches, served: &ServedCache, version: ProtocolVersion) -> Answer {
    let global = if version < ProtocolVersion::V2_4 {
        None
    } else {
        Some((caches.statistics.of(served), cluster_stats::copies(served)))
    };
    let stats = served.stats.for_clients(&served.cache, global);
    Answer::success(ResponseBody::Server(server::Response::Stats(stats)))
}

async fn answer_listener(
    session: &Arc<Session>,
    served: &Arc<ServedCache>,
    conversion: Option<&Conversion>,
    request: listener::Request,
    header: &RequestHeader,
) -> Answer {
    let watch = match &request {
        listener::Request::Add(listener) => {
            Box::pin(ListenerQuery::from_listener(&session.caches, served, listener)).await
        }
        _ => Ok(None),
    };
    // Converters need them, which only a request with a converter has.
    let types = match &request {
        listener::Request::Add(listener) if listener.converter.is_some() => session.caches.types().await,
        _ => Arc::default(),
    };
    match watch {
        Ok(watch) => session.listeners.answer((served, &types), conversion, request, watch, header).await,
        Err(refusal) => refusal.into(),
    }
}

async fn answer_iteration(
    session: &Session,
    served: &Arc<ServedCache>,
    conversion: Option<&Conversion>,
    request: iteration::Request,
) -> Answer {
    let rows = match &request {
        iteration::Request::Start(start) => {
            Box::pin(IterationQuery::from_start(&session.caches, served, start)).await
        }
        iteration::Request::Next(id) | iteration::Request::End(id) => {
            // The header may name another cache.
            let refusal = |cache: &RawCache| {
                let scope = Scope::Cache(cache.name());
                session.access.refusal_of(Permission::BulkRead, scope, request.opcode().name())
            };
            if let Some(refusal) = session.iterations.cache_of(id).as_ref().and_then(refusal) {
                return refusal;
            }
            Ok(None)
        }
    };
    match rows {
        Ok(rows) => {
            session.iterations.answer(&session.responses, &served.cache, conversion, request, rows).await
        }
        Err(refusal) => refusal.into(),
    }
}

async fn answer_counter(session: &Session, request: counter::Request, header: &RequestHeader) -> Answer {
    let (heard, counters) = (&session.counter_listeners, &session.caches.counters);
    let answered = match request {
        counter::Request::Of(name, Action::AddListener(id)) => {
            heard.add(counters, &name, &id, header.id).await
        }
        counter::Request::Of(name, Action::RemoveListener(id)) => Ok(heard.remove(&name, &id)),
        request => heard.answer(&session.responses, counters, request).await,
    };
    answered.unwrap_or_else(Answer::from)
}

async fn refusal_of_schema(served: &ServedCache, body: &RequestBody) -> Option<Refusal> {
    if let Some(refusal) = schemas::refusal(body) {
        return Some(refusal);
    }
    Box::pin(schemas::refusal_of_all(&served.cache, body)).await.unwrap_or_else(Some)
}

/// Returns the cache of the request, in which the user has the permission: an alias may move meanwhile, so that the check comes after
/// the search.
async fn permitted(
    session: &Session,
    header: &RequestHeader,
    body: &RequestBody,
) -> Result<Option<Arc<ServedCache>>, Answer> {
    let acts_on = acts_on(body.opcode(), task_of(body));
    let refusal = |scope: Scope<'_>| session.access.refusal(header.cache.as_str(), body, scope);
    if let Some(refusal) = refusal(acts_on.scope()) {
        return Err(refusal);
    }
    let may_create = |name: &str| refusal(Scope::Cache(name)).is_none();
    let served = match served(&session.caches, header, body, may_create).await {
        Ok(served) => served,
        // Without the cache, its roles are unknown.
        Err(answer) => return Err(refusal(Scope::Global).unwrap_or(answer)),
    };
    match refusal_in(session, header, body, served.as_deref()) {
        Some(refusal) => Err(refusal),
        None => Ok(served),
    }
}

/// Also checks a user with the same permissions in all caches: the users may have been replaced during the search.
fn refusal_in(
    session: &Session,
    header: &RequestHeader,
    body: &RequestBody,
    served: Option<&ServedCache>,
) -> Option<Answer> {
    if ActsOn::of(body.opcode()) != ActsOn::HeaderCache {
        return None;
    }
    let scope = served.map_or(Scope::Global, |served| Scope::Cache(served.cache.name()));
    session.access.refusal(header.cache.as_str(), body, scope)
}

async fn served(
    caches: &Caches,
    header: &RequestHeader,
    body: &RequestBody,
    may_create: impl FnOnce(&str) -> bool,
) -> Result<Option<Arc<ServedCache>>, Answer> {
    // Clients name a cache of their own for counters, and send requests to the owners in its topology.
    if matches!(body, RequestBody::Counter(_)) {
        return Ok(Some(caches.counters.served.clone()));
    }
    let name = header.cache.as_str();
    if let Some(served) = caches.get(name) {
        return Ok(Some(served));
    }
    // Requests of administration can have any cache name, also that of a cache that does not exist yet. Pieces belong to a stream,
    // which knows its cache; none may wait here, because their order matters.
    let is_of_cache = match body {
        RequestBody::Server(server::Request::Ping) => !name.is_empty(),
        // Clients name its cache, and recognise a removed one by the response.
        RequestBody::Iteration(_) => true,
        body => ActsOn::of(body.opcode()) == ActsOn::HeaderCache,
    };
    if !is_of_cache {
        return Ok(None);
    }
    let found = if name.is_empty() {
        default_cache::find_or_create(caches, may_create).await
    } else {
        caches.find(name).await
    };
    match found {
        Ok(Some(served)) => Ok(Some(served)),
        Ok(None) => Err(Answer::no_cache(name)),
        Err(error) => Err(Refusal::from(error).into()),
    }
}

const fn has_data(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Map(_)
            | RequestBody::Bulk(_)
            | RequestBody::Stream(_)
            | RequestBody::Iteration(_)
            | RequestBody::Listener(_)
            | RequestBody::Transaction(_)
    )
}

/// Not iterations, which read one batch per request, nor CLEAR, which reads no entry.
const fn is_scan(body: &RequestBody) -> bool {
    match body {
        RequestBody::Bulk(request) => {
            !matches!(request, BulkRequest::PutAll(..) | BulkRequest::GetAll(..) | BulkRequest::Clear)
        }
        RequestBody::Task(task::Request::Query(_)) => true,
        RequestBody::Multimap(request) => {
            matches!(request.action, MultimapAction::Size | MultimapAction::ContainsValue(..))
        }
        RequestBody::Counter(request) => matches!(request, counter::Request::Names),
        RequestBody::Listener(request) => matches!(request, listener::Request::Add(_)),
        _ => false,
    }
}

pub(crate) fn pong(served: Option<&ServedCache>) -> Answer {
    let opcodes = OPCODES.iter().map(|opcode| opcode.request().into()).collect();
    let (key_type, value_type) =
        served.map(|served| served.encoding.client_media_types()).unwrap_or_default();
    let pong = server::Pong { key_type, value_type, newest: ProtocolVersion::NEWEST.byte(), opcodes };
    Answer::success(ResponseBody::Server(server::Response::Pong(pong)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use consort_hotrod::Expiration;
    use consort_hotrod::ops::multimap;
    use std::collections::BTreeMap;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::catalog::registry::Lifecycle;
    use crate::compute_pool::processors;
    use crate::limits::SCANS_PER_PROCESSOR;
    use crate::security::access::Authorization;
    use crate::security::role::{Grants, Permissions};
    use crate::security::users::User;
    use crate::security::{Security, SecuritySettings, properties};
    use crate::single_member;

    #[test]
    fn scans_are_the_requests_that_read_whole_caches() {
        let multimap = |action| RequestBody::Multimap(multimap::Request { action, allows_duplicates: false });
        let scans = [
            RequestBody::Bulk(BulkRequest::Size),
            RequestBody::Bulk(BulkRequest::BulkGet(1)),
            RequestBody::Bulk(BulkRequest::BulkGetKeys(0)),
            multimap(MultimapAction::Size),
            multimap(MultimapAction::ContainsValue(Expiration::default(), Bytes::new())),
            RequestBody::Counter(counter::Request::Names),
        ];
        for scan in &scans {
            assert!(is_scan(scan), "{scan:?}");
        }
        let others = [
            RequestBody::Bulk(BulkRequest::Clear),
            RequestBody::Bulk(BulkRequest::GetAll(Vec::new())),
            RequestBody::Bulk(BulkRequest::PutAll(Expiration::default(), Vec::new())),
            RequestBody::Map(map::Request::Get(Bytes::new())),
            RequestBody::Server(server::Request::Ping),
            multimap(MultimapAction::Get(Bytes::new())),
        ];
        for other in &others {
            assert!(!is_scan(other), "{other:?}");
        }
    }

    #[tokio::test]
    async fn scan_waits_for_a_permit_of_its_connection_and_other_requests_do_not() {
        let caches = Arc::new(single_member::caches("scans", Arc::default()).await);
        let (session, _pushes) = Session::new(caches.clone(), Authorization::new(caches.security()));
        let session = Arc::new(session);
        let request = |body| Request { header: RequestHeader::new(1, ProtocolVersion::NEWEST), body };
        let permits = SCANS_PER_PROCESSOR * processors();
        let all_but_one = session.scans.acquire_many(permits as u32 - 1).await.unwrap();
        let one = session.scans.acquire().await.unwrap();

        let ping = answer(session.clone(), request(RequestBody::Server(server::Request::Ping)));
        assert_eq!(ping.await.1.status, Status::Success);

        let names = request(RequestBody::Counter(counter::Request::Names));
        let mut scan = pin!(answer(session.clone(), names));
        assert!(scan.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(one);
        assert_eq!(session.scans.available_permits(), 0, "the scan has got the permit");
        assert_eq!(scan.await.1.status, Status::Success);
        assert_eq!(session.scans.available_permits(), 1, "a scan returns its permit");
        drop(all_but_one);
        assert_eq!(session.scans.available_permits(), permits);
    }

    #[tokio::test]
    async fn users_that_are_replaced_while_a_cache_is_found_are_checked_again() {
        let users = |by_cache: &[&str]| {
            let read = |name: &&str| ((*name).to_owned(), Permissions::new(&[Permission::Read]));
            let by_cache = by_cache.iter().map(read).collect();
            let grants = Arc::new(Grants { by_cache, ..Grants::default() });
            properties::users("alice=a", &BTreeMap::new(), |_, _| grants.clone()).unwrap()
        };
        let caches = Arc::new(single_member::caches("replaced-users", Arc::default()).await);
        let settings =
            SecuritySettings { users: Some(users(&["few"])), allow_cleartext: true, ..Default::default() };
        let security = Security::new(settings).unwrap();
        let access = Authorization::new(&security);
        let alice = User { name: "alice".into(), permissions: Permissions::default() };
        access.grant(&alice, Arc::default()).unwrap();
        let (session, _pushes) = Session::new(caches.clone(), access);
        let key = Bytes::from_static(b"few");
        let definition = Bytes::from_static(br#"{"local-cache":{}}"#);
        assert!(caches.definitions.add(&key, definition, Lifecycle::Volatile).await.unwrap());

        let mut header = RequestHeader::new(1, ProtocolVersion::NEWEST);
        header.cache = "few".into();
        let get = RequestBody::Map(map::Request::Get(Bytes::new()));
        let served = permitted(&session, &header, &get).await.ok().flatten().unwrap();
        assert!(refusal_in(&session, &header, &get, Some(&served)).is_none());
        security.authenticator.as_ref().unwrap().replace(users(&[])).unwrap();
        assert!(!session.access.depends_on_cache());
        let refused = refusal_in(&session, &header, &get, Some(&served)).unwrap();
        assert!(matches!(&refused.body, ResponseBody::Error(text) if text.as_str().contains("ISPN000287")));
    }
}
