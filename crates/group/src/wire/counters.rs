//! The payloads of COUNTER (facts section 24.4).

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{put_address, read_present};
use super::primitives::{Reader, Result, WireError, bad, put_compressed_long, put_string};
use crate::Address;

/// The most counters of a RECONCILE message; a message with more is refused.
pub const RECONCILED_COUNTERS_MAX: usize = 10_000;

/// The fewest bytes of a counter in a RECONCILE message: an empty name, and two zeros.
const ROW_BYTES_MIN: usize = 5;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// A request's member and number, which its response repeats.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CounterOwner {
    /// The member that sent the request.
    pub member: Address,
    /// The number, unique at this member.
    pub request_id: i64,
}

/// An operation on a counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CounterOperation {
    /// 0: creates the counter with this value if it is absent.
    GetOrCreate(i64),
    /// 1: removes the counter. There is no response.
    Delete,
    /// 2: sets this value.
    Set(i64),
    /// 3: sets a value if the present one is as expected, and returns the previous one.
    CompareAndSet {
        /// The expected value.
        expected: i64,
        /// The new value.
        update: i64,
    },
    /// 4: adds this number and returns the new value. Zero reads the value.
    AddAndGet(i64),
    /// 8: calls a function of Java, which these bytes hold.
    UpdateFunction(Bytes),
}

/// A counter's name, value and version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterRow {
    /// The name.
    pub name: String,
    /// The value.
    pub value: i64,
    /// The version, which grows with each change.
    pub version: i64,
}

/// A message of COUNTER.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CounterMessage {
    /// A request to the coordinator.
    Operation {
        /// The request's owner.
        owner: CounterOwner,
        /// The counter's name.
        name: String,
        /// The operation.
        operation: CounterOperation,
    },
    /// Request 5: the coordinator sends a counter to its backups.
    Update(CounterRow),
    /// Request 6: a new coordinator has these counters, and asks for others and for newer versions.
    Reconcile(Vec<CounterRow>),
    /// Request 7: a new coordinator asks for the requests that have no response yet.
    ResendPending,
    /// Response 0.
    Value {
        /// The request's owner.
        owner: CounterOwner,
        /// The result: the new value, or the previous one of [`CounterOperation::CompareAndSet`].
        value: i64,
        /// The counter's version after the operation.
        version: i64,
    },
    /// Response 1: the operation failed.
    Exception {
        /// The request's owner.
        owner: CounterOwner,
        /// The reason.
        text: String,
    },
    /// Response 2: counters that the asking coordinator lacks, or has in an older version.
    Reconciled(Vec<CounterRow>),
    /// Response 3: the result of a function of Java.
    FunctionResult {
        /// The request's owner.
        owner: CounterOwner,
        /// The result.
        result: Bytes,
    },
}

fn put_rows(out: &mut BytesMut, rows: &[CounterRow]) {
    out.put_i32(rows.len() as i32);
    rows.iter().for_each(|row| put_string(out, Some(&row.name)));
    rows.iter().for_each(|row| put_compressed_long(out, row.value));
    rows.iter().for_each(|row| put_compressed_long(out, row.version));
}

fn put_owner(out: &mut BytesMut, owner: &CounterOwner) {
    put_address(out, Some(&owner.member));
    put_compressed_long(out, owner.request_id);
}

