//! Diffie-Hellman keys in the groups and encodings that Java uses (facts section 22.4).

use bytes::Bytes;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::protocols::encrypt::RandomBytes;

/// The bytes of a private exponent; the strength of a group of 4,096 bits is less than half of it.
const EXPONENT_BYTES: usize = 32;

/// 1.2.840.113549.1.3.1
const OID: &[u8] = &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 3, 1];

/// A group of RFC 3526; its generator is 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// Java's default up to release 18.
    Bits2048,
    /// Java's default since.
    Bits3072,
    Bits4096,
}

/// The key cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unusable;

impl Group {
    const ALL: [Self; 3] = [Self::Bits2048, Self::Bits3072, Self::Bits4096];

    /// Returns the default of other releases of Java.
    pub(super) const fn other_default(self) -> Self {
        match self {
            Self::Bits2048 => Self::Bits3072,
            Self::Bits3072 | Self::Bits4096 => Self::Bits2048,
        }
    }

    const fn bits(self) -> u32 {
        match self {
            Self::Bits2048 => 2_048,
            Self::Bits3072 => 3_072,
            Self::Bits4096 => 4_096,
        }
    }

    /// The length of an exponent in bits that Java writes into a key.
    const fn exponent_bits(self) -> u16 {
        match self {
            Self::Bits2048 => 224,
            Self::Bits3072 => 256,
            Self::Bits4096 => 304,
        }
    }

    const fn digits(self) -> [&'static str; 3] {
        match self {
            Self::Bits2048 => [IN_ALL, "", END_OF_2048],
            Self::Bits3072 => [IN_ALL, IN_3072_AND_4096, END_OF_3072],
            Self::Bits4096 => [IN_ALL, IN_3072_AND_4096, END_OF_4096],
        }
    }

    fn prime(self) -> Vec<u8> {
        let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
        self.digits()
            .concat()
            .as_bytes()
            .chunks_exact(2)
            .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
            .collect()
    }

    fn params(self) -> Result<BoxedMontyParams, Unusable> {
        let prime = BoxedUint::from_be_slice(&self.prime(), self.bits()).map_err(|_| Unusable)?;
        Ok(BoxedMontyParams::new(Odd::new(prime).into_option().ok_or(Unusable)?))
    }

    /// The time does not depend on the exponent.
    fn power(self, base: &[u8], exponent: &[u8]) -> Result<Zeroizing<Vec<u8>>, Unusable> {
        let base = BoxedUint::from_be_slice(base, self.bits()).map_err(|_| Unusable)?;
        let exponent = BoxedUint::from_be_slice(exponent, EXPONENT_BYTES as u32 * 8).map_err(|_| Unusable)?;
        let power = BoxedMontyForm::new(base, &self.params()?).pow(&exponent).retrieve();
        Ok(Zeroizing::new(power.to_be_bytes().into_vec()))
    }
}

/// A private key; its memory is cleared.
pub(super) struct DhPair {
    group: Group,
    exponent: Zeroizing<Vec<u8>>,
    public: Bytes,
}

impl DhPair {
    pub(super) fn generate(group: Group, random: &mut dyn RandomBytes) -> Result<Self, String> {
        let mut exponent = Zeroizing::new(vec![0; EXPONENT_BYTES]);
        random.fill(&mut exponent)?;
        let public = group.power(&[2], &exponent).map_err(|Unusable| "no key can be made".to_owned())?;
        Ok(Self { group, exponent, public: encode(group, &public) })
    }

    pub(super) const fn group(&self) -> Group {
        self.group
    }

    /// Returns the encoded public key, an X.509 SubjectPublicKeyInfo.
    pub(super) const fn public(&self) -> &Bytes {
        &self.public
    }

    /// Returns the SHA-256 of the secret that this key has with another public key of its group.
    pub(super) fn session_key(&self, public: &PublicKey) -> Result<Zeroizing<Vec<u8>>, Unusable> {
        if public.group != self.group {
            return Err(Unusable);
        }
        let secret = self.group.power(&public.value, &self.exponent)?;
        Ok(Zeroizing::new(Sha256::digest(&secret).to_vec()))
    }
}

