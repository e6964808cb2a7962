//! Without a transactional cache the families have no values.

use crate::catalog::caches::Caches;
use crate::http::exposition::{Exposition, Kind};
use consort_cache::transactions::limits::TRANSACTIONS_MAX;

pub(super) fn append(out: &mut Exposition, caches: &Caches) {
    let transactions = caches.transactions_if_open();
    let help = "Transactions that this server prepared, committed or rolled back for clients. A request that a client repeats \
                counts again.";
    out.family(Kind::Counter, "consort_transactions", help);
    if let Some(transactions) = transactions {
        for (outcome, count) in transactions.counts.all() {
            out.value(&[("outcome", outcome)], count);
        }
    }
    let help = "Records of transactions in the cluster: those that are open, and those that have ended within the last minute.";
    out.family(Kind::Gauge, "consort_transactions_recorded", help);
    if let Some(transactions) = transactions {
        out.value(&[], transactions.len());
    }
    out.family(
        Kind::Gauge,
        "consort_transactions_limit",
        "Records of transactions that there may be in the cluster.",
    )
    .value(&[], TRANSACTIONS_MAX);
}
