//! Listeners of clients, those of near caches included (facts sections 2.7, 2.12 and 9).
//!
//! A listener belongs to the connection that has added it, and gets the whole cluster's events, each once
//! (`crate::events::push`). Any connection can remove it.
//!
//! Near caches keep the results of reads with metadata: for a client with a listener these go to the key's primary, so that every
//! later change causes its event after the read has noted its key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_cache::{EntryEvent, ListenBuilder, Previous, RawCache};
use consort_hotrod::bloom::BloomFilter;
use consort_hotrod::ops::event::{Event, EventData, EventKind};
use consort_hotrod::ops::listener::{Factory, Interests, Listener, Request};
use consort_hotrod::{MediaType, ProtocolVersion, RequestHeader, Status, Text};
use consort_memory::Budget;
use consort_query::Exceeded;
use tokio::sync::oneshot;

use crate::catalog::served_cache::ServedCache;
use crate::events::directory::{ListenerDirectory, ListenerRegistration, OfConnection};
use crate::events::push::{BytePermit, EventSender, EventTask, Push};
use crate::limits::{BLOOM_BITS_MAX, EVENTS_MAX, LISTENERS_MAX};
use crate::media::{Conversion, Format, Types};
use crate::ops::converter::Converter;
use crate::ops::filter::Filter;
use crate::ops::query::ListenerQuery;
use crate::reply::{Answer, Refusal};

pub(crate) struct Listeners {
    all: Arc<Mutex<OfConnection>>,
    directory: ListenerDirectory,
    has_any: AtomicBool,
    events_out: EventSender,
    filters: Budget,
}

impl Drop for Listeners {
    fn drop(&mut self) {
        let ids: Vec<Bytes> = self.all().keys().cloned().collect();
        ids.iter().for_each(|id| self.directory.forget(id, &self.all));
    }
}

struct EventFilter {
    interests: Interests,
    filter: Option<Filter>,
    converter: Option<Converter>,
    near: Option<Arc<Mutex<BloomFilter>>>,
    watch: Option<ListenerQuery>,
    version: ProtocolVersion,
    conversion: Option<Conversion>,
}

fn locked(filter: &Mutex<BloomFilter>) -> MutexGuard<'_, BloomFilter> {
    filter.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventFilter {
    /// `None` if the key cannot be converted; such a value is left out.
    fn to_client_types(&self, event: EntryEvent<Bytes, Bytes>) -> Option<EntryEvent<Bytes, Bytes>> {
        let takes_stored = self.converter.as_ref().is_some_and(Converter::takes_stored);
        let Some(conversion) = self.conversion.as_ref().filter(|_| !takes_stored) else { return Some(event) };
        let value_out = |value| conversion.value_out(value).ok();
        let before = |previous: Previous| Some(Previous { value: value_out(previous.value)?, ..previous });
        Some(EntryEvent {
            key: conversion.key_out(event.key).ok()?,
            value: event.value.and_then(value_out),
            previous: event.previous.and_then(before),
            ..event
        })
    }

    fn event_for_client(
        &self,
        event: EntryEvent<Bytes, Bytes>,
    ) -> Result<Option<(EventKind, EventData)>, Exceeded> {
        let Some(watch) = &self.watch else { return Ok(self.event_data(event)) };
        let Some(kind) = self.kind(&event) else { return Ok(None) };
        Ok(watch.event_content(&event)?.map(|told| (kind, EventData::Raw(told))))
    }

    fn event_data(&self, event: EntryEvent<Bytes, Bytes>) -> Option<(EventKind, EventData)> {
        let event = self.to_client_types(event)?;
        let kind = self.kind(&event)?;
        let version = event.version.0.cast_signed();
        let data = match &self.converter {
            Some(converter) => converter.convert(&event),
            None => EventData::Key(event.key, Some(version)),
        };
        Some((kind, data))
    }

    fn kind(&self, event: &EntryEvent<Bytes, Bytes>) -> Option<EventKind> {
        let (kind, interest) = match event.kind {
            consort_cache::EventKind::Created | consort_cache::EventKind::Existing => {
                (EventKind::Created, Interests::CREATED)
            }
            consort_cache::EventKind::Modified => (EventKind::Modified, Interests::MODIFIED),
            consort_cache::EventKind::Removed => (EventKind::Removed, Interests::REMOVED),
            // Version 2.0 has no event for expiration.
            consort_cache::EventKind::Expired if self.version < ProtocolVersion::V2_1 => {
                (EventKind::Removed, Interests::EXPIRED)
            }
            consort_cache::EventKind::Expired => (EventKind::Expired, Interests::EXPIRED),
        };
        let passes = self.interests.contains(interest)
            && self.filter.as_ref().is_none_or(|filter| filter.passes_change(event))
            && self.near.as_ref().is_none_or(|near| locked(near).may_contain(&event.key));
        passes.then_some(kind)
    }
}

