//! Queries in Ickle, executed by the servers (facts section 2.9).

use std::fmt;

use bytes::Bytes;
use consort_encoding::Decode;
use consort_hotrod::ops::task;
use consort_hotrod::{MediaType, RequestBody, ResponseBody};
use consort_protostream::{QueryRequest, QueryResponse, Wrapped};

use crate::cache::Cache;
use crate::error::ClientError;
use crate::operation::RequestSpec;

/// The result of a query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryResult<T> {
    /// The hits, limited by [`Query::limit`].
    pub hits: Vec<T>,
    /// The total number of hits.
    pub count: u64,
    /// Whether the count is exact; else it is a lower bound.
    pub is_exact: bool,
}

/// A query under construction, from [`Cache::query`].
#[must_use = "a query is sent only when its result is requested"]
pub struct Query<'c, K, V, KE, VE> {
    cache: &'c Cache<K, V, KE, VE>,
    request: QueryRequest,
}

impl<K, V, KE, VE> fmt::Debug for Query<'_, K, V, KE, VE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "query {:?} of {:?}", self.request.query, self.cache)
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns an Ickle query over the cache's entries: protobuf entities of a registered schema, wrapped as Infinispan's clients
    /// do (`application/x-protostream`).
    ///
    /// ```no_run
    /// # async fn example(client: consort_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let items = client.raw("items");
    /// let cheap = items.query("FROM shop.Item WHERE price < :p ORDER BY name").parameter("p", 12).limit(20);
    /// println!("{} items", cheap.entities().await?.count);
    /// let sums = items.query("SELECT kind, SUM(price) FROM shop.Item GROUP BY kind").rows().await?;
    /// println!("{} kinds", sums.hits.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn query(&self, query: &str) -> Query<'_, K, V, KE, VE> {
        Query { cache: self, request: QueryRequest { query: query.to_owned(), ..QueryRequest::default() } }
    }
}

impl<K, V, KE, VE> Query<'_, K, V, KE, VE> {
    /// Sets a parameter, `:name` in the query.
    pub fn parameter(mut self, name: &str, value: impl Into<Wrapped>) -> Self {
        self.request.parameters.insert(name.to_owned(), value.into());
        self
    }

    /// Skips this many hits.
    pub fn skip(mut self, count: u32) -> Self {
        self.request.offset = Some(count.into());
        self
    }

    /// Returns at most this many hits; default 100.
    pub fn limit(mut self, count: u32) -> Self {
        self.request.max = Some(i32::try_from(count).unwrap_or(i32::MAX));
        self
    }

    /// Searches only the entries of the server that gets the request.
    pub fn local(mut self) -> Self {
        self.request.is_local = true;
        self
    }

    async fn ask(self) -> Result<QueryResponse, ClientError> {
        let ask = RequestSpec {
            body: RequestBody::Task(task::Request::Query(self.request.write())),
            flags: self.cache.options().flags,
            key_type: MediaType::PROTOSTREAM,
            value_type: MediaType::PROTOSTREAM,
            timeout: self.cache.options().timeout,
        };
        let answer = self.cache.perform(ask).await?;
        match &answer.body {
            ResponseBody::Result(result) => QueryResponse::read(result).map_err(|_| answer.unexpected()),
            _ => Err(answer.unexpected()),
        }
    }

    /// Runs a query without `SELECT`; returns entities.
    ///
    /// # Errors
    ///
    /// [`ClientError`], for an invalid query with its position.
    pub async fn entities(self) -> Result<QueryResult<V>, ClientError>
    where
        VE: Decode<V>,
    {
        let cache = self.cache;
        let QueryResponse { rows, count, is_exact, .. } = self.ask().await?;
        let hits = rows.into_iter().flatten().map(|entity| cache.decoded(entity));
        Ok(QueryResult { hits: hits.collect::<Result<_, _>>()?, count, is_exact })
    }

    /// Runs a query with `SELECT`; returns rows with an optional value per column.
    ///
    /// # Errors
    ///
    /// As [`Query::entities`].
    pub async fn rows(self) -> Result<QueryResult<Vec<Option<Wrapped>>>, ClientError> {
        let QueryResponse { rows, count, is_exact, .. } = self.ask().await?;
        // An entity in a column is returned as bytes.
        let value = |wrapped: Bytes| match wrapped.is_empty() {
            true => None,
            false => Some(Wrapped::read(wrapped.clone()).unwrap_or(Wrapped::Bytes(wrapped))),
        };
        let hits = rows.into_iter().map(|row| row.into_iter().map(value).collect());
        Ok(QueryResult { hits: hits.collect(), count, is_exact })
    }

    /// Runs a `DELETE`; returns the number of removed entries.
    ///
    /// # Errors
    ///
    /// As [`Query::entities`]; some entries may have been removed.
    pub async fn delete(self) -> Result<u64, ClientError> {
        Ok(self.ask().await?.count)
    }
}
