//! One client's connection: frames in either direction, without set-up bytes (facts 26).

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use consort_net::framing::{CLOSE_WORD, Frame, next_frame, put_frame, room_wanted};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use crate::outbox::cost;
use crate::router::Shared;
use crate::routes::Client;

/// The longest frame that is read. What goes through a tunnel is a bundle (64 KB in JGroups' files) or a fragment.
pub(crate) const FRAME_LEN_MAX: usize = 1024 * 1024;

/// The longest first frame of a connection: a registration or a question. Only members send longer ones.
const FIRST_FRAME_LEN_MAX: usize = READ_LEN;

/// Bytes of all frames together that are longer than a read and have come in part. Who sends one more waits until there is
/// room for the whole of it.
pub(crate) const UNFINISHED_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// How long a frame may take from its first bytes to its last one, the wait for room included.
pub(crate) const FRAME_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection of which no frame has come within this time is ended: it is nobody's.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Room for a read.
const READ_LEN: usize = 16 * 1024;

/// Frames are written together up to this: it is seen by parts of this size that a client reads.
const WRITE_LEN: usize = 64 * 1024;

/// Of a host that is gone without a word, the connection ends after a minute: its members are registered until then.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// Reads frames and has them routed, and writes what is for the client, until either side ends it.
pub(crate) async fn serve(
    stream: TcpStream,
    client: Client,
    shared: &Shared,
    outgoing: mpsc::UnboundedReceiver<Bytes>,
    mut is_ending: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE) {
        tracing::debug!(%error, "a host that is gone without a word is not noticed");
    }
    let (input, output) = stream.into_split();
    let writing = async {
        let mut outgoing = outgoing;
        let written = write(output, client, shared, &mut outgoing).await;
        outgoing.close();
        while let Ok(unwritten) = outgoing.try_recv() {
            shared.written(client, cost(&unwritten));
        }
        written
    };
    let reading = async {
        tokio::select! {
            ended = read(input, client, shared) => {
                if let Err(error) = ended {
                    shared.complain("connection_ended", || format!("a connection is ended: {error}"));
                }
            }
            _ = is_ending.changed() => {}
        }
        // What was for it still goes out; nothing more comes.
        shared.forget(client);
    };
    let (_, written) = tokio::join!(reading, writing);
    if let Err(error) = written {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Until the client ends the connection.
async fn read(mut input: OwnedReadHalf, client: Client, shared: &Shared) -> io::Result<()> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut buffer = BytesMut::new();
    let silent_until = Instant::now() + SILENCE_MAX;
    let mut frame_len_max = FIRST_FRAME_LEN_MAX;
    // Room for the whole of a long frame, and until when a frame has to be there that has begun.
    let (mut room, mut frame_until) = (None, None);
    loop {
        match next_frame(&mut buffer, frame_len_max).map_err(|error| wrong(error.to_string()))? {
            Some(Frame::Payload(frame)) => {
                (room, frame_until) = (None, None);
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
            // All of it at once: a frame that has begun to take room can always be finished.
            if room.is_none() && buffer.len() >= READ_LEN {
                room = shared.unfinished.reserve(FRAME_LEN_MAX as u64).await.ok();
            }
            buffer.reserve(room_wanted(&buffer, READ_LEN));
            input.read_buf(&mut buffer).await
        };
        let count = match until {
            None => taking.await,
            Some(until) => timeout_at(until, taking).await.map_err(|_| {
                wrong(match frame_until {
                    Some(_) => {
                        format!("a frame has not come within {} s", shared.bounds.frame_time.as_secs())
                    }
                    None => format!("it has said nothing for {} s", SILENCE_MAX.as_secs()),
                })
            })?,
        };
        // A connection that breaks has ended, and there is nothing more to say of it.
        if !matches!(count, Ok(1..)) {
            return Ok(());
        }
    }
}

/// Until nothing more can come.
async fn write(
    mut output: OwnedWriteHalf,
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
        let is_written = output.write_all(&bytes).await;
        bytes.clear();
        shared.written(client, written);
        is_written?;
    }
    output.write_all(&CLOSE_WORD).await?;
    output.shutdown().await
}
