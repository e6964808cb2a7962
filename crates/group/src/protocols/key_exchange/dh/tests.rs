use super::*;
use crate::harness::{Harness, member, view};
use crate::protocols::encrypt::tests::Counting;

const TIMEOUT: Duration = Duration::from_secs(2);

fn key(byte: u8) -> SecretKey {
    SecretKey::new("AES", vec![byte; 16])
}

fn harness(n: u64) -> Harness {
    harness_of(n, DhKeyExchangeConfig::default())
}

fn harness_of(n: u64, config: DhKeyExchangeConfig) -> Harness {
    let random = Box::new(Counting(n as u8));
    Harness::with_layers(n, vec![Box::new(DhKeyExchange::new(config, random))])
}

/// Members 1 and 2, of which 1 has a key.
fn two_members() -> (Harness, Harness) {
    let (mut one, mut two) = (harness(1), harness(2));
    one.install(view(2, &[1, 2])).lower(Event::ServeSecretKey(key(5))).take_up_events();
    two.install(view(1, &[2])).take_up_events();
    (one, two)
}

fn request() -> Event {
    let request = KeyRequest { version: key(5).version(), server: None, sender: member(1), key_length: 16 };
    Event::FetchSecretKey(Box::new(request))
}

fn sent_by(from: &mut Harness, n: u64) -> Vec<Message> {
    from.take_down().into_iter().map(|message| message.sent_by(n)).collect()
}

fn header(message: &Message) -> &DhHeader {
    match message.headers.get(ID) {
        Some(HeaderBody::Dh(header)) => header,
        _ => panic!("{message:?} has no header"),
    }
}

/// A number without the highest bit is a byte shorter.
fn bits(message: &Message) -> u32 {
    match header(message).dh_key.len() {
        550..=557 => 2_048,
        800..=813 => 3_072,
        length => panic!("{length} bytes"),
    }
}

fn result(harness: &mut Harness) -> Option<Result<SecretKey, String>> {
    harness.take_up_events().into_iter().find_map(|event| match event {
        Event::SecretKeyFetched { request, key: result } => {
            assert_eq!(request.version, key(5).version());
            Some(result)
        }
        _ => None,
    })
}

#[test]
fn member_asks_the_sender_and_gets_its_key() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2);
    assert_eq!((asked.len(), &asked[0].dest, bits(&asked[0])), (1, &Some(member(1)), 2_048));
    let answer = sent_by(one.up_batch(asked), 1);
    let (encrypted, version) = header(&answer[0]).secret.clone().unwrap();
    // As JGroups: a block of the key, and one of padding.
    assert_eq!((encrypted.len(), version), (32, key(5).version()));
    assert_ne!(encrypted[..16], key(5).bytes()[..]);
    assert_eq!(result(two.up_batch(answer.clone())), Some(Ok(key(5))));
    two.up_batch(answer);
    assert_eq!(result(&mut two), None, "a second answer changes nothing");
}

#[test]
fn only_members_get_an_answer() {
    let (mut one, mut two) = two_members();
    one.install(view(3, &[1, 3]));
    let asked = sent_by(two.lower(request()), 2);
    assert_eq!(one.up_batch(asked).take_down(), []);
    assert_eq!(one.stack.shared().drops.total(DropReason::NotMember), 1);
}

/// Newer releases of Java have another default.
#[test]
fn request_is_repeated_in_the_other_group_and_fails_in_the_end() {
    let (_, mut two) = two_members();
    let mut asked = two.lower(request()).take_down();
    for _ in 0..2 {
        asked.extend(two.advance(TIMEOUT).take_down());
    }
    assert_eq!(asked.iter().map(bits).collect::<Vec<_>>(), [2_048, 3_072, 2_048]);
    assert_eq!(result(&mut two), None);
    two.advance(TIMEOUT);
    assert_eq!(result(&mut two), Some(Err("it does not answer".to_owned())));
}

#[test]
fn forged_and_damaged_answers_bring_no_key() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2);
    let answer = sent_by(one.up_batch(asked), 1).remove(0);
    let DhHeader { dh_key, secret } = header(&answer).clone();
    let (encrypted, version) = secret.unwrap();
    let flipped = |bytes: &Bytes, at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    let with = |dh_key: &Bytes, encrypted: &Bytes, version: &Bytes, from: u64| {
        let secret = Some((encrypted.clone(), version.clone()));
        let header = DhHeader { dh_key: dh_key.clone(), secret };
        Message::empty(Some(member(2))).with_header(ID, HeaderBody::Dh(Box::new(header))).sent_by(from)
    };
    two.up(with(&dh_key, &encrypted, &version, 3));
    two.up(with(&flipped(&dh_key, dh_key.len() - 1), &encrypted, &version, 1));
    two.up(with(&flipped(&dh_key, 60), &encrypted, &version, 1));
    two.up(with(&dh_key, &flipped(&encrypted, 3), &version, 1));
    two.up(with(&dh_key, &encrypted.slice(..16), &version, 1));
    two.up(with(&dh_key, &Bytes::new(), &version, 1));
    two.up(with(&dh_key, &encrypted, &key(6).version(), 1));
    assert_eq!(result(&mut two), None);
    two.up(answer);
    assert_eq!(result(&mut two), Some(Ok(key(5))));
}

