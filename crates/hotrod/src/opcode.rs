//! Operations and their opcodes (facts section 2.1).

use crate::version::ProtocolVersion;

/// A module of [`ops`](crate::ops).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// One key.
    Map,
    /// Many keys, or the whole cache.
    Bulk,
    /// The server.
    Server,
    /// Tasks and queries.
    Task,
    /// Authentication.
    Auth,
    /// Listeners.
    Listener,
    /// Iterations.
    Iteration,
    /// Values in chunks.
    Stream,
    /// Transactions.
    Transaction,
    /// Counters.
    Counter,
    /// Multimaps.
    Multimap,
}

macro_rules! opcodes {
    ($($name:ident = $request:literal, $response:literal, $text:literal, $family:ident, $since:ident;)+) => {
        /// An operation.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $text] $name = $request,)+
        }

        impl Opcode {
            /// All operations.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Returns the operation of a request opcode.
            pub const fn from_request(byte: u8) -> Option<Self> {
                match byte {
                    $($request => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Returns the response opcode.
            pub const fn response(self) -> u8 {
                match self {
                    $(Self::$name => $response,)+
                }
            }

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// Returns the first version with the operation.
            pub const fn since(self) -> ProtocolVersion {
                match self {
                    $(Self::$name => ProtocolVersion::$since,)+
                }
            }

            /// Returns the family.
            pub const fn family(self) -> Family {
                match self {
                    $(Self::$name => Family::$family,)+
                }
            }
        }
    };
}

opcodes! {
    Put = 0x01, 0x02, "PUT", Map, V2_0;
    Get = 0x03, 0x04, "GET", Map, V2_0;
    PutIfAbsent = 0x05, 0x06, "PUT_IF_ABSENT", Map, V2_0;
    Replace = 0x07, 0x08, "REPLACE", Map, V2_0;
    ReplaceIfUnmodified = 0x09, 0x0A, "REPLACE_IF_UNMODIFIED", Map, V2_0;
    Remove = 0x0B, 0x0C, "REMOVE", Map, V2_0;
    RemoveIfUnmodified = 0x0D, 0x0E, "REMOVE_IF_UNMODIFIED", Map, V2_0;
    ContainsKey = 0x0F, 0x10, "CONTAINS_KEY", Map, V2_0;
    GetWithVersion = 0x11, 0x12, "GET_WITH_VERSION", Map, V2_0;
    Clear = 0x13, 0x14, "CLEAR", Bulk, V2_0;
    Stats = 0x15, 0x16, "STATS", Server, V2_0;
    Ping = 0x17, 0x18, "PING", Server, V2_0;
    BulkGet = 0x19, 0x1A, "BULK_GET", Bulk, V2_0;
    GetWithMetadata = 0x1B, 0x1C, "GET_WITH_METADATA", Map, V2_0;
    BulkGetKeys = 0x1D, 0x1E, "BULK_GET_KEYS", Bulk, V2_0;
    Query = 0x1F, 0x20, "QUERY", Task, V2_0;
    AuthMechList = 0x21, 0x22, "AUTH_MECH_LIST", Auth, V2_0;
    Auth = 0x23, 0x24, "AUTH", Auth, V2_0;
    AddClientListener = 0x25, 0x26, "ADD_CLIENT_LISTENER", Listener, V2_0;
    RemoveClientListener = 0x27, 0x28, "REMOVE_CLIENT_LISTENER", Listener, V2_0;
    Size = 0x29, 0x2A, "SIZE", Bulk, V2_0;
    Exec = 0x2B, 0x2C, "EXEC", Task, V2_1;
    PutAll = 0x2D, 0x2E, "PUT_ALL", Bulk, V2_1;
    GetAll = 0x2F, 0x30, "GET_ALL", Bulk, V2_1;
    IterationStart = 0x31, 0x32, "ITERATION_START", Iteration, V2_3;
    IterationNext = 0x33, 0x34, "ITERATION_NEXT", Iteration, V2_3;
    IterationEnd = 0x35, 0x36, "ITERATION_END", Iteration, V2_3;
    GetStream = 0x37, 0x38, "GET_STREAM", Stream, V2_6;
    PutStream = 0x39, 0x3A, "PUT_STREAM", Stream, V2_6;
    PrepareTx = 0x3B, 0x3C, "PREPARE_TX", Transaction, V2_7;
    CommitTx = 0x3D, 0x3E, "COMMIT_TX", Transaction, V2_7;
    RollbackTx = 0x3F, 0x40, "ROLLBACK_TX", Transaction, V2_7;
    AddBloomListener = 0x41, 0x42, "ADD_BLOOM_FILTER_NEAR_CACHE_LISTENER", Listener, V3_1;
    UpdateBloomFilter = 0x43, 0x44, "UPDATE_BLOOM_FILTER", Listener, V3_1;
    CounterCreate = 0x4B, 0x4C, "COUNTER_CREATE", Counter, V2_7;
    CounterGetConfiguration = 0x4D, 0x4E, "COUNTER_GET_CONFIGURATION", Counter, V2_7;
    CounterIsDefined = 0x4F, 0x51, "COUNTER_IS_DEFINED", Counter, V2_7;
    CounterAddAndGet = 0x52, 0x53, "COUNTER_ADD_AND_GET", Counter, V2_7;
    CounterReset = 0x54, 0x55, "COUNTER_RESET", Counter, V2_7;
    CounterGet = 0x56, 0x57, "COUNTER_GET", Counter, V2_7;
    CounterCas = 0x58, 0x59, "COUNTER_CAS", Counter, V2_7;
    CounterAddListener = 0x5A, 0x5B, "COUNTER_ADD_LISTENER", Counter, V2_7;
    CounterRemoveListener = 0x5C, 0x5D, "COUNTER_REMOVE_LISTENER", Counter, V2_7;
    CounterRemove = 0x5E, 0x5F, "COUNTER_REMOVE", Counter, V2_7;
    CounterGetNames = 0x64, 0x65, "COUNTER_GET_NAMES", Counter, V2_7;
    MultimapGet = 0x67, 0x68, "MULTIMAP_GET", Multimap, V2_7;
    MultimapGetWithMetadata = 0x69, 0x6A, "MULTIMAP_GET_WITH_METADATA", Multimap, V2_7;
    MultimapPut = 0x6B, 0x6C, "MULTIMAP_PUT", Multimap, V2_7;
    MultimapRemoveKey = 0x6D, 0x6E, "MULTIMAP_REMOVE_KEY", Multimap, V2_7;
    MultimapRemoveEntry = 0x6F, 0x70, "MULTIMAP_REMOVE_ENTRY", Multimap, V2_7;
    MultimapSize = 0x71, 0x72, "MULTIMAP_SIZE", Multimap, V2_7;
    MultimapContainsEntry = 0x73, 0x74, "MULTIMAP_CONTAINS_ENTRY", Multimap, V2_7;
    MultimapContainsKey = 0x75, 0x76, "MULTIMAP_CONTAINS_KEY", Multimap, V2_7;
    MultimapContainsValue = 0x77, 0x78, "MULTIMAP_CONTAINS_VALUE", Multimap, V2_7;
    ForgetTx = 0x79, 0x7A, "FORGET_TX", Transaction, V2_9;
    FetchTxRecovery = 0x7B, 0x7C, "FETCH_TX_RECOVERY", Transaction, V2_9;
    PrepareTx2 = 0x7D, 0x7E, "PREPARE_TX_2", Transaction, V2_9;
    CounterGetAndSet = 0x7F, 0x80, "COUNTER_GET_AND_SET", Counter, V3_1;
    EndGetStream = 0xE5, 0xE4, "END_GET_STREAM", Stream, V4_1;
    NextGetStream = 0xE7, 0xE6, "NEXT_GET_STREAM", Stream, V4_1;
    StartGetStream = 0xE9, 0xE8, "START_GET_STREAM", Stream, V4_1;
    EndPutStream = 0xEB, 0xEA, "END_PUT_STREAM", Stream, V4_1;
    NextPutStream = 0xED, 0xEC, "NEXT_PUT_STREAM", Stream, V4_1;
    StartPutStream = 0xEF, 0xEE, "START_PUT_STREAM", Stream, V4_1;
}

impl Opcode {
    /// Returns the request opcode.
    pub const fn request(self) -> u8 {
        self as u8
    }
}

pub(crate) const ERROR: u8 = 0x50;

pub(crate) const EVENTS: std::ops::RangeInclusive<u8> = 0x60..=0x63;

pub(crate) const COUNTER_EVENT: u8 = 0x66;

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts 2.1.
    #[test]
    fn responses_follow_requests_but_for_the_exceptions() {
        for &opcode in Opcode::ALL {
            let expected = match opcode {
                Opcode::CounterIsDefined => 0x51,
                opcode if opcode.request() > 0xE0 => opcode.request() - 1,
                opcode => opcode.request() + 1,
            };
            assert_eq!(opcode.response(), expected, "{}", opcode.name());
            assert_eq!(Opcode::from_request(opcode.request()), Some(opcode));
        }
    }

    #[test]
    fn no_two_operations_share_a_byte() {
        let mut bytes: Vec<_> = Opcode::ALL.iter().map(|opcode| opcode.response()).collect();
        bytes.extend(EVENTS.chain([ERROR, COUNTER_EVENT]));
        bytes.sort_unstable();
        let count = bytes.len();
        bytes.dedup();
        assert_eq!(bytes.len(), count);
    }
}
