use bytes::{Buf, Bytes, BytesMut};

use crate::error::{DecodeError, RequestError, Result};
use crate::expiration::Expiration;
use crate::header::{self, Flags, REQUEST_MAGIC, RequestHeader, RequestStart, magic_and_id};
use crate::intelligence::Intelligence;
use crate::layout::{Fields, RequestContext, Skimmer};
use crate::limits::Limits;
use crate::opcode::{Family, Opcode};
use crate::ops::{
    NOTHING, auth, bulk, counter, iteration, listener, map, multimap, server, stream, task, transaction,
};
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;
use crate::version::ProtocolVersion;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The header.
    pub header: RequestHeader,
    /// The body.
    pub body: RequestBody,
}

/// The body of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestBody {
    /// One key.
    Map(map::Request),
    /// Many keys, or the whole cache.
    Bulk(bulk::Request),
    /// The server.
    Server(server::Request),
    /// A task or query.
    Task(task::Request),
    /// Authentication.
    Auth(auth::Request),
    /// A listener.
    Listener(listener::Request),
    /// An iteration.
    Iteration(iteration::Request),
    /// A value in chunks.
    Stream(stream::Request),
    /// A transaction.
    Transaction(transaction::Request),
    /// A counter.
    Counter(counter::Request),
    /// A multimap.
    Multimap(multimap::Request),
}

fn layout(opcode: Opcode) -> Fields {
    match opcode.family() {
        Family::Map => map::request_layout(opcode),
        Family::Bulk => bulk::request_layout(opcode),
        Family::Server => NOTHING,
        Family::Task => task::request_layout(opcode),
        Family::Auth => auth::request_layout(opcode),
        Family::Listener => listener::request_layout(opcode),
        Family::Iteration => iteration::request_layout(opcode),
        Family::Stream => stream::request_layout(opcode),
        Family::Transaction => transaction::request_layout(opcode),
        Family::Counter => counter::request_layout(opcode),
        Family::Multimap => multimap::request_layout(opcode),
    }
}

impl RequestBody {
    /// Returns the operation.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Map(request) => request.opcode(),
            Self::Bulk(request) => request.opcode(),
            Self::Server(request) => request.opcode(),
            Self::Task(request) => request.opcode(),
            Self::Auth(request) => request.opcode(),
            Self::Listener(request) => request.opcode(),
            Self::Iteration(request) => request.opcode(),
            Self::Stream(request) => request.opcode(),
            Self::Transaction(request) => request.opcode(),
            Self::Counter(request) => request.opcode(),
            Self::Multimap(request) => request.opcode(),
        }
    }

    /// Returns the first version that can encode it.
    pub const fn since(&self) -> ProtocolVersion {
        match self {
            Self::Multimap(request) if request.allows_duplicates => ProtocolVersion::V4_0,
            Self::Iteration(iteration::Request::Start(start)) => start.since(),
            // Earlier versions cannot pass raw bytes to filters and converters.
            Self::Listener(listener::Request::Add(listener)) if listener.is_raw => ProtocolVersion::V2_1,
            _ => self.opcode().since(),
        }
    }

    /// Returns the key, whose owner is the best server.
    pub const fn key(&self) -> Option<&Bytes> {
        match self {
            Self::Map(request) => Some(request.key()),
            Self::Stream(request) => request.key(),
            Self::Multimap(request) => request.key(),
            _ => None,
        }
    }

    /// Returns the number of keys and values of a bulk request.
    pub const fn items(&self) -> usize {
        match self {
            Self::Bulk(request) => request.items(),
            Self::Transaction(transaction::Request::Prepare(prepare, _)) => prepare.modifications.len(),
            _ => 0,
        }
    }

    const fn expiration(&self) -> Option<&Expiration> {
        match self {
            Self::Map(request) => request.expiration(),
            Self::Bulk(request) => request.expiration(),
            Self::Stream(request) => request.expiration(),
            Self::Multimap(request) => request.expiration(),
            _ => None,
        }
    }

    fn read(opcode: Opcode, header: &RequestHeader, from: &mut Reader) -> Result<Self> {
        let version = header.version;
        Ok(match opcode.family() {
            Family::Map => Self::Map(map::Request::read(opcode, header, from)?),
            Family::Bulk => Self::Bulk(bulk::Request::read(opcode, header, from)?),
            Family::Server => Self::Server(server::Request::read(opcode)),
            Family::Task => Self::Task(task::Request::read(opcode, from)?),
            Family::Auth => Self::Auth(auth::Request::read(opcode, from)?),
            Family::Listener => Self::Listener(listener::Request::read(opcode, from, version)?),
            Family::Iteration => Self::Iteration(iteration::Request::read(opcode, from, version)?),
            Family::Stream => Self::Stream(stream::Request::read(opcode, header, from)?),
            Family::Transaction => Self::Transaction(transaction::Request::read(opcode, header, from)?),
            Family::Counter => Self::Counter(counter::Request::read(opcode, from)?),
            Family::Multimap => Self::Multimap(multimap::Request::read(opcode, header, from)?),
        })
    }
}

