use std::sync::Arc;

use bytes::Bytes;
use consort_hotrod::ops::{bulk, map, stream, transaction};
use consort_hotrod::{Previous, RequestBody, ResponseBody};
use tokio::task::coop::consume_budget;

use super::format::{ConversionError, Format};
use super::types::Types;
use crate::compute_pool::offload_if_large;
use crate::limits::COMPUTE_INLINE_BYTES_MAX;
use crate::reply::Answer;
use crate::reply::key_error::{DisplayKey, describe_key};

fn request_len(body: &RequestBody) -> usize {
    match body {
        RequestBody::Map(
            map::Request::Put(to)
            | map::Request::PutIfAbsent(to)
            | map::Request::Replace(to)
            | map::Request::ReplaceIfUnmodified(to, _),
        ) => to.key.len() + to.value.len(),
        RequestBody::Bulk(bulk::Request::PutAll(_, entries)) => {
            entries.iter().map(|(key, value)| key.len() + value.len()).sum()
        }
        RequestBody::Bulk(bulk::Request::GetAll(keys)) => keys.iter().map(Bytes::len).sum(),
        RequestBody::Transaction(transaction::Request::Prepare(prepare, _)) => {
            let value = |change: &Option<(_, Bytes)>| change.as_ref().map_or(0, |(_, value)| value.len());
            prepare.modifications.iter().map(|one| one.key.len() + value(&one.change)).sum()
        }
        _ => 0,
    }
}

fn answer_len(answer: &Answer) -> usize {
    let of_previous = |previous: &Option<Previous>| previous.as_ref().map_or(0, |one| one.value.len());
    match &answer.body {
        ResponseBody::Map(response) => match response {
            map::Response::Value(value)
            | map::Response::WithVersion(_, value)
            | map::Response::WithMetadata(_, value) => value.len(),
            map::Response::Previous(previous) => of_previous(previous),
        },
        ResponseBody::Stream(stream::Response::Previous(previous)) => of_previous(previous),
        _ => 0,
    }
}

type Result<T> = std::result::Result<T, ConversionError>;

/// Of the client and of the cache; `None` if they do not differ.
type FormatPair = Option<(Format, Format)>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Conversion {
    key: FormatPair,
    value: FormatPair,
    types: Arc<Types>,
}

fn into_cache(formats: &FormatPair, bytes: Bytes, types: &Types) -> Result<Bytes> {
    match formats {
        None => Ok(bytes),
        Some((client, stored)) => client.convert(bytes, stored, types),
    }
}

fn out_of_cache(formats: &FormatPair, bytes: Bytes, types: &Types) -> Result<Bytes> {
    match formats {
        None => Ok(bytes),
        Some((client, stored)) => stored.convert(bytes, client, types),
    }
}

fn key_error(nth: usize, key: &[u8], error: &ConversionError) -> ConversionError {
    ConversionError::Key(describe_key(nth, key, error))
}

impl Conversion {
    pub(super) fn new(key: FormatPair, value: FormatPair) -> Self {
        Self { key, value, types: Arc::default() }
    }

    pub(crate) fn needs_types(&self) -> bool {
        let needs = |formats: &FormatPair| {
            let needs = |(client, stored): &(Format, Format)| {
                client.needs_types(stored) || stored.needs_types(client)
            };
            formats.as_ref().is_some_and(needs)
        };
        needs(&self.key) || needs(&self.value)
    }

    pub(crate) fn with_types(self, types: Arc<Types>) -> Self {
        Self { types, ..self }
    }

    pub(crate) const fn changes_keys(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) fn key_in(&self, key: Bytes) -> Result<Bytes> {
        into_cache(&self.key, key, &self.types)
    }

    pub(crate) fn value_in(&self, value: Bytes) -> Result<Bytes> {
        into_cache(&self.value, value, &self.types)
    }

    pub(crate) fn key_out(&self, key: Bytes) -> Result<Bytes> {
        out_of_cache(&self.key, key, &self.types)
    }

    pub(crate) fn value_out(&self, value: Bytes) -> Result<Bytes> {
        out_of_cache(&self.value, value, &self.types)
    }

    pub(crate) async fn value_out_offloaded(&self, value: Bytes) -> Result<Bytes> {
        if self.value.is_none() || value.len() <= COMPUTE_INLINE_BYTES_MAX {
            return self.value_out(value);
        }
        let (bytes, conversion) = (value.len(), self.clone());
        offload_if_large(bytes, move || conversion.value_out(value)).await
    }

    pub(crate) async fn request_offloaded(&self, body: RequestBody) -> Result<RequestBody> {
        let bytes = request_len(&body);
        if bytes <= COMPUTE_INLINE_BYTES_MAX {
            return self.request(body);
        }
        let conversion = self.clone();
        offload_if_large(bytes, move || conversion.request(body)).await
    }

    pub(crate) async fn answer_offloaded(&self, answer: Answer) -> Result<Answer> {
        let bytes = answer_len(&answer);
        if bytes <= COMPUTE_INLINE_BYTES_MAX {
            return self.answer(answer);
        }
        let conversion = self.clone();
        offload_if_large(bytes, move || conversion.answer(answer)).await
    }

