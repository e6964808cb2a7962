//! The check that ASYM_ENCRYPT and the exchange of its keys fit together. Each alone would look safe and do nothing.

use consort_group::config::{Position, Property, ProtocolConfig, StackConfig};

use crate::error::{ConfigError, Fault};

const EXCHANGES: &[&str] = &["SSL_KEY_EXCHANGE", "DH_KEY_EXCHANGE"];
const EXTERNAL: &str = "use_external_key_exchange";

pub(crate) fn check_key_exchange(stack: &StackConfig, problems: &mut Vec<ConfigError>) {
    let place = |is_it: &dyn Fn(&ProtocolConfig) -> bool| stack.protocols.iter().position(is_it);
    let asym = place(&|protocol| protocol.short_name() == "ASYM_ENCRYPT");
    let exchange = place(&|protocol| EXCHANGES.contains(&protocol.short_name()));
    let external = asym.filter(|at| external(&stack.protocols[*at]).is_some_and(|(is_on, _)| is_on));
    let mut fail = |position: Position, text: String| {
        problems.push(ConfigError::at(stack, position, Fault::Structure(text)));
    };
    match (external, exchange) {
        (Some(asym), exchange) if exchange.is_none_or(|exchange| exchange > asym) => {
            let protocol = &stack.protocols[asym];
            let position = self::external(protocol).map_or(protocol.position, |(_, position)| position);
            let text = format!(
                "ASYM_ENCRYPT has {EXTERNAL}, which needs SSL_KEY_EXCHANGE below it: add that, or remove {EXTERNAL} \
                 at all members"
            );
            fail(position, text);
        }
        (None, Some(exchange)) => {
            let protocol = &stack.protocols[exchange];
            let text = format!(
                "{} exchanges the keys of an ASYM_ENCRYPT above it that has {EXTERNAL}=\"true\": set that, or remove \
                 {}",
                protocol.short_name(),
                protocol.short_name()
            );
            fail(protocol.position, text);
        }
        _ => {}
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
        assert_eq!(problem(&format!("<SSL_KEY_EXCHANGE/>\n{external}")), None);
        assert_eq!(problem("<ASYM_ENCRYPT/>"), None);
        for layers in [external.to_owned(), format!("{external}<SSL_KEY_EXCHANGE/>")] {
            let error = problem(&layers).expect("refused");
            assert!(error.starts_with("my.xml:3:15: ASYM_ENCRYPT has use_external"), "{error}");
        }
        for layers in ["<SSL_KEY_EXCHANGE/>", "<SSL_KEY_EXCHANGE/><ASYM_ENCRYPT/>"] {
            let error = problem(layers).expect("refused");
            assert!(error.starts_with("my.xml:3:1: SSL_KEY_EXCHANGE exchanges the keys"), "{error}");
        }
    }

    #[test]
    fn verifier_of_java_is_refused_with_an_alternative() {
        let layers = "<SSL_KEY_EXCHANGE session_verifier_class=\"org.example.Verifier\"/>\
                      <ASYM_ENCRYPT use_external_key_exchange=\"true\"/>";
        let error = problem(layers).expect("refused");
        assert!(error.contains("my.xml:3:19") && error.contains("truststore_name"), "{error}");
    }
}
