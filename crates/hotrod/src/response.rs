use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::error::{Reason, Result, error};
use crate::header::magic_and_id;
use crate::intelligence::Intelligence;
use crate::layout::{Field, Fields, RequestContext, Skimmer};
use crate::limits::Limits;
use crate::opcode::{COUNTER_EVENT, ERROR, EVENTS, Family, Opcode};
use crate::ops::event::{self, CounterEvent, Event, EventKind};
use crate::ops::{
    NOTHING, TEXT, auth, bulk, counter, iteration, map, multimap, server, stream, task, transaction,
};
use crate::output::Output;
use crate::reader::Reader;
use crate::status::Status;
use crate::text::Text;
use crate::topology::{self, CacheTopology};
use crate::version::ProtocolVersion;

/// The first byte.
pub const RESPONSE_MAGIC: u8 = 0xA1;

/// A response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The request's id.
    pub id: u64,
    /// The status.
    pub status: Status,
    /// If the client has another one.
    pub topology: Option<Arc<CacheTopology>>,
    /// The body.
    pub body: ResponseBody,
}

/// The body of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResponseBody {
    /// Only a status.
    Empty,
    /// An error's text.
    Error(Text),
    /// One key.
    Map(map::Response),
    /// Many keys, or the whole cache.
    Bulk(bulk::Response),
    /// The server.
    Server(server::Response),
    /// A task's or query's result.
    Result(Bytes),
    /// Authentication.
    Auth(auth::Response),
    /// An iteration.
    Iteration(iteration::Response),
    /// A value in chunks.
    Stream(stream::Response),
    /// A transaction.
    Transaction(transaction::Response),
    /// A counter.
    Counter(counter::Response),
    /// A multimap.
    Multimap(multimap::Response),
}

/// A message of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// A response.
    Response(Response),
    /// An entry event.
    Event(Event),
    /// A counter event.
    CounterEvent(CounterEvent),
}

fn layout(context: RequestContext, status: Status) -> Fields {
    let opcode = context.opcode;
    match opcode.family() {
        Family::Map => map::response_layout(opcode, status),
        Family::Iteration => iteration::response_layout(opcode, status),
        Family::Stream => stream::response_layout(opcode, status),
        Family::Transaction => transaction::response_layout(opcode, status),
        Family::Counter => counter::response_layout(opcode, status),
        Family::Multimap => multimap::response_layout(opcode, status),
        _ if !status.is_success() => NOTHING,
        Family::Listener => NOTHING,
        Family::Bulk => bulk::response_layout(opcode),
        Family::Server => server::response_layout(opcode),
        Family::Auth => auth::response_layout(opcode),
        Family::Task => task::RESPONSE,
    }
}

impl ResponseBody {
    fn read(context: RequestContext, status: Status, from: &mut Reader) -> Result<Self> {
        if layout(context, status).is_empty() {
            return Ok(Self::Empty);
        }
        Ok(match context.opcode.family() {
            Family::Map => Self::Map(map::Response::read(context, from)?),
            Family::Bulk => Self::Bulk(bulk::Response::read(context, from)?),
            Family::Server => server::Response::read(context, from)?.map_or(Self::Empty, Self::Server),
            Family::Task => Self::Result(from.array()?),
            Family::Auth => Self::Auth(auth::Response::read(context, from)?),
            Family::Listener => Self::Empty,
            Family::Iteration => Self::Iteration(iteration::Response::read(context, from)?),
            Family::Stream => Self::Stream(stream::Response::read(context, from)?),
            Family::Transaction => Self::Transaction(transaction::Response::read(context.opcode, from)?),
            Family::Counter => Self::Counter(counter::Response::read(context.opcode, from)?),
            Family::Multimap => Self::Multimap(multimap::Response::read(context.opcode, from)?),
        })
    }

    fn write(&self, out: &mut Output, version: ProtocolVersion) {
        match self {
            Self::Empty => {}
            Self::Error(text) => out.text(text),
            Self::Map(response) => response.write(out, version),
            Self::Bulk(response) => response.write(out),
            Self::Server(response) => response.write(out, version),
            Self::Result(result) => out.array(result),
            Self::Auth(response) => response.write(out),
            Self::Iteration(response) => response.write(out, version),
            Self::Stream(response) => response.write(out, version),
            Self::Transaction(response) => response.write(out),
            Self::Counter(response) => response.write(out),
            Self::Multimap(response) => response.write(out),
        }
    }
}

impl Response {
    /// Creates a response without topology.
    pub const fn new(id: u64, status: Status, body: ResponseBody) -> Self {
        Self { id, status, topology: None, body }
    }

    /// Creates an error response.
    pub fn error(id: u64, status: Status, text: impl Into<Text>) -> Self {
        Self::new(id, status, ResponseBody::Error(text.into()))
    }

    /// Encodes it for a request, on which errors do not depend.
    pub fn encode(&self, context: RequestContext, out: &mut Output) {
        let is_error = matches!(self.body, ResponseBody::Error(_));
        write_start(self.id, if is_error { ERROR } else { context.opcode.response() }, self.status, out);
        let topology = self.topology.as_deref().filter(|_| !is_error);
        CacheTopology::write(topology, out, context.intelligence);
        self.body.write(out, context.version);
    }
}

fn write_start(id: u64, opcode: u8, status: Status, out: &mut Output) {
    out.u8(RESPONSE_MAGIC);
    out.vlong(id);
    out.u8(opcode);
    out.u8(status.byte());
}

