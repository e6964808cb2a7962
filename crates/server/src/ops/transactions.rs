use std::sync::Arc;

use consort_cache::transactions::Transactions as Recorded;
use consort_cache::transactions::limits::REAP_INTERVAL;
use consort_hotrod::ops::transaction::{Recovery, Request, Response, Xid};
use consort_hotrod::{Expiration, Opcode, RequestHeader, ResponseBody, Status};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::ops::map;
use crate::ops::session::Session;
use crate::reply::{Answer, Refusal};
use crate::security::role::Permission;
use crate::security::scope::Scope;
use crate::transactions::{FindCache, Transactions};

/// PREPARE_TX, the form before 2.9, has no fields for recovery.
const OLD_RECOVERY: Recovery = Recovery { is_recoverable: false, timeout: 60_000 };

fn code_answer(code: i32) -> Answer {
    Answer::success(ResponseBody::Transaction(Response::Code(code)))
}

/// The header of a request about a transaction can name any cache, so that the permission is needed in each one of its branches.
fn refusal<'c>(
    session: &Session,
    caches: impl IntoIterator<Item = &'c String>,
    opcode: Opcode,
) -> Option<Answer> {
    let refusal =
        |cache: &String| session.access.refusal_of(Permission::Write, Scope::Cache(cache), opcode.name());
    caches.into_iter().find_map(refusal)
}

async fn refusal_in_branches(
    session: &Session,
    transactions: &Transactions,
    xid: &Xid,
    opcode: Opcode,
) -> Result<Option<Answer>, Refusal> {
    // Also for a user with the same permissions in all caches: the users may be replaced during the search.
    if !session.access.has_users() {
        return Ok(None);
    }
    Ok(refusal(session, &transactions.branch_caches(xid).await?, opcode))
}

pub(crate) async fn answer(
    session: &Session,
    served: Option<&Arc<ServedCache>>,
    request: Request,
    header: &RequestHeader,
) -> Result<Answer, Refusal> {
    let caches = &*session.caches;
    if let Request::Prepare(prepare, recovery) = request {
        let transactions = served.and_then(|served| served.transactions.clone());
        let (Some(served), Some(transactions)) = (served, transactions) else {
            let name = header.cache.as_str();
            let text =
                format!("ISPN006020: Cache '{name}' is not transactional to execute a client transaction");
            return Err(Refusal::new(text));
        };
        let mut involved = transactions.involved(caches, &prepare.xid).await?;
        // The commit of one phase decides about all branches.
        if let Some(refusal) = refusal(session, involved.keys(), Opcode::PrepareTx2) {
            return Ok(refusal);
        }
        involved.insert(served.cache.name().to_owned(), true);
        let (cache, version) = (served.cache.clone(), header.version);
        let default = cache.options().lifetime;
        let lifetime = move |expiration: &Expiration| map::lifetime(expiration, version, default);
        let recovery = recovery.unwrap_or(OLD_RECOVERY);
        let is_one_phase = prepare.is_one_phase;
        let prepared = async move {
            let code = transactions.prepare(cache.name(), involved, prepare, recovery, lifetime).await?;
            let counts = &transactions.counts;
            let requested = if is_one_phase { &counts.committed } else { &counts.prepared };
            code.iter().for_each(|code| counts.note(requested, *code));
            Ok::<_, Refusal>(code)
        };
        // Without a code of its own the client repeats the request.
        return Ok(Recorded::run_detached(prepared)
            .await?
            .map_or(Answer::of(Status::NotExecuted), code_answer));
    }
    let transactions = caches.transactions().await?.clone();
    Ok(match request {
        Request::Commit(xid) => {
            let involved = transactions.involved(caches, &xid).await?;
            if let Some(refusal) = refusal(session, involved.keys(), Opcode::CommitTx) {
                return Ok(refusal);
            }
            let committed = async move {
                let code = transactions.commit(&xid, involved).await?;
                transactions.counts.note(&transactions.counts.committed, code);
                Ok::<_, Refusal>(code)
            };
            code_answer(Recorded::run_detached(committed).await?)
        }
        Request::Rollback(xid) => {
            if let Some(refusal) =
                refusal_in_branches(session, &transactions, &xid, Opcode::RollbackTx).await?
            {
                return Ok(refusal);
            }
            let rolled_back = async move {
                let code = transactions.roll_back(&xid).await?;
                transactions.counts.note(&transactions.counts.rolled_back, code);
                Ok::<_, Refusal>(code)
            };
            code_answer(Recorded::run_detached(rolled_back).await?)
        }
        Request::Forget(xid) => {
            if let Some(refusal) = refusal_in_branches(session, &transactions, &xid, Opcode::ForgetTx).await?
            {
                return Ok(refusal);
            }
            transactions.forget(&xid).await?;
            Answer::of(Status::Success)
        }
        Request::FetchRecovery | Request::Prepare(..) => {
            let mut gathering = session.responses.begin().await?;
            let in_doubt = transactions.in_doubt(&mut gathering).await?;
            let body = ResponseBody::Transaction(Response::Prepared(in_doubt));
            Answer::success(body).holding(gathering.finish())
        }
    })
}

impl FindCache for Caches {
    async fn find_cache(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.find(name).await?.is_some())
    }
}

pub(crate) async fn reap(caches: &Caches) {
    loop {
        tokio::time::sleep(REAP_INTERVAL).await;
        let Some(transactions) = caches.transactions_if_open() else { continue };
        if let Err(error) = transactions.reap(caches).await {
            tracing::debug!(%error, "cannot complete abandoned transactions; trying again later");
        }
    }
}