/// Encodes the payload of a message of COUNTER.
pub fn encode_counter(message: &CounterMessage) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    let mut begin = |kind: u8, number: u8| out.put_slice(&[kind, number]);
    match message {
        CounterMessage::Operation { owner, name, operation } => {
            begin(
                REQUEST,
                match operation {
                    CounterOperation::GetOrCreate(_) => 0,
                    CounterOperation::Delete => 1,
                    CounterOperation::Set(_) => 2,
                    CounterOperation::CompareAndSet { .. } => 3,
                    CounterOperation::AddAndGet(_) => 4,
                    CounterOperation::UpdateFunction(_) => 8,
                },
            );
            put_owner(&mut out, owner);
            put_string(&mut out, Some(name));
            match operation {
                CounterOperation::Delete => {}
                CounterOperation::GetOrCreate(value)
                | CounterOperation::Set(value)
                | CounterOperation::AddAndGet(value) => put_compressed_long(&mut out, *value),
                CounterOperation::CompareAndSet { expected, update } => {
                    put_compressed_long(&mut out, *expected);
                    put_compressed_long(&mut out, *update);
                }
                CounterOperation::UpdateFunction(function) => out.put_slice(function),
            }
        }
        CounterMessage::Update(row) => {
            begin(REQUEST, 5);
            put_string(&mut out, Some(&row.name));
            put_compressed_long(&mut out, row.value);
            put_compressed_long(&mut out, row.version);
        }
        CounterMessage::Reconcile(rows) => {
            begin(REQUEST, 6);
            put_rows(&mut out, rows);
        }
        CounterMessage::ResendPending => begin(REQUEST, 7),
        CounterMessage::Value { owner, value, version } => {
            begin(RESPONSE, 0);
            put_owner(&mut out, owner);
            put_compressed_long(&mut out, *value);
            put_compressed_long(&mut out, *version);
        }
        CounterMessage::Exception { owner, text } => {
            begin(RESPONSE, 1);
            put_owner(&mut out, owner);
            put_string(&mut out, Some(text));
        }
        CounterMessage::Reconciled(rows) => {
            begin(RESPONSE, 2);
            put_rows(&mut out, rows);
        }
        CounterMessage::FunctionResult { owner, result } => {
            begin(RESPONSE, 3);
            put_owner(&mut out, owner);
            out.put_slice(result);
        }
    }
    out.freeze()
}

fn read_name(reader: &mut Reader<'_>, what: &'static str) -> Result<String> {
    reader.string(what)?.ok_or_else(|| bad(what, 0))
}

fn read_owner(reader: &mut Reader<'_>) -> Result<CounterOwner> {
    let member = read_present(reader, "owner of a request")?;
    Ok(CounterOwner { member, request_id: reader.compressed_long("number of a request")? })
}

fn read_row(reader: &mut Reader<'_>) -> Result<CounterRow> {
    Ok(CounterRow {
        name: read_name(reader, "counter's name")?,
        value: reader.compressed_long("counter's value")?,
        version: reader.compressed_long("counter's version")?,
    })
}

fn read_rows(reader: &mut Reader<'_>) -> Result<Vec<CounterRow>> {
    let count = reader.count("number of counters", ROW_BYTES_MIN)?;
    if count > RECONCILED_COUNTERS_MAX {
        return Err(WireError::BadValue { what: "number of counters", value: count as i64 });
    }
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        rows.push(CounterRow { name: read_name(reader, "counter's name")?, value: 0, version: 0 });
    }
    for row in &mut rows {
        row.value = reader.compressed_long("counter's value")?;
    }
    for row in &mut rows {
        row.version = reader.compressed_long("counter's version")?;
    }
    Ok(rows)
}

fn read_request(reader: &mut Reader<'_>) -> Result<CounterMessage> {
    let number = reader.u8("type of a request of COUNTER")?;
    match number {
        5 => return read_row(reader).map(CounterMessage::Update),
        6 => return read_rows(reader).map(CounterMessage::Reconcile),
        7 => return Ok(CounterMessage::ResendPending),
        0..=4 | 8 => {}
        _ => return Err(bad("type of a request of COUNTER", number)),
    }
    let owner = read_owner(reader)?;
    let name = read_name(reader, "counter's name")?;
    let operation = match number {
        1 => CounterOperation::Delete,
        3 => CounterOperation::CompareAndSet {
            expected: reader.compressed_long("expected value")?,
            update: reader.compressed_long("new value")?,
        },
        8 => CounterOperation::UpdateFunction(reader.bytes("function", reader.left())?),
        _ => {
            let value = reader.compressed_long("value")?;
            match number {
                0 => CounterOperation::GetOrCreate(value),
                2 => CounterOperation::Set(value),
                _ => CounterOperation::AddAndGet(value),
            }
        }
    };
    Ok(CounterMessage::Operation { owner, name, operation })
}

fn read_response(reader: &mut Reader<'_>) -> Result<CounterMessage> {
    let number = reader.u8("type of a response of COUNTER")?;
    if number == 2 {
        return read_rows(reader).map(CounterMessage::Reconciled);
    }
    if number > 3 {
        return Err(bad("type of a response of COUNTER", number));
    }
    let owner = read_owner(reader)?;
    Ok(match number {
        0 => CounterMessage::Value {
            owner,
            value: reader.compressed_long("counter's value")?,
            version: reader.compressed_long("counter's version")?,
        },
        1 => CounterMessage::Exception {
            owner,
            text: reader.string("reason of a failure")?.unwrap_or_default(),
        },
        _ => CounterMessage::FunctionResult { owner, result: reader.bytes("result", reader.left())? },
    })
}

