//! Administration of caches, aliases and templates (facts section 2.8).

use bytes::Bytes;
use consort_hotrod::ops::task;
use consort_hotrod::{Flags, MediaType, RequestBody, ResponseBody, Text};

use crate::client::Client;
use crate::error::ClientError;
use crate::operation::{Answer, RequestSpec};

/// The data of a degraded cache that [`Administration::make_available`] would lose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheLoss {
    /// The cache's name.
    pub cache: String,
    /// The number of segments.
    pub segments: u64,
    /// Segments whose entries are lost: no owner is reachable.
    pub segments_without_owner: u64,
    /// Unreachable members.
    pub unreachable: Vec<String>,
}

/// Administration of the caches of a cluster.
#[derive(Debug)]
pub struct Administration<'a> {
    client: &'a Client,
}

impl Client {
    /// Returns the administration interface.
    pub const fn administration(&self) -> Administration<'_> {
        Administration { client: self }
    }
}

impl Administration<'_> {
    pub(crate) async fn run(
        &self,
        task: &'static str,
        params: &[(&'static str, &str)],
    ) -> Result<Answer, ClientError> {
        let param = |(name, value): &(&'static str, &str)| {
            (Text::from_static(name), Bytes::copy_from_slice(value.as_bytes()))
        };
        let params = params.iter().map(param).collect();
        let ask = RequestSpec {
            body: RequestBody::Task(task::Request::Exec(Text::from_static(task), params)),
            flags: Flags::NONE,
            key_type: MediaType::Unspecified,
            value_type: MediaType::Unspecified,
            timeout: self.client.inner().settings.timeout,
        };
        let inner = self.client.inner();
        inner.perform(&inner.no_cache(), ask, None).await
    }

    /// Creates a cache from one Infinispan cache element in XML, JSON or YAML; fails if the cache exists.
    pub async fn create(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        self.run("@@cache@create", &[("name", name), ("configuration", configuration)]).await.map(drop)
    }

    /// Creates a cache, also one with a store, that is removed when all servers have stopped; fails if the cache exists.
    pub async fn create_volatile(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        let params = [("name", name), ("configuration", configuration), ("flags", "VOLATILE")];
        self.run("@@cache@create", &params).await.map(drop)
    }

    /// Creates a cache unless it exists; see [`Administration::create`].
    pub async fn get_or_create(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        self.run("@@cache@getorcreate", &[("name", name), ("configuration", configuration)]).await.map(drop)
    }

    /// Changes one attribute of a cache on all servers; its entries stay. The attribute is a path below the cache's element, such
    /// as `memory.max-count`.
    ///
    /// # Errors
    ///
    /// If the attribute is not mutable or the value is invalid; nothing is changed then.
    pub async fn set_attribute(&self, name: &str, attribute: &str, value: &str) -> Result<(), ClientError> {
        let params = [("name", name), ("attribute", attribute), ("value", value)];
        self.run("@@cache@updateConfigurationAttribute", &params).await.map(drop)
    }

    /// Points an alias to a cache atomically on all servers. Listeners and near caches stay with their cache. Infinispan's
    /// servers accept only existing aliases (`set_attribute` of `aliases`).
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the alias is the name of a cache.
    pub async fn assign_alias(&self, alias: &str, cache: &str) -> Result<(), ClientError> {
        self.run("@@cache@assignAlias", &[("alias", alias), ("name", cache)]).await.map(drop)
    }

    /// Creates a template, as [`Administration::create`]; fails if the template exists.
    pub async fn create_template(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        self.run("@@template@create", &[("name", name), ("configuration", configuration)]).await.map(drop)
    }

    /// Removes a template if it exists; its caches stay.
    pub async fn remove_template(&self, name: &str) -> Result<(), ClientError> {
        self.run("@@template@remove", &[("name", name)]).await.map(drop)
    }

    /// Creates a cache from a template; fails if the cache exists.
    pub async fn create_from(&self, name: &str, template: &str) -> Result<(), ClientError> {
        self.run("@@cache@create", &[("name", name), ("template", template)]).await.map(drop)
    }

    /// Removes a cache and its entries if it exists.
    pub async fn remove(&self, name: &str) -> Result<(), ClientError> {
        self.run("@@cache@remove", &[("name", name)]).await.map(drop)
    }

    /// Returns the losses of [`make_available`](Self::make_available) for each degraded cache, one or all, internal ones
    /// included. Changes nothing. Only Consort's servers have this operation.
    ///
    /// # Errors
    ///
    /// If no such cache exists, or the server is too old.
    pub async fn losses(&self, name: Option<&str>) -> Result<Vec<CacheLoss>, ClientError> {
        let answer = self.run("@@cache@losses", &[("name", name.unwrap_or_default())]).await?;
        losses(&answer).ok_or_else(|| answer.unexpected())
    }

    /// Makes degraded caches, one or all, internal ones included, available without their unreachable owners, and returns their
    /// names. Entries only on unreachable members are lost. Use it for crashed servers only: if they are merely partitioned, both
    /// partitions write, and a merge discards the writes of one. Only Consort's servers have this operation.
    ///
    /// # Errors
    ///
    /// If no such cache exists, or a cache does not become available.
    pub async fn make_available(&self, name: Option<&str>) -> Result<Vec<String>, ClientError> {
        let answer = self.run("@@cache@makeavailable", &[("name", name.unwrap_or_default())]).await?;
        names(&answer)
    }

    /// Returns the names of the caches, without those of the servers themselves, which begin with `___`.
    pub async fn names(&self) -> Result<Vec<String>, ClientError> {
        let names = names(&self.run("@@cache@names", &[]).await?)?;
        Ok(names.into_iter().filter(|name| !name.starts_with("___")).collect())
    }
}

fn losses(answer: &Answer) -> Option<Vec<CacheLoss>> {
    let ResponseBody::Result(losses) = &answer.body else { return None };
    let losses: serde_json::Value = serde_json::from_slice(losses).ok()?;
    let loss = |loss: &serde_json::Value| {
        Some(CacheLoss {
            cache: loss["cache"].as_str()?.to_owned(),
            segments: loss["segments"].as_u64()?,
            segments_without_owner: loss["segments_without_owner"].as_u64()?,
            unreachable: loss["away"]
                .as_array()?
                .iter()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
        })
    };
    losses.as_array()?.iter().map(loss).collect()
}

fn names(answer: &Answer) -> Result<Vec<String>, ClientError> {
    let names = match &answer.body {
        ResponseBody::Result(names) => serde_json::from_slice(names).ok(),
        _ => None,
    };
    names.ok_or_else(|| answer.unexpected())
}
