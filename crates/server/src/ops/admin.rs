//! Administration by clients (facts section 2.8).

use bytes::Bytes;
use consort_hotrod::{ResponseBody, Status, Text};

use crate::catalog::admin_error::AdminError;
use crate::catalog::cache_rollout::wait_until_open_on_all;
use crate::catalog::caches::{Caches, IfExists};
use crate::catalog::definition::{self, Definition, DefinitionError};
use crate::catalog::registry::Lifecycle;
use crate::catalog::schema_changes;
use crate::catalog::templates;
use crate::limits::{DEFINITION_BYTES_MAX, DEFINITION_COST, DEFINITION_INLINE_MAX};
use crate::memory::reserve;
use crate::ops::operator::{OperatorRequest, Question};
use crate::ops::session::Session;
use crate::ops::task_params::Params;
use crate::reply::{Answer, Refusal};

/// Makes one degraded cache available, or all; Infinispan has this in HTTP only.
const MAKE_AVAILABLE: &str = "@@cache@makeavailable";

/// A separate task: a server that does not know such a parameter would make the caches available.
const LOSSES: &str = "@@cache@losses";

pub(crate) async fn answer(session: &Session, task: &str, params: Vec<(Text, Bytes)>) -> Answer {
    let (caches, params) = (&*session.caches, Params::new(params));
    if let Some(question) = Question::from_task(task) {
        let request = OperatorRequest { session, task, params: &params };
        return request.answer(question).await.unwrap_or_else(std::convert::identity);
    }
    let result = match task {
        "@@cache@names" => return listed(session, Caches::names_among).await.unwrap_or_else(Answer::from),
        "@@cache@create" => create(caches, &params, IfExists::Fail).await,
        "@@cache@getorcreate" => create(caches, &params, IfExists::Accept).await,
        "@@cache@remove" => {
            let name = params.get("name").unwrap_or_default();
            caches.remove(&name).await.map(|()| String::new())
        }
        "@@cache@updateConfigurationAttribute" => change(caches, &params).await,
        "@@cache@assignAlias" => assign(caches, &params).await,
        "@@cache@templates" => {
            return listed(session, Caches::templates_among).await.unwrap_or_else(Answer::from);
        }
        "@@template@create" => create_template(caches, &params).await,
        "@@template@remove" => match params.needed("name") {
            Ok(name) => caches.remove_template(&name).await.map(|()| String::new()),
            Err(error) => Err(error),
        },
        "@@cache@reindex" | "@@cache@updateindexschema" => {
            let name = params.get("name").unwrap_or_default();
            reindex(caches, name).await.map(|()| String::new())
        }
        LOSSES => {
            let name = params.get("name").filter(|name| !name.is_empty());
            caches.losses(name.as_deref())
        }
        MAKE_AVAILABLE => {
            let name = params.get("name").filter(|name| !name.is_empty());
            caches.make_available(name.as_deref()).await.map(|names| serde_json::json!(names).to_string())
        }
        "@@schemas@createOrUpdate" | "@@schemas@delete" => {
            let result = schema(caches, task, &params).await;
            return result
                .map_or_else(Answer::from, |text| Answer::success(ResponseBody::Result(text.into())));
        }
        other => {
            return Answer::error(Status::ServerError, format!("ISPN027002: Unknown task '{other}'"));
        }
    };
    match result {
        Ok(text) => Answer::success(ResponseBody::Result(text.into())),
        Err(error) => Refusal::from(error).into(),
    }
}

/// Builds the index of a cache on this server anew. Those of other servers change with their entries, too.
async fn reindex(caches: &Caches, name: String) -> Result<(), AdminError> {
    let Some(served) = caches.find(&name).await? else { return Err(AdminError::None(name)) };
    if served.index.is_none() {
        return Err(AdminError::NotIndexed(name));
    }
    match served.refresh_index(&*caches.types().await, true) {
        Some(building) => building.await.map_err(|error| AdminError::Failed(error.to_string())),
        None => Ok(()),
    }
}

