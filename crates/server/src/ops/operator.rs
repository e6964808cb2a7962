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
            operator_tasks::CLIENTS => Self::Clients,
            _ => return None,
        })
    }
}

pub(super) async fn answer(
    session: &Session,
    question: Question,
    params: &Params,
) -> Result<Answer, Refusal> {
    let (state, responses) = (ClusterState(&session.caches), &session.responses);
    let text = match question {
        Question::Config => {
            let form = form_of(params)?;
            state.shown_definition(&params.needed("name")?, form).await?
        }
        Question::Description => state.description(&params.needed("name")?).await?.to_string(),
        Question::Members => state.members_in_json().await?.to_string(),
        Question::Segments => {
            let segments = |served: &ServedCache| state.segments_in_json(served);
            let list = JsonList::begin(responses, String::new()).await?;
            return of_caches(session, params, list, "segments", segments).await;
        }
        Question::Rebalancing => return rebalancing(session, params).await,
        Question::EnableRebalancing | Question::DisableRebalancing => {
            let name = match params.get("name").filter(|name| !name.is_empty()) {
                Some(name) => Some(state.defined_name(&name).await?),
                None => None,
            };
            let is_enabled = question == Question::EnableRebalancing;
            session.caches.rebalancing.set(name.as_deref(), is_enabled).await?;
            return rebalancing(session, params).await;
        }
        Question::Clients => return clients(session, params).await,
    };
    let held = responses.hold(text.len()).await?;
    Ok(result(text).holding(held))
}

fn form_of(params: &Params) -> Result<ShownForm, AdminError> {
    let Some(name) = params.get("format").filter(|name| !name.is_empty()) else { return Ok(ShownForm::Json) };
    let invalid = || DefinitionError::Invalid { attribute: "format".to_owned(), value: name.clone() };
    Ok(ShownForm::from_name(&name).ok_or_else(invalid)?)
}

/// One cache, or all that clients have defined and this server serves.
async fn of_caches(
    session: &Session,
    params: &Params,
    mut list: JsonList,
    member: &str,
    of: impl Fn(&ServedCache) -> Value,
) -> Result<Answer, Refusal> {
    let caches = &session.caches;
    let served = match params.get("name").filter(|name| !name.is_empty()) {
        Some(name) => {
            let name = ClusterState(caches).defined_name(&name).await?;
            let served = caches.find(&name).await?.ok_or_else(|| AdminError::None(name.clone()))?;
            vec![(name, served)]
        }
        None => caches.all(),
    };
    for (name, served) in served {
        list.push(&json!({"cache": name, member: of(&served)})).await?;
        // With a thousand caches, other connections of this thread run in between.
        tokio::task::yield_now().await;
    }
    Ok(list.finish())
}

async fn rebalancing(session: &Session, params: &Params) -> Result<Answer, Refusal> {
    let state = ClusterState(&session.caches);
    let setting = session.caches.rebalancing.setting().await?;
    let object = format!("{{\"is_enabled\":{},\"caches\":", setting.is_enabled());
    let list = JsonList::begin(&session.responses, object).await?;
    let of = |served: &ServedCache| state.rebalancing_in_json(served, &setting);
    of_caches(session, params, list, "rebalancing", of).await
}

async fn clients(session: &Session, params: &Params) -> Result<Answer, Refusal> {
    let after = params.get("after").filter(|after| !after.is_empty());
    let after: u64 = match &after {
        Some(after) => {
            after.parse().map_err(|_| Refusal::new(format!("after cannot be {after}: it is an id")))?
        }
        None => 0,
    };
    let page = session.caches.telemetry.clients.page(after, CLIENTS_PER_PAGE);
    let mut list = JsonList::begin(&session.responses, String::new()).await?;
    for row in page {
        list.push(&client_in_json(&row)).await?;
    }
    Ok(list.finish())
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
