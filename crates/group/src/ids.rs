//! The numbers of protocols and headers on the wire.

use std::fmt;

/// A protocol's id, which keys its header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProtocolId(pub i16);

/// The id of a class in JGroups' magic map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MagicId(pub i16);

macro_rules! protocol_ids {
    ($($id:ident = $number:literal $name:literal),+ $(,)?) => {
        #[allow(missing_docs)]
        impl ProtocolId {
            $(pub const $id: Self = Self($number);)+

            /// Returns a known id's name.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($name),)+
                    _ => None,
                }
            }
        }
    };
}

protocol_ids! {
    FD_SOCK = 2 "FD_SOCK", FRAG = 3 "FRAG", FRAG2 = 4 "FRAG2", PING = 5 "PING", MPING = 6 "MPING",
    FILE_PING = 8 "FILE_PING", TCPPING = 9 "TCPPING", TCPGOSSIP = 10 "TCPGOSSIP",
    VERIFY_SUSPECT = 11 "VERIFY_SUSPECT", GMS = 12 "GMS", STABLE = 13 "STABLE",
    STATE_TRANSFER = 14 "STATE_TRANSFER", COMPRESS = 15 "COMPRESS", UDP = 16 "UDP", TCP = 17 "TCP",
    TUNNEL = 18 "TUNNEL", SEQUENCER = 19 "SEQUENCER", FD_ALL = 20 "FD_ALL", FD_ALL2 = 21 "FD_ALL2",
    AUTH = 23 "AUTH", STATE = 24 "STATE", STATE_SOCK = 25 "STATE_SOCK", DISCARD = 26 "DISCARD",
    SHARED_LOOPBACK = 27 "SHARED_LOOPBACK", DAISYCHAIN = 28 "DAISYCHAIN", MFC = 30 "MFC", UFC = 31 "UFC",
    JDBC_PING = 32 "JDBC_PING", STOMP = 33 "STOMP", BPING = 34 "BPING", COUNTER = 37 "COUNTER",
    MERGE3 = 38 "MERGE3", RSVP = 39 "RSVP", RACKSPACE_PING = 40 "RACKSPACE_PING", NAKACK2 = 41 "NAKACK2",
    SWIFT_PING = 43 "SWIFT_PING", RELAY2 = 44 "RELAY2", RELAY3 = 45 "RELAY3", PDC = 46 "PDC",
    UNICAST3 = 48 "UNICAST3", PERF = 49 "PERF", SHARED_LOOPBACK_PING = 50 "SHARED_LOOPBACK_PING",
    SEQUENCER2 = 53 "SEQUENCER2", FD_HOST = 54 "FD_HOST", TCP_NIO2 = 56 "TCP_NIO2", TP = 57 "TP",
    SYM_ENCRYPT = 58 "SYM_ENCRYPT", ASYM_ENCRYPT = 59 "ASYM_ENCRYPT", DNS_PING = 61 "DNS_PING",
    FRAG3 = 62 "FRAG3", UFC_NB = 63 "UFC_NB", MFC_NB = 64 "MFC_NB", DH_KEY_EXCHANGE = 65 "DH_KEY_EXCHANGE",
    LOCAL_PING = 68 "LOCAL_PING", FRAG4 = 69 "FRAG4", FD_ALL3 = 70 "FD_ALL3", FD_SOCK2 = 71 "FD_SOCK2",
    VERIFY_SUSPECT2 = 72 "VERIFY_SUSPECT2", BATCH2 = 74 "BATCH2", JDBC_PING2 = 75 "JDBC_PING2",
    NAKACK3 = 76 "NAKACK3", NAKACK4 = 77 "NAKACK4", UNICAST4 = 78 "UNICAST4",
    REQUEST_CORRELATOR = 200 "RequestCorrelator", MPERF = 202 "MPerf", FORK = 203 "FORK",
    KUBE_PING = 2017 "KUBE_PING", S3_PING = 790 "S3_PING",
}

impl ProtocolId {
    /// The first id of protocols above the stack, such as RPC (`Global.BLOCKS_START_ID`).
    pub const FIRST_OF_APPLICATIONS: i16 = 200;
}

#[allow(missing_docs)]
impl MagicId {
    pub const IP_ADDRESS: Self = Self(1);
    pub const BYTES_MESSAGE: Self = Self(3);
    pub const VIEW: Self = Self(4);
    pub const VIEW_ID: Self = Self(5);
    pub const MERGE_VIEW: Self = Self(6);
    pub const PING_DATA: Self = Self(7);
    pub const JOIN_RSP: Self = Self(8);
    pub const DIGEST: Self = Self(9);
    pub const MUTABLE_DIGEST: Self = Self(10);
    pub const UUID: Self = Self(11);
    pub const EXTENDED_UUID: Self = Self(12);
    pub const SITE_UUID: Self = Self(13);
    pub const SITE_MASTER: Self = Self(14);
    pub const SEQNO_LIST: Self = Self(15);
    pub const FIXED_MEMBERSHIP_TOKEN: Self = Self(16);
    pub const X509_TOKEN: Self = Self(17);
    pub const METHOD_CALL: Self = Self(18);
    pub const FLAGS_UUID: Self = Self(19);
    pub const OBJECT_WRAPPER_SERIALIZABLE: Self = Self(20);
    pub const OBJECT_WRAPPER_PRIMITIVE: Self = Self(21);
    pub const MILLIS_ADDRESS: Self = Self(22);

    /// Classes of JGroups' performance tests, which register them as applications do.
    pub const PERF_GET_CALL: Self = Self(1040);
    pub const PERF_PUT_CALL: Self = Self(1041);
    pub const PERF_RESULTS: Self = Self(1042);
    pub const PERF_CONFIG: Self = Self(1043);

    pub const FD_SOCK: Self = Self(51);
    pub const FRAG: Self = Self(52);
    pub const PING: Self = Self(53);
    pub const VERIFY_SUSPECT: Self = Self(54);
    pub const GMS: Self = Self(55);
    pub const STABLE: Self = Self(56);
    pub const STATE_TRANSFER: Self = Self(57);
    pub const COMPRESS: Self = Self(58);
    pub const FC: Self = Self(59);
    pub const TP: Self = Self(60);
    pub const SEQUENCER: Self = Self(61);
    pub const HEARTBEAT: Self = Self(62);
    pub const STATE: Self = Self(65);
    pub const AUTH: Self = Self(66);
    pub const RPC: Self = Self(67);
    pub const RPC_MULTI_DESTINATION: Self = Self(68);
    pub const DAISY: Self = Self(69);
    pub const COUNTER: Self = Self(74);
    pub const MERGE3: Self = Self(75);
    pub const RSVP: Self = Self(76);
    pub const NAKACK2: Self = Self(78);
    pub const RELAY: Self = Self(80);
    pub const UNICAST3: Self = Self(82);
    pub const FORK: Self = Self(83);
    pub const PERF: Self = Self(84);
    pub const SEQUENCER2: Self = Self(86);
    pub const ENCRYPT: Self = Self(88);
    pub const FRAG3: Self = Self(91);
    pub const DH: Self = Self(92);
    pub const FD_SOCK2: Self = Self(93);
    pub const VERIFY_SUSPECT2: Self = Self(94);
    pub const BATCH2: Self = Self(96);
    pub const NAKACK4: Self = Self(99);
    pub const UNICAST4: Self = Self(100);
    pub const INFO: Self = Self(101);
}

impl fmt::Display for ProtocolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "protocol {}", self.0),
        }
    }
}

impl fmt::Debug for ProtocolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for MagicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "magic {}", self.0)
    }
}