/// Another member's key.
pub(super) struct PublicKey {
    pub(super) group: Group,
    value: Vec<u8>,
}

impl PublicKey {
    /// Keys of other groups are refused: the sender could choose one in which logarithms are easy.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unusable> {
        let (info, rest) = element(bytes, 0x30)?;
        let (algorithm, info) = element(info, 0x30)?;
        let (key, end) = element(info, 3)?;
        let parameters = algorithm.strip_prefix(OID).ok_or(Unusable)?;
        let (parameters, after) = element(parameters, 0x30)?;
        let (prime, parameters) = element(parameters, 2)?;
        let (generator, _) = element(parameters, 2)?;
        let (value, tail) = element(key.strip_prefix(&[0]).ok_or(Unusable)?, 2)?;
        if !(rest.is_empty() && end.is_empty() && after.is_empty() && tail.is_empty()) || generator != [2] {
            return Err(Unusable);
        }
        let prime = without_zeros(prime);
        let group = Group::ALL.into_iter().find(|group| group.prime() == prime).ok_or(Unusable)?;
        let value = without_zeros(value).to_vec();
        let number = BoxedUint::from_be_slice(&value, group.bits()).map_err(|_| Unusable)?;
        let mut last = group.prime();
        // The prime is odd: this is the prime less 1. It and 1 would make a known secret.
        if let Some(byte) = last.last_mut() {
            *byte -= 1;
        }
        let is_trivial =
            bool::from(number.is_zero()) || value == [1] || value >= last && value.len() == last.len();
        if is_trivial { Err(Unusable) } else { Ok(Self { group, value }) }
    }
}

/// Any number of zeros may stand before a number: compared with them, 1 would not be 1.
fn without_zeros(bytes: &[u8]) -> &[u8] {
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    &bytes[first..]
}

/// Returns the content of a DER element, and the bytes behind it. Lengths have at most two bytes.
fn element(bytes: &[u8], tag: u8) -> Result<(&[u8], &[u8]), Unusable> {
    let (length, rest) = match *bytes {
        [own, length @ 0..=0x7f, ref rest @ ..] if own == tag => (usize::from(length), rest),
        [own, 0x81, length, ref rest @ ..] if own == tag => (usize::from(length), rest),
        [own, 0x82, high, low, ref rest @ ..] if own == tag => {
            (usize::from(u16::from_be_bytes([high, low])), rest)
        }
        _ => return Err(Unusable),
    };
    rest.split_at_checked(length).ok_or(Unusable)
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u16;
    let header = match length {
        0..=0x7f => vec![tag, length as u8],
        0x80..=0xff => vec![tag, 0x81, length as u8],
        _ => [&[tag, 0x82][..], &length.to_be_bytes()].concat(),
    };
    [&header[..], content].concat()
}

/// A positive number has no sign bit.
fn number(bytes: &[u8]) -> Vec<u8> {
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len().saturating_sub(1));
    let digits = &bytes[first..];
    let sign: &[u8] = if digits.first().is_some_and(|byte| *byte >= 0x80) { &[0] } else { &[] };
    tagged(2, &[sign, digits].concat())
}

fn encode(group: Group, public: &[u8]) -> Bytes {
    encoded(group, &number(public))
}

fn encoded(group: Group, public: &[u8]) -> Bytes {
    let length = number(&group.exponent_bits().to_be_bytes());
    let parameters = tagged(0x30, &[number(&group.prime()), number(&[2]), length].concat());
    let algorithm = tagged(0x30, &[OID, &parameters].concat());
    let key = tagged(3, &[&[0], public].concat());
    tagged(0x30, &[algorithm, key].concat()).into()
}

/// RFC 3526: the primes have the digits of pi behind the first 64 bits, so that each begins as the next one.
const IN_ALL: &str = "ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e\
     3404ddef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7edee386bfb\
     5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da48361c55d39a69163fa8fd24cf5f83655d23dca3ad961c62f3\
     56208552bb9ed529077096966d670c354e4abc9804f1746c08ca18217c32905e462e36ce3be39e772c180e86039b2783a2ec07a28fb5c5\
     5df06f4c52c9de2bcbf6955817183995497cea956ae515d2261898fa051015728e5a8aa";
