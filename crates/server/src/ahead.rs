//! Requests that have come together: what they are about is looked for once, and what their keys need of memory is fetched
//! for all of them before the first is answered.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use consort_cache::PREFETCH_MAX;
use consort_hotrod::{
    CacheTopology, Limits, Request, RequestBody, RequestContext, RequestDecoder, RequestError, RequestHead,
    Text,
};

use crate::caches::Caches;
use crate::served::Served;

/// A connection's requests in the order in which they came, at most [`PREFETCH_MAX`] of which are decoded and not begun.
pub(crate) struct Ahead {
    decoder: RequestDecoder,
    /// With the bytes of each.
    decoded: VecDeque<(Request, usize)>,
    /// What follows them cannot be read.
    wrong: Option<RequestError>,
    /// The cache that the first of them is about, until all of them have been taken: a cache that nobody has any more is not
    /// kept by connections that say nothing.
    recent: Option<Recent>,
}

/// A cache as it was when a request for it had come.
pub(crate) struct Recent {
    name: Text,
    pub(crate) served: Arc<Served>,
    /// What clients are told of its owners.
    pub(crate) topology: Option<Arc<CacheTopology>>,
}

impl Ahead {
    pub(crate) fn new(limits: Limits) -> Self {
        let decoder = RequestDecoder::new(limits);
        Self { decoder, decoded: VecDeque::new(), wrong: None, recent: None }
    }

    /// Other limits from the next field on.
    pub(crate) const fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    /// The next request, if it is there as a whole, and nothing after it.
    ///
    /// # Errors
    ///
    /// If the bytes are none. Nothing that follows can be read.
    pub(crate) fn next_alone(&mut self, input: &mut BytesMut) -> Result<Option<Request>, RequestError> {
        self.decoder.decode(input)
    }

    /// How many bytes the request has at least that is not there as a whole yet.
    pub(crate) fn bytes_needed(&self) -> usize {
        self.decoder.bytes_needed()
    }

    /// The id of the request that is not there as a whole yet, and what its response looks like, as soon as that is known.
    pub(crate) fn begun(&self) -> Option<(u64, RequestContext)> {
        self.decoder.partial_request()
    }

    /// Whether a request is being dropped as it comes.
    pub(crate) fn is_skipping(&self) -> bool {
        self.decoder.is_skipping()
    }

    /// Drops the request that is not there as a whole yet, as far as it has come and as it comes.
    pub(crate) fn skip(&mut self, input: &mut BytesMut) {
        self.decoder.skip(input);
    }

    /// The beginning of the request that is not there as a whole yet, once.
    ///
    /// # Errors
    ///
    /// If the bytes are none. Nothing that follows can be read.
    pub(crate) fn head(&mut self, input: &[u8]) -> Result<Option<RequestHead>, RequestError> {
        self.decoder.head(input)
    }

    /// The next request and how many bytes it has, if it is there as a whole.
    ///
    /// # Errors
    ///
    /// If the bytes are none. Nothing that follows can be read.
    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
        caches: &Caches,
    ) -> Result<Option<(Request, usize)>, RequestError> {
        if let Some(request) = self.decoded.pop_front() {
            return Ok(Some(request));
        }
        self.recent = None;
        if let Some(error) = self.wrong.take() {
            return Err(error);
        }
        let Some(first) = self.decoder.decode(input)? else {
            self.decoded = VecDeque::new();
            return Ok(None);
        };
        let bytes = self.decoder.decoded();
        while self.decoded.len() + 1 < PREFETCH_MAX && !input.is_empty() {
            match self.decoder.decode(input) {
                Ok(Some(request)) => self.decoded.push_back((request, self.decoder.decoded())),
                Ok(None) => break,
                Err(error) => {
                    self.wrong = Some(error);
                    break;
                }
            }
        }
        let name = &first.header.cache;
        self.recent = caches.get(name.as_str()).map(|served| {
            let topology = caches.topology_of(&served);
            Recent { name: name.clone(), served, topology }
        });
        if !self.decoded.is_empty() {
            self.look_ahead(&first);
        }
        Ok(Some((first, bytes)))
    }

    fn look_ahead(&self, first: &Request) {
        let Some(Recent { name, served, .. }) = &self.recent else { return };
        let requests = std::iter::once(first).chain(self.decoded.iter().map(|(request, _)| request));
        served.cache.prefetch(requests.filter_map(|request| match &request.body {
            RequestBody::Map(body) if request.header.cache == *name => Some(&body.key()[..]),
            _ => None,
        }));
    }

    /// The cache of a request that [`Ahead::next`] gave last, if it is known.
    pub(crate) fn recent(&self, request: &Request) -> Option<&Recent> {
        self.recent.as_ref().filter(|recent| recent.name == request.header.cache)
    }
}