impl Event {
    /// Encodes it.
    pub fn encode(&self, out: &mut Output) {
        write_start(self.id, self.kind as u8, Status::Success, out);
        out.u8(0);
        self.write(out);
    }
}

impl CounterEvent {
    /// Encodes it.
    pub fn encode(&self, out: &mut Output) {
        write_start(0, COUNTER_EVENT, Status::Success, out);
        out.u8(0);
        self.write(out);
    }
}

#[derive(Clone, Copy)]
enum Expected {
    Answer(RequestContext, Status),
    Error(RequestContext, Status),
    Event(EventKind),
    CounterEvent,
}

#[derive(Clone, Copy)]
struct Start {
    id: u64,
    expected: Expected,
    end: usize,
}

/// Messages without a request have no topology.
const NO_REQUEST: RequestContext = RequestContext {
    version: ProtocolVersion::NEWEST,
    opcode: Opcode::Ping,
    intelligence: Intelligence::Basic,
};

const fn no_topology(marker: u8) -> Option<Fields> {
    if marker == 0 { Some(NOTHING) } else { None }
}

impl Start {
    fn read(bytes: &[u8], context: impl FnOnce(u64) -> Option<RequestContext>) -> Result<Option<Self>> {
        let Some((id, at)) = magic_and_id(bytes, RESPONSE_MAGIC)? else { return Ok(None) };
        let [Some(&opcode), Some(&status)] = [bytes.get(at), bytes.get(at + 1)] else { return Ok(None) };
        let Some(status) = Status::from_byte(status) else {
            return error(at + 1, Reason::Invalid { what: "status", value: status.into() });
        };
        let expected = if opcode == ERROR {
            Expected::Error(context(id).unwrap_or(NO_REQUEST), status)
        } else if let Some(kind) = EventKind::from_byte(opcode).filter(|_| EVENTS.contains(&opcode)) {
            Expected::Event(kind)
        } else if opcode == COUNTER_EVENT {
            Expected::CounterEvent
        } else {
            let Some(context) = context(id) else { return error(1, Reason::UnknownId(id)) };
            let expected = context.opcode.response();
            if opcode != expected {
                return error(at, Reason::OtherOpcode { found: opcode, expected });
            }
            if status.is_error() {
                let value = status.byte().into();
                return error(at + 1, Reason::Invalid { what: "status of a successful response", value });
            }
            Expected::Answer(context, status)
        };
        Ok(Some(Self { id, expected, end: at + 2 }))
    }

    fn skimmer(&self) -> Skimmer {
        const NO_TOPOLOGY: Fields = &[Field::Choice("topology marker", no_topology)];
        const TOPOLOGY: Fields = &[topology::FIELD];
        let (context, parts) = match self.expected {
            Expected::Answer(context, status) => (context, [TOPOLOGY, layout(context, status)]),
            Expected::Error(context, _) => (context, [TOPOLOGY, &[TEXT][..]]),
            Expected::Event(kind) => (NO_REQUEST, [NO_TOPOLOGY, event::layout(kind)]),
            Expected::CounterEvent => (NO_REQUEST, [NO_TOPOLOGY, event::COUNTER]),
        };
        Skimmer::new(self.end, context, parts)
    }

    fn read_rest(&self, from: &mut Reader) -> Result<Incoming> {
        let id = self.id;
        let context = match self.expected {
            Expected::Answer(context, _) | Expected::Error(context, _) => context,
            Expected::Event(_) | Expected::CounterEvent => NO_REQUEST,
        };
        let topology = CacheTopology::read(from, context.intelligence)?.map(Arc::new);
        let incoming = match self.expected {
            Expected::Answer(context, status) => {
                let body = ResponseBody::read(context, status, from)?;
                Incoming::Response(Response { id, status, topology, body })
            }
            Expected::Error(_, status) => {
                let body = ResponseBody::Error(from.text()?);
                Incoming::Response(Response { id, status, topology, body })
            }
            Expected::Event(kind) => Incoming::Event(Event::read(id, kind, from)?),
            Expected::CounterEvent => Incoming::CounterEvent(CounterEvent::read(from)?),
        };
        from.end()?;
        Ok(incoming)
    }
}

/// A decoder for any fragmentation.
#[derive(Default)]
pub struct ResponseDecoder {
    limits: Limits,
    begun: Option<(Start, Skimmer)>,
}

impl ResponseDecoder {
    /// Creates a decoder.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, begun: None }
    }

    /// Returns the least size of the incomplete message.
    pub fn bytes_needed(&self) -> usize {
        self.begun.as_ref().map_or(1, |(_, skimmer)| skimmer.bytes_needed())
    }

    /// Takes the next complete message. Keys and values are slices of the buffer, which may only grow between calls. `context` is
    /// called once per response. After an error the stream is lost.
    pub fn decode(
        &mut self,
        buffer: &mut BytesMut,
        context: impl FnOnce(u64) -> Option<RequestContext>,
    ) -> Result<Option<Incoming>> {
        let (start, skimmer) = match &mut self.begun {
            Some(begun) => begun,
            None => {
                let Some(start) = Start::read(buffer, context)? else { return Ok(None) };
                self.begun.insert((start, start.skimmer()))
            }
        };
        let start = *start;
        let Some(length) = skimmer.skim(buffer, &self.limits)? else { return Ok(None) };
        self.begun = None;
        let mut reader = Reader::new(buffer.split_to(length).freeze(), start.end);
        start.read_rest(&mut reader).map(Some)
    }
}
