use std::sync::{Arc, OnceLock};

use consort_hotrod::ops::{auth, task};
use consort_hotrod::{Opcode, RequestBody, RequestHead, ResponseBody, Status, Text};
use tokio::sync::Notify;

use crate::names::SCHEMAS;
use crate::reply::Answer;
use crate::security::Security;
use crate::security::authenticator::{Authenticator, Rejection};
use crate::security::operator_tasks;
use crate::security::requirement::Requirement;
use crate::security::role::Permission;
use crate::security::scope::{ActsOn, Scope};
use crate::security::sessions::AuthenticatedSession;
use crate::security::users::User;

/// In a refusal; names of the server's own tasks are shorter.
const TASK_NAME_SHOWN_MAX: usize = 64;

pub(crate) struct Authorization {
    /// Without an authenticator every client may do everything, unless other servers require authentication.
    authenticator: Option<Arc<Authenticator>>,
    requirement: Arc<Requirement>,
    user: OnceLock<Arc<AuthenticatedSession>>,
}

impl Authorization {
    pub(crate) fn new(security: &Security) -> Self {
        let (authenticator, requirement) = (security.authenticator.clone(), security.requirement.clone());
        Self { authenticator, requirement, user: OnceLock::new() }
    }

    /// For the connection, or until the user is removed and `end` is notified.
    pub(crate) fn grant(&self, user: &User, end: Arc<Notify>) -> Result<(), Rejection> {
        let session =
            self.authenticator.as_ref().and_then(|authenticator| authenticator.register(&user.name, end));
        // A connection authenticates once.
        let _ = self.user.set(session.ok_or(Rejection::Credentials)?);
        Ok(())
    }

    /// `None` without authentication.
    pub(crate) fn user_name(&self) -> Option<Arc<str>> {
        self.user.get().map(|user| user.name.clone())
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.user.get().is_some_and(|user| user.is_removed())
    }

    /// Otherwise all clients have all permissions.
    pub(crate) const fn has_users(&self) -> bool {
        self.authenticator.is_some()
    }

    /// Whether the user has permissions of its own in some caches, so that [`Scope`]s differ.
    pub(crate) fn depends_on_cache(&self) -> bool {
        self.user.get().is_some_and(|user| user.depends_on_cache())
    }

    /// `cache` is the name in the header.
    pub(crate) fn refusal(&self, cache: &str, body: &RequestBody, scope: Scope<'_>) -> Option<Answer> {
        self.refusal_of_operation(cache, body.opcode(), task_of(body), scope)
    }

    /// The rest of the request does not influence the decision. `resolve` returns the cache of a name, if this server has it; without it,
    /// the whole request is checked again when its cache is found.
    pub(crate) fn refusal_of_head(
        &self,
        head: &RequestHead,
        resolve: impl FnOnce(&str) -> Option<String>,
    ) -> Option<Answer> {
        let (task, cache) = (head.task.as_ref().map(Text::as_str), head.header.cache.as_str());
        let acts_on = acts_on(head.opcode, task);
        let found = match acts_on {
            ActsOn::HeaderCache if self.depends_on_cache() => resolve(cache),
            _ => None,
        };
        let scope = found.as_deref().map_or(acts_on.scope(), Scope::Cache);
        self.refusal_of_operation(cache, head.opcode, task, scope)
    }

    fn refusal_of_operation(
        &self,
        cache: &str,
        opcode: Opcode,
        task: Option<&str>,
        scope: Scope<'_>,
    ) -> Option<Answer> {
        if self.authenticator.is_none() {
            return self.requirement.refusal();
        }
        let needed = match needed(opcode, task)? {
            // As with the tasks for schemas: schemas are shared by all users.
            Permission::Write | Permission::BulkWrite if cache == SCHEMAS => Permission::Create,
            needed => needed,
        };
        match task {
            Some(task) if self.user.get().is_some() => {
                let task: String = task.chars().take(TASK_NAME_SHOWN_MAX).collect();
                self.refusal_of(needed, scope, &format!("EXEC of {task}"))
            }
            _ => self.refusal_of(needed, scope, opcode.name()),
        }
    }

    pub(crate) fn refusal_of(&self, needed: Permission, scope: Scope<'_>, operation: &str) -> Option<Answer> {
        self.authenticator.as_ref()?;
        let Some(user) = self.user.get() else { return Some(not_authenticated(operation)) };
        if user.may(needed, scope) {
            return None;
        }
        // With the name and number of the exception, by which clients recognise it.
        let text = format!(
            "java.lang.SecurityException: ISPN000287: Unauthorized access: user '{}' lacks '{}' permission, \
             which {operation} needs",
            user.name,
            needed.name()
        );
        Some(Answer::error(Status::ServerError, text))
    }

