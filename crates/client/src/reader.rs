//! Values that are read in pieces.

use std::borrow::Borrow;
use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use consort_encoding::{Encode, Raw};
use consort_hotrod::ops::stream::{Piece, Request, Response};
use consort_hotrod::{Flags, Opcode, RequestBody, ResponseBody, Status};

use crate::limits::{PIECE_BYTES, PIECES_AHEAD, PIECES_AHEAD_BESIDE, PIECES_TOGETHER};
use crate::cache::{Cache, Entry, Version, entry};
use crate::error::ClientError;
use crate::options::Lifetime;
use crate::chunked_values::{Answered, PinnedConnection, InFlightChunks};

enum State {
    /// There is more.
    Open(i32),
    /// All of it has come.
    Complete,
    Failed(ClientError),
}

/// How far it is asked ahead.
struct Ahead {
    most: usize,
    /// How many pieces are asked for, and awaited, together.
    together: usize,
}

/// A value that is read in pieces: as it was when the reading began, whoever writes its key meanwhile.
///
/// There are nine pieces of it in memory at most, the one that [`ValueReader::next`] gives and eight that are on their way;
/// three are, while others ask something on the same connection, whose answers come between them. Dropped before its end, it
/// is forgotten by the server.
pub struct ValueReader {
    course: PinnedConnection,
    state: State,
    /// What has come and was not given yet.
    piece: Option<Bytes>,
    /// What was asked for, in its order.
    ahead: InFlightChunks,
    entry: Entry<()>,
}

impl fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reader of {:?}", self.entry.version)
    }
}

impl<K, V, KE> Cache<K, V, KE, Raw> {
    /// Begins to read what a key has in pieces; nothing if it has nothing.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unsupported`] from servers that do not speak 4.1.
    pub async fn reader<Q>(&self, key: &Q) -> Result<Option<ValueReader>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
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
            course: PinnedConnection::of(self.bytes(), &answer),
            state: if is_last { State::Complete } else { State::Open(stream) },
            piece: Some(bytes).filter(|bytes| !bytes.is_empty()),
            ahead: InFlightChunks::default(),
            entry: entry(metadata, ()),
        }))
    }
}

impl ValueReader {
    /// Which write the value is of.
    pub const fn version(&self) -> Version {
        self.entry.version
    }

    /// How long it lives, in whole seconds.
    pub const fn lifetime(&self) -> Lifetime {
        self.entry.lifetime
    }

    /// When it was written, by the server's clock, if it has a lifespan.
    pub const fn created(&self) -> Option<SystemTime> {
        self.entry.created
    }

    /// The next piece; nothing at the end. Those after it are asked for. A future of it that is dropped loses nothing.
    ///
    /// # Errors
    ///
    /// [`ClientError::StreamLost`] if the connection is lost on which it was begun. Without an answer in time it cannot go on
    /// either. After an error there is the same again.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        let moved = self.go_on().await;
        if let Err(error) = moved {
            self.end();
            self.state = State::Failed(error.clone());
            return Err(error);
        }
        Ok(self.piece.take())
    }

    async fn go_on(&mut self) -> Result<(), ClientError> {
        if self.piece.is_none() {
            self.ask_ahead().await?;
            if let Some(answer) = self.ahead.next(self.far().together).await {
                self.take(answer)?;
            }
        }
        self.ask_ahead().await
    }

    fn far(&self) -> Ahead {
        if self.course.has_others() {
            Ahead { most: PIECES_AHEAD_BESIDE, together: 1 }
        } else {
            Ahead { most: PIECES_AHEAD, together: PIECES_TOGETHER }
        }
    }

    /// Asks for the next pieces, as far as they were not asked for. What is asked for beyond the end is empty.
    async fn ask_ahead(&mut self) -> Result<(), ClientError> {
        let State::Open(stream) = self.state else { return Ok(()) };
        let Ahead { most, together } = self.far();
        if self.ahead.len() > most - together {
            return Ok(());
        }
        while self.ahead.len() < most {
            self.course.begin(Request::NextGet(stream), &mut self.ahead).await?;
        }
        Ok(())
    }

    fn take(&mut self, answer: Answered) -> Result<(), ClientError> {
        const OPERATION: &str = Opcode::NextGetStream.name();
        let response = self.course.answered(answer, OPERATION, false)?;
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
            _ => Err(self.course.protocol_violation(OPERATION, &response)),
        }
    }

    fn end(&mut self) {
        if let State::Open(stream) = self.state {
            self.course.end(Request::EndGet(stream));
        }
    }
}

impl Drop for ValueReader {
    fn drop(&mut self) {
        self.end();
    }
}
