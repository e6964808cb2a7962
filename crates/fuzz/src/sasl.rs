use consort_sasl::bearer::Bearer;
use consort_sasl::plain::Plain;
use consort_sasl::scram::{Hash, Keys, Verifier, client, server};

use crate::bounds::bounded;
use crate::seen::Seen;

const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
                      WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// The exchange of RFC 7677, and one message each of the other mechanisms.
const MESSAGES: [&str; 8] = [
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    "n,a=other,n=a=3Db=2Cc,r=nonce",
    "\0user\0pencil",
    "n,,\x01host=h\x01port=1\x01auth=Bearer a.b.c\x01\x01",
    PENCIL,
];

pub(crate) fn messages() -> Vec<Vec<u8>> {
    MESSAGES.map(|message| message.as_bytes().to_vec()).into()
}

pub(crate) fn message(bytes: &[u8]) -> Seen {
    let pencil: Verifier = PENCIL.parse().expect("a verifier");
    // Any keys will do, and deriving the right ones takes milliseconds.
    let keys = Keys::derive(Hash::Sha256, "pencil", b"salt", 1);
    let begun = || server::First::read(MESSAGES[0].as_bytes()).expect("a message");
    let (is_read, peak) = bounded(bytes.len(), || {
        let mut is_read = false;
        if let Ok(plain) = Plain::read(bytes) {
            assert_eq!(plain.write(), bytes);
            is_read = true;
        }
        if let Ok(bearer) = Bearer::read(bytes) {
            assert_eq!(Bearer::read(&bearer.write("h", 1)), Ok(bearer));
            is_read = true;
        }
        if let Ok(first) = server::First::read(bytes) {
            let (last, challenge) = first.challenge(&pencil, "more");
            assert!(!challenge.is_empty() && last.check(bytes).is_err());
            is_read = true;
        }
        is_read |= begun().challenge(&pencil, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0").0.check(bytes).is_ok();
        let (first, _) = client::First::begin(Hash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO");
        if let Ok(challenged) = first.challenged(bytes) {
            let (last, _) = challenged.prove(&keys);
            assert!(last.check(bytes).is_err(), "a challenge is no signature");
            is_read = true;
        }
        if let Ok(verifier) = String::from_utf8_lossy(bytes).parse::<Verifier>() {
            assert_eq!(verifier.to_string().parse(), Ok(verifier));
            is_read = true;
        }
        is_read
    });
    Seen::one(is_read, peak)
}
