//! Java classes of errors, as Infinispan 16.0 sends them: an error's text begins with the class of its exception, and some clients
//! recognise errors by it.

/// A class, and the numbers of its messages.
struct Exception {
    class: &'static str,
    numbers: &'static [u32],
}

pub(crate) const CACHE: &str = "org.infinispan.commons.CacheException";
pub(crate) const CACHE_CONFIGURATION: &str = "org.infinispan.commons.CacheConfigurationException";
pub(crate) const CACHE_NOT_FOUND: &str = "org.infinispan.server.hotrod.CacheNotFoundException";
pub(crate) const INVALID_MAGIC: &str = "org.infinispan.server.hotrod.InvalidMagicIdException";
pub(crate) const REQUEST_PARSING: &str = "org.infinispan.server.hotrod.RequestParsingException";
pub(crate) const UNKNOWN_OPERATION: &str = "org.infinispan.server.hotrod.HotRodUnknownOperationException";
pub(crate) const UNKNOWN_VERSION: &str = "org.infinispan.server.hotrod.UnknownVersionException";
const SECURITY: &str = "java.lang.SecurityException";

const EXCEPTIONS: &[Exception] = &[
    Exception { class: SECURITY, numbers: &[287, 6017, 6024] },
    Exception { class: "org.infinispan.partitionhandling.AvailabilityException", numbers: &[306] },
    Exception { class: "org.infinispan.commons.IllegalLifecycleStateException", numbers: &[323] },
    Exception { class: CACHE_CONFIGURATION, numbers: &[374, 436, 438, 453, 507, 686, 702] },
    Exception { class: "org.infinispan.remoting.transport.jgroups.SuspectException", numbers: &[400] },
    Exception { class: "org.infinispan.commons.TimeoutException", numbers: &[476] },
    Exception { class: "org.infinispan.commons.dataconversion.EncodingException", numbers: &[492, 930] },
    Exception { class: "org.infinispan.interceptors.impl.ContainerFullException", numbers: &[514] },
    Exception { class: CACHE, numbers: &[5030, 28009] },
    Exception { class: "java.lang.UnsupportedOperationException", numbers: &[6007] },
    Exception { class: "org.infinispan.server.hotrod.MissingFactoryException", numbers: &[6013] },
    Exception { class: "java.lang.IllegalStateException", numbers: &[5060, 6020] },
    Exception { class: "java.lang.IllegalArgumentException", numbers: &[6025, 27002] },
    Exception { class: "org.infinispan.counter.exception.CounterConfigurationException", numbers: &[29508] },
    Exception { class: "org.infinispan.counter.exception.CounterException", numbers: &[29514] },
];

/// The number with which a text begins: `ISPN`, six digits and a colon.
fn number(text: &str) -> Option<u32> {
    let (digits, _) = text.strip_prefix("ISPN")?.split_once(':')?;
    let is_number = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// The class of a text that begins with a number of Infinispan.
pub(crate) fn class_of(text: &str) -> Option<&'static str> {
    let number = number(text)?;
    let exception = EXCEPTIONS.iter().find(|exception| exception.numbers.contains(&number))?;
    Some(exception.class)
}

/// Puts the class before a text that begins with its number.
pub(crate) fn with_class(text: String) -> String {
    match class_of(&text) {
        Some(class) => format!("{class}: {text}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_a_number_gets_the_class_of_its_exception() {
        for (text, class) in [
            ("ISPN000507: Cache c already exists", Some(CACHE_CONFIGURATION)),
            ("ISPN006024: Invalid credentials", Some(SECURITY)),
            ("ISPN000507 is no number without a colon", None),
            ("ISPN507: Cache c already exists", None),
            ("ISPN00050x: no number", None),
            ("ISPN999999: an unknown number", None),
            ("java.lang.SecurityException: ISPN006024: Invalid credentials", None),
            ("the limit of one connection", None),
        ] {
            assert_eq!(class_of(text), class, "{text}");
            let expected = class.map_or_else(|| text.to_owned(), |class| format!("{class}: {text}"));
            assert_eq!(with_class(text.to_owned()), expected);
        }
    }

    #[test]
    fn each_number_has_one_class() {
        let mut numbers: Vec<u32> = EXCEPTIONS.iter().flat_map(|one| one.numbers).copied().collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
