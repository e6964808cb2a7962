//! The exchange of keys in a join, payloads, settings and figures.

use super::*;

/// Of files 26 and 31: the key blocks, as facts section 22.3 describes them.
#[test]
fn key_blocks_of_jgroups_are_read_and_written_to_the_same_bytes() {
    let mut seen = Vec::new();
    for file in ["26-session-asym-encrypt", "31-session-asym-key-change"] {
        for (name, bytes, _) in lines(file) {
            let Packet::Single { message, .. } = wire::decode_packet(&bytes, &[]).unwrap() else { continue };
            let Some(HeaderBody::Encrypt(header)) = message.headers.get(ID) else { continue };
            if header.kind != 1 {
                continue;
            }
            let payload = message.payload_bytes().unwrap();
            let (keys, rest) = wire::decode_key_block(payload).unwrap();
            assert_eq!(wire::encode_key_block(&keys, &rest), payload, "{name}");
            for keys in &keys {
                assert!(encrypt_for(&keys.public, &mut *random(1), &[7; 16]).is_some(), "{name}");
            }
            let shared: Vec<usize> = keys.iter().map(|keys| keys.shared.len()).collect();
            seen.push((gms_header(&message).unwrap().kind, shared, rest.len()));
        }
    }
    assert_eq!(
        seen,
        [
            (GmsKind::JoinReq, vec![0], 0),
            (GmsKind::View, vec![0, 0], 64),
            (GmsKind::JoinRsp, vec![0, 128], 64),
            (GmsKind::View, vec![0, 0], 64),
            (GmsKind::View, vec![128, 128], 64),
        ]
    );
}

#[test]
fn a_joiner_gets_the_key_with_the_response_and_payloads_are_unreadable() {
    let mut members = group(3);
    for sender in 0..3 {
        let sent = sent_by(&mut members[sender], sender as u64 + 1, vec![text("a secret")]);
        let body = wire::encode_body(&sent[0]);
        assert!(!body.windows(6).any(|window| window == b"secret"));
        for receiver in (0..3).filter(|receiver| *receiver != sender) {
            assert_eq!(payloads(&members[receiver].up(sent[0].clone()).take_up()), [b"a secret"]);
        }
    }
    let versions: Vec<String> = members.iter().map(version).collect();
    assert!(
        versions[0].len() == 32 && versions.iter().all(|version| *version == versions[0]),
        "{versions:?}"
    );
}

/// Facts section 22.3, vector 26.
#[test]
fn messages_of_a_join_carry_the_keys_that_jgroups_sends() {
    let (mut one, mut two) = (new_member(1), new_member(2));
    one.install(view(1, &[1]));
    let request = sent_by(&mut two, 2, vec![join_req(1)]);
    let keys = keys_of(&request[0]);
    assert_eq!((keys.len(), &keys[0].member, keys[0].shared.len()), (1, &member(2), 0));
    assert_eq!((&header_of(&request[0]).version, &header_of(&request[0]).iv), (&None, &None));
    one.up(request[0].clone());
    let next = view(2, &[1, 2]);
    one.install(next.clone());
    let sent = sent_by(&mut one, 1, vec![view_message(&next), join_rsp(2, &next), text("x")]);
    let shared =
        |message: &Message| keys_of(message).iter().map(|keys| keys.shared.len()).collect::<Vec<_>>();
    assert_eq!((shared(&sent[0]), shared(&sent[1])), (vec![0, 0], vec![0, 128]));
    assert_eq!(header_of(&sent[2]).kind, 0);
    // These go in clear.
    for kind in [GmsKind::ViewAck, GmsKind::MergeReq, GmsKind::GetDigestReq, GmsKind::GetDigestRsp] {
        let sent = sent_by(&mut one, 1, vec![gms_message(gms(kind), Some(2), Payload::Empty)]);
        assert!(sent[0].headers.get(ID).is_none(), "{kind:?}");
    }
}

