//! Calls of the application's code. What panics there ends that call and nothing else: neither the member, whose
//! driver may be the caller, nor what waits behind the call.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use consort_group::Address;

/// The application panicked; what it said.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the application panicked: {0}")]
pub(crate) struct Panicked(pub(crate) String);

/// Calls the application. A panic is reported by the panic hook, as any, and logged with the name of what was called and
/// whose messages it was called for.
///
/// What the application shares between its calls is its own affair: std's locks tell it that one of them has panicked.
pub(crate) fn guarded<R>(
    called: &'static str,
    sender: Option<&Address>,
    call: impl FnOnce() -> R,
) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let said = said(&*panic);
        let sender = sender.map(tracing::field::display);
        tracing::error!(called, sender, panic = %said, "the application panicked");
        Panicked(said)
    })
}

fn said(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "something that is no text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_kept() {
        let number = 7;
        assert_eq!(guarded("receive", None, || number), Ok(7));
        let said = |call: fn()| guarded("receive", None, call).unwrap_err().0;
        assert_eq!(said(|| panic!("plain")), "plain");
        assert_eq!(said(|| panic!("number {}", std::hint::black_box(7))), "number 7");
        assert_eq!(said(|| std::panic::panic_any(7)), "something that is no text");
    }
}