const IN_3072_AND_4096: &str = "ac42dad33170d04507a33a85521abdf1cba64ecfb850458dbef0a8aea71575d060c7db3970f85a6e1e4c7abf5a\
     e8cdb0933d71e8c94e04a25619dcee3d2261ad2ee6bf12ffa06d98a0864d87602733ec86a64521f2b18177b200cbbe117577a615d6c770\
     988c0bad946e208e24fa074e5ab3143db5bfce0fd108e4b82d120a9";
const END_OF_2048: &str = "caa68ffffffffffffffff";
const END_OF_3072: &str = "3ad2caffffffffffffffff";
const END_OF_4096: &str = "2108011a723c12a787e6d788719a10bdba5b2699c327186af4e23c1a946834b6150bda2583e9ca2ad44ce8dbbb\
     c2db04de8ef92e8efc141fbecaa6287c59474e6bc05d99b2964fa090c3a2233ba186515be7ed1f612970cee2d7afb81bdd762170481cd0\
     069127d5b05aa993b4ea988d8fddc186ffb7dc90a6c08f4df435c934063199ffffffffffffffff";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::encrypt::tests::Counting;

    #[test]
    fn keys_of_all_groups_survive_and_agree() {
        for group in Group::ALL {
            let (one, two) = (
                DhPair::generate(group, &mut Counting(1)).unwrap(),
                DhPair::generate(group, &mut Counting(99)).unwrap(),
            );
            let (of_one, of_two) =
                (PublicKey::decode(one.public()).unwrap(), PublicKey::decode(two.public()).unwrap());
            assert_eq!((of_one.group, one.group()), (group, group));
            assert_eq!(one.session_key(&of_two).unwrap(), two.session_key(&of_one).unwrap());
            assert_ne!(one.session_key(&of_two).unwrap(), one.session_key(&of_one).unwrap());
        }
    }

    #[test]
    fn primes_are_those_of_rfc_3526() {
        let hashes = [
            "d66436f79bbd6b2e38c0ffbd079be904d2641415e2e67140e09448be9a60890e",
            "48cf8b092fbce4359d9871abf74f98e25b6163379eaa15cd9087e800c6d1c55c",
            "4ee95187682bcb230ad26a95205f6920e84708f6251b3894329b09ec23919e33",
        ];
        for (group, wanted) in Group::ALL.into_iter().zip(hashes) {
            let hash = Sha256::digest(group.prime());
            assert_eq!(hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), wanted);
        }
    }

    #[test]
    fn encoded_key_begins_as_javas() {
        let pair = DhPair::generate(Group::Bits2048, &mut Counting(1)).unwrap();
        let start = [
            0x30, 0x82, 0x02, 0x29, 0x30, 0x82, 0x01, 0x1b, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 3, 1,
        ];
        // A number without the highest bit is a byte shorter.
        assert!(matches!(pair.public().len(), 556..=557), "{}", pair.public().len());
        assert_eq!(pair.public()[4..19], start[4..]);
    }

    #[test]
    fn trivial_and_foreign_keys_are_unusable() {
        let group = Group::Bits2048;
        let mut last = group.prime();
        *last.last_mut().unwrap() -= 1;
        for value in [vec![0], vec![1], last, group.prime()] {
            assert!(PublicKey::decode(&encode(group, &value)).is_err());
            assert!(PublicKey::decode(&encoded(group, &tagged(2, &[&[0, 0], &value[..]].concat()))).is_err());
        }
        assert!(PublicKey::decode(&encode(group, &[3])).is_ok());
        let usual = encode(group, &[3]);
        for cut in 0..usual.len() {
            assert!(PublicKey::decode(&usual[..cut]).is_err(), "{cut}");
        }
        let mut other_prime = usual.to_vec();
        other_prime[100] ^= 1;
        assert!(PublicKey::decode(&other_prime).is_err());
        let (one, other) = (
            DhPair::generate(group, &mut Counting(1)).unwrap(),
            PublicKey::decode(&encode(Group::Bits3072, &[3])).unwrap(),
        );
        assert_eq!(one.session_key(&other).err(), Some(Unusable));
    }
}