async fn listed(session: &Session, among: fn(&[Bytes]) -> Vec<String>) -> Result<Answer, Refusal> {
    let mut reservation = session.responses.begin().await?;
    let names = session.caches.definitions.names(&mut reservation).await?;
    let names = serde_json::json!(among(&names)).to_string();
    Ok(Answer::success(ResponseBody::Result(names.into())).holding(reservation.finish()))
}

async fn schema(caches: &Caches, task: &str, params: &Params) -> Result<String, Refusal> {
    let needed = |name| params.needed(name).map_err(Refusal::from);
    let name = Text::from(needed("name")?);
    if task == "@@schemas@delete" {
        return schema_changes::delete(&caches.schemas, &name).await;
    }
    let (content, op) = (needed("content")?, needed("op")?);
    let is_forced = params.get("force").as_deref() == Some("f");
    schema_changes::create_or_update(&caches.schemas, name, content.into(), &op, is_forced).await
}

async fn change(caches: &Caches, params: &Params) -> Result<String, AdminError> {
    let of = |name: &str| params.get(name).unwrap_or_default();
    let (attribute, value) = (of("attribute"), of("value"));
    let to = |before: &_| definition::with_attribute(before, &attribute, &value);
    caches.change(&of("name"), to).await.map(|()| String::new())
}

async fn create(caches: &Caches, params: &Params, mut if_there: IfExists) -> Result<String, AdminError> {
    let name = params.get("name").unwrap_or_default();
    let mut keeping = Lifecycle::Persistent;
    for flag in params.flags().split(',').map(str::trim) {
        match flag {
            // A cache is persistent unless it is volatile; older clients send it explicitly.
            "" | "PERMANENT" => {}
            "VOLATILE" => keeping = Lifecycle::Volatile,
            "UPDATE" => if_there = IfExists::Change,
            flag => return Err(no_flag(flag)),
        }
    }
    let definition = match (params.get("configuration"), params.get("template")) {
        (Some(text), _) => read(caches, &name, text).await?,
        (None, None) => definition::from_template(&name, None)?,
        (None, Some(template)) => match templates::matching(caches, &name, &template).await? {
            Some(definition) => definition,
            None => definition::from_template(&name, Some(&template))?,
        },
    };
    if caches.create(&definition, if_there, keeping).await? {
        wait_until_open_on_all(caches, &[name]).await;
    }
    Ok(String::new())
}

async fn read(caches: &Caches, name: &str, text: String) -> Result<Definition, AdminError> {
    if text.len() <= DEFINITION_INLINE_MAX {
        return Ok(definition::from_text(name, &text)?);
    }
    let memory = &caches.memory;
    let bytes = text.len().min(DEFINITION_BYTES_MAX).saturating_mul(DEFINITION_COST) as u64;
    let _bytes =
        reserve(&memory.definitions, bytes.min(memory.definitions.limit()), memory.reserve_time).await?;
    let name = name.to_owned();
    let read = tokio::task::spawn_blocking(move || definition::from_text(&name, &text)).await;
    Ok(read.map_err(|error| AdminError::Failed(error.to_string()))??)
}

fn no_flag(flag: &str) -> AdminError {
    DefinitionError::Unsupported(format!("flag {flag}")).into()
}

async fn assign(caches: &Caches, params: &Params) -> Result<String, AdminError> {
    match params.flags().trim() {
        "" => {}
        flag => return Err(no_flag(flag)),
    }
    let (alias, cache) = (params.needed("alias")?, params.needed("name")?);
    caches.assign_alias(&alias, &cache).await.map(|()| String::new())
}

async fn create_template(caches: &Caches, params: &Params) -> Result<String, AdminError> {
    let (name, text) = (params.needed("name")?, params.needed("configuration")?);
    let mut keeping = Lifecycle::Persistent;
    for flag in params.flags().split(',').map(str::trim) {
        match flag {
            "" | "PERMANENT" => {}
            "VOLATILE" => keeping = Lifecycle::Volatile,
            flag => return Err(no_flag(flag)),
        }
    }
    let definition = read(caches, &name, text).await?;
    caches.add_template(&name, &definition, keeping).await.map(|()| String::new())
}
