use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use consort_group::config::StackConfig;
use consort_group::protocols::registry::{self, Resolver};
use consort_group::protocols::{KeyPair, RandomBytes, SecretKey, SymEncryptConfig};
use consort_group::{Address, PhysAddr, Protocol, Rng, Stack, StackSetup, Time, View};

use crate::backlog::Backlog;
use crate::wakes::Wakes;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Got {
    pub(crate) src: Address,
    /// Several nodes can have had one address, one after the other.
    pub(crate) sender: usize,
    pub(crate) is_multicast: bool,
    pub(crate) number: u64,
    pub(crate) is_whole: bool,
    pub(crate) at: Time,
    /// The views that the receiver had had before.
    pub(crate) nth_view: usize,
}

/// A member that was taken for dead, without the verification by timeouts.
pub(crate) struct CrashProof {
    pub(crate) at: Time,
    pub(crate) name: String,
    /// It lived.
    pub(crate) is_wrong: bool,
}

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) got: Vec<Got>,
    pub(crate) views: Vec<(Time, View)>,
    pub(crate) proofs: Vec<CrashProof>,
    /// The times of each number from 1, by destination (`None` is all).
    pub(crate) sent: BTreeMap<Option<Address>, Vec<Time>>,
}

pub(crate) struct Node {
    pub(crate) name: String,
    /// A node that starts there again has its predecessor's name and physical address.
    pub(crate) place: usize,
    pub(crate) address: Address,
    pub(crate) cluster: &'static str,
    pub(crate) phys: PhysAddr,
    pub(crate) stack: Option<Stack>,
    pub(crate) is_sequenced: bool,
    /// With the number of packets that show a payload nevertheless.
    pub(crate) is_encrypted: bool,
    pub(crate) readable_packets: u64,
    pub(crate) log: Log,
    /// The clock's rate, and its time at the node's start.
    pub(crate) rate: f64,
    pub(crate) born: Time,
    /// The time that the application's clock showed by then.
    pub(crate) beginning: Duration,
    /// All input waits until it resumes.
    pub(crate) is_paused: bool,
    pub(crate) pauses: Vec<(Time, Option<Time>)>,
    pub(crate) waiting: Vec<(PhysAddr, Bytes)>,
    pub(crate) backlog: Backlog,
    pub(crate) slowness: Duration,
    pub(crate) busy_until: Time,
    pub(crate) wakes: Wakes,
    pub(crate) is_leaving: bool,
    pub(crate) ended: Option<Time>,
}

pub(crate) fn phys(place: usize) -> PhysAddr {
    PhysAddr::new([10, 0, (place / 250) as u8, (place % 250) as u8 + 1].into(), 7800)
}

/// Host names lead to the first member, and each key store has the same key.
struct SimulatedHost<'r> {
    rng: &'r mut Rng,
}

impl Resolver for SimulatedHost<'_> {
    fn hosts(&mut self, _name: &str) -> Result<Vec<IpAddr>, String> {
        Ok(phys(0).ip.into_iter().collect())
    }

    fn own(&mut self, selectors: &str) -> Result<IpAddr, String> {
        Err(format!("`{selectors}` is not an IP address"))
    }

    fn secret_key(&mut self, _config: &SymEncryptConfig) -> Result<SecretKey, String> {
        Ok(SecretKey::new("AES", vec![7; 16]))
    }

    fn random_bytes(&mut self) -> Result<Box<dyn RandomBytes>, String> {
        Ok(Box::new(SeededBytes(Rng::new(self.rng.next_u64()))))
    }

    /// Key generation takes longer than a run, so that members of all runs share a few pairs.
    fn key_pair(&mut self, bits: u32) -> Result<KeyPair, String> {
        static PAIRS: OnceLock<Result<Vec<KeyPair>, String>> = OnceLock::new();
        let make = |seed| KeyPair::generate(bits, &mut SeededBytes(Rng::new(seed)));
        let pairs = PAIRS.get_or_init(|| (0..8).map(make).collect()).as_ref().map_err(Clone::clone)?;
        let nth = self.rng.below(pairs.len() as u64) as usize;
        pairs.get(nth).cloned().ok_or_else(|| "there is no key pair".to_owned())
    }
}

