//! Values that are written in pieces.

use std::borrow::Borrow;
use std::fmt;

use bytes::{Bytes, BytesMut};
use consort_encoding::{Encode, Raw};
use consort_hotrod::ops::map::{self, Assignment};
use consort_hotrod::ops::stream::{Request, Response, Target};
use consort_hotrod::{Expiration, Flags, Opcode, RequestBody, ResponseBody, Status};

use crate::limits::{PIECE_BYTES, PIECES_UNDER_WAY, PIECES_UNDER_WAY_BESIDE};
use crate::cache::{Cache, RawCache, Version};
use crate::error::{ClientError, ConnectionError};
use crate::chunked_values::{PinnedConnection, InFlightChunks};

/// Under which condition the value is put.
#[derive(Clone, Copy)]
enum Condition {
    Always,
    Absent,
    Version(i64),
}

/// A value that is written in pieces, and in the cache once [`ValueWriter::finish`] has returned: nobody sees a part of it.
///
/// There are seven pieces of it in memory at most, the one that is being filled and six that are on their way; two are, while
/// others ask something on the same connection, whose requests go between them. Dropped before it is finished, it changes
/// nothing, and is forgotten by the server.
pub struct ValueWriter {
    cache: RawCache,
    key: Bytes,
    expiration: Expiration,
    condition: Condition,
    /// What is not sent yet. A piece is sent when it is full and there is more: the last is never empty.
    piece: BytesMut,
    /// The stream, once there is more than one piece.
    stream: Option<(PinnedConnection, i32)>,
    under_way: InFlightChunks,
    state: State,
}

/// Whether it goes on.
enum State {
    Whole,
    /// A write has begun and was not awaited to its end.
    Torn,
    Failed(ClientError),
}

impl fmt::Debug for ValueWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writer to {:?}", self.cache)
    }
}

impl<K, V, KE> Cache<K, V, KE, Raw> {
    /// Begins to give a key a value in pieces, which lives as long as this handle says.
    ///
    /// # Errors
    ///
    /// If the key has no bytes, or too many. Whether servers can do it shows when there is more than [`PIECE_BYTES`]: it
    /// needs those that speak 4.1.
    pub fn writer<Q>(&self, key: &Q) -> Result<ValueWriter, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
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
    /// To be put only if the key has nothing when it is finished.
    #[must_use]
    pub fn if_absent(mut self) -> Self {
        self.condition = Condition::Absent;
        self
    }

    /// To be put only if the key's entry has this version when it is finished.
    #[must_use]
    pub fn if_version(mut self, version: Version) -> Self {
        self.condition = Condition::Version(version.0);
        self
    }

    /// What comes next of the value. Returns when all but the last piece is on its way.
    ///
    /// # Errors
    ///
    /// [`ClientError::StreamLost`] if the connection is lost on which it was begun; what the server says if it does not take
    /// so much. Nothing is changed, and there is the same error again. So it is after a future of it that was dropped: nobody
    /// knows how much of this is on its way, and so nothing more is taken.
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

    /// Puts the value. Whether the condition held.
    ///
    /// # Errors
    ///
    /// As any write's: [`ClientError::is_outcome_unknown`] tells whether the value may have been put.
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
        let (Some(last), Some((course, _))) = (self.under_way.next(1).await, &self.stream) else {
            return Err(self.torn());
        };
        let response = course.answered(last, NEXT, true)?;
        let is_done = match response.status {
            status if status.is_success() => true,
            Status::NotExecuted | Status::NotFound => false,
            _ => return Err(course.protocol_violation(NEXT, &response)),
        };
        // It is none any more.
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
        let server = self.stream.as_ref().map_or(self.cache.name().to_owned(), |(course, _)| course.server());
        ClientError::StreamLost { server, cause: ConnectionError::ClosedLocally }
    }

    /// There was but one piece.
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

    /// Sends the piece, when there is one less under way than may be.
    async fn send(&mut self, is_last: bool) -> Result<(), ClientError> {
        if self.stream.is_none() {
            self.stream = Some(self.start().await?);
        }
        while let Some((course, _)) = &self.stream
            && let most = if course.has_others() { PIECES_UNDER_WAY_BESIDE } else { PIECES_UNDER_WAY }
            && self.under_way.len() >= most
        {
            self.settle().await?;
        }
        let Some((course, stream)) = &self.stream else { return Err(self.torn()) };
        let piece = self.piece.split().freeze();
        course.begin(Request::NextPut(*stream, is_last, piece), &mut self.under_way).await
    }

    /// Waits for what was sent first, which was not the last piece.
    async fn settle(&mut self) -> Result<(), ClientError> {
        let (Some((course, _)), Some(first)) = (&self.stream, self.under_way.next(1).await) else {
            return Ok(());
        };
        let response = course.answered(first, NEXT, false)?;
        if response.status == Status::Success { Ok(()) } else { Err(course.protocol_violation(NEXT, &response)) }
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
        if let Some((course, stream)) = &self.stream {
            course.end(Request::EndPut(*stream));
        }
    }
}