#[test]
fn answers_and_fetches_are_bounded() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2).remove(0);
    for _ in 0..105 {
        one.up(asked.clone());
    }
    assert_eq!((one.take_down().len(), one.stack.shared().drops.total(DropReason::QueueFull)), (100, 5));
    for _ in 0..7 {
        two.lower(request());
    }
    assert_eq!(result(&mut two), None);
    two.lower(request());
    assert!(result(&mut two).unwrap().unwrap_err().contains("too many"));
}

/// Anyone may send a key that is none.
#[test]
fn requests_without_a_usable_key_keep_no_joiner_waiting() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2).remove(0);
    for _ in 0..200 {
        let garbage = DhHeader { dh_key: Bytes::from_static(b"no key"), secret: None };
        let message = Message::empty(Some(member(1))).with_header(ID, HeaderBody::Dh(Box::new(garbage)));
        one.up(message.sent_by(2));
    }
    assert_eq!(one.stack.shared().drops.total(DropReason::Malformed), 200);
    assert_eq!(one.up(asked).take_down().len(), 1);
}

#[test]
fn wrong_answers_that_are_decrypted_in_a_second_are_bounded() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2);
    let answer = sent_by(one.up_batch(asked), 1).remove(0);
    let DhHeader { dh_key, secret } = header(&answer).clone();
    let (_, version) = secret.unwrap();
    let with = |dh_key: &Bytes| {
        let secret = Some((Bytes::from_static(&[7; 32]), version.clone()));
        let header = DhHeader { dh_key: dh_key.clone(), secret };
        Message::empty(Some(member(2))).with_header(ID, HeaderBody::Dh(Box::new(header))).sent_by(1)
    };
    (0..20).for_each(|_| {
        two.up(with(&Bytes::from_static(b"no key")));
    });
    let most = u64::from(WRONG_ANSWERS_PER_SECOND_MAX);
    (0..most + 5).for_each(|_| {
        two.up(with(&dh_key));
    });
    let drops = |two: &Harness, why| two.stack.shared().drops.total(why);
    assert_eq!((drops(&two, DropReason::Malformed), drops(&two, DropReason::QueueFull)), (20 + most, 5));
    assert_eq!(result(two.up(answer.clone())), None);
    assert_eq!(result(two.advance(Duration::from_secs(1)).up(answer)), Some(Ok(key(5))));
}

#[test]
fn wrong_answers_below_the_limit_do_not_hold_back_the_key() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2);
    let answer = sent_by(one.up_batch(asked), 1).remove(0);
    let DhHeader { dh_key, secret } = header(&answer).clone();
    let secret = secret.map(|(_, version)| (Bytes::from_static(&[7; 32]), version));
    (0..50).for_each(|_| {
        let header = DhHeader { dh_key: dh_key.clone(), secret: secret.clone() };
        let forged = Message::empty(Some(member(2))).with_header(ID, HeaderBody::Dh(Box::new(header)));
        two.up(forged.sent_by(1));
    });
    assert_eq!(result(two.up(answer)), Some(Ok(key(5))));
}

#[test]
fn request_is_repeated_after_the_set_timeout() {
    let timeout = Duration::from_secs(5);
    let mut two = harness_of(2, DhKeyExchangeConfig { timeout, ..DhKeyExchangeConfig::default() });
    two.install(view(1, &[2])).lower(request()).take_down();
    assert_eq!(two.advance(timeout - Duration::from_millis(1)).take_down(), []);
    assert_eq!(two.advance(Duration::from_millis(1)).take_down().len(), 1);
}

#[test]
fn member_without_a_key_does_not_answer_and_leaving_forgets_it() {
    let (mut one, mut two) = two_members();
    let asked = sent_by(two.lower(request()), 2);
    one.lower(Event::Disconnect).install(view(4, &[1, 2]));
    assert_eq!(one.up_batch(asked).take_down(), []);
}

#[test]
fn unusable_settings_are_refused() {
    let error = |config: DhKeyExchangeConfig| config.check().unwrap_err().0;
    let of = DhKeyExchangeConfig::default;
    assert_eq!(of().check(), Ok(()));
    assert_eq!(error(DhKeyExchangeConfig { timeout: Duration::ZERO, ..of() }), "timeout");
    let des = DhKeyExchangeConfig { secret_key_algorithm: "DESede".to_owned(), ..of() };
    assert_eq!(error(des), "secret_key_algorithm");
}