    pub(crate) async fn entry_out(&self, key: Bytes, value: Bytes) -> Result<(Bytes, Bytes)> {
        // With many entries, other tasks get their turn.
        consume_budget().await;
        let key = self.key_out(key)?;
        let of_key = |error| ConversionError::Key(format!("{}: {error}", DisplayKey(&key)));
        let value = self.value_out_offloaded(value).await.map_err(of_key)?;
        Ok((key, value))
    }

    /// Values in pieces are converted when complete; multimaps are not converted, as in Infinispan.
    pub(crate) fn request(&self, body: RequestBody) -> Result<RequestBody> {
        Ok(match body {
            RequestBody::Map(request) => RequestBody::Map(self.map(request)?),
            RequestBody::Bulk(bulk::Request::PutAll(expiration, entries)) => {
                let entries = entries.into_iter().enumerate().map(|(nth, (key, value))| {
                    let converted = |key| Ok((self.key_in(key)?, self.value_in(value)?));
                    converted(key.clone()).map_err(|error| key_error(nth, &key, &error))
                });
                RequestBody::Bulk(bulk::Request::PutAll(expiration, entries.collect::<Result<_>>()?))
            }
            RequestBody::Bulk(bulk::Request::GetAll(keys)) => {
                let keys = keys
                    .into_iter()
                    .enumerate()
                    .map(|(nth, key)| self.key_in(key.clone()).map_err(|error| key_error(nth, &key, &error)));
                let keys = keys.collect::<Result<_>>()?;
                RequestBody::Bulk(bulk::Request::GetAll(keys))
            }
            RequestBody::Stream(request) => RequestBody::Stream(self.stream(request)?),
            RequestBody::Transaction(transaction::Request::Prepare(mut prepare, recovery)) => {
                for modification in &mut prepare.modifications {
                    modification.key = self.key_in(std::mem::take(&mut modification.key))?;
                    if let Some((_, value)) = &mut modification.change {
                        *value = self.value_in(std::mem::take(value))?;
                    }
                }
                RequestBody::Transaction(transaction::Request::Prepare(prepare, recovery))
            }
            body => body,
        })
    }

    fn map(&self, request: map::Request) -> Result<map::Request> {
        use map::Request::{
            ContainsKey, Get, GetWithMetadata, GetWithVersion, Put, PutIfAbsent, Remove, RemoveIfUnmodified,
            Replace, ReplaceIfUnmodified,
        };
        let assignment = |to: map::Assignment| {
            Ok(map::Assignment { key: self.key_in(to.key)?, value: self.value_in(to.value)?, ..to })
        };
        Ok(match request {
            Get(key) => Get(self.key_in(key)?),
            ContainsKey(key) => ContainsKey(self.key_in(key)?),
            GetWithVersion(key) => GetWithVersion(self.key_in(key)?),
            GetWithMetadata(key) => GetWithMetadata(self.key_in(key)?),
            Put(to) => Put(assignment(to)?),
            PutIfAbsent(to) => PutIfAbsent(assignment(to)?),
            Replace(to) => Replace(assignment(to)?),
            ReplaceIfUnmodified(to, version) => ReplaceIfUnmodified(assignment(to)?, version),
            Remove(key) => Remove(self.key_in(key)?),
            RemoveIfUnmodified(key, version) => RemoveIfUnmodified(self.key_in(key)?, version),
        })
    }

    fn stream(&self, request: stream::Request) -> Result<stream::Request> {
        use stream::Request::{Get, Put, StartGet, StartPut};
        let target = |to: stream::Target| Ok(stream::Target { key: self.key_in(to.key)?, ..to });
        Ok(match request {
            Get(key, from) => Get(self.key_in(key)?, from),
            Put(to, pieces) => Put(target(to)?, pieces),
            StartGet(key, piece) => StartGet(self.key_in(key)?, piece),
            StartPut(to) => StartPut(target(to)?),
            request => request,
        })
    }

    /// Responses with many entries are converted entry by entry.
    pub(crate) fn answer(&self, answer: Answer) -> Result<Answer> {
        let body = match answer.body {
            ResponseBody::Map(response) => ResponseBody::Map(match response {
                map::Response::Value(value) => map::Response::Value(self.value_out(value)?),
                map::Response::WithVersion(version, value) => {
                    map::Response::WithVersion(version, self.value_out(value)?)
                }
                map::Response::WithMetadata(metadata, value) => {
                    map::Response::WithMetadata(metadata, self.value_out(value)?)
                }
                map::Response::Previous(previous) => map::Response::Previous(self.previous(previous)?),
            }),
            ResponseBody::Stream(stream::Response::Previous(previous)) => {
                ResponseBody::Stream(stream::Response::Previous(self.previous(previous)?))
            }
            body => body,
        };
        Ok(Answer { body, ..answer })
    }

    fn previous(&self, previous: Option<Previous>) -> Result<Option<Previous>> {
        let converted = |before: Previous| Ok(Previous { value: self.value_out(before.value)?, ..before });
        previous.map(converted).transpose()
    }
}