struct ListenRequest {
    id: Bytes,
    includes_state: bool,
    filter: Option<Filter>,
    converter: Option<Converter>,
    interests: Interests,
    near: Option<BloomFilter>,
    watch: Option<ListenerQuery>,
}

impl ListenRequest {
    fn of(
        listener: Listener,
        watch: Option<ListenerQuery>,
        value_type: &MediaType,
        stored: ([Option<&Format>; 2], &Arc<Types>),
    ) -> Result<Self, Refusal> {
        // A query replaces both filter and converter.
        let own = |factory: Option<Factory>| factory.filter(|_| watch.is_none());
        let (filter, converter) = (own(listener.filter), own(listener.converter));
        let filter = filter.as_ref().map(Filter::of).transpose();
        let converter = converter.as_ref();
        let converter = converter.map(|factory| Converter::of(factory, listener.is_raw, value_type, stored));
        Ok(Self {
            id: Bytes::copy_from_slice(&listener.id),
            includes_state: listener.includes_state,
            filter: filter.map_err(|error| error.in_listener())?,
            converter: converter.transpose().map_err(|error| Refusal::new(error.to_string()))?,
            interests: listener.interests,
            near: None,
            watch,
        })
    }

    fn restrict(&self, listen: ListenBuilder<Bytes, Bytes>) -> ListenBuilder<Bytes, Bytes> {
        let is_by_value = self.filter.as_ref().is_some_and(Filter::needs_values);
        let tells_gone = self.converter.as_ref().is_some_and(Converter::needs_previous);
        let needs_values = is_by_value || self.converter.is_some() || self.watch.is_some();
        let tells_gone = tells_gone || self.watch.as_ref().is_some_and(|watch| watch.is_continuous);
        let listen = if needs_values { listen } else { listen.keys_only() };
        let listen = if is_by_value || tells_gone { listen.with_previous() } else { listen };
        if self.includes_state { listen.with_state() } else { listen }
    }

    fn near(id: &Bytes, bits: u32) -> Result<Self, Refusal> {
        let near = match bits {
            0 => None,
            bits if bits > BLOOM_BITS_MAX => {
                return Err(Refusal::new(format!("{bits} bits, {BLOOM_BITS_MAX} are allowed")));
            }
            bits => BloomFilter::new(bits),
        };
        let id = Bytes::copy_from_slice(id);
        let interests = Interests::NEAR_CACHE;
        let (filter, converter, watch) = (None, None, None);
        Ok(Self { id, includes_state: false, filter, converter, interests, near, watch })
    }
}

impl Listeners {
    pub(crate) fn new(events_out: EventSender, directory: ListenerDirectory, filters: Budget) -> Self {
        Self { all: Arc::default(), directory, has_any: AtomicBool::new(false), events_out, filters }
    }

