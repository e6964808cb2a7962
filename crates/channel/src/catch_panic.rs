//! Calls of the application's code. A panic ends that call alone, not the member (whose driver may call) nor later calls; one of
//! an up handler ends the member.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use consort_group::Address;

/// The text is the panic's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the application panicked: {0}")]
pub(crate) struct ApplicationPanic(pub(crate) String);

/// The panic hook reports a panic; the log names the called method and the sender.
///
/// The application looks after state shared between its calls: std's locks report a panic.
pub(crate) fn catch_panic<R>(
    called: &'static str,
    sender: Option<&Address>,
    call: impl FnOnce() -> R,
) -> Result<R, ApplicationPanic> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic_text(&*panic);
        let sender = sender.map(tracing::field::display);
        tracing::error!(called, sender, panic = %text, "the application panicked");
        ApplicationPanic(text)
    })
}

/// A panic is logged and resumed: it ends the driver, whose task this is.
pub(crate) fn log_panic_and_resume<R>(called: &'static str, call: impl FnOnce() -> R) -> R {
    catch_panic(called, None, call).unwrap_or_else(|ApplicationPanic(text)| resume_unwind(Box::new(text)))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a payload that is not text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Rng;

    use super::*;
    use consort_testkit::Log;

    /// A concurrent test without a log could suppress this one's lines.
    #[test]
    fn panic_text_is_returned_and_logged_with_the_sender() {
        let (log, _guard) = Log::begin("error");
        let sender = Address::random(&mut Rng::new(1));
        let caught = |call: fn()| catch_panic("receive", Some(&sender), call).unwrap_err().0;
        assert_eq!(catch_panic("receive", Some(&sender), || 7), Ok(7));
        assert_eq!(log.take(), "");

        assert_eq!(caught(|| panic!("plain")), "plain");
        let line = log.take();
        let fields = format!("the application panicked called=\"receive\" sender={sender} panic=plain\n");
        assert!(line.contains("ERROR") && line.ends_with(&fields), "{line}");

        assert_eq!(caught(|| panic!("number {}", std::hint::black_box(7))), "number 7");
        assert_eq!(caught(|| std::panic::panic_any(7)), "a payload that is not text");
        assert!(catch_panic("view_accepted", None, || panic!("at a view")).is_err());
        let lines = log.take();
        assert!(lines.ends_with("called=\"view_accepted\" panic=at a view\n"), "{lines}");
    }
}
