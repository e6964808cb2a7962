//! Asking a router who is registered there, of either kind.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use consort_group::PingData;
use consort_group::wire::{self, GossipData, GossipKind, WireError};
use consort_net::framing::{BadLength, Frame, next_frame, put_frame, room_wanted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::routes::group_of_all;

/// The longest answer that is read: ten thousand members of a group.
const ANSWER_LEN_MAX: usize = 4 * 1024 * 1024;

/// Groups that are read of at most.
const GROUPS_MAX: usize = 10_000;

/// A router cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It is not there, or goes away.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It says nothing.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// It ends the connection.
    #[error("it ends the connection instead of answering: it is no router, or it is about to end")]
    Ended,
    /// It is something else than a router.
    #[error("what listens there is no router: {0}")]
    Frame(#[from] BadLength),
    /// It is something else than a router.
    #[error("what listens there is no router: {0}")]
    Wire(#[from] WireError),
}

/// All groups with their members, in the order of their names.
///
/// # Errors
///
/// If nobody answers within that time, or not as a router does.
pub async fn ask(router: &str, patience: Duration) -> Result<Vec<(String, Vec<PingData>)>, AskError> {
    match timeout(patience, converse(router)).await {
        Ok(answer) => answer,
        Err(_) => Err(AskError::Silent(patience)),
    }
}

/// A router of JGroups' says nothing if there are no groups, so a question that both answer comes after.
async fn converse(router: &str) -> Result<Vec<(String, Vec<PingData>)>, AskError> {
    let mut stream = TcpStream::connect(router).await?;
    let mut asked = BytesMut::new();
    for kind in [GossipKind::GetMembers, GossipKind::Heartbeat] {
        put_frame(&mut asked, &wire::encode_gossip(&GossipData::new(kind, None)));
    }
    stream.write_all(&asked).await?;
    let mut groups = Vec::new();
    let mut buffer = BytesMut::new();
    loop {
        match next_frame(&mut buffer, ANSWER_LEN_MAX)? {
            Some(Frame::Payload(frame)) => {
                let data = wire::decode_gossip(&frame)?;
                match (data.kind, data.group) {
                    (GossipKind::Heartbeat, _) => break,
                    (GossipKind::Members | GossipKind::LastMembers, Some(group))
                        if groups.len() < GROUPS_MAX =>
                    {
                        groups.push((group_of_all(&group).to_owned(), data.members));
                    }
                    _ => {}
                }
            }
            Some(Frame::Close) => return Err(AskError::Ended),
            None => {
                buffer.reserve(room_wanted(&buffer, 16 * 1024));
                match stream.read_buf(&mut buffer).await {
                    Ok(1..) => {}
                    Ok(0) => return Err(AskError::Ended),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                        return Err(AskError::Ended);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    groups.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(groups)
}