    fn all(&self) -> MutexGuard<'_, OfConnection> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    pub(crate) async fn answer(
        &self,
        (served, types): (&ServedCache, &Arc<Types>),
        conversion: Option<&Conversion>,
        request: Request,
        watch: Option<ListenerQuery>,
        header: &RequestHeader,
    ) -> Answer {
        let wish = match request {
            Request::Add(listener) => {
                ListenRequest::of(listener, watch, &header.value_type, (served.encoding.formats(), types))
            }
            Request::AddBloom(id, bits) => ListenRequest::near(&id, bits),
            Request::Remove(id) => {
                let is_removed = self.remove(&header.cache, &id);
                return Answer::of(if is_removed { Status::Success } else { Status::NotExecuted });
            }
            Request::UpdateBloom(bits) => {
                let near = self.near_of(&header.cache);
                if let Some(near) = &near {
                    locked(near).replace(&bits);
                }
                return Answer::of(if near.is_some() { Status::Success } else { Status::NotExecuted });
            }
        };
        match wish {
            Ok(wish) => self.add(&served.cache, conversion, wish, header).await.unwrap_or_else(Answer::from),
            Err(refusal) => refusal.into(),
        }
    }

    fn remove(&self, cache: &Text, id: &Bytes) -> bool {
        if self.all().remove(id).is_none() {
            return self.directory.remove(cache, id);
        }
        self.directory.forget(id, &self.all);
        true
    }

    fn near_of(&self, cache: &Text) -> Option<Arc<Mutex<BloomFilter>>> {
        self.all()
            .values()
            .filter(|registration| registration.cache == *cache)
            .find_map(|one| one.near.clone())
    }

    /// Whether a listener of the connection gets later changes of the key.
    pub(crate) fn note_read(&self, cache: &Text, key: &[u8]) -> bool {
        if !self.has_any.load(Ordering::Acquire) {
            return false;
        }
        let all = self.all();
        let mut of_cache = all.values().filter(|registration| registration.cache == *cache).peekable();
        let is_told = of_cache.peek().is_some();
        of_cache.filter_map(|registration| registration.near.as_ref()).for_each(|near| locked(near).add(key));
        is_told
    }

    async fn add(
        &self,
        cache: &RawCache,
        conversion: Option<&Conversion>,
        wish: ListenRequest,
        header: &RequestHeader,
    ) -> Result<Answer, Refusal> {
        let listen = wish.restrict(cache.listen().events_max(EVENTS_MAX));
        let ListenRequest { id, includes_state, filter, converter, interests, near, watch } = wish;
        let near = near.map(|near| Arc::new(Mutex::new(near)));
        let task = EventTask::new();
        let flag = task.flag.clone();
        let bytes = near.as_ref().map(|near| self.filters.try_reserve(u64::from(locked(near).len()) / 8));
        let bytes = bytes.transpose().map_err(|exceeded| Refusal::new(exceeded.to_string()))?;
        let is_near = interests == Interests::NEAR_CACHE;
        let registration = ListenerRegistration {
            cache: header.cache.clone(),
            is_near,
            near: near.clone(),
            _bytes: bytes,
            task,
        };
        {
            let mut all = self.all();
            let bits: u64 =
                all.values().filter_map(|one| Some(u64::from(locked(one.near.as_ref()?).len()))).sum();
            let own = near.as_ref().map_or(0, |near| locked(near).len());
            if all.len() >= LISTENERS_MAX {
                return Err(Refusal::new(format!(
                    "this connection has {LISTENERS_MAX} listeners, the limit of one connection: remove others, or add it by \
                     another client"
                )));
            }
            if bits + u64::from(own) > BLOOM_BITS_MAX.into() {
                return Err(Refusal::new(format!(
                    "the filters of this connection's near caches have {bits} bits, and {own} more are asked for: \
                     {BLOOM_BITS_MAX} are the limit of one connection"
                )));
            }
            self.has_any.store(true, Ordering::Release);
            all.insert(id.clone(), registration);
            self.directory.all().insert(id.clone(), Arc::downgrade(&self.all));
        }
        let is_own = |registration: &ListenerRegistration| registration.task.is(&flag);
        let events = match listen.start().await {
            Ok(events) => events,
            Err(error) => {
                let is_there = self.all().get(&id).is_some_and(is_own);
                if is_there {
                    self.remove(&header.cache, &id);
                }
                return Err(error.into());
            }
        };
        let (state, is_told) = oneshot::channel();
        // The listener may have been removed meanwhile.
        if let Some(registration) = self.all().get_mut(&id).filter(|registration| is_own(registration)) {
            let conversion = conversion.cloned();
            let version = header.version;
            let filter = EventFilter { interests, filter, converter, near, watch, version, conversion };
            let (request, flag) = (header.id, flag.clone());
            registration.task.begin(events, &self.events_out, None, state, move |event| {
                let is_state = event.kind == consort_cache::EventKind::Existing;
                let Some((kind, data)) = filter.event_for_client(event)? else { return Ok(None) };
                let event = Event {
                    id: if is_state { request } else { 0 },
                    kind,
                    listener: id.clone(),
                    is_retried: false,
                    data,
                };
                Ok(Some(Push::Entry(event, flag.clone(), BytePermit::default())))
            });
        }
        if includes_state {
            // The sender is dropped if the listener has ended.
            let _ = is_told.await;
        }
        Ok(Answer::of(Status::Success))
    }
}
