//! SCRAM-SHA-256, SCRAM-SHA-384 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding. The exchange has two steps
//! on each side: [`client::First`] and [`client::Last`], [`server::First`] and [`server::Last`].

pub mod client;
mod keys;
mod message;
pub mod server;
mod verifier;

pub use keys::{Derivation, Hash, ITERATIONS_MAX, ITERATIONS_MIN, Keys};
pub use verifier::{Verifier, VerifierError};

/// Encodes a nonce from random bytes.
pub fn nonce(random: [u8; 18]) -> String {
    message::base64(&random)
}

/// A failed exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScramError {
    /// The peer's message is invalid.
    #[error(transparent)]
    Malformed(#[from] crate::Malformed),
    /// The peer's nonce does not extend the own one: a replay.
    #[error("the nonce belongs to another exchange")]
    Nonce,
    /// Channel binding is required.
    #[error("channel binding is not supported")]
    ChannelBinding,
    /// Unsafe, or too expensive for an unauthenticated server.
    #[error("{0} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are supported")]
    Iterations(u32),
    /// A wrong password.
    #[error("wrong password")]
    Proof,
    /// The server has no verifier: an impostor.
    #[error("the server does not prove that it knows the user")]
    Impostor,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Published {
        hash: Hash,
        client_nonce: &'static str,
        server_nonce: &'static str,
        salt: &'static [u8],
        messages: [&'static str; 4],
    }

    const PUBLISHED: [Published; 3] = [
        // RFC 7677, section 3.
        Published {
            hash: Hash::Sha256,
            client_nonce: "rOprNGfwEbeRWgbNEkqO",
            server_nonce: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            salt: b"\x5b\x6d\x99\x68\x9d\x12\x35\x8e\xec\xa0\x4b\x14\x12\x36\xfa\x81",
            messages: [
                "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
                "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
                "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                 p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
                "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
            ],
        },
        // Computed with Python's hashlib and hmac, which agree on the other examples.
        Published {
            hash: Hash::Sha384,
            client_nonce: "rOprNGfwEbeRWgbNEkqO",
            server_nonce: "02431b08-2f89-4bad-a4e6-80c0564ec865",
            salt: b"\x5b\x6d\x99\x68\x9d\x12\x35\x8e\xec\xa0\x4b\x14\x12\x36\xfa\x81",
            messages: [
                "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
                "r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
                "c=biws,r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,\
                 p=FZTIq37KFQYXVe9KX8QJ8UUdS9MTHI7okojG7EU3OQJ5qwf2XEAdpEso2knSfL3L",
                "v=GxF1OOXz2P4ZqNYTUxOYhowAr/GSEtAaLFwigiJZY3+h1azx0xoXq5JWsCOuHHLv",
            ],
        },
        // Not in an RFC; the test vector of Apache Qpid and others.
        Published {
            hash: Hash::Sha512,
            client_nonce: "rOprNGfwEbeRWgbNEkqO",
            server_nonce: "02431b08-2f89-4bad-a4e6-80c0564ec865",
            salt: b"\x62\x29\xf6\x16\xe1\xd3\xb7\xf3\x34\x90\x95\x9b\xd2\xdf\x4e\x23\
                    \x7d\xa7\xd9\x59\x8e\x1a\x2d\xe6\xf8\x97\xe3\x3a\xfb\x83\x17\xcf",
            messages: [
                "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
                "r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,\
                 s=Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=,i=4096",
                "c=biws,r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,\
                 p=Hc5yec3NmCD7t+kFRw4/3yD6/F3SQHc7AVYschRja+Bc3sbdjlA0eH1OjJc0DD4ghn1tnXN5/Wr6qm9xmaHt4A==",
                "v=BQuhnKHqYDwQWS5jAw4sZed+C9KFUALsbrq81bB0mh+bcUUbbMPNNmBIupnS2AmyyDnG5CTBQtkjJ9kyY4kzmw==",
            ],
        },
    ];

    fn verifier(of: &Published, password: &str) -> Verifier {
        Verifier::derive(of.hash, password, of.salt.to_vec(), 4_096)
    }

    #[test]
    fn the_client_says_what_was_published() {
        for of in &PUBLISHED {
            let [first, challenge, last, signature] = of.messages;
            let (begun, message) = client::First::begin(of.hash, "user", of.client_nonce);
            assert_eq!(message, first.as_bytes());
            let challenged = begun.challenged(challenge.as_bytes()).unwrap();
            let keys = Keys::derive(of.hash, "pencil", challenged.salt(), challenged.iterations());
            let (ending, message) = challenged.prove(&keys);
            assert_eq!(message, last.as_bytes());
            assert_eq!(ending.check(signature.as_bytes()), Ok(()));
        }
    }

    #[test]
    fn the_server_says_what_was_published() {
        for of in &PUBLISHED {
            let [first, challenge, last, signature] = of.messages;
            let begun = server::First::read(first.as_bytes()).unwrap();
            assert_eq!((begun.name(), begun.act_as()), ("user", ""));
            let (waiting, message) = begun.challenge(&verifier(of, "pencil"), of.server_nonce);
            assert_eq!(message, challenge.as_bytes());
            assert_eq!(waiting.check(last.as_bytes()).unwrap(), signature.as_bytes());
        }
    }

    #[test]
    fn another_password_is_another_proof() {
        for of in &PUBLISHED {
            let [first, _, last, _] = of.messages;
            let begun = server::First::read(first.as_bytes()).unwrap();
            let (waiting, _) = begun.challenge(&verifier(of, "pencils"), of.server_nonce);
            assert_eq!(waiting.check(last.as_bytes()), Err(ScramError::Proof));
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_user_is_noticed() {
        let of = &PUBLISHED[0];
        let (begun, _) = client::First::begin(of.hash, "user", of.client_nonce);
        let challenged = begun.challenged(of.messages[1].as_bytes()).unwrap();
        let keys = Keys::derive(of.hash, "pencil", of.salt, 4_096);
        let (ending, _) = challenged.prove(&keys);
        let forged = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=";
        assert!(ending.check(forged.as_bytes()).is_err());
        let (begun, _) = client::First::begin(of.hash, "user", of.client_nonce);
        let (ending, _) = begun.challenged(of.messages[1].as_bytes()).unwrap().prove(&keys);
        let other = format!("v={}=", "A".repeat(43));
        assert_eq!(ending.check(other.as_bytes()), Err(ScramError::Impostor));
    }

    #[test]
    fn a_challenge_that_is_not_of_this_exchange_or_not_safe_is_refused() {
        let challenged = |challenge: &str| {
            let (begun, _) = client::First::begin(Hash::Sha256, "user", "abc");
            begun.challenged(challenge.as_bytes()).err()
        };
        assert_eq!(challenged("r=abcdef,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"), None);
        assert_eq!(challenged("r=abc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"), Some(ScramError::Nonce));
        assert_eq!(challenged("r=xyz,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"), Some(ScramError::Nonce));
        assert_eq!(challenged("r=abcd,s=W22Z,i=1"), Some(ScramError::Iterations(1)));
        assert_eq!(challenged("r=abcd,s=W22Z,i=999999999"), Some(ScramError::Iterations(999_999_999)));
        for nonsense in ["", "r=abcd", "m=x,r=abcd,s=W22Z,i=4096", "r=abcd,s=?,i=4096", "r=abcd,s=W22Z,i=x"] {
            assert!(matches!(challenged(nonsense), Some(ScramError::Malformed(_))), "{nonsense}");
        }
    }

    #[test]
    fn an_invalid_client_first_message_is_refused() {
        let begun = |message: &str| server::First::read(message.as_bytes()).err();
        assert_eq!(begun("y,,n=user,r=abc"), None);
        assert_eq!(begun("p=tls-exporter,,n=user,r=abc"), Some(ScramError::ChannelBinding));
        for nonsense in
            ["", "n,,", "n,,n=user", "x,,n=user,r=a", "n,b,n=user,r=a", "n,,n=us=er,r=a", "n,,n=,r=a"]
        {
            assert!(matches!(begun(nonsense), Some(ScramError::Malformed(_))), "{nonsense}");
        }
        assert!(server::First::read(b"n,,n=us\xffr,r=abc").is_err());
        let long = format!("n,,n=user,r={}", "x".repeat(5_000));
        assert!(matches!(begun(&long), Some(ScramError::Malformed(_))));
    }

    #[test]
    fn names_may_have_commas_and_equals_signs() {
        let (_, message) = client::First::begin(Hash::Sha256, "a=b,c", "n");
        assert_eq!(message, b"n,,n=a=3Db=2Cc,r=n");
        let begun = server::First::read(&message).unwrap();
        assert_eq!(begun.name(), "a=b,c");
        let begun = server::First::read(b"n,a=other,n=user,r=n").unwrap();
        assert_eq!(begun.act_as(), "other");
    }

    #[test]
    fn a_proof_of_another_exchange_is_refused() {
        let of = &PUBLISHED[0];
        let begun = server::First::read(of.messages[0].as_bytes()).unwrap();
        let (waiting, _) = begun.challenge(&verifier(of, "pencil"), "another");
        assert_eq!(waiting.check(of.messages[2].as_bytes()), Err(ScramError::Nonce));
        for last in ["", "c=biws", "c=eSws,r=x,p=AA==", "c=biws,r=x"] {
            let begun = server::First::read(of.messages[0].as_bytes()).unwrap();
            let (waiting, _) = begun.challenge(&verifier(of, "pencil"), of.server_nonce);
            assert!(waiting.check(last.as_bytes()).is_err(), "{last}");
        }
    }
}