    pub(crate) fn answer(&self, request: &auth::Request) -> Answer {
        let refused = |why: &str| {
            Answer::error(
                Status::ServerError,
                format!("ISPN006007: The requested operation is invalid: {why}"),
            )
        };
        let Some(authenticator) = &self.authenticator else {
            return refused("authentication is not enabled");
        };
        let response = match request {
            auth::Request::Mechanisms => auth::Response::Mechanisms(authenticator.names(None)),
            // Some clients respond to the mechanism's last message.
            auth::Request::Step(_, message) if message.is_empty() => auth::Response::Done,
            auth::Request::Step(..) => return refused("the client is already authenticated"),
        };
        Answer::success(ResponseBody::Auth(response))
    }
}

/// The name of the task that a request executes.
pub(crate) fn task_of(body: &RequestBody) -> Option<&str> {
    match body {
        RequestBody::Task(task::Request::Exec(task, _)) => Some(task.as_str()),
        _ => None,
    }
}

/// `task` is the name of the task that a request executes.
pub(crate) fn acts_on(opcode: Opcode, task: Option<&str>) -> ActsOn {
    if task.is_some_and(operator_tasks::shows_caches) { ActsOn::OwnCaches } else { ActsOn::of(opcode) }
}

/// The response to a request that needs authentication (facts section 2.1).
pub(crate) fn not_authenticated(operation: &str) -> Answer {
    let text =
        format!("java.lang.SecurityException: ISPN006017: Operation '{operation}' requires authentication");
    Answer::error(Status::ServerError, text)
}

fn needed(opcode: Opcode, task: Option<&str>) -> Option<Permission> {
    if let Some(name) = task {
        return Some(needed_by_task(name));
    }
    Some(match opcode {
        Opcode::Ping | Opcode::AuthMechList | Opcode::Auth => return None,
        Opcode::Get
        | Opcode::ContainsKey
        | Opcode::GetWithVersion
        | Opcode::GetWithMetadata
        | Opcode::GetStream
        | Opcode::StartGetStream
        | Opcode::NextGetStream
        | Opcode::EndGetStream
        | Opcode::CounterGetConfiguration
        | Opcode::CounterIsDefined
        | Opcode::CounterGet
        | Opcode::CounterGetNames
        | Opcode::MultimapGet
        | Opcode::MultimapGetWithMetadata
        | Opcode::MultimapContainsEntry
        | Opcode::MultimapContainsKey => Permission::Read,
        Opcode::Put
        | Opcode::PutIfAbsent
        | Opcode::Replace
        | Opcode::ReplaceIfUnmodified
        | Opcode::Remove
        | Opcode::RemoveIfUnmodified
        | Opcode::PutAll
        | Opcode::PutStream
        | Opcode::StartPutStream
        | Opcode::NextPutStream
        | Opcode::EndPutStream
        | Opcode::PrepareTx
        | Opcode::PrepareTx2
        | Opcode::CommitTx
        | Opcode::RollbackTx
        | Opcode::ForgetTx
        | Opcode::FetchTxRecovery
        | Opcode::CounterAddAndGet
        | Opcode::CounterReset
        | Opcode::CounterCas
        | Opcode::CounterGetAndSet
        | Opcode::CounterRemove
        | Opcode::MultimapPut
        | Opcode::MultimapRemoveKey
        | Opcode::MultimapRemoveEntry => Permission::Write,
        Opcode::Size
        | Opcode::BulkGet
        | Opcode::BulkGetKeys
        | Opcode::GetAll
        | Opcode::Query
        | Opcode::IterationStart
        | Opcode::IterationNext
        | Opcode::IterationEnd
        | Opcode::MultimapSize
        | Opcode::MultimapContainsValue => Permission::BulkRead,
        Opcode::Clear => Permission::BulkWrite,
        Opcode::AddClientListener
        | Opcode::RemoveClientListener
        | Opcode::AddBloomListener
        | Opcode::UpdateBloomFilter
        | Opcode::CounterAddListener
        | Opcode::CounterRemoveListener => Permission::Listen,
        Opcode::Stats => Permission::Monitor,
        Opcode::CounterCreate => Permission::Create,
        Opcode::Exec => Permission::Exec,
    })
}

/// Names with the prefix `@@` are tasks of the server; unknown ones need ADMIN.
fn needed_by_task(name: &str) -> Permission {
    if let Some(needed) = operator_tasks::needed(name) {
        return needed;
    }
    match name {
        "@@cache@names" | "@@cache@templates" => Permission::Monitor,
        "@@cache@create"
        | "@@cache@getorcreate"
        | "@@cache@remove"
        | "@@cache@updateConfigurationAttribute"
        | "@@cache@assignAlias"
        | "@@template@create"
        | "@@template@remove"
        | "@@schemas@createOrUpdate"
        | "@@schemas@delete" => Permission::Create,
        name if name.starts_with("@@") => Permission::Admin,
        _ => Permission::Exec,
    }
}
