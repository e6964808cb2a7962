//! The key exchanges of ASYM_ENCRYPT (facts section 22.4): layers below it that serve this member's key of the group to other members,
//! and fetch a key from the member that has it.

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
