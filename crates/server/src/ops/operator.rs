//! Tasks that answer an operator's questions in JSON. Infinispan has the same in HTTP only.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use consort_hotrod::ResponseBody;
use serde_json::{Value, json};

use crate::catalog::admin_error::AdminError;
use crate::catalog::cluster_state::ClusterState;
use crate::catalog::definition::{DefinitionError, ShownForm};
use crate::catalog::served_cache::ServedCache;
use crate::limits::CLIENTS_PER_PAGE;
use crate::memory::responses::{ResponseReservation, Responses};
use crate::metrics::clients::ClientRow;
use crate::ops::session::Session;
use crate::ops::task_params::Params;
use crate::reply::{Answer, Refusal};
use crate::security::operator_tasks;
use crate::security::scope::Scope;

/// A list in JSON, whose bytes are reserved item by item.
struct JsonList {
    text: String,
    end: &'static str,
    has_items: bool,
    reservation: ResponseReservation,
}

impl JsonList {
    /// The list itself, or a member of an object whose text begins like this.
    async fn begin(responses: &Responses, object: String) -> Result<Self, Refusal> {
        let end = if object.is_empty() { "]" } else { "]}" };
        let reservation = responses.begin().await?;
        Ok(Self { text: object + "[", end, has_items: false, reservation })
    }

    async fn push(&mut self, item: &Value) -> Result<(), Refusal> {
        let item = item.to_string();
        self.reservation.add(item.len() + 1).await?;
        if std::mem::replace(&mut self.has_items, true) {
            self.text.push(',');
        }
        self.text.push_str(&item);
        Ok(())
    }

    fn finish(mut self) -> Answer {
        self.text.push_str(self.end);
        result(self.text).holding(self.reservation.finish())
    }
}

fn result(text: String) -> Answer {
    Answer::success(ResponseBody::Result(text.into()))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Question {
    Config,
    Description,
    Members,
    Segments,
    Rebalancing,
    EnableRebalancing,
    DisableRebalancing,
    Stop,
    Clients,
}

impl Question {
    pub(super) fn from_task(task: &str) -> Option<Self> {
        Some(match task {
            operator_tasks::CONFIG => Self::Config,
            operator_tasks::DESCRIBE => Self::Description,
            operator_tasks::MEMBERS => Self::Members,
            operator_tasks::SEGMENTS => Self::Segments,
            operator_tasks::REBALANCING => Self::Rebalancing,
            operator_tasks::ENABLE_REBALANCING => Self::EnableRebalancing,
            operator_tasks::DISABLE_REBALANCING => Self::DisableRebalancing,
            operator_tasks::STOP => Self::Stop,
            operator_tasks::CLIENTS => Self::Clients,
            _ => return None,
        })
    }
}

/// A question with its parameters, and the connection whose user asks it.
pub(super) struct OperatorRequest<'a> {
    pub(super) session: &'a Session,
    pub(super) task: &'a str,
    pub(super) params: &'a Params,
}

impl<'a> OperatorRequest<'a> {
    pub(super) async fn answer(&self, question: Question) -> Result<Answer, Answer> {
        let responses = &self.session.responses;
        let text = match question {
            Question::Config => {
                let form = form_of(self.params)?;
                self.state().shown_definition(&self.needed_cache().await?, form).await?
            }
            Question::Description => self.state().description(&self.needed_cache().await?).await?.to_string(),
            Question::Members => self.state().members_in_json().await?.to_string(),
            Question::Segments => {
                let segments = |served: &ServedCache| self.state().segments_in_json(served);
                return self.of_caches(String::new(), "segments", segments).await;
            }
            Question::Rebalancing => return self.rebalancing().await,
            Question::EnableRebalancing | Question::DisableRebalancing => {
                let is_enabled = question == Question::EnableRebalancing;
                let name = self.cache().await?;
                self.session.caches.rebalancing.set(name.as_deref(), is_enabled).await?;
                return self.rebalancing().await;
            }
            Question::Stop => {
                // The members before the first one leaves.
                let members = self.state().members_in_json().await?;
                self.session.caches.stop.agree().await?;
                members.to_string()
            }
            Question::Clients => return self.clients().await,
        };
        let held = responses.hold(text.len()).await?;
        Ok(result(text).holding(held))
    }

