//! Who asks in HTTP: what a client shows is what it shows in a mechanism of Hot Rod's, and is looked at in the same place.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_sasl::Mechanism;

/// What a client shows: the mechanism in which that is shown, and the message that it would send in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    pub(crate) mechanism: Mechanism,
    pub(crate) message: Vec<u8>,
}

/// What the field Authorization shows; nothing if that is no name with a password (RFC 7617) and no token (RFC 6750).
pub(crate) fn shown(authorization: &str) -> Option<Shown> {
    let (scheme, rest) = authorization.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = STANDARD.decode(rest).ok()?;
        let colon = pair.iter().position(|byte| *byte == b':')?;
        let message = [b"\0", &pair[..colon], b"\0", &pair[colon + 1..]].concat();
        return Some(Shown { mechanism: Mechanism::Plain, message });
    }
    // What belongs into a token is no control character, with which the message would have other parts.
    let is_token = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%');
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then(|| Shown {
        mechanism: Mechanism::OauthBearer,
        message: format!("n,,\u{1}auth=Bearer {rest}\u{1}\u{1}").into_bytes(),
    })
}

/// How a client may show who it is, for the field WWW-Authenticate; nothing if it cannot here.
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
    fn names_with_passwords_and_tokens_are_those_of_mechanisms() {
        // RFC 7617, section 2.
        let basic = shown("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap();
        assert_eq!((basic.mechanism, &basic.message[..]), (Mechanism::Plain, &b"\0Aladdin\0open sesame"[..]));
        let with_colon = shown(&format!("basic {}", STANDARD.encode("a:b:c"))).unwrap();
        assert_eq!(with_colon.message, b"\0a\0b:c");
        let bearer = shown("Bearer abc.def").unwrap();
        assert_eq!(bearer.mechanism, Mechanism::OauthBearer);
        assert_eq!(consort_sasl::bearer::Bearer::read(&bearer.message).unwrap().token, "abc.def");
        for nothing in
            ["", "Basic", "Basic !", "Basic YQ==", "Digest a", "Bearer ", "Bearer a\u{1}b", "Bearer %x01"]
        {
            assert_eq!(shown(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let scram = Mechanism::Scram(consort_sasl::scram::Hash::Sha256);
        assert_eq!(challenge(&[scram, Mechanism::External]), None);
        let both = challenge(&[scram, Mechanism::OauthBearer, Mechanism::Plain]).unwrap();
        assert!(both.starts_with("Bearer realm=") && both.contains(", Basic realm="), "{both}");
    }
}
