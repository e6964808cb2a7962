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
                    tracing::warn!("a connection is ended: {error}");
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
    let deadline = Instant::now() + SILENCE_MAX;
    let mut is_known = false;
    loop {
        match next_frame(&mut buffer, FRAME_LEN_MAX).map_err(|error| wrong(error.to_string()))? {
            Some(Frame::Payload(frame)) => {
                shared.route(client, frame).await.map_err(|error| wrong(error.to_string()))?;
                is_known = true;
                continue;
            }
            Some(Frame::Close) => return Ok(()),
            None => {}
        }
        buffer.reserve(room_wanted(&buffer, READ_LEN));
        let reading = input.read_buf(&mut buffer);
        let count = if is_known {
            reading.await
        } else {
            let silent = |_| wrong(format!("it has said nothing for {} s", SILENCE_MAX.as_secs()));
            timeout_at(deadline, reading).await.map_err(silent)?
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
