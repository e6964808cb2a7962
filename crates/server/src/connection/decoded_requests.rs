//! Decoded requests of a connection. Requests that arrive together share the look-up of the cache, and the memory of their keys
//! is prefetched.

use std::collections::VecDeque;

use bytes::BytesMut;
use consort_cache::PREFETCH_MAX;
use consort_hotrod::{
    DecodeError, Intelligence, Limits, Reason, Request, RequestBody, RequestContext, RequestDecoder,
    RequestError, RequestHead,
};

use crate::catalog::caches::Caches;
use crate::ops::cached_lookup::CachedLookup;
use crate::reply::exception;

/// In the order of arrival; at most [`PREFETCH_MAX`] are decoded and not started.
pub(crate) struct DecodedRequests {
    decoder: RequestDecoder,
    /// Clients of a port that the topology does not name stay on it.
    hides_topology: bool,
    /// Each with its size in bytes.
    decoded: VecDeque<(Request, usize)>,
    error: Option<RequestError>,
    /// The cache of the first of them, until all are taken: an idle connection must not keep a removed cache.
    recent: Option<CachedLookup>,
}

impl DecodedRequests {
    pub(crate) fn new(limits: Limits) -> Self {
        let decoder = RequestDecoder::new(limits);
        Self { decoder, hides_topology: false, decoded: VecDeque::new(), error: None, recent: None }
    }

    pub(crate) const fn hide_topology(&mut self, hides: bool) {
        self.hides_topology = hides;
    }

    pub(crate) const fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_limits(limits);
    }

    /// Returns the next request without reading beyond it; `None` if it is incomplete. After an error no more bytes can be
    /// read.
    pub(crate) fn next_single(&mut self, input: &mut BytesMut) -> Result<Option<Request>, RequestError> {
        self.decode(input)
    }

    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Request>, RequestError> {
        let mut decoded = self.decoder.decode(input);
        if self.hides_topology
            && let Ok(Some(request)) = &mut decoded
        {
            request.header.intelligence = Intelligence::Basic;
        }
        decoded
    }

    pub(crate) fn bytes_needed(&self) -> usize {
        self.decoder.bytes_needed()
    }

    pub(crate) fn incomplete(&self) -> Option<(u64, RequestContext)> {
        self.decoder.partial_request()
    }

    pub(crate) fn is_skipping(&self) -> bool {
        self.decoder.is_skipping()
    }

    pub(crate) fn skip(&mut self, input: &mut BytesMut) {
        self.decoder.skip(input);
    }

    pub(crate) fn head(&mut self, input: &[u8]) -> Result<Option<RequestHead>, RequestError> {
        self.decoder.head(input)
    }

    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
        caches: &Caches,
    ) -> Result<Option<(Request, usize)>, RequestError> {
        if let Some(request) = self.decoded.pop_front() {
            return Ok(Some(request));
        }
        self.recent = None;
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(first) = self.decode(input)? else {
            self.decoded = VecDeque::new();
            return Ok(None);
        };
        let bytes = self.decoder.decoded();
        while self.decoded.len() + 1 < PREFETCH_MAX && !input.is_empty() {
            match self.decode(input) {
                Ok(Some(request)) => self.decoded.push_back((request, self.decoder.decoded())),
                Ok(None) => break,
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        let name = &first.header.cache;
        self.recent = caches.get(name.as_str()).map(|served| {
            let topology = caches.topology_of(&served);
            CachedLookup { name: name.clone(), served, topology }
        });
        if !self.decoded.is_empty() {
            self.prefetch_keys(&first);
        }
        Ok(Some((first, bytes)))
    }

    fn prefetch_keys(&self, first: &Request) {
        let Some(CachedLookup { name, served, .. }) = &self.recent else { return };
        let requests = std::iter::once(first).chain(self.decoded.iter().map(|(request, _)| request));
        served.cache.prefetch(requests.filter_map(|request| match &request.body {
            RequestBody::Map(body) if request.header.cache == *name => Some(&body.key()[..]),
            _ => None,
        }));
    }

    pub(crate) fn recent(&self, request: &Request) -> Option<&CachedLookup> {
        self.recent.as_ref().filter(|recent| recent.name == request.header.cache)
    }
}

/// With the class of Infinispan's exception.
pub(crate) fn text(error: &DecodeError) -> String {
    let class = match error.reason {
        Reason::Magic(_) => exception::INVALID_MAGIC,
        Reason::Version(_) => exception::UNKNOWN_VERSION,
        Reason::Opcode(_) => exception::UNKNOWN_OPERATION,
        _ => exception::REQUEST_PARSING,
    };
    format!("{class}: {error}")
}

#[cfg(test)]
mod tests {
    use consort_hotrod::{Output, ProtocolVersion, RequestHeader, ops};

    use super::*;

    #[test]
    fn request_on_a_port_without_topology_does_not_ask_for_one() {
        let header = RequestHeader {
            intelligence: Intelligence::Hash,
            ..RequestHeader::new(7, ProtocolVersion::V4_0)
        };
        let mut ping = Output::new();
        Request { header, body: RequestBody::Server(ops::server::Request::Ping) }.encode(&mut ping);
        let ping = ping.into_bytes();
        for (hides, expected) in [(false, Intelligence::Hash), (true, Intelligence::Basic)] {
            let mut requests = DecodedRequests::new(Limits::default());
            requests.hide_topology(hides);
            let request = requests.next_single(&mut BytesMut::from(&ping[..])).unwrap().unwrap();
            assert_eq!(request.header.intelligence, expected);
        }
    }
}
