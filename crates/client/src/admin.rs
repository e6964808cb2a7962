//! Caches, aliases and templates that are made, removed and listed (facts section 2.8).

use bytes::Bytes;
use consort_hotrod::ops::task;
use consort_hotrod::{Flags, MediaType, RequestBody, ResponseBody, Text};

use crate::limits::TIMEOUT;
use crate::client::Client;
use crate::error::ClientError;
use crate::operation::{Answer, RequestSpec};

/// What would be lost if a degraded cache went on without the members that are away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheLoss {
    /// The cache.
    pub cache: String,
    /// The number of its segments.
    pub segments: u64,
    /// The number of those of which no owner is there: the entries in them are lost.
    pub segments_without_owner: u64,
    /// The names of the members that are away.
    pub unreachable: Vec<String>,
}

/// Administration of a cluster's caches.
#[derive(Debug)]
pub struct Administration<'a> {
    client: &'a Client,
}

impl Client {
    /// Makes, removes and lists caches.
    pub const fn administration(&self) -> Administration<'_> {
        Administration { client: self }
    }
}

impl Administration<'_> {
    async fn run(&self, task: &'static str, params: &[(&'static str, &str)]) -> Result<Answer, ClientError> {
        let param = |(name, value): &(&'static str, &str)| {
            (Text::from_static(name), Bytes::copy_from_slice(value.as_bytes()))
        };
        let params = params.iter().map(param).collect();
        let ask = RequestSpec {
            body: RequestBody::Task(task::Request::Exec(Text::from_static(task), params)),
            flags: Flags::NONE,
            key_type: MediaType::Unspecified,
            value_type: MediaType::Unspecified,
            timeout: TIMEOUT,
        };
        let inner = self.client.inner();
        inner.perform(&inner.no_cache(), ask, None).await
    }

    /// Makes a cache with these settings, one element of Infinispan's in XML, JSON or YAML as the server understands it.
    ///
    /// # Errors
    ///
    /// Also if there is one of this name.
    pub async fn create(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        self.run("@@cache@create", &[("name", name), ("configuration", configuration)]).await.map(drop)
    }

    /// The same with a cache that is not there any more when all servers have ended, whatever they keep.
    ///
    /// # Errors
    ///
    /// Also if there is one of this name.
    pub async fn create_volatile(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        let params = [("name", name), ("configuration", configuration), ("flags", "VOLATILE")];
        self.run("@@cache@create", &params).await.map(drop)
    }

    /// Makes a cache with these settings unless there is one of this name.
    pub async fn get_or_create(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        self.run("@@cache@getorcreate", &[("name", name), ("configuration", configuration)]).await.map(drop)
    }

    /// Lets one attribute of a cache that is there say something else, on all servers; entries stay. It is named by its way from
    /// the cache's element: `expiration.lifespan`, `memory.max-count`.
    ///
    /// # Errors
    ///
    /// If it cannot be changed, or not to this; nothing is changed then.
    pub async fn set_attribute(&self, name: &str, attribute: &str, value: &str) -> Result<(), ClientError> {
        let params = [("name", name), ("attribute", attribute), ("value", value)];
        self.run("@@cache@updateConfigurationAttribute", &params).await.map(drop)
    }

    /// An alias, another name, means this cache from now on, whatever it has meant before, on all servers; it is never none of both.
    /// Listeners and near caches stay with the cache with which they have begun. Infinispan's servers take aliases only that a
    /// cache has already (`set_attribute` of `aliases`).
    ///
    /// # Errors
    ///
    /// If there is no such cache, or the alias is one.
    pub async fn assign_alias(&self, alias: &str, cache: &str) -> Result<(), ClientError> {
        self.run("@@cache@assignAlias", &[("alias", alias), ("name", cache)]).await.map(drop)
    }

    /// Makes a template of settings as [`Administration::create`] takes them.
    ///
    /// # Errors
    ///
    /// Also if there is one of this name.
    pub async fn create_template(&self, name: &str, configuration: &str) -> Result<(), ClientError> {
        self.run("@@template@create", &[("name", name), ("configuration", configuration)]).await.map(drop)
    }

    /// Takes a template away, if there is one of this name; caches that were made of it stay.
    pub async fn remove_template(&self, name: &str) -> Result<(), ClientError> {
        self.run("@@template@remove", &[("name", name)]).await.map(drop)
    }

    /// Makes a cache with the settings of a template.
    ///
    /// # Errors
    ///
    /// Also if there is one of this name.
    pub async fn create_from(&self, name: &str, template: &str) -> Result<(), ClientError> {
        self.run("@@cache@create", &[("name", name), ("template", template)]).await.map(drop)
    }

    /// Removes a cache and what it has, if there is one of this name.
    pub async fn remove(&self, name: &str) -> Result<(), ClientError> {
        self.run("@@cache@remove", &[("name", name)]).await.map(drop)
    }

    /// What would be lost by [`make_available`](Self::make_available): of one cache or of all, those of the servers' own
    /// included, for each that is degraded. Nothing is changed. Consort's servers can do that.
    ///
    /// # Errors
    ///
    /// If there is no such cache, or the server is too old to know it.
    pub async fn losses(&self, name: Option<&str>) -> Result<Vec<CacheLoss>, ClientError> {
        let answer = self.run("@@cache@losses", &[("name", name.unwrap_or_default())]).await?;
        losses(&answer).ok_or_else(|| answer.unexpected())
    }

    /// Goes on with what is left of caches that are degraded because too many owners are away: of one, or of all, those of the
    /// servers' own included. Returns the names of those that were. What only the missing had is gone. It is for servers that have
    /// crashed: where they are only cut off, both sides write, and one side's writes are lost when they meet. Consort's servers
    /// can do that.
    ///
    /// # Errors
    ///
    /// If there is no such cache, or one does not become available.
    pub async fn make_available(&self, name: Option<&str>) -> Result<Vec<String>, ClientError> {
        let answer = self.run("@@cache@makeavailable", &[("name", name.unwrap_or_default())]).await?;
        names(&answer)
    }

    /// The caches' names.
    pub async fn names(&self) -> Result<Vec<String>, ClientError> {
        names(&self.run("@@cache@names", &[]).await?)
    }
}

/// The losses in a task's result.
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

/// The names in a task's result.
fn names(answer: &Answer) -> Result<Vec<String>, ClientError> {
    let names = match &answer.body {
        ResponseBody::Result(names) => serde_json::from_slice(names).ok(),
        _ => None,
    };
    names.ok_or_else(|| answer.unexpected())
}
