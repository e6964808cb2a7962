use std::fmt;

use bytes::{Bytes, BytesMut};
use consort_encoding::{EncodeBorrowed, Raw};
use consort_hotrod::ops::map::{self, Assignment};
use consort_hotrod::ops::stream::{Request, Response, Target};
use consort_hotrod::{Expiration, Flags, Opcode, RequestBody, ResponseBody, Status};

use crate::cache::{Cache, RawCache, Version};
use crate::chunked_values::{InFlightChunks, PinnedConnection};
use crate::error::{ClientError, ConnectionError};
use crate::limits::{PIECE_BYTES, PIECES_UNDER_WAY, PIECES_UNDER_WAY_BESIDE};

#[derive(Clone, Copy)]
enum Condition {
    Always,
    Absent,
    Version(i64),
}

/// A value written in chunks, visible once [`ValueWriter::finish`] has returned.
///
/// At most seven chunks are in memory: the one being filled and six in flight, two while the connection has other requests, which
/// go between. Dropping it early changes nothing and ends the stream on the server.
pub struct ValueWriter {
    cache: RawCache,
    key: Bytes,
    expiration: Expiration,
    condition: Condition,
    /// A full chunk is sent only when more bytes follow, so that the last is never empty.
    piece: BytesMut,
    /// `None` for a single chunk so far.
    stream: Option<(PinnedConnection, i32)>,
    under_way: InFlightChunks,
    state: State,
}

enum State {
    Whole,
    /// A write was cancelled.
    Torn,
    Failed(ClientError),
}

impl fmt::Debug for ValueWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writer to {:?}", self.cache)
    }
}

impl<K, V, KE> Cache<K, V, KE, Raw> {
    /// Starts writing a value in chunks, with this handle's lifetime.
    ///
    /// # Errors
    ///
    /// If the key cannot be encoded or is too large. Values above [`PIECE_BYTES`] need servers of 4.1; older
    /// ones fail at the first write beyond it.
    pub fn writer<Q: ?Sized>(&self, key: &Q) -> Result<ValueWriter, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        Ok(ValueWriter {
            cache: self.bytes(),
            key: self.key(key)?,
            expiration: self.expiration(),
            condition: Condition::Always,
            piece: BytesMut::new(),
            stream: None,
            under_way: InFlightChunks::default(),
            state: State::Whole,
        })
    }
}

impl ValueWriter {
    /// Requires at the end that the key has no value.
    #[must_use]
    pub fn if_absent(mut self) -> Self {
        self.condition = Condition::Absent;
        self
    }

    /// Requires at the end that the entry has this version.
    #[must_use]
    pub fn if_version(mut self, version: Version) -> Self {
        self.condition = Condition::Version(version.0);
        self
    }

    /// Appends bytes; returns when all but the last chunk are sent.
    ///
    /// # Errors
    ///
    /// [`ClientError::StreamLost`] if the stream's connection is lost; the server's error if the value is too large. Nothing is
    /// changed, and later calls repeat the error. A cancelled call makes the writer fail, too, because the sent part is unknown.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ClientError> {
        self.check()?;
        self.state = State::Torn;
        let written: Result<(), ClientError> = async {
            while !bytes.is_empty() {
                if self.piece.len() == PIECE_BYTES {
                    self.send(false).await?;
                }
                if self.piece.is_empty() {
                    self.piece.reserve(PIECE_BYTES.min(bytes.len()));
                }
                let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.piece.len()));
                self.piece.extend_from_slice(now);
                bytes = later;
            }
            Ok(())
        }
        .await;
        self.state = written.as_ref().err().map_or(State::Whole, |error| State::Failed(error.clone()));
        written
    }

    /// Puts the value; returns whether the condition held.
    ///
    /// # Errors
    ///
    /// As any write; see [`ClientError::is_outcome_unknown`].
    pub async fn finish(mut self) -> Result<bool, ClientError> {
        self.check()?;
        let cache = self.cache.clone();
        let _forgotten = cache.forgotten(|| [self.key.clone()]);
        if self.stream.is_none() {
            return self.put_at_once().await;
        }
        self.send(true).await?;
        while self.under_way.len() > 1 {
            self.settle().await?;
        }
        let (Some(last), Some((pinned, _))) = (self.under_way.next(1).await, &self.stream) else {
            return Err(self.torn());
        };
        let response = pinned.answered(last, NEXT, true)?;
        let is_done = match response.status {
            status if status.is_success() => true,
            Status::NotExecuted | Status::NotFound => false,
            _ => return Err(pinned.protocol_violation(NEXT, &response)),
        };
        // The stream has ended.
        self.stream = None;
        Ok(is_done)
    }

    fn check(&self) -> Result<(), ClientError> {
        match &self.state {
            State::Whole => Ok(()),
            State::Torn => Err(self.torn()),
            State::Failed(error) => Err(error.clone()),
        }
    }

    fn torn(&self) -> ClientError {
        let server = self.stream.as_ref().map_or(self.cache.name().to_owned(), |(pinned, _)| pinned.server());
        ClientError::StreamLost { server, cause: ConnectionError::ClosedLocally }
    }

    async fn put_at_once(&mut self) -> Result<bool, ClientError> {
        let to = Assignment {
            key: self.key.clone(),
            expiration: self.expiration,
            value: self.piece.split().freeze(),
        };
        let request = match self.condition {
            Condition::Always => map::Request::Put(to),
            Condition::Absent => map::Request::PutIfAbsent(to),
            Condition::Version(version) => map::Request::ReplaceIfUnmodified(to, version),
        };
        self.cache.write(request).await
    }

    async fn send(&mut self, is_last: bool) -> Result<(), ClientError> {
        if self.stream.is_none() {
            self.stream = Some(self.start().await?);
        }
        while let Some((pinned, _)) = &self.stream
            && let most = if pinned.has_other_requests() { PIECES_UNDER_WAY_BESIDE } else { PIECES_UNDER_WAY }
            && self.under_way.len() >= most
        {
            self.settle().await?;
        }
        let Some((pinned, stream)) = &self.stream else { return Err(self.torn()) };
        let piece = self.piece.split().freeze();
        pinned.begin(Request::NextPut(*stream, is_last, piece), &mut self.under_way).await
    }

    async fn settle(&mut self) -> Result<(), ClientError> {
        let (Some((pinned, _)), Some(first)) = (&self.stream, self.under_way.next(1).await) else {
            return Ok(());
        };
        let response = pinned.answered(first, NEXT, false)?;
        if response.status == Status::Success {
            Ok(())
        } else {
            Err(pinned.protocol_violation(NEXT, &response))
        }
    }

    async fn start(&self) -> Result<(PinnedConnection, i32), ClientError> {
        let version = match self.condition {
            Condition::Always => 0,
            Condition::Absent => -1,
            Condition::Version(version) => version,
        };
        let target = Target { key: self.key.clone(), expiration: self.expiration, version };
        let request = RequestBody::Stream(Request::StartPut(target));
        let answer = self.cache.ask(request, Flags::NONE, None).await?;
        match answer.body {
            ResponseBody::Stream(Response::Started(stream)) => {
                Ok((PinnedConnection::of(self.cache.clone(), &answer), stream))
            }
            _ => Err(answer.unexpected()),
        }
    }
}

const NEXT: &str = Opcode::NextPutStream.name();

impl Drop for ValueWriter {
    fn drop(&mut self) {
        if let Some((pinned, stream)) = &self.stream {
            pinned.end(Request::EndPut(*stream));
        }
    }
}
