//! Queries of Consort's or JGroups' routers.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use consort_group::PingData;
use consort_group::wire::{self, GossipData, GossipKind, WireError};
use consort_net::framing::{BadLength, Frame, next_frame, put_frame, read_capacity};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::routes::{GROUP_BYTES_MAX, MEMBERS_MAX, own_group_name};
use crate::tls::{RouterClientTls, explained};

/// Of all groups. Consort's routers list at most 6 MiB.
const LISTS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Each group has a member.
const GROUPS_MAX: usize = MEMBERS_MAX;

/// A failed query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouterQueryError {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There was no response.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The peer closed it.
    #[error("the peer closed the connection without a response: it is no router, or it is shutting down")]
    ConnectionClosed,
    /// The lists are too long to read.
    #[error("the router lists more than {GROUPS_MAX} groups or {LISTS_BYTES_MAX} bytes")]
    TooLong,
    /// The peer is not a router.
    #[error("the peer is no router: {0}")]
    Frame(#[from] BadLength),
    /// The peer is not a router.
    #[error("the peer is no router: {0}")]
    Wire(#[from] WireError),
}

/// Returns all groups with members, by name.
///
/// # Errors
///
/// If no router responds in time.
pub async fn list_members(
    router: &str,
    within: Duration,
) -> Result<Vec<(String, Vec<PingData>)>, RouterQueryError> {
    let request = async { request_members(TcpStream::connect(router).await?).await };
    timeout(within, request).await.unwrap_or(Err(RouterQueryError::TimedOut(within)))
}

/// As [`list_members`], of a router with TLS.
///
/// # Errors
///
/// As for [`list_members`]; also if the router is refused, or refuses this client.
pub async fn list_members_over_tls(
    router: &str,
    tls: &RouterClientTls,
    within: Duration,
) -> Result<Vec<(String, Vec<PingData>)>, RouterQueryError> {
    let host = router.rsplit_once(':').map_or(router, |(host, _)| host).trim_matches(['[', ']']);
    let request = async {
        match request_members(tls.connect(host, TcpStream::connect(router).await?).await?).await {
            // With TLS 1.3, a router refuses a certificate after the client's handshake.
            Err(RouterQueryError::Io(error)) => Err(explained(&error).into()),
            answer => answer,
        }
    };
    timeout(within, request).await.unwrap_or(Err(RouterQueryError::TimedOut(within)))
}

/// A heartbeat follows, because JGroups' router answers it even without groups.
async fn request_members(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<Vec<(String, Vec<PingData>)>, RouterQueryError> {
    let mut asked = BytesMut::new();
    for kind in [GossipKind::GetMembers, GossipKind::Heartbeat] {
        put_frame(&mut asked, &wire::encode_gossip(&GossipData::new(kind, None)));
    }
    stream.write_all(&asked).await?;
    stream.flush().await?;
    let (mut groups, mut bytes) = (Vec::new(), 0);
    let mut buffer = BytesMut::new();
    loop {
        match next_frame(&mut buffer, GROUP_BYTES_MAX)? {
            Some(Frame::Payload(frame)) => {
                bytes += frame.len();
                if bytes > LISTS_BYTES_MAX || groups.len() > GROUPS_MAX {
                    return Err(RouterQueryError::TooLong);
                }
                let data = wire::decode_gossip(&frame)?;
                match (data.kind, data.group) {
                    (GossipKind::Heartbeat, _) => break,
                    (GossipKind::Members | GossipKind::LastMembers, Some(group)) => {
                        groups.push((own_group_name(&group).to_owned(), data.members));
                    }
                    _ => {}
                }
            }
            Some(Frame::Close) => return Err(RouterQueryError::ConnectionClosed),
            None => {
                buffer.reserve(read_capacity(&buffer, 16 * 1024));
                match stream.read_buf(&mut buffer).await {
                    Ok(1..) => {}
                    Ok(0) => return Err(RouterQueryError::ConnectionClosed),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                        return Err(RouterQueryError::ConnectionClosed);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    groups.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(groups)
}
