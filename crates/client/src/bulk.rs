//! Operations on many keys and on whole caches; requests go to all owners in parallel.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use consort_encoding::{Decode, EncodeBorrowed};
use consort_hotrod::ops::{bulk, map, server};
use consort_hotrod::{Flags, RequestBody, ResponseBody, Status};

use crate::cache::Cache;
use crate::error::{ClientError, KeysError};
use crate::limits::{BULK_BYTES, BULK_ITEMS};
use crate::operation::Answer;
use crate::server::Server;

/// Requests in flight, each for [`BULK_ITEMS`] keys; further ones start as these complete.
const IN_FLIGHT_MAX: usize = 256;

type AnswerFuture<'a> = Pin<Box<dyn Future<Output = Result<Answer, ClientError>> + Send + 'a>>;

/// Awaits all requests, a bounded number at a time, and returns their responses in order. The error is the first failure and the
/// index of its request; the others are not awaited.
async fn join_in_order<'a>(
    requests: impl Iterator<Item = AnswerFuture<'a>>,
) -> Result<Vec<Answer>, (usize, ClientError)> {
    let (mut more, mut running, mut answers) = (requests.enumerate(), Vec::new(), BTreeMap::new());
    poll_fn(|cx| {
        loop {
            let room = IN_FLIGHT_MAX - running.len();
            running.extend(more.by_ref().take(room));
            if running.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let before = running.len();
            let mut index = 0;
            while let Some((number, request)) = running.get_mut(index) {
                match request.as_mut().poll(cx) {
                    Poll::Ready(Ok(answer)) => {
                        answers.insert(*number, answer);
                        drop(running.swap_remove(index));
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err((*number, error))),
                    Poll::Pending => index += 1,
                }
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await?;
    Ok(answers.into_values().collect())
}

/// The items for each server, split into requests, with each item's index in the input.
struct RequestBatches<T> {
    by_server: BTreeMap<Option<usize>, Vec<RequestBatch<T>>>,
}

struct RequestBatch<T> {
    items: Vec<T>,
    places: Vec<usize>,
    bytes: usize,
}

struct Request<T> {
    server: Option<usize>,
    items: Vec<T>,
}

impl<T> RequestBatches<T> {
    const fn new() -> Self {
        Self { by_server: BTreeMap::new() }
    }

    fn add(&mut self, server: Option<usize>, index: usize, item: T, bytes: usize) {
        let batches = self.by_server.entry(server).or_default();
        match batches.last_mut() {
            Some(batch) if batch.items.len() < BULK_ITEMS && batch.bytes < BULK_BYTES => {
                batch.items.push(item);
                batch.places.push(index);
                batch.bytes += bytes;
            }
            _ => batches.push(RequestBatch { items: vec![item], places: vec![index], bytes }),
        }
    }

    fn into_requests(self) -> (Vec<Request<T>>, Vec<Vec<usize>>) {
        let each = self.by_server.into_iter();
        let each = each.flat_map(|(server, batches)| batches.into_iter().map(move |batch| (server, batch)));
        each.map(|(server, RequestBatch { items, places, .. })| (Request { server, items }, places)).unzip()
    }
}

fn at(index: usize) -> impl FnOnce(ClientError) -> KeysError {
    move |error| KeysError { places: vec![index], error }
}

fn error_of_request<'p>(places: &'p [Vec<usize>]) -> impl Fn((usize, ClientError)) -> KeysError + 'p {
    |(number, error)| KeysError { places: places[number].clone(), error }
}

/// The servers of a cache, and the primary's index for each key.
struct Owners {
    routing: Option<Arc<crate::routing::Routing<Arc<Server>>>>,
}

impl Owners {
    fn primary_index(&self, key: &[u8]) -> Option<usize> {
        let routing = self.routing.as_ref()?;
        let primary = routing.primary(key)?;
        routing.servers().iter().position(|server| Arc::ptr_eq(server, primary))
    }

    fn server(&self, index: Option<usize>) -> Option<Arc<Server>> {
        self.routing.as_ref()?.servers().get(index?).cloned()
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE>
where
    KE: Send + Sync,
    VE: Send + Sync,
{
    fn perform_body(&self, request: RequestBody, at: Option<Arc<Server>>) -> AnswerFuture<'_> {
        Box::pin(self.ask(request, Flags::NONE, at))
    }

    /// Returns the values of these keys, in their order.
    ///
    /// Servers of version 2.0 have no such request: they get one per key.
    ///
    /// # Errors
    ///
    /// The first failed request's error, with its keys.
    pub async fn get_all<'q, Q: ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<Option<V>>, KeysError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        let (owners, mut batches) = (Owners { routing: self.state.routing() }, RequestBatches::new());
        // A repeated key is requested once.
        let (mut values, mut places) = (Vec::new(), BTreeMap::<Bytes, Vec<usize>>::new());
        for key in keys {
            let index = values.len();
            let key = self.key(key).map_err(at(index))?;
            let of_key = places.entry(key.clone()).or_default();
            if of_key.is_empty() {
                batches.add(owners.primary_index(&key), index, key.clone(), key.len());
            }
            of_key.push(index);
            values.push(None);
        }
        let (requests, asked) = batches.into_requests();
        let requests = requests.into_iter().map(|Request { server, items }| {
            self.perform_body(RequestBody::Bulk(bulk::Request::GetAll(items)), owners.server(server))
        });
        let answers = match join_in_order(requests).await {
            Err((_, ClientError::Unsupported { .. })) => {
                let gets = places
                    .keys()
                    .map(|key| self.perform_body(RequestBody::Map(map::Request::Get(key.clone())), None));
                let places: Vec<Vec<usize>> = places.values().cloned().collect();
                let answers = join_in_order(gets).await.map_err(error_of_request(&places))?;
                for (answer, places) in answers.iter().zip(&places) {
                    match &answer.body {
                        ResponseBody::Map(map::Response::Value(value)) => {
                            for index in places {
                                values[*index] = Some(self.decoded(value.clone()).map_err(at(*index))?);
                            }
                        }
                        _ if answer.status == Status::NotFound => {}
                        _ => return Err(KeysError { places: places.clone(), error: answer.unexpected() }),
                    }
                }
                return Ok(values);
            }
            answers => answers.map_err(error_of_request(&asked))?,
        };
        for (answer, asked) in answers.into_iter().zip(asked) {
            let ResponseBody::Bulk(bulk::Response::Found(found)) = answer.body else {
                return Err(KeysError { places: asked, error: answer.unexpected() });
            };
            for (key, value) in found {
                for index in places.get(&key).into_iter().flatten() {
                    values[*index] = Some(self.decoded(value.clone()).map_err(at(*index))?);
                }
            }
        }
        Ok(values)
    }

    /// Puts these entries. Each key is written by itself: other clients may see some of the entries before the rest.
    ///
    /// Servers of version 2.0 have no such request: they get one per key.
    ///
    /// # Errors
    ///
    /// The first failed request's error, with its keys. The other requests continue.
    pub async fn put_all<'q, Q: ?Sized + 'q, W: ?Sized + 'q>(
        &self,
        entries: impl IntoIterator<Item = (&'q Q, &'q W)>,
    ) -> Result<(), KeysError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let (owners, mut batches) = (Owners { routing: self.state.routing() }, RequestBatches::new());
        // The last value of a repeated key wins, because requests may overtake each other.
        let mut last = BTreeMap::new();
        for (index, (key, value)) in entries.into_iter().enumerate() {
            let key = self.key(key).map_err(at(index))?;
            last.insert(key, (index, self.value(value).map_err(at(index))?));
        }
        let _forgotten = self.forgotten(|| last.keys().cloned());
        for (key, (index, value)) in &last {
            batches.add(
                owners.primary_index(key),
                *index,
                (key.clone(), value.clone()),
                key.len() + value.len(),
            );
        }
        let (requests, mut places) = batches.into_requests();
        let requests = requests.into_iter().map(|Request { server, items }| {
            let request = bulk::Request::PutAll(self.expiration(), items);
            self.perform_body(RequestBody::Bulk(request), owners.server(server))
        });
        let answers = match join_in_order(requests).await {
            Err((_, ClientError::Unsupported { .. })) => {
                places = last.values().map(|(index, _)| vec![*index]).collect();
                let puts = last.into_iter().map(|(key, (_, value))| {
                    let expiration = self.expiration();
                    let put = map::Request::Put(map::Assignment { key, expiration, value });
                    self.perform_body(RequestBody::Map(put), None)
                });
                join_in_order(puts).await
            }
            answers => answers,
        };
        let answers = answers.map_err(error_of_request(&places))?;
        let done =
            |(number, answer)| done(answer).map_err(|error| error_of_request(&places)((number, error)));
        answers.iter().enumerate().try_for_each(done)
    }

    /// Removes these keys. Returns for each, in order, whether it had a value.
    ///
    /// # Errors
    ///
    /// As [`Cache::put_all`].
    pub async fn remove_all<'q, Q: ?Sized + 'q>(
        &self,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<bool>, KeysError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let keys = keys.into_iter().enumerate().map(|(index, key)| self.key(key).map_err(at(index)));
        let keys: Vec<Bytes> = keys.collect::<Result<_, _>>()?;
        let _forgotten = self.forgotten(|| keys.iter().cloned());
        let requests =
            keys.into_iter().map(|key| self.perform_body(RequestBody::Map(map::Request::Remove(key)), None));
        let answers = join_in_order(requests).await.map_err(|(index, error)| at(index)(error))?;
        Ok(answers.iter().map(|answer| answer.status.is_success()).collect())
    }

    /// Returns the number of entries.
    pub async fn size(&self) -> Result<u64, ClientError> {
        let answer = self.ask(RequestBody::Bulk(bulk::Request::Size), Flags::NONE, None).await?;
        match answer.body {
            ResponseBody::Bulk(bulk::Response::Size(size)) => Ok(size),
            _ => Err(answer.unexpected()),
        }
    }

    /// Removes all entries.
    pub async fn clear(&self) -> Result<(), ClientError> {
        let _forgotten = self.forgotten_all();
        done(&self.ask(RequestBody::Bulk(bulk::Request::Clear), Flags::NONE, None).await?)
    }

    /// Returns the cache's statistics of one server under Infinispan's names; -1 means not counted. Names
    /// that begin with `global` cover all servers.
    pub async fn statistics(&self) -> Result<BTreeMap<String, i64>, ClientError> {
        let request = RequestBody::Server(server::Request::Stats);
        let answer = self.ask(request, Flags::NONE, None).await?;
        let ResponseBody::Server(server::Response::Stats(counted)) = &answer.body else {
            return Err(answer.unexpected());
        };
        let number = |text: &str| text.parse().map_err(|_| answer.unexpected());
        counted.iter().map(|(name, count)| Ok((name.to_string(), number(count.as_str())?))).collect()
    }

    /// Checks that the servers have the cache; fails with [`ClientError::NoSuchCache`] otherwise.
    pub async fn ping(&self) -> Result<(), ClientError> {
        let request = RequestBody::Server(server::Request::Ping);
        done(&self.ask(request, Flags::NONE, None).await?)
    }
}

fn done(answer: &Answer) -> Result<(), ClientError> {
    if answer.status == Status::Success { Ok(()) } else { Err(answer.unexpected()) }
}
