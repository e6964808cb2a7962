//! Reads through a near cache (facts sections 2.12 and 9.1).

use bytes::Bytes;
use consort_hotrod::ops::map::Response;
use consort_hotrod::{Metadata, ResponseBody, Status};

use crate::client_state::{CacheState, ClientState};
use crate::error::ClientError;
use crate::near::{NearCache, NearLookup, Reading};
use crate::operation::{NotExecuted, RequestSpec};
use crate::server::ServerConnection;

/// A read value with its metadata; `None` if the key has none.
pub(crate) type Found = Option<(Metadata, Bytes)>;

impl NearCache {
    /// `None` if the near cache cannot serve the key.
    pub(crate) async fn read(
        &self,
        client: &ClientState,
        cache: &CacheState,
        key: &Bytes,
        request: impl FnOnce() -> RequestSpec,
    ) -> Result<Option<Found>, ClientError> {
        match self.lookup(key, client.clock.now()) {
            NearLookup::Hit(metadata, value) => Ok(Some(Some((metadata, value)))),
            // Boxed, so that futures without a near cache stay small.
            NearLookup::Miss(target, reading) => {
                Box::pin(read_and_keep(client, cache, request(), target, reading)).await
            }
            NearLookup::Off => Ok(None),
        }
    }
}

async fn read_and_keep(
    client: &ClientState,
    cache: &CacheState,
    request: RequestSpec,
    target: ServerConnection,
    reading: Reading<'_>,
) -> Result<Option<Found>, ClientError> {
    let answer = match client.perform_at(cache, request, &target).await {
        Ok(answer) => answer,
        Err(NotExecuted::Failed(error)) => return Err(error),
        // A response of another server must not be cached.
        Err(NotExecuted::TryAnotherServer(_)) => return Ok(None),
    };
    match answer.body {
        ResponseBody::Map(Response::WithMetadata(metadata, value)) => {
            reading.end(Some((metadata, &value)), client.clock);
            Ok(Some(Some((metadata, value))))
        }
        ResponseBody::Empty if answer.status == Status::NotFound => {
            reading.end(None, client.clock);
            Ok(Some(None))
        }
        _ => Err(answer.unexpected()),
    }
}