/// Decodes [`encode_counter`]'s output.
///
/// # Errors
///
/// If the bytes are invalid, or [`RECONCILED_COUNTERS_MAX`] is exceeded.
pub fn decode_counter(bytes: &Bytes) -> Result<CounterMessage> {
    let mut reader = Reader::new(bytes);
    let message = match reader.u8("kind of a message of COUNTER")? {
        REQUEST => read_request(&mut reader)?,
        RESPONSE => read_response(&mut reader)?,
        kind => return Err(bad("kind of a message of COUNTER", kind)),
    };
    reader.end()?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::lines;
    use crate::wire::{Packet, decode_packet};
    use crate::{Message, ProtocolId, Rng, Uuid};

    fn a_and_b() -> [Address; 2] {
        [(0x0102_0304_0506_0708, 0x1112_1314_1516_1718), (0x2122_2324_2526_2728, 0x3132_3334_3536_3738)]
            .map(|(most, least)| Address::Uuid(Uuid { most, least }))
    }

    /// The messages of COUNTER in the captured session, with their senders.
    fn captured() -> Vec<(Option<Address>, Bytes)> {
        let mut all = Vec::new();
        for (_, bytes, _) in lines("30-session-auth-frag4-statesock-counter") {
            let (src, messages): (Option<Address>, Vec<Message>) = match decode_packet(&bytes, &[]).unwrap() {
                Packet::Single { message, .. } => (message.src.clone(), vec![message]),
                Packet::List { src, messages, .. } => (src, messages),
            };
            for message in messages {
                if message.headers.get(ProtocolId::COUNTER).is_some() {
                    all.push((src.clone(), message.payload_bytes().unwrap().clone()));
                }
            }
        }
        all
    }

    #[test]
    fn captured_session_decodes_and_encodes_back() {
        let [a, b] = a_and_b();
        let operation = |request_id, operation| CounterMessage::Operation {
            owner: CounterOwner { member: b.clone(), request_id },
            name: "cnt".to_owned(),
            operation,
        };
        let value = |request_id, value, version| CounterMessage::Value {
            owner: CounterOwner { member: b.clone(), request_id },
            value,
            version,
        };
        let update =
            |value, version| CounterMessage::Update(CounterRow { name: "cnt".to_owned(), value, version });
        let expected = [
            (&b, operation(1, CounterOperation::GetOrCreate(1))),
            (&a, value(1, 1, 1)),
            (&a, update(1, 1)),
            (&b, operation(2, CounterOperation::AddAndGet(5))),
            (&a, value(2, 6, 2)),
            (&a, update(6, 2)),
            (&b, operation(3, CounterOperation::CompareAndSet { expected: 6, update: 9 })),
            // JGroups' response has the previous value and the new version.
            (&a, value(3, 6, 3)),
            (&a, update(9, 3)),
            (&b, operation(4, CounterOperation::AddAndGet(0))),
            (&a, value(4, 9, 3)),
            (&b, operation(5, CounterOperation::Delete)),
        ];
        let captured = captured();
        assert_eq!(captured.len(), expected.len());
        for ((src, bytes), (sender, message)) in captured.into_iter().zip(expected) {
            assert_eq!((src.as_ref(), decode_counter(&bytes).as_ref()), (Some(sender), Ok(&message)));
            assert_eq!(encode_counter(&message), bytes);
        }
    }

    fn rows(count: usize) -> Vec<CounterRow> {
        let row =
            |nth: usize| CounterRow { name: format!("n{nth}"), value: -(nth as i64), version: nth as i64 };
        (0..count).map(row).collect()
    }

    /// JGroups' order: all names, all values, all versions.
    #[test]
    fn reconciliation_has_names_values_and_versions_one_after_the_other() {
        let bytes = encode_counter(&CounterMessage::Reconcile(rows(2)));
        let expected: &[u8] = &[
            1, 6, 0, 0, 0, 2, 1, 0, 2, b'n', b'0', 1, 0, 2, b'n', b'1', 0, 8, 255, 255, 255, 255, 255, 255,
            255, 255, 0, 1, 1,
        ];
        assert_eq!(&bytes[..], expected);
        let response = encode_counter(&CounterMessage::Reconciled(rows(2)));
        assert_eq!((&response[..2], &response[2..]), (&[2, 2][..], &expected[2..]));
        assert_eq!(&encode_counter(&CounterMessage::ResendPending)[..], [1, 7]);
    }

    #[test]
    fn messages_of_all_types_survive_and_not_if_they_are_cut() {
        let owner = CounterOwner { member: a_and_b()[0].clone(), request_id: i64::MIN };
        let operation = |operation| CounterMessage::Operation {
            owner: owner.clone(),
            name: "Zähler\0😀".to_owned(),
            operation,
        };
        let all = [
            operation(CounterOperation::GetOrCreate(i64::MIN)),
            operation(CounterOperation::Delete),
            operation(CounterOperation::Set(-1)),
            operation(CounterOperation::CompareAndSet { expected: i64::MAX, update: 0 }),
            operation(CounterOperation::AddAndGet(256)),
            CounterMessage::Update(rows(2).remove(1)),
            CounterMessage::Reconcile(rows(0)),
            CounterMessage::Reconcile(rows(300)),
            CounterMessage::ResendPending,
            CounterMessage::Value { owner: owner.clone(), value: -7, version: 300 },
            CounterMessage::Exception { owner: owner.clone(), text: "counter \"x\" not found".to_owned() },
            CounterMessage::Reconciled(rows(3)),
        ];
        for message in all {
            let bytes = encode_counter(&message);
            assert_eq!(decode_counter(&bytes), Ok(message));
            for end in 0..bytes.len() {
                assert!(decode_counter(&bytes.slice(..end)).is_err(), "{bytes:?} cut at {end}");
            }
            let longer = Bytes::from([&bytes[..], &[0]].concat());
            assert_eq!(decode_counter(&longer), Err(WireError::Trailing(1)));
        }
        let function = Bytes::from_static(b"object of Java");
        for message in [
            operation(CounterOperation::UpdateFunction(function.clone())),
            CounterMessage::FunctionResult { owner: owner.clone(), result: function },
        ] {
            assert_eq!(decode_counter(&encode_counter(&message)), Ok(message));
        }
    }

    #[test]
    fn number_of_counters_beyond_the_limit_is_refused() {
        let decoded = |count| decode_counter(&encode_counter(&CounterMessage::Reconciled(rows(count))));
        assert!(decoded(RECONCILED_COUNTERS_MAX).is_ok());
        let refused = WireError::BadValue { what: "number of counters", value: 10_001 };
        assert_eq!(decoded(RECONCILED_COUNTERS_MAX + 1), Err(refused));
        // The announced number needs more bytes than there are.
        let bytes = Bytes::from_static(&[1, 6, 0, 0, 0x27, 0x10, 1, 0, 0]);
        assert!(matches!(decode_counter(&bytes), Err(WireError::Truncated { .. })));
    }

    /// A decoded message survives being written and read, whatever a peer has sent.
    #[test]
    fn mutated_messages_are_refused_or_survive() {
        let mut rng = Rng::new(24);
        let mut inputs: Vec<Bytes> = captured().into_iter().map(|(_, bytes)| bytes).collect();
        inputs.extend([1, 6].map(|number| {
            let rows = rows(number);
            encode_counter(&if number == 1 {
                CounterMessage::Reconciled(rows)
            } else {
                CounterMessage::Reconcile(rows)
            })
        }));
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut bytes = inputs[rng.below(inputs.len() as u64) as usize].to_vec();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(bytes.len() - rng.below(3) as usize);
            if let Ok(message) = decode_counter(&bytes.into()) {
                assert_eq!(decode_counter(&encode_counter(&message)), Ok(message));
                accepted += 1;
            }
        }
        assert!(accepted > 1_000, "{accepted}");
    }

    #[test]
    fn unknown_types_and_absent_names_are_refused() {
        for bytes in [&[0, 0][..], &[3, 0], &[1, 9], &[2, 4], &[1, 5, 0, 0, 0], &[1, 0, 1, 0]] {
            let error = decode_counter(&Bytes::copy_from_slice(bytes)).unwrap_err();
            assert!(matches!(error, WireError::BadValue { .. }), "{bytes:?}: {error}");
        }
    }
}