#[test]
fn a_member_without_a_key_sends_only_its_join() {
    let mut two = new_member(2);
    let sent = two.send_batch(vec![join_req(1), text("early"), Message::empty(Some(member(1)))]).take_down();
    assert_eq!(sent.len(), 1);
    assert_eq!(drops(&two, DropReason::UnknownKey), 2);
}

/// S000-91
#[test]
fn each_payload_survives_as_itself() {
    let mut members = group(2);
    let all = [
        Payload::Empty,
        Payload::Bytes(None),
        Payload::Bytes(Some(Bytes::new())),
        Payload::Bytes(Some(vec![7; 16].into())),
        Payload::Bytes(Some(vec![7; 60_000].into())),
        Payload::Nio { direct: false, bytes: None },
        Payload::Nio { direct: true, bytes: Some(Bytes::from_static(b"direct")) },
        Payload::Object(Box::new(Object::Null)),
        object("an object"),
        Payload::Long(-5),
        Payload::Fragment(Bytes::from_static(b"piece")),
    ];
    for payload in all {
        let message = Message::new(Some(member(1)), payload).sent_by(2);
        let sent = sent_by(&mut members[1], 2, vec![message.clone()]);
        assert_eq!(members[0].up(sent[0].clone()).take_up(), [message]);
    }
}

/// S000-57: AUTH, above, refuses it; the reason has to arrive.
#[test]
fn a_refused_joiner_reads_the_reason_and_gets_no_key() {
    let (mut one, mut two) = (new_member(1), new_member(2));
    one.install(view(1, &[1]));
    one.up_batch(sent_by(&mut two, 2, vec![join_req(1)]));
    let rsp = JoinRsp { view: None, digest: None, fail_reason: Some("authentication failed".to_owned()) };
    let payload = Payload::Bytes(Some(wire::encode_join_rsp(&rsp)));
    let sent =
        sent_by(&mut one, 1, vec![gms_message(gms(GmsKind::JoinRsp), Some(2), payload), text("secret")]);
    let received = two.up(sent[0].clone()).take_up();
    assert_eq!(wire::decode_join_rsp(received[0].payload_bytes().unwrap()), Ok(rsp));
    let (ours, theirs) = (version(&one), version(&two));
    assert_ne!(ours, theirs);
    let unicast = sent_by(&mut one, 1, vec![Message::bytes(Some(member(2)), "secret")]);
    assert_eq!(two.up(unicast[0].clone()).take_up(), []);
    // Alone, it makes a key that no other member knows.
    two.install(view(1, &[2]));
    assert_ne!(version(&two), theirs);
}

/// S000-57: the public key of a refused joiner is known, and it is no member.
#[test]
fn views_bring_the_key_to_their_members_only() {
    let mut members = group(2);
    let mut rogue = new_member(5);
    members[0].up_batch(sent_by(&mut rogue, 5, vec![join_req(1)]));
    let next = View::merged(ViewId { creator: member(1), id: 7 }, [member(1), member(2)], []);
    members[0].install(next.clone());
    let id = MergeId { initiator: member(1), id: 1 };
    let header = GmsHeader { merge_id: Some(id), ..gms(GmsKind::InstallMergeView) };
    let install = gms_message(header, Some(2), view_payload(&next));
    for message in [view_message(&next), install] {
        let sent = sent_by(&mut members[0], 1, vec![message]);
        let keys = keys_of(&sent[0]);
        assert!(
            keys.len() == 2 && keys.iter().all(|keys| keys.member != member(5) && !keys.shared.is_empty())
        );
    }
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let error = |change: fn(&mut AsymEncryptConfig)| {
        let mut config = config();
        change(&mut config);
        config.check().unwrap_err()
    };
    for (change, name, text) in [
        ((|c| c.asym_algorithm = "DSA".to_owned()) as fn(&mut AsymEncryptConfig), "asym_algorithm", "DSA"),
        (|c| c.asym_keylength = 512, "asym_keylength", "use 2048"),
        (|c| c.asym_keylength = 16_384, "asym_keylength", "16384"),
        (|c| c.sym_keylength = 64, "sym_keylength", "128, 192, 256"),
        (|c| c.sym_iv_length = 0, "sym_iv_length", "16"),
        (|c| c.sym_algorithm = "DES".to_owned(), "sym_algorithm", "AES"),
        (|c| c.key_map_max_size = 21, "key_map_max_size", "20"),
    ] {
        let (attribute, why) = error(change);
        assert!(attribute == name && why.contains(text), "{attribute}: {why}");
    }
    assert_eq!(
        AsymEncryptConfig { asym_algorithm: "rsa/ECB/PKCS1Padding".to_owned(), ..config() }.check(),
        Ok(())
    );
    assert!(KeyPair::generate(512, &mut *random(1)).is_err());
}

