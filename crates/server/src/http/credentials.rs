//! Authentication in HTTP by the messages of SASL mechanisms.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_sasl::Mechanism;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Credentials {
    pub(crate) mechanism: Mechanism,
    pub(crate) message: Vec<u8>,
}

/// `None` if it has neither a name with a password (RFC 7617) nor a token (RFC 6750).
pub(crate) fn parse_authorization(authorization: &str) -> Option<Credentials> {
    let (scheme, rest) = authorization.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = STANDARD.decode(rest).ok()?;
        let colon = pair.iter().position(|byte| *byte == b':')?;
        let message = [b"\0", &pair[..colon], b"\0", &pair[colon + 1..]].concat();
        return Some(Credentials { mechanism: Mechanism::Plain, message });
    }
    // A token has no control characters, which could add parts to the message.
    let is_token = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%');
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then(|| Credentials {
        mechanism: Mechanism::OauthBearer,
        message: format!("n,,\u{1}auth=Bearer {rest}\u{1}\u{1}").into_bytes(),
    })
}

pub(crate) fn challenge(offered: &[Mechanism]) -> Option<String> {
    let scheme = |mechanism: &Mechanism| match mechanism {
        Mechanism::Plain => Some("Basic realm=\"consort\", charset=\"UTF-8\""),
        Mechanism::OauthBearer => Some("Bearer realm=\"consort\""),
        Mechanism::Scram(_) | Mechanism::External => None,
    };
    let schemes: Vec<&str> = offered.iter().filter_map(scheme).collect();
    (!schemes.is_empty()).then(|| schemes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_and_bearer_credentials_become_messages_of_mechanisms() {
        // RFC 7617, section 2.
        let basic = parse_authorization("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap();
        assert_eq!((basic.mechanism, &basic.message[..]), (Mechanism::Plain, &b"\0Aladdin\0open sesame"[..]));
        let with_colon = parse_authorization(&format!("basic {}", STANDARD.encode("a:b:c"))).unwrap();
        assert_eq!(with_colon.message, b"\0a\0b:c");
        let bearer = parse_authorization("Bearer abc.def").unwrap();
        assert_eq!(bearer.mechanism, Mechanism::OauthBearer);
        assert_eq!(consort_sasl::bearer::Bearer::read(&bearer.message).unwrap().token, "abc.def");
        for nothing in
            ["", "Basic", "Basic !", "Basic YQ==", "Digest a", "Bearer ", "Bearer a\u{1}b", "Bearer %x01"]
        {
            assert_eq!(parse_authorization(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn only_offered_mechanisms_are_in_the_challenge() {
        let scram = Mechanism::Scram(consort_sasl::scram::Hash::Sha256);
        assert_eq!(challenge(&[scram, Mechanism::External]), None);
        let both = challenge(&[scram, Mechanism::OauthBearer, Mechanism::Plain]).unwrap();
        assert!(both.starts_with("Bearer realm=") && both.contains(", Basic realm="), "{both}");
    }
}
