//! What a request needs, and whether its user may.

use std::sync::{Arc, OnceLock};

use consort_hotrod::ops::{auth, task};
use consort_hotrod::{Opcode, RequestBody, RequestHead, ResponseBody, Status, Text};
use tokio::sync::Notify;

use crate::answer::Answer;
use crate::schemas::SCHEMAS;
use crate::security::Security;
use crate::security::authenticator::{Authenticator, Rejection};
use crate::security::requirement::Requirement;
use crate::security::role::{Permission, Permissions};
use crate::security::roll::Admitted;

/// Characters of a task's name in a refusal; those of the server's own have fewer.
const TASK_NAME_TOLD: usize = 64;

/// Who has shown who it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct User {
    pub(crate) name: Arc<str>,
    pub(crate) permissions: Permissions,
}

/// What a connection's client may do.
pub(crate) struct Access {
    /// Without it everybody may do everything, unless other servers require more.
    authenticator: Option<Arc<Authenticator>>,
    requirement: Arc<Requirement>,
    user: OnceLock<Arc<Admitted>>,
}

impl Access {
    pub(crate) fn new(security: &Security) -> Self {
        let (authenticator, requirement) = (security.authenticator.clone(), security.requirement.clone());
        Self { authenticator, requirement, user: OnceLock::new() }
    }

    /// Its client is this user, from now on until its end, or until that is no user any more, of which `end` is told.
    pub(crate) fn grant(&self, user: &User, end: Arc<Notify>) -> Result<(), Rejection> {
        let admitted = self.authenticator.as_ref().and_then(|them| them.admit(&user.name, end));
        // A connection is admitted once.
        let _ = self.user.set(admitted.ok_or(Rejection::Credentials)?);
        Ok(())
    }

    /// Whether its client was a user that is none any more.
    pub(crate) fn is_removed(&self) -> bool {
        self.user.get().is_some_and(|user| user.is_removed())
    }

    /// Why this is not done, if it is not.
    pub(crate) fn refusal(&self, cache: &str, body: &RequestBody) -> Option<Answer> {
        let task = match body {
            RequestBody::Task(task::Request::Exec(task, _)) => Some(task.as_str()),
            _ => None,
        };
        self.refusal_of_operation(cache, body.opcode(), task)
    }

    /// Why a request of which only the beginning is here will not be done, if it will not. What the rest of it says decides
    /// nothing.
    pub(crate) fn refusal_of_head(&self, head: &RequestHead) -> Option<Answer> {
        let task = head.task.as_ref().map(Text::as_str);
        self.refusal_of_operation(head.header.cache.as_str(), head.opcode, task)
    }

    fn refusal_of_operation(&self, cache: &str, opcode: Opcode, task: Option<&str>) -> Option<Answer> {
        if self.authenticator.is_none() {
            return self.requirement.refusal();
        }
        let needed = match needed(opcode, task)? {
            // As by the tasks for them: schemas are everybody's.
            Permission::Write | Permission::BulkWrite if cache == SCHEMAS => Permission::Create,
            needed => needed,
        };
        match task {
            Some(task) if self.user.get().is_some() => {
                let task: String = task.chars().take(TASK_NAME_TOLD).collect();
                self.refusal_of(needed, &format!("EXEC of {task}"))
            }
            _ => self.refusal_of(needed, opcode.name()),
        }
    }

    /// Why an operation is not done that needs this, if it is not.
    pub(crate) fn refusal_of(&self, needed: Permission, operation: &str) -> Option<Answer> {
        self.authenticator.as_ref()?;
        let Some(user) = self.user.get() else { return Some(stranger(operation)) };
        if user.may(needed) {
            return None;
        }
        // With the exception's name and number, by which clients and their users know it.
        let text = format!(
            "java.lang.SecurityException: ISPN000287: Unauthorized access: user '{}' lacks '{}' permission, \
             which {operation} needs",
            user.name,
            needed.name()
        );
        Some(Answer::error(Status::ServerError, text))
    }

    /// The answer to who wants to show who it is where nobody has to, or again.
    pub(crate) fn answer(&self, request: &auth::Request) -> Answer {
        let refused = |why: &str| {
            Answer::error(
                Status::ServerError,
                format!("ISPN006007: The requested operation is invalid: {why}"),
            )
        };
        let Some(authenticator) = &self.authenticator else { return refused("there is no authentication") };
        let response = match request {
            auth::Request::Mechanisms => auth::Response::Mechanisms(authenticator.names(None)),
            // Some clients answer to what a mechanism says with its end.
            auth::Request::Step(_, message) if message.is_empty() => auth::Response::Done,
            auth::Request::Step(..) => return refused("it is known already who asks"),
        };
        Answer::success(ResponseBody::Auth(response))
    }
}

/// Nobody knows who asks that (facts section 2.1).
pub(crate) fn stranger(operation: &str) -> Answer {
    let text =
        format!("java.lang.SecurityException: ISPN006017: Operation '{operation}' requires authentication");
    Answer::error(Status::ServerError, text)
}

/// The permission that a request needs, if it needs one.
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

/// Tasks whose names begin so are the server's own. Those that are not known need what only administrators have.
fn needed_by_task(name: &str) -> Permission {
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
