//! A client's connection: one task that reads, begins what is asked, and writes what is answered.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use consort_hotrod::{
    Asked, Intelligence, Limits, Opcode, Output, ProtocolVersion, Request, RequestDecoder, RequestError,
    Response,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answering::answer;
use crate::bounds::{READ_AT_ONCE, STRANGER_BYTES_MAX, STRANGER_TIME_MAX, UNWRITTEN_MAX, WAITING_MAX};
use crate::caches::Caches;
use crate::session::Session;
use crate::unasked::Unasked;

type Answering = Pin<Box<dyn Future<Output = (Asked, Response)> + Send>>;

/// Serves a client until it goes, or says what cannot be read, or the server ends.
pub(crate) async fn serve(mut stream: TcpStream, caches: Arc<Caches>, mut ending: watch::Receiver<bool>) {
    let (from, to) = stream.split();
    let mut connection = Connection::new(caches, from, to);
    let known = timeout(STRANGER_TIME_MAX, connection.meet());
    let is_known = tokio::select! {
        known = known => matches!(known, Ok(Ok(()))),
        () = ended(&mut ending) => false,
    };
    if !is_known {
        return;
    }
    if let Err(error) = connection.run(&mut ending).await {
        tracing::debug!(%error, "a client's connection has ended");
    }
}

struct Connection<'a> {
    session: Arc<Session>,
    unasked: mpsc::Receiver<Unasked>,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    decoder: RequestDecoder,
    input: BytesMut,
    output: Output,
    /// Requests that wait for other members.
    waiting: JoinSet<(Asked, Response)>,
    /// The client has said something that cannot be read, and is told so before the end.
    is_lost: bool,
}

impl<'a> Connection<'a> {
    fn new(caches: Arc<Caches>, from: ReadHalf<'a>, to: WriteHalf<'a>) -> Self {
        let limits = Limits { message: STRANGER_BYTES_MAX, ..Limits::default() };
        let (session, unasked) = Session::new(caches);
        Self {
            session: Arc::new(session),
            unasked,
            from,
            to,
            decoder: RequestDecoder::new(limits),
            input: BytesMut::new(),
            output: Output::new(),
            waiting: JoinSet::new(),
            is_lost: false,
        }
    }

    /// Waits for the first request.
    async fn meet(&mut self) -> io::Result<()> {
        loop {
            match self.decoder.decode(&mut self.input) {
                Ok(Some(request)) => {
                    self.decoder.set_limits(Limits::default());
                    self.begin(request).await;
                    return Ok(());
                }
                Ok(None) => {}
                Err(error) => {
                    self.lose(error);
                    return Ok(());
                }
            }
            self.from.readable().await?;
            if !self.take()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Takes what has come; false at the end. Nothing is reserved for a client that says nothing.
    fn take(&mut self) -> io::Result<bool> {
        self.input.reserve(READ_AT_ONCE);
        match self.from.try_read_buf(&mut self.input) {
            Ok(count) => Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether more may be begun.
    fn has_room(&self) -> bool {
        !self.is_lost && self.waiting.len() < WAITING_MAX && self.output.len() < UNWRITTEN_MAX
    }

    async fn run(&mut self, ending: &mut watch::Receiver<bool>) -> io::Result<()> {
        let mut is_ending = false;
        loop {
            self.begin_all().await;
            // What has ended is written with what ended where it began.
            while let Some(answered) = self.waiting.try_join_next() {
                self.tell(answered);
            }
            let is_done = self.waiting.is_empty() && self.output.is_empty();
            if is_done && (self.is_lost || is_ending) {
                return self.to.shutdown().await;
            }
            let reads = !is_ending && self.has_room();
            // Whatever there is always more of, requests or events, leaves the others their turn.
            tokio::select! {
                Some(answered) = self.waiting.join_next(), if !self.waiting.is_empty() => self.tell(answered),
                Some(unasked) = self.unasked.recv(), if self.output.len() < UNWRITTEN_MAX => {
                    unasked.encode(&mut self.output);
                    while self.output.len() < UNWRITTEN_MAX
                        && let Ok(unasked) = self.unasked.try_recv()
                    {
                        unasked.encode(&mut self.output);
                    }
                }
                () = self.session.outlet.lost() => {
                    return Err(io::Error::other("its client cannot be told of all changes"));
                }
                written = self.to.write_buf(&mut self.output), if !self.output.is_empty() => {
                    if written? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    if self.output.is_empty() {
                        self.output = Output::new();
                    }
                }
                readable = self.from.readable(), if reads => {
                    readable?;
                    // A client that says no more may still want its answers.
                    is_ending = !self.take()?;
                }
                () = ended(ending), if !is_ending => is_ending = true,
            }
        }
    }

    /// Begins everything that has come as a whole, as far as there is room for its answers.
    async fn begin_all(&mut self) {
        while self.has_room() {
            match self.decoder.decode(&mut self.input) {
                Ok(Some(request)) => self.begin(request).await,
                Ok(None) => break,
                Err(error) => self.lose(error),
            }
        }
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    fn lose(&mut self, error: RequestError) {
        let version = error.version.unwrap_or(ProtocolVersion::NEWEST);
        let intelligence = Intelligence::Basic;
        let asked = Asked { version, opcode: Opcode::Ping, intelligence };
        let text = error.to_string();
        Response::error(error.id, error.error.status(), text).encode(asked, &mut self.output);
        self.is_lost = true;
    }

    /// Begins a request. What ends at once, a read of what is here above all, is answered from here.
    async fn begin(&mut self, request: Request) {
        let mut answering: Answering = Box::pin(answer(self.session.clone(), request));
        let at_once = poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx))).await;
        match at_once {
            Poll::Ready((asked, response)) => response.encode(asked, &mut self.output),
            Poll::Pending => {
                self.waiting.spawn(answering);
            }
        }
    }

    fn tell(&mut self, answered: Result<(Asked, Response), tokio::task::JoinError>) {
        match answered {
            Ok((asked, response)) => response.encode(asked, &mut self.output),
            // Its client would wait for ever.
            Err(error) => {
                tracing::error!(%error, "a request has panicked");
                self.is_lost = true;
            }
        }
    }
}

/// Until the server ends.
async fn ended(ending: &mut watch::Receiver<bool>) {
    // Without a sender there is no server.
    let _ = ending.wait_for(|is_ending| *is_ending).await;
}