#[test]
fn the_size_of_the_shared_key_is_the_options() {
    for bits in [128, 192, 256] {
        let mut one = member_with(1, AsymEncryptConfig { sym_keylength: bits, ..config() });
        one.install(view(1, &[1]));
        one.up_batch(sent_by(&mut new_member(2), 2, vec![join_req(1)]));
        let next = view(2, &[1, 2]);
        one.install(next.clone());
        let rsp = sent_by(&mut one, 1, vec![join_rsp(2, &next)]);
        let shared = keys_of(&rsp[0]).remove(1).shared;
        assert_eq!(pair(2).decrypt(&mut *random(9), &shared).unwrap().len() as u32 * 8, bits);
    }
}

#[test]
fn equal_random_bytes_give_equal_keys() {
    let make = || KeyPair::generate(1_024, &mut *random(77)).unwrap();
    assert_eq!(make().public(), make().public());
    let shown = format!("{:?}", make());
    assert_eq!(shown, "KeyPair(162 bytes)");
}

/// The result is another key with any padding, so that an attacker learns nothing from it.
#[test]
fn a_wrongly_padded_key_gives_other_bytes_and_no_error() {
    let text = encrypt_for(pair(1).public(), &mut *random(3), &[7; 16]).unwrap();
    assert_eq!(pair(1).decrypt(&mut *random(4), &text).unwrap()[..], [7; 16]);
    let mut wrong = text.to_vec();
    wrong[20] ^= 1;
    let other = pair(1).decrypt(&mut *random(5), &wrong);
    assert_eq!(other, pair(1).decrypt(&mut *random(6), &wrong), "blinding does not change the result");
    assert!(other.is_none_or(|bytes| bytes[..] != [7; 16]));
    assert!(encrypt_for(b"no key", &mut *random(7), &[7; 16]).is_none());
}

#[test]
fn nothing_is_sent_without_random_bytes() {
    struct Exhausted;
    impl RandomBytes for Exhausted {
        fn fill(&mut self, _out: &mut [u8]) -> Result<(), String> {
            Err("no entropy".to_owned())
        }
    }
    assert!(KeyPair::generate(1_024, &mut Exhausted).unwrap_err().contains("no RSA key"));
    let layer = AsymEncrypt::new(config(), pair(1), Box::new(Exhausted)).unwrap();
    let mut one = Harness::new(layer);
    one.install(view(1, &[1]));
    assert_eq!(one.send(text("secret")).take_down(), []);
}

#[test]
fn probe_shows_versions_and_no_key() {
    let mut members = group(2);
    let shown = |member: &Harness, name: &str| member.stack.attribute("ASYM_ENCRYPT", name).unwrap();
    assert_eq!(shown(&members[0], "num_made_keys"), "1");
    assert_eq!(shown(&members[1], "num_received_keys"), "1");
    assert_eq!(shown(&members[1], "num_public_keys"), "2");
    let events = members[1].take_indications();
    assert!(!events.iter().any(|indication| matches!(indication, Indication::Batch(_))));
}
