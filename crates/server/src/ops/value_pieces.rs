//! Values in pieces: one request or response has all pieces (2.6), or each piece is a request (4.1; facts section 2.11). A client
//! reads one value throughout, whatever is written meanwhile.

use std::sync::Arc;

use bytes::Bytes;
use consort_hotrod::ops::map::{self, Assignment};
use consort_hotrod::ops::stream::{Piece, Request, Response, Target};
use consort_hotrod::{Flags, Opcode, RequestHeader, ResponseBody, Status};

use crate::catalog::served_cache::ServedCache;
use crate::media::{Conversion, ConversionError};
use crate::memory::remote_values::ValueReservation;
use crate::memory::responses::Responses;
use crate::ops::map::of_entry;
use crate::ops::session::Session;
use crate::ops::value_streams::{CompletedWrite, OpenWrite, StreamError};
use crate::reply::ResponseBytes;
use crate::reply::{Answer, Refusal};
use crate::security::role::Permission;
use crate::security::scope::Scope;

impl From<StreamError> for Refusal {
    fn from(error: StreamError) -> Self {
        let status = match error {
            StreamError::Unknown(_) => Status::ParseError,
            _ => Status::ServerError,
        };
        Self::new(error.to_string()).with_status(status)
    }
}

fn reply(response: Response) -> Answer {
    Answer::success(ResponseBody::Stream(response))
}

fn assignment(Target { key, expiration, version }: Target, value: Bytes) -> map::Request {
    let to = Assignment { key, expiration, value };
    match version {
        0 => map::Request::Put(to),
        ..0 => map::Request::PutIfAbsent(to),
        version => map::Request::ReplaceIfUnmodified(to, version),
    }
}

pub(crate) async fn answer(
    session: &Session,
    served: Option<&Arc<ServedCache>>,
    conversion: Option<&Conversion>,
    request: Request,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    let Session { streams, responses, access, .. } = session;
    let served = || served.ok_or_else(|| Refusal::new("a stream begins with the name of a cache"));
    Ok(match request {
        Request::Get(key, offset) => {
            let (found, held) = found(responses, served()?, conversion, &key).await?;
            let Some((metadata, mut value)) = found else { return Ok(Answer::of(Status::NotFound)) };
            let from = value.len().min(offset as usize);
            reply(Response::Value(metadata, value.split_off(from))).holding_some(held)
        }
        Request::Put(target, pieces) => {
            let value = pieces.concat().into();
            let value = converted(conversion, value, Conversion::value_in)?;
            put(responses, served()?, assignment(target, value), header).await?
        }
        Request::StartGet(key, piece) => {
            // The stream holds the value from then on.
            let (found, _held) = found(responses, served()?, conversion, &key).await?;
            let Some((metadata, value)) = found else { return Ok(Answer::of(Status::NotFound)) };
            let (stream, bytes) = streams.read(value, piece as usize).await?;
            let piece = Piece {
                stream: stream.unwrap_or(0),
                is_last: stream.is_none(),
                metadata: Some(metadata),
                bytes,
            };
            reply(Response::Piece(piece))
        }
        Request::NextGet(stream) => {
            let (bytes, is_last) = streams.next(stream)?;
            reply(Response::Piece(Piece { stream, is_last, metadata: None, bytes }))
        }
        Request::StartPut(target) => {
            let served = served()?.clone();
            let conversion = conversion.cloned();
            let (version, flags) = (header.version, header.flags);
            let stream = streams.write(OpenWrite { served, target, version, flags, conversion })?;
            reply(Response::Started(stream))
        }
        Request::NextPut(stream, is_last, piece) => match streams.take(stream, &piece, is_last)? {
            Some(written) => {
                let scope = Scope::Cache(written.writing.served.cache.name());
                match access.refusal_of(Permission::Write, scope, Opcode::NextPutStream.name()) {
                    Some(refusal) => refusal,
                    None => finish(responses, written).await?,
                }
            }
            None => Answer::of(Status::Success),
        },
        Request::EndGet(stream) | Request::EndPut(stream) => {
            streams.end(stream);
            Answer::of(Status::Success)
        }
    })
}

fn converted(
    conversion: Option<&Conversion>,
    value: Bytes,
    convert: fn(&Conversion, Bytes) -> Result<Bytes, ConversionError>,
) -> Result<Bytes, ConversionError> {
    match conversion {
        None => Ok(value),
        Some(conversion) => convert(conversion, value),
    }
}

type Found = (Option<(consort_hotrod::Metadata, Bytes)>, Option<Box<ResponseBytes>>);

async fn found(
    responses: &Responses,
    served: &ServedCache,
    conversion: Option<&Conversion>,
    key: &Bytes,
) -> Result<Found, Refusal> {
    let mut reservation = ValueReservation::new(&served.limited);
    let found = loop {
        match reservation.cache().get_with_metadata(key).await {
            Ok(found) => break found,
            Err(error) => reservation.grow(responses, error).await?,
        }
    };
    served.stats.note_read(found.is_some());
    let Some(entry) = found else { return Ok((None, None)) };
    let metadata = of_entry(&entry);
    let value = converted(conversion, entry.value, Conversion::value_out)?;
    Ok((Some((metadata, value)), reservation.into_held()))
}

async fn put(
    responses: &Responses,
    served: &ServedCache,
    request: map::Request,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    let (version, flags) = (header.version, header.flags);
    let answer = crate::ops::map::answer(responses, served, &served.limited, request, version, flags).await?;
    let body = match answer.body {
        ResponseBody::Map(map::Response::Previous(previous)) => {
            ResponseBody::Stream(Response::Previous(previous))
        }
        body => body,
    };
    Ok(Answer { body, ..answer })
}

/// Clients of 4.1 read no previous value, even if they request one.
async fn finish(responses: &Responses, mut written: CompletedWrite) -> Result<Answer, Refusal> {
    let value = written.value().await?;
    let OpenWrite { served, target, version, flags, conversion } = &written.writing;
    let value = converted(conversion.as_ref(), value, Conversion::value_in)?;
    let request = assignment(target.clone(), value);
    let flags = if flags.contains(Flags::SKIP_LISTENER_NOTIFICATION) {
        Flags::SKIP_LISTENER_NOTIFICATION
    } else {
        Flags::NONE
    };
    crate::ops::map::answer(responses, served, &served.limited, request, *version, flags).await
}
