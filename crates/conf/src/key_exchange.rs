//! The check that ASYM_ENCRYPT and the exchange of its keys fit together. Each alone would look safe and do nothing.

use consort_group::config::{Position, Property, ProtocolConfig, StackConfig};

use crate::error::{ConfigError, Fault};

const EXCHANGES: &[&str] = &["SSL_KEY_EXCHANGE", "DH_KEY_EXCHANGE"];
const EXTERNAL: &str = "use_external_key_exchange";

pub(crate) fn check_key_exchange(stack: &StackConfig, problems: &mut Vec<ConfigError>) {
    let asym = stack.protocols.iter().position(|protocol| protocol.short_name() == "ASYM_ENCRYPT");
    let external = asym.and_then(|at| Some((at, external(&stack.protocols[at])?)));
    let external = external.and_then(|(at, (is_on, position))| is_on.then_some((at, position)));
    let is_exchange = |protocol: &ProtocolConfig| EXCHANGES.contains(&protocol.short_name());
    let mut exchanges = stack.protocols.iter().enumerate().filter(|(_, protocol)| is_exchange(protocol));
    let first = exchanges.next();
    let mut fail = |position: Position, text: String| {
        problems.push(ConfigError::at(stack, position, Fault::Structure(text)));
    };
    match (external, first) {
        (Some((asym, position)), first) if first.is_none_or(|(exchange, _)| exchange > asym) => {
            let text = format!(
                "ASYM_ENCRYPT has {EXTERNAL}, which needs SSL_KEY_EXCHANGE below it: add that, or remove {EXTERNAL} \
                 at all members"
            );
            fail(position, text);
        }
        (None, Some((_, protocol))) => {
            let name = protocol.short_name();
            let text = format!(
                "{name} exchanges the keys of an ASYM_ENCRYPT above it that has {EXTERNAL}=\"true\": set that, or \
                 remove {name}"
            );
            fail(protocol.position, text);
        }
        _ => {}
    }
    // The nearest one below ASYM_ENCRYPT would exchange the key, perhaps without certificates.
    for (_, second) in exchanges {
        let text = format!("{} is a second exchange of keys: remove one of them", second.short_name());
        fail(second.position, text);
    }
}

/// The attribute's value and place. A wrong value has been reported.
fn external(asym: &ProtocolConfig) -> Option<(bool, Position)> {
    let (_, value, position) = asym.attributes.iter().find(|(name, ..)| name == EXTERNAL)?;
    Some((bool::parse(value).ok()?, *position))
}

#[cfg(test)]
mod tests {
    use crate::{Variables, parse_stack};

    fn problem(layers: &str) -> Option<String> {
        let text = format!("<config>\n<TCP/>\n{layers}\n</config>");
        parse_stack("my.xml", &text, &Variables::new()).err().map(|error| error.to_string())
    }

    #[test]
    fn exchange_and_encryption_need_each_other_in_order() {
        let external = "<ASYM_ENCRYPT use_external_key_exchange=\"true\"/>";
        assert_eq!(problem("<ASYM_ENCRYPT/>"), None);
        for name in super::EXCHANGES {
            let exchange = format!("<{name}/>");
            assert_eq!(problem(&format!("{exchange}\n{external}")), None);
            for layers in [external.to_owned(), format!("{external}{exchange}")] {
                let error = problem(&layers).expect("refused");
                assert!(error.starts_with("my.xml:3:15: ASYM_ENCRYPT has use_external"), "{error}");
            }
            for layers in [exchange.clone(), format!("{exchange}<ASYM_ENCRYPT/>")] {
                let error = problem(&layers).expect("refused");
                assert!(error.starts_with(&format!("my.xml:3:1: {name} exchanges the keys")), "{error}");
            }
            for second in super::EXCHANGES {
                for layers in [
                    format!("{exchange}{external}\n<{second}/>"),
                    format!("{exchange}\n<{second}/>{external}"),
                ] {
                    let error = problem(&layers).expect("refused");
                    assert!(error.contains(&format!("my.xml:4:1: {second} is a second exchange")), "{error}");
                }
            }
        }
    }

    #[test]
    fn verifier_of_java_is_refused_with_an_alternative() {
        for attribute in ["session_verifier_class", "session_verifier_arg"] {
            let layers = format!(
                "<SSL_KEY_EXCHANGE {attribute}=\"org.example.Verifier\"/>\
                 <ASYM_ENCRYPT use_external_key_exchange=\"true\"/>"
            );
            let error = problem(&layers).expect("refused");
            assert!(error.contains("my.xml:3:19") && error.contains("truststore_name"), "{error}");
        }
    }
}
