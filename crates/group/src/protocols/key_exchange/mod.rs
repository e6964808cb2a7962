//! Exchanges of the group's key for ASYM_ENCRYPT: layers below it that fetch the key and serve it to others (facts section 22.4).

mod dh;
mod ssl;

pub use dh::{DhKeyExchange, DhKeyExchangeConfig};
pub use ssl::{SslKeyExchange, SslKeyExchangeConfig};

use crate::{Cx, DropReason, Event, KeyRequest};

/// The keys that are fetched at once. ASYM_ENCRYPT wants fewer, the latest ones; one more ends the oldest.
const FETCHES_MAX: usize = 8;

const TOO_MANY: &str = "too many keys are fetched";

/// The error is the attribute and a text for the operator.
fn check_algorithm(secret_key_algorithm: &str) -> Result<(), (&'static str, String)> {
    if secret_key_algorithm.trim().eq_ignore_ascii_case("AES") {
        return Ok(());
    }
    Err(("secret_key_algorithm", format!("secret_key_algorithm ({secret_key_algorithm}) is not AES")))
}

/// ASYM_ENCRYPT discards the messages that wait for the key.
fn report_failure(cx: &mut Cx<'_>, request: &KeyRequest, why: &str) {
    cx.count_drop(DropReason::UnknownKey, |book| {
        format!("no shared key for messages of {}: {why}", book.member(&request.sender))
    });
    cx.raise(Event::SecretKeyFetched { request: Box::new(request.clone()), key: Err(why.to_owned()) });
}
