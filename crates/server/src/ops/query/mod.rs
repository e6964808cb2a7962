//! Queries of clients (facts section 2.9). A query is compiled with the schemas registered here now. Owners get a plan with
//! numbers of fields, which needs no schemas ([`owner`]).

mod factory;
mod iterations;
mod json;
mod listeners;
mod owner;
mod run;

use std::sync::Arc;

use bytes::Bytes;
use consort_hotrod::{ProtocolVersion, RequestHeader, ResponseBody};
use consort_protostream::{QueryRequest, QueryResponse};
use consort_query::{Compiled, QueryError, QueryErrorKind, QueryResult, Statement};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::compute_pool::{QUERIES, offload_if_large};
use crate::limits::{QUERY_REQUEST_BYTES_MAX, QUERY_TIME_MAX};
use crate::media::{Format, Types};
use crate::memory::responses::Responses;
use crate::reply::{Answer, Refusal};
use crate::security::Permission;
use crate::security::access::Authorization;
use crate::security::scope::Scope;

pub(crate) use factory::compile;
pub(crate) use iterations::IterationQuery;
pub(crate) use listeners::ListenerQuery;
pub(crate) use owner::register;

const ROWS_DEFAULT: usize = 100;

const EXCEPTION: &str = "org.infinispan.query.objectfilter.ParsingException";

impl From<QueryError> for Refusal {
    fn from(error: QueryError) -> Self {
        Self::new(format!("{EXCEPTION}: {error}"))
    }
}

enum QueryFormat {
    Protobuf,
    Json(Format),
}

impl QueryFormat {
    fn from_header(header: &RequestHeader) -> Result<Self, Refusal> {
        Ok(match Format::from_media_type(&header.value_type)? {
            Some(format @ Format::Json(_)) if header.version >= ProtocolVersion::V2_8 => Self::Json(format),
            _ => Self::Protobuf,
        })
    }

    fn request(&self, query: Bytes, types: &Types) -> Result<QueryRequest, Refusal> {
        let request = match self {
            Self::Protobuf => QueryRequest::read(&query),
            Self::Json(format) => {
                let text = format.convert(query, &Format::TEXT, types)?;
                QueryRequest::from_json(&String::from_utf8_lossy(&text))
            }
        };
        request.map_err(|error| Refusal::new(error.to_string()))
    }

    fn answer(&self, response: &QueryResponse, names: &[String], types: &Types) -> Result<Bytes, Refusal> {
        let is_entity = |column: usize| names.get(column).is_some_and(|name| name == consort_query::ENTITY);
        match self {
            Self::Protobuf => Ok(response.write(is_entity)),
            Self::Json(format) => {
                let text = json::answer(response, names, is_entity, types)?;
                Ok(Format::TEXT.convert(text.into(), format, types)?)
            }
        }
    }
}

pub(crate) type Context<'s> = (&'s Caches, &'s Authorization, &'s Responses);

pub(crate) async fn answer(
    context: Context<'_>,
    served: &Arc<ServedCache>,
    query: Bytes,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    check(served)?;
    let form = QueryFormat::from_header(header)?;
    if query.len() > QUERY_REQUEST_BYTES_MAX {
        let text = format!("the query has {} bytes; the limit is {QUERY_REQUEST_BYTES_MAX}", query.len());
        return Err(Refusal::new(text));
    }
    let found = tokio::time::timeout(QUERY_TIME_MAX, async {
        // The semaphore is never closed.
        let _permit = QUERIES.acquire().await;
        find(context, served, query, form).await
    });
    found.await.unwrap_or_else(|_| {
        let seconds = QUERY_TIME_MAX.as_secs();
        Err(Refusal::new(format!(
            "the query took longer than {seconds} s and was aborted; entries that a DELETE removed before stay removed"
        )))
    })
}

async fn find(
    (caches, access, responses): Context<'_>,
    served: &Arc<ServedCache>,
    query: Bytes,
    form: QueryFormat,
) -> Result<Answer, Refusal> {
    let mut gathering = responses.begin().await?;
    let types = caches.types().await;
    let request = form.request(query, &types)?;
    let statement = Statement::parse(&request.query)?;
    let compiled = statement.compile(&*types, &request.parameters)?;
    let response = if statement.is_delete() {
        // The permission to read all entries does not include the one to remove them.
        if let Some(refusal) =
            access.refusal_of(Permission::BulkWrite, Scope::Cache(served.cache.name()), "DELETE of a query")
        {
            return Ok(refusal);
        }
        if request.offset.unwrap_or(0) != 0
            || request.max.is_some_and(|max| usize::try_from(max) != Ok(ROWS_DEFAULT))
        {
            return Err(QueryError::from(QueryErrorKind::Paging).into());
        }
        let count = run::delete(caches, served, &compiled, request.is_local, responses).await?;
        QueryResponse { count, is_exact: true, ..QueryResponse::default() }
    } else {
        let (offset, max) = page(&request);
        let room = (responses, &mut gathering);
        let QueryResult { rows, count } =
            run::select(caches, served, &compiled, request.is_local, (offset, max), room).await?;
        QueryResponse { columns: compiled.names.len(), rows, count, is_exact: true }
    };
    let (Compiled { names, .. }, bytes) = (compiled, response_len(&response));
    let result = offload_if_large(bytes, move || form.answer(&response, &names, &types)).await?;
    gathering.reach(result.len()).await?;
    Ok(Answer::success(ResponseBody::Result(result)).holding(gathering.finish()))
}

fn response_len(response: &QueryResponse) -> usize {
    response.rows.iter().flatten().map(Bytes::len).sum()
}

fn check(served: &ServedCache) -> Result<(), Refusal> {
    if served.encoding.is_queried() {
        return Ok(());
    }
    Err(Refusal::new(format!(
        "cache '{}' cannot be queried: its values are not application/x-protostream",
        served.cache.name()
    )))
}

fn page(request: &QueryRequest) -> (usize, usize) {
    let offset = request.offset.and_then(|offset| usize::try_from(offset).ok()).unwrap_or(0);
    (offset, request.max.and_then(|max| usize::try_from(max).ok()).unwrap_or(ROWS_DEFAULT))
}