/// Initialization vectors that a seed repeats, for simulations only.
struct SeededBytes(Rng);

impl RandomBytes for SeededBytes {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        for chunk in out.chunks_mut(8) {
            let bytes = self.0.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Ok(())
    }
}

pub(crate) fn place_of(phys: PhysAddr) -> Option<usize> {
    match phys.ip? {
        IpAddr::V4(ip) => {
            let [_, _, high, low] = ip.octets();
            Some(usize::from(high) * 250 + usize::from(low).checked_sub(1)?)
        }
        IpAddr::V6(_) => None,
    }
}

impl Node {
    pub(crate) fn new(
        place: usize,
        address: Option<Address>,
        (config, cluster): (&StackConfig, &'static str),
        rng: &mut Rng,
        now: Time,
    ) -> Result<Self, String> {
        let address = address.unwrap_or_else(|| Address::random(rng));
        let name = format!("M{place}");
        let fail = |error: registry::ValueError| error.to_string();
        let nothing = || "an unknown protocol".to_owned();
        let bottom = config.protocols.first().ok_or_else(nothing)?;
        let (transport, version) = registry::transport(bottom).ok_or_else(nothing)?.map_err(fail)?;
        let has_multicast = bottom.short_name() == "UDP";
        let mut layers: Vec<Box<dyn Protocol>> = vec![Box::new(transport)];
        for protocol in &config.protocols[1..] {
            let layer =
                registry::layer(protocol, &mut SimulatedHost { rng }).ok_or_else(nothing)?.map_err(fail)?;
            layers.push(layer);
        }
        let setup = StackSetup {
            local: address.clone(),
            name: name.as_str().into(),
            phys: phys(place),
            has_multicast,
            seed: rng.next_u64(),
            version,
        };
        let stack = Stack::new(setup, layers);
        let backlog = Backlog::for_stack(&stack);
        Ok(Self {
            name,
            place,
            address,
            cluster,
            phys: phys(place),
            stack: Some(stack),
            is_sequenced: config.protocols.iter().any(|protocol| protocol.short_name() == "SEQUENCER"),
            is_encrypted: config.protocols.iter().any(|protocol| protocol.short_name().ends_with("_ENCRYPT")),
            readable_packets: 0,
            log: Log::default(),
            rate: 1.0,
            born: now,
            beginning: Duration::ZERO,
            is_paused: false,
            pauses: Vec::new(),
            waiting: Vec::new(),
            backlog,
            slowness: Duration::ZERO,
            busy_until: now,
            wakes: Wakes::default(),
            is_leaving: false,
            ended: None,
        })
    }

    pub(crate) fn clock(&self, now: Time) -> Time {
        Time((now.since(self.born).as_nanos() as f64 * self.rate) as u64)
    }

    pub(crate) fn application_clock(&self, now: Time) -> Time {
        self.clock(now) + self.beginning
    }

    pub(crate) fn world_time(&self, own: Time) -> Time {
        // One nanosecond more than the division gives, so that the clock has reached it in spite of rounding.
        self.born + Duration::from_nanos((own.0 as f64 / self.rate) as u64 + 1)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.stack.is_some()
    }

    pub(crate) fn views_between(&self, from: Time, until: Time) -> impl Iterator<Item = &View> {
        between(&self.log.views, from, until)
    }

    pub(crate) fn view(&self) -> Option<&View> {
        self.log.views.last().map(|(_, view)| view)
    }
}

pub(crate) fn between<T>(log: &[(Time, T)], from: Time, until: Time) -> impl Iterator<Item = &T> {
    let first = log.partition_point(|(at, _)| *at <= from).saturating_sub(1);
    log[first..].iter().take_while(move |(at, _)| *at <= until).map(|(_, installed)| installed)
}