impl Request {
    /// Returns the properties for the response's layout.
    pub const fn context(&self) -> RequestContext {
        RequestContext {
            version: self.header.version,
            opcode: self.body.opcode(),
            intelligence: self.header.intelligence,
        }
    }

    /// Encodes it; before 2.2, default spans set flags.
    pub fn encode(&self, out: &mut Output) {
        let version = self.header.version;
        let flags = self.body.expiration().map_or(Flags::NONE, |expiration| expiration.flags(version));
        self.header.write(out, self.body.opcode(), flags);
        match &self.body {
            RequestBody::Map(request) => request.write(out, version),
            RequestBody::Bulk(request) => request.write(out, version),
            RequestBody::Server(_) => {}
            RequestBody::Task(request) => request.write(out),
            RequestBody::Auth(request) => request.write(out),
            RequestBody::Listener(request) => request.write(out, version),
            RequestBody::Iteration(request) => request.write(out, version),
            RequestBody::Stream(request) => request.write(out, version),
            RequestBody::Transaction(request) => request.write(out, version),
            RequestBody::Counter(request) => request.write(out),
            RequestBody::Multimap(request) => request.write(out, version),
        }
    }
}

/// Enough for a usual cache name without parameters.
const CACHED_HEADER_MAX: usize = 128;

/// Most requests of a connection have the same header, which is parsed once.
struct CachedHeader {
    bytes: Bytes,
    header: RequestHeader,
}

impl CachedHeader {
    /// Copies the header, so that its buffer is not kept; `None` if it is too long.
    fn new(start: &RequestStart, header: &[u8]) -> Result<Option<Self>> {
        if header.len() > CACHED_HEADER_MAX {
            return Ok(None);
        }
        let bytes = Bytes::copy_from_slice(header);
        let header = RequestHeader::read(&mut Reader::new(bytes.clone(), 0), start)?;
        Ok(Some(Self { bytes, header }))
    }

    fn is_at(&self, start: &RequestStart, bytes: &[u8]) -> bool {
        // The version determines the header's layout.
        self.header.version == start.version && bytes[start.end..].starts_with(&self.bytes)
    }
}

struct PartialRequest {
    start: RequestStart,
    skimmer: Skimmer,
    is_header_cached: bool,
    is_head_read: bool,
    is_skipped: bool,
}

impl PartialRequest {
    const fn has_unread_head(&self) -> bool {
        !self.is_head_read && !self.is_skipped && self.start.unknown.is_none()
    }
}

/// The beginning of an incomplete request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestHead {
    /// The header.
    pub header: RequestHeader,
    /// The operation.
    pub opcode: Opcode,
    /// For EXEC.
    pub task: Option<Text>,
}

impl RequestHead {
    /// Returns the properties for the response's layout.
    pub const fn context(&self) -> RequestContext {
        let RequestHeader { version, intelligence, .. } = self.header;
        RequestContext { version, opcode: self.opcode, intelligence }
    }
}

/// A decoder for any fragmentation.
#[derive(Default)]
pub struct RequestDecoder {
    limits: Limits,
    begun: Option<PartialRequest>,
    cached_header: Option<CachedHeader>,
    decoded: usize,
}

