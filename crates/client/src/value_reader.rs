use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use consort_encoding::{EncodeBorrowed, Lifetime, Raw};
use consort_hotrod::ops::stream::{Piece, Request, Response};
use consort_hotrod::{Flags, Opcode, RequestBody, ResponseBody, Status};

use crate::cache::{Cache, Entry, Version, entry};
use crate::chunked_values::{Answered, InFlightChunks, PinnedConnection};
use crate::error::ClientError;
use crate::limits::{PIECE_BYTES, PIECES_AHEAD, PIECES_AHEAD_BESIDE, PIECES_TOGETHER};

enum State {
    Open(i32),
    Complete,
    Failed(ClientError),
}

struct PrefetchLimits {
    most: usize,
    together: usize,
}

/// A value read in chunks, unaffected by later writes of its key.
///
/// At most nine chunks are in memory: that of [`ValueReader::next`] and eight in flight, three while the connection has other
/// requests, whose responses go between. Dropping it ends the stream on the server.
pub struct ValueReader {
    pinned: PinnedConnection,
    state: State,
    piece: Option<Bytes>,
    ahead: InFlightChunks,
    entry: Entry<()>,
}

impl fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reader of {:?}", self.entry.version)
    }
}

impl<K, V, KE> Cache<K, V, KE, Raw> {
    /// Starts reading a key's value in chunks; `None` without one.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unsupported`] from servers before 4.1.
    pub async fn reader<Q: ?Sized>(&self, key: &Q) -> Result<Option<ValueReader>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let request = Request::StartGet(self.key(key)?, PIECE_BYTES as u32);
        let answer = self.ask(RequestBody::Stream(request), Flags::NONE, None).await?;
        let (stream, is_last, metadata, bytes) = match &answer.body {
            ResponseBody::Stream(Response::Piece(Piece {
                stream,
                is_last,
                metadata: Some(metadata),
                bytes,
            })) => (*stream, *is_last, *metadata, bytes.clone()),
            ResponseBody::Empty if answer.status == Status::NotFound => return Ok(None),
            _ => return Err(answer.unexpected()),
        };
        Ok(Some(ValueReader {
            pinned: PinnedConnection::of(self.bytes(), &answer),
            state: if is_last { State::Complete } else { State::Open(stream) },
            piece: Some(bytes).filter(|bytes| !bytes.is_empty()),
            ahead: InFlightChunks::default(),
            entry: entry(metadata, ()),
        }))
    }
}

impl ValueReader {
    /// Returns the version of the value.
    pub const fn version(&self) -> Version {
        self.entry.version
    }

    /// Returns the lifetime, in whole seconds.
    pub const fn lifetime(&self) -> Lifetime {
        self.entry.lifetime
    }

    /// Returns when the value was written by the server's clock; `None` without a lifespan.
    pub const fn created(&self) -> Option<SystemTime> {
        self.entry.created
    }

    /// Returns the next chunk, `None` at the end, and requests more. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ClientError::StreamLost`] if the stream's connection is lost; a timeout ends the stream, too. Later calls repeat the
    /// error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        let moved = self.advance().await;
        if let Err(error) = moved {
            self.end();
            self.state = State::Failed(error.clone());
            return Err(error);
        }
        Ok(self.piece.take())
    }

    async fn advance(&mut self) -> Result<(), ClientError> {
        if self.piece.is_none() {
            self.ask_ahead().await?;
            if let Some(answer) = self.ahead.next(self.prefetch_limits().together).await {
                self.take(answer)?;
            }
        }
        self.ask_ahead().await
    }

    fn prefetch_limits(&self) -> PrefetchLimits {
        if self.pinned.has_other_requests() {
            PrefetchLimits { most: PIECES_AHEAD_BESIDE, together: 1 }
        } else {
            PrefetchLimits { most: PIECES_AHEAD, together: PIECES_TOGETHER }
        }
    }

    /// Chunks beyond the end are empty.
    async fn ask_ahead(&mut self) -> Result<(), ClientError> {
        let State::Open(stream) = self.state else { return Ok(()) };
        let PrefetchLimits { most, together } = self.prefetch_limits();
        if self.ahead.len() > most - together {
            return Ok(());
        }
        while self.ahead.len() < most {
            self.pinned.begin(Request::NextGet(stream), &mut self.ahead).await?;
        }
        Ok(())
    }

    fn take(&mut self, answer: Answered) -> Result<(), ClientError> {
        const OPERATION: &str = Opcode::NextGetStream.name();
        let response = self.pinned.answered(answer, OPERATION, false)?;
        match response.body {
            ResponseBody::Stream(Response::Piece(piece)) => {
                if piece.is_last {
                    self.end();
                    self.state = State::Complete;
                    self.ahead.clear();
                }
                self.piece = Some(piece.bytes).filter(|bytes| !bytes.is_empty());
                Ok(())
            }
            _ => Err(self.pinned.protocol_violation(OPERATION, &response)),
        }
    }

    fn end(&mut self) {
        if let State::Open(stream) = self.state {
            self.pinned.end(Request::EndGet(stream));
        }
    }
}

impl Drop for ValueReader {
    fn drop(&mut self) {
        self.end();
    }
}