    fn state(&self) -> ClusterState<'a> {
        ClusterState(&self.session.caches)
    }

    fn refusal(&self, scope: Scope<'_>) -> Option<Answer> {
        let needed = operator_tasks::needed(self.task)?;
        self.session.access.refusal_of(needed, scope, &format!("EXEC of {}", self.task))
    }

    /// The cache of this name, which may be an alias, if clients have defined it and the user has the permission in it.
    async fn permitted_cache(&self, name: &str) -> Result<String, Answer> {
        let name = match self.state().defined_name(name).await {
            Ok(name) => name,
            // Without the cache, its roles are unknown.
            Err(error) => return Err(self.refusal(Scope::Global).unwrap_or_else(|| error.into())),
        };
        self.refusal(Scope::Cache(&name)).map_or(Ok(name), Err)
    }

    async fn needed_cache(&self) -> Result<String, Answer> {
        self.permitted_cache(&self.params.needed("name")?).await
    }

    /// `None` if the question is about all caches.
    async fn cache(&self) -> Result<Option<String>, Answer> {
        match self.params.get("name").filter(|name| !name.is_empty()) {
            Some(name) => self.permitted_cache(&name).await.map(Some),
            None => Ok(None),
        }
    }

    /// One cache, or all that clients have defined and this server serves, without those in which the user lacks the permission. The
    /// answer is a list, or an object whose text begins like this.
    async fn of_caches(
        &self,
        object: String,
        member: &str,
        of: impl Fn(&ServedCache) -> Value,
    ) -> Result<Answer, Answer> {
        let caches = &self.session.caches;
        let mut list = JsonList::begin(&self.session.responses, object).await?;
        let served = match self.cache().await? {
            Some(name) => {
                let served = caches.find(&name).await?.ok_or_else(|| AdminError::None(name.clone()))?;
                vec![(name, served)]
            }
            None => caches.all(),
        };
        for (name, served) in
            served.into_iter().filter(|(name, _)| self.refusal(Scope::Cache(name)).is_none())
        {
            list.push(&json!({"cache": name, member: of(&served)})).await?;
            // With a thousand caches, other connections of this thread run in between.
            tokio::task::yield_now().await;
        }
        Ok(list.finish())
    }

    async fn rebalancing(&self) -> Result<Answer, Answer> {
        let setting = self.session.caches.rebalancing.setting().await?;
        let object = format!("{{\"is_enabled\":{},\"caches\":", setting.is_enabled());
        let of = |served: &ServedCache| self.state().rebalancing_in_json(served, &setting);
        self.of_caches(object, "rebalancing", of).await
    }

    async fn clients(&self) -> Result<Answer, Answer> {
        let after = self.params.get("after").filter(|after| !after.is_empty());
        let after: u64 = match &after {
            Some(after) => {
                after.parse().map_err(|_| Refusal::new(format!("after cannot be {after}: it is an id")))?
            }
            None => 0,
        };
        let page = self.session.caches.telemetry.clients.page(after, CLIENTS_PER_PAGE);
        let mut list = JsonList::begin(&self.session.responses, String::new()).await?;
        for row in page {
            list.push(&client_in_json(&row)).await?;
        }
        Ok(list.finish())
    }
}

fn form_of(params: &Params) -> Result<ShownForm, AdminError> {
    let Some(name) = params.get("format").filter(|name| !name.is_empty()) else { return Ok(ShownForm::Json) };
    let invalid = || DefinitionError::Invalid { attribute: "format".to_owned(), value: name.clone() };
    Ok(ShownForm::from_name(&name).ok_or_else(invalid)?)
}

fn client_in_json(row: &ClientRow) -> Value {
    let ClientRow { id, peer, user, since, requests, received, sent, version, listeners } = row;
    let millis = since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let connected = SystemTime::now().duration_since(*since).unwrap_or_default();
    json!({
        "id": id,
        "address": peer.as_ref().map(SocketAddr::to_string),
        "user": user.as_deref(),
        "since_millis": millis,
        "connected_seconds": connected.as_secs(),
        "requests": requests,
        "received_bytes": received,
        "sent_bytes": sent,
        "listeners": listeners,
        "protocol": (*version > 0).then(|| format!("{}.{}", version / 10, version % 10)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_described_with_address_user_and_counts() {
        let row = ClientRow {
            id: 7,
            peer: Some(SocketAddr::from(([10, 0, 0, 1], 4711))),
            user: Some("alice".into()),
            since: UNIX_EPOCH + std::time::Duration::from_millis(1500),
            requests: 1,
            received: 2,
            sent: 3,
            version: 41,
            listeners: 4,
        };
        let mut shown = client_in_json(&row);
        assert!(shown["connected_seconds"].take().as_u64() > Some(1));
        let expected = json!({
            "id": 7, "address": "10.0.0.1:4711", "user": "alice", "since_millis": 1500, "connected_seconds": null,
            "requests": 1, "received_bytes": 2, "sent_bytes": 3, "listeners": 4, "protocol": "4.1",
        });
        assert_eq!(shown, expected);
        let unknown = client_in_json(&ClientRow { peer: None, user: None, version: 0, ..row });
        assert!(unknown["address"].is_null() && unknown["user"].is_null() && unknown["protocol"].is_null());
    }
}
