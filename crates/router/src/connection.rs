//! A client's connection, without set-up bytes, plain or within TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use consort_net::framing::{CLOSE_WORD, Frame, next_frame, put_frame, reserve_room};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use crate::outbox::cost;
use crate::shared::{Admitted, Bounds};
use crate::tls;

/// In bytes. Tunnelled frames are bundles (64 KB in JGroups' files) or fragments.
const FRAME_LEN_MAX: usize = 1024 * 1024;

/// A registration or a query; only members send longer ones.
const FIRST_FRAME_LEN_MAX: usize = READ_LEN;

const READ_LEN: usize = 16 * 1024;

/// A write gathers frames up to this size.
const WRITE_LEN: usize = 64 * 1024;

/// Longer frames are written without a copy.
const COPIED_LEN_MAX: usize = 16 * 1024;

/// A client has more time for more bytes.
const TAKEN_PER_SECOND: usize = 64 * 1024;

/// Bytes that a host does not acknowledge. Only keepalives of an idle connection detect its failure otherwise.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// A silent host's members stay registered for a minute.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// Returns when either side closes.
pub(crate) async fn serve(
    stream: TcpStream,
    acceptor: Option<Arc<TlsAcceptor>>,
    admitted: &Admitted,
    outgoing: mpsc::UnboundedReceiver<Bytes>,
    mut is_ending: watch::Receiver<bool>,
) {
    let Admitted { shared, peer, .. } = admitted;
    let _ = stream.set_nodelay(true);
    if let Err(error) = set_limits(&stream) {
        tracing::debug!(%error, "keepalive cannot be set: the end of a host is not detected");
    }
    let outgoing = Outgoing { frames: outgoing, in_hand: 0, admitted };
    let Some(acceptor) = acceptor else {
        let (input, output) = stream.into_split();
        return exchange(input, output, admitted, outgoing, is_ending).await;
    };
    let silence = shared.bounds.silence;
    let handshake = tokio::select! {
        accepted = timeout(silence, tls::accept(acceptor, stream)) => accepted,
        _ = is_ending.changed() => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let (input, output) = tokio::io::split(stream);
            exchange(input, output, admitted, outgoing, is_ending).await;
        }
        Ok(Err(error)) => shared.warn("no_tls", || error.to_string()),
        Err(_) => {
            shared.warn("no_tls", || format!("no TLS handshake with {peer} within {} s", silence.as_secs()));
        }
    }
}

fn set_limits(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(())
}

/// Frames for a client. A drop gives back the bytes that were not written.
struct Outgoing<'a> {
    frames: mpsc::UnboundedReceiver<Bytes>,
    /// The cost of frames that are being written.
    in_hand: usize,
    admitted: &'a Admitted,
}

impl Outgoing<'_> {
    fn note_written(&mut self) {
        let written = std::mem::take(&mut self.in_hand);
        self.admitted.shared.note_written(self.admitted.client, written);
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        self.frames.close();
        while let Ok(unwritten) = self.frames.try_recv() {
            self.in_hand += cost(&unwritten);
        }
        self.note_written();
    }
}

/// Reads and writes frames.
async fn exchange(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
    admitted: &Admitted,
    outgoing: Outgoing<'_>,
    mut is_ending: watch::Receiver<bool>,
) {
    let Admitted { client, peer, shared } = admitted;
    let (has_ended, has_failed) = (Notify::new(), Notify::new());
    let writing = async {
        let written = tokio::select! {
            written = write(output, outgoing) => written,
            () = async {
                has_ended.notified().await;
                sleep(shared.bounds.drain_time).await;
            } => Err(io::Error::new(io::ErrorKind::TimedOut, "the rest of its frames was not taken")),
        };
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                shared.warn("does_not_read", || format!("closing the connection of {peer}: {error}"));
            }
            Err(error) => tracing::debug!(%error, "a connection broke"),
        }
        has_failed.notify_one();
    };
    let reading = async {
        tokio::select! {
            ended = read(input, admitted) => {
                if let Err(error) = ended {
                    shared.warn("connection_ended", || format!("closing the connection of {peer}: {error}"));
                }
            }
            () = has_failed.notified() => {}
            _ = is_ending.changed() => {}
        }
        // Queued frames are still written; no further frame is queued.
        shared.forget(*client);
        has_ended.notify_one();
    };
    tokio::join!(reading, writing);
}

async fn read(mut input: impl AsyncRead + Unpin, admitted: &Admitted) -> io::Result<()> {
    let Admitted { client, shared, .. } = admitted;
    let Bounds { silence, frame_time, .. } = shared.bounds;
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut buffer = BytesMut::new();
    let mut is_registered = false;
    let mut silent_until = Instant::now() + silence;
    // The capacity reserved for a long frame, and the deadline of an incomplete one.
    let (mut reserved, mut frame_until) = (None, None);
    loop {
        // Only members send frames longer than a registration or a query.
        let frame_len_max = if is_registered { FRAME_LEN_MAX } else { FIRST_FRAME_LEN_MAX };
        match next_frame(&mut buffer, frame_len_max).map_err(|error| wrong(error.to_string()))? {
            Some(Frame::Payload(frame)) => {
                (reserved, frame_until) = (None, None);
                let routed = shared.route(*client, frame).await.map_err(|error| wrong(error.to_string()))?;
                let Some(registered) = routed else { return Ok(()) };
                is_registered = registered;
                silent_until = Instant::now() + silence;
                continue;
            }
            Some(Frame::Close) => return Ok(()),
            None => {}
        }
        if !buffer.is_empty() {
            frame_until.get_or_insert_with(|| Instant::now() + frame_time);
        }
        let until = frame_until.or((!is_registered).then_some(silent_until));
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
                    Some(_) => format!("a frame was not complete within {} s", frame_time.as_secs()),
                    None => format!("no member is registered, and no frame came for {} s", silence.as_secs()),
                })
            })?,
        };
        // A failed connection has ended; the error has no further information.
        if !matches!(count, Ok(1..)) {
            return Ok(());
        }
    }
}

async fn write(mut output: impl AsyncWrite + Unpin, mut outgoing: Outgoing<'_>) -> io::Result<()> {
    let take_time = outgoing.admitted.shared.bounds.take_time;
    let mut bytes = BytesMut::new();
    while let Some(mut frame) = outgoing.frames.recv().await {
        let mut uncopied = Bytes::new();
        loop {
            outgoing.in_hand += cost(&frame);
            if frame.len() > COPIED_LEN_MAX {
                bytes.put_i32(frame.len() as i32);
                uncopied = frame;
                break;
            }
            put_frame(&mut bytes, &frame);
            if bytes.len() >= WRITE_LEN {
                break;
            }
            let Ok(next) = outgoing.frames.try_recv() else { break };
            frame = next;
        }
        let len = bytes.len() + uncopied.len();
        let within = take_time + Duration::from_secs((len / TAKEN_PER_SECOND) as u64);
        let writing = async {
            output.write_all(&bytes).await?;
            output.write_all(&uncopied).await?;
            // TLS keeps bytes that the socket did not take.
            output.flush().await
        };
        let is_written = timeout(within, writing).await.unwrap_or_else(|_| {
            let text = format!("it has not taken {len} bytes within {} s", within.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        });
        bytes.clear();
        outgoing.note_written();
        is_written?;
    }
    output.write_all(&CLOSE_WORD).await?;
    output.shutdown().await
}