impl RequestDecoder {
    /// Creates a decoder.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, begun: None, cached_header: None, decoded: 0 }
    }

    /// Sets limits from the next field on.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns the least size of the incomplete request.
    pub fn bytes_needed(&self) -> usize {
        self.begun.as_ref().map_or(1, |begun| begun.skimmer.bytes_needed())
    }

    /// Returns the last request's size.
    pub const fn decoded(&self) -> usize {
        self.decoded
    }

    /// Returns the beginning of the incomplete request, once: a server can refuse a request without keeping the rest. The buffer
    /// must be that of [`RequestDecoder::decode`]. After an error the stream is lost.
    pub fn head(&mut self, buffer: &[u8]) -> std::result::Result<Option<RequestHead>, RequestError> {
        let Some(begun) = self.begun.as_mut().filter(|begun| begun.has_unread_head()) else {
            return Ok(None);
        };
        let start = begun.start;
        let read = || {
            let RequestStart { version, opcode, end, .. } = start;
            let context = RequestContext { version, opcode, intelligence: Intelligence::Basic };
            let name = task::head_layout(opcode);
            let found = Skimmer::new(end, context, [header::LAYOUT, name]).skim(buffer, &self.limits)?;
            let Some(length) = found else { return Ok(None) };
            let mut from = Reader::new(Bytes::copy_from_slice(&buffer[..length]), end);
            let header = RequestHeader::read(&mut from, &start)?;
            let task = if name.is_empty() { None } else { Some(from.text()?) };
            Ok(Some(RequestHead { header, opcode, task }))
        };
        let head =
            read().map_err(|error| RequestError { id: start.id, version: Some(start.version), error })?;
        begun.is_head_read = head.is_some();
        Ok(head)
    }

    /// Returns id and context of the incomplete request.
    pub fn partial_request(&self) -> Option<(u64, RequestContext)> {
        let RequestStart { id, version, opcode, .. } = self.begun.as_ref()?.start;
        Some((id, RequestContext { version, opcode, intelligence: Intelligence::Basic }))
    }

    /// Drops the incomplete request, also its later bytes.
    pub fn skip(&mut self, buffer: &mut BytesMut) {
        if let Some(begun) = &mut self.begun {
            begun.is_skipped = true;
            buffer.advance(begun.skimmer.drop_seen(buffer.len()));
        }
    }

    /// Returns whether a request is being dropped.
    pub fn is_skipping(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.is_skipped)
    }

    /// Takes the next complete request. Keys and values are slices of the buffer, which may only grow between calls. After an
    /// error the stream is lost, unless the operation is unknown ([`DecodeError::is_stream_lost`]).
    pub fn decode(&mut self, buffer: &mut BytesMut) -> std::result::Result<Option<Request>, RequestError> {
        let (length, begun) = loop {
            let skimmed = self.skim(buffer).map_err(|error| self.unreadable(buffer, error))?;
            let is_skipping = self.is_skipping();
            match (skimmed, self.begun.take()) {
                (Some(length), Some(_)) if is_skipping => buffer.advance(length),
                (Some(length), Some(begun)) => break (length, begun),
                (_, begun) => {
                    self.begun = begun;
                    if is_skipping {
                        self.skip(buffer);
                    }
                    return Ok(None);
                }
            }
        };
        let PartialRequest { start, is_header_cached, .. } = begun;
        self.decoded = length;
        if let Some(unknown) = start.unknown {
            buffer.advance(length);
            return Err(RequestError { id: start.id, version: Some(start.version), error: unknown.error() });
        }
        let request = self.read(&start, is_header_cached, buffer.split_to(length).freeze());
        let told = |error: DecodeError| RequestError { id: start.id, version: Some(start.version), error };
        request.map(Some).map_err(told)
    }

    fn unreadable(&self, buffer: &[u8], error: DecodeError) -> RequestError {
        match &self.begun {
            Some(PartialRequest { start, .. }) => {
                RequestError { id: start.id, version: Some(start.version), error }
            }
            None => {
                let id = magic_and_id(buffer, REQUEST_MAGIC).ok().flatten().map_or(0, |(id, _)| id);
                RequestError { id, version: None, error }
            }
        }
    }

    /// The length of the next request once it is complete.
    fn skim(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        let begun = match &mut self.begun {
            Some(begun) => begun,
            None => {
                let Some(start) = RequestStart::read(bytes)? else { return Ok(None) };
                let RequestStart { version, opcode, end, .. } = start;
                let context = RequestContext { version, opcode, intelligence: Intelligence::Basic };
                let cached_header =
                    self.cached_header.as_ref().filter(|cached_header| cached_header.is_at(&start, bytes));
                let skimmer = match cached_header {
                    Some(cached_header) => {
                        Skimmer::new(end + cached_header.bytes.len(), context, [NOTHING, layout(opcode)])
                    }
                    None => Skimmer::new(end, context, [header::LAYOUT, layout(opcode)]),
                };
                let is_header_cached = cached_header.is_some();
                self.begun.insert(PartialRequest {
                    start,
                    skimmer,
                    is_header_cached,
                    is_head_read: false,
                    is_skipped: false,
                })
            }
        };
        begun.skimmer.skim(bytes, &self.limits)
    }

    fn read(&mut self, start: &RequestStart, is_header_cached: bool, message: Bytes) -> Result<Request> {
        let (header, mut from) = match self.cached_header.as_ref().filter(|_| is_header_cached) {
            Some(CachedHeader { bytes, header }) => {
                let header = RequestHeader { id: start.id, ..header.clone() };
                (header, Reader::new(message, start.end + bytes.len()))
            }
            None => {
                let mut from = Reader::new(message, start.end);
                let header = RequestHeader::read(&mut from, start)?;
                self.cached_header = CachedHeader::new(start, from.read_since(start.end))?;
                (header, from)
            }
        };
        let body = RequestBody::read(start.opcode, &header, &mut from)?;
        from.end()?;
        Ok(Request { header, body })
    }
}
