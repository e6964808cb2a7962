//! A client's connection, without set-up bytes, plain or within TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use consort_net::framing::{CLOSE_WORD, Frame, next_frame, put_frame, reserve_room};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use crate::outbox::cost;
use crate::routes::Client;
use crate::shared::Shared;
use crate::tls;

/// In bytes. Tunnelled frames are bundles (64 KB in JGroups' files) or fragments.
const FRAME_LEN_MAX: usize = 1024 * 1024;

/// A registration or a query; only members send longer ones.
const FIRST_FRAME_LEN_MAX: usize = READ_LEN;

/// A connection without a frame belongs to no member.
const SILENCE_MAX: Duration = Duration::from_secs(10);

const READ_LEN: usize = 16 * 1024;

/// Clients read a larger write in parts of this size.
const WRITE_LEN: usize = 64 * 1024;

/// A silent host's members stay registered for a minute.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// Returns when either side closes.
pub(crate) async fn serve(
    stream: TcpStream,
    acceptor: Option<Arc<TlsAcceptor>>,
    client: Client,
    shared: &Shared,
    outgoing: mpsc::UnboundedReceiver<Bytes>,
    mut is_ending: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE) {
        tracing::debug!(%error, "keepalive cannot be set: the end of a host is not detected");
    }
    let Some(acceptor) = acceptor else {
        let (input, output) = stream.into_split();
        return exchange(input, output, client, shared, outgoing, is_ending).await;
    };
    let handshake = tokio::select! {
        accepted = timeout(SILENCE_MAX, tls::accept(acceptor, stream)) => accepted,
        _ = is_ending.changed() => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let (input, output) = tokio::io::split(stream);
            exchange(input, output, client, shared, outgoing, is_ending).await;
        }
        Ok(Err(error)) => shared.warn("no_tls", || error.to_string()),
        Err(_) => shared.warn("no_tls", || format!("no TLS handshake within {} s", SILENCE_MAX.as_secs())),
    }
}

/// Reads and writes frames.
async fn exchange(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
    client: Client,
    shared: &Shared,
    outgoing: mpsc::UnboundedReceiver<Bytes>,
    mut is_ending: watch::Receiver<bool>,
) {
    let writing = async {
        let mut outgoing = outgoing;
        let written = write(output, client, shared, &mut outgoing).await;
        outgoing.close();
        while let Ok(unwritten) = outgoing.try_recv() {
            shared.note_written(client, cost(&unwritten));
        }
        written
    };
    let reading = async {
        tokio::select! {
            ended = read(input, client, shared) => {
                if let Err(error) = ended {
                    shared.warn("connection_ended", || format!("closing a connection: {error}"));
                }
            }
            _ = is_ending.changed() => {}
        }
        // Queued frames are still written; no further frame is queued.
        shared.forget(client);
    };
    let (_, written) = tokio::join!(reading, writing);
    if let Err(error) = written {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn read(mut input: impl AsyncRead + Unpin, client: Client, shared: &Shared) -> io::Result<()> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut buffer = BytesMut::new();
    let silent_until = Instant::now() + SILENCE_MAX;
    let mut frame_len_max = FIRST_FRAME_LEN_MAX;
    // The capacity reserved for a long frame, and the deadline of an incomplete one.
    let (mut reserved, mut frame_until) = (None, None);
    loop {
        match next_frame(&mut buffer, frame_len_max).map_err(|error| wrong(error.to_string()))? {
            Some(Frame::Payload(frame)) => {
                (reserved, frame_until) = (None, None);
                shared.route(client, frame).await.map_err(|error| wrong(error.to_string()))?;
                frame_len_max = FRAME_LEN_MAX;
                continue;
            }
            Some(Frame::Close) => return Ok(()),
            None => {}
        }
        if !buffer.is_empty() {
            frame_until.get_or_insert_with(|| Instant::now() + shared.bounds.frame_time);
        }
        let is_first = frame_len_max == FIRST_FRAME_LEN_MAX;
        let until = frame_until.or(is_first.then_some(silent_until));
        let taking = async {
            // Reserves the greatest length at once, so that a frame that has reserved can always be finished.
            if reserved.is_none() && buffer.len() >= READ_LEN {
                reserved = shared.unfinished.reserve(FRAME_LEN_MAX as u64).await.ok();
            }
            reserve_room(&mut buffer, READ_LEN);
            input.read_buf(&mut buffer).await
        };
        let count = match until {
            None => taking.await,
            Some(until) => timeout_at(until, taking).await.map_err(|_| {
                wrong(match frame_until {
                    Some(_) => {
                        format!("a frame was not complete within {} s", shared.bounds.frame_time.as_secs())
                    }
                    None => format!("no frame for {} s", SILENCE_MAX.as_secs()),
                })
            })?,
        };
        // A failed connection has ended; the error has no further information.
        if !matches!(count, Ok(1..)) {
            return Ok(());
        }
    }
}

async fn write(
    mut output: impl AsyncWrite + Unpin,
    client: Client,
    shared: &Shared,
    outgoing: &mut mpsc::UnboundedReceiver<Bytes>,
) -> io::Result<()> {
    let mut bytes = BytesMut::new();
    while let Some(mut frame) = outgoing.recv().await {
        let mut written = 0;
        loop {
            put_frame(&mut bytes, &frame);
            written += cost(&frame);
            if bytes.len() >= WRITE_LEN {
                break;
            }
            let Ok(next) = outgoing.try_recv() else { break };
            frame = next;
        }
        // TLS keeps bytes that the socket did not take.
        let is_written = match output.write_all(&bytes).await {
            Ok(()) => output.flush().await,
            error => error,
        };
        bytes.clear();
        shared.note_written(client, written);
        is_written?;
    }
    output.write_all(&CLOSE_WORD).await?;
    output.shutdown().await
}
