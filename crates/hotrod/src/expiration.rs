//! The expiration of an entry (facts section 1.7).

use std::time::Duration;

use crate::error::Result;
use crate::header::Flags;
use crate::layout::{Field, Fields, RequestContext};
use crate::output::Output;
use crate::reader::Reader;
use crate::version::ProtocolVersion;

/// Before 3.0, longer spans are times since 1970.
const ABSOLUTE_FROM: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Minutes.
    Minutes,
    /// Hours.
    Hours,
    /// Days.
    Days,
}

impl TimeUnit {
    /// All units, by number.
    pub const ALL: [Self; 7] = [
        Self::Seconds,
        Self::Milliseconds,
        Self::Nanoseconds,
        Self::Microseconds,
        Self::Minutes,
        Self::Hours,
        Self::Days,
    ];

    const fn duration(self, amount: u64) -> Duration {
        match self {
            Self::Seconds => Duration::from_secs(amount),
            Self::Milliseconds => Duration::from_millis(amount),
            Self::Nanoseconds => Duration::from_nanos(amount),
            Self::Microseconds => Duration::from_micros(amount),
            Self::Minutes => Duration::from_secs(amount.saturating_mul(60)),
            Self::Hours => Duration::from_secs(amount.saturating_mul(60 * 60)),
            Self::Days => Duration::from_secs(amount.saturating_mul(24 * 60 * 60)),
        }
    }
}

/// One of the two spans.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Span {
    /// The server's default.
    #[default]
    Default,
    /// Unlimited.
    Infinite,
    /// This span. 0 ends at once, as in Infinispan; the default span and the unlimited one have units of their own.
    Of(u64, TimeUnit),
}

const DEFAULT: u8 = 7;
const INFINITE: u8 = 8;

impl Span {
    const fn nibble(self) -> u8 {
        match self {
            Self::Default => DEFAULT,
            Self::Infinite => INFINITE,
            Self::Of(_, unit) => unit as u8,
        }
    }

    fn seconds(self) -> u32 {
        match self {
            Self::Default | Self::Infinite => 0,
            Self::Of(amount, unit) => {
                let duration = unit.duration(amount);
                let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
                u32::try_from(seconds).unwrap_or(u32::MAX)
            }
        }
    }

    /// A point beyond the version's range means unlimited.
    const fn before_3_0(self, unix_time: Duration) -> Self {
        match self {
            Self::Of(amount, unit) if unit.duration(amount).as_nanos() > ABSOLUTE_FROM.as_nanos() => {
                let until = unit.duration(amount).saturating_add(unix_time);
                let rounded_up = until.as_secs().saturating_add((until.subsec_nanos() > 0) as u64);
                // Java's servers read larger numbers as negative.
                if rounded_up > i32::MAX as u64 {
                    Self::Infinite
                } else {
                    Self::Of(rounded_up, TimeUnit::Seconds)
                }
            }
            other => other,
        }
    }

    /// Returns the duration, `None` for unlimited; `unix_time` is called only for points in time.
    pub fn duration(
        self,
        version: ProtocolVersion,
        default: Option<Duration>,
        unix_time: impl FnOnce() -> Duration,
    ) -> Option<Duration> {
        match self {
            Self::Default => default,
            Self::Infinite => None,
            Self::Of(amount, unit) => {
                let duration = unit.duration(amount);
                let is_absolute = version < ProtocolVersion::V3_0 && duration > ABSOLUTE_FROM;
                Some(if is_absolute { duration.saturating_sub(unix_time()) } else { duration })
            }
        }
    }
}

/// The expiration of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Expiration {
    /// Time since the write.
    pub lifespan: Span,
    /// Time since the last use.
    pub max_idle: Span,
}

pub(crate) const FIELD: Field = Field::Sub(layout);

fn layout(context: RequestContext) -> Fields {
    if context.version < ProtocolVersion::V2_2 {
        &[Field::VInt("lifespan"), Field::VInt("max idle")]
    } else {
        &[Field::Choice("units of time", spans)]
    }
}

const fn spans(units: u8) -> Option<Fields> {
    const BOTH: Fields = &[Field::VLong("lifespan"), Field::VLong("max idle")];
    match (units >> 4, units & 0xf) {
        (0..DEFAULT, 0..DEFAULT) => Some(BOTH),
        (0..DEFAULT, DEFAULT | INFINITE) | (DEFAULT | INFINITE, 0..DEFAULT) => Some(BOTH.split_at(1).0),
        (DEFAULT | INFINITE, DEFAULT | INFINITE) => Some(&[]),
        _ => None,
    }
}

impl Expiration {
    /// Unlimited.
    pub const INFINITE: Self = Self { lifespan: Span::Infinite, max_idle: Span::Infinite };

    /// Converts spans above 30 days to points in time since 1970, for requests before 3.0 (facts section 1.7).
    #[must_use]
    pub const fn before_3_0(self, unix_time: Duration) -> Self {
        Self { lifespan: self.lifespan.before_3_0(unix_time), max_idle: self.max_idle.before_3_0(unix_time) }
    }

    /// Versions before 2.2 have flags for default spans.
    pub(crate) fn flags(&self, version: ProtocolVersion) -> Flags {
        let mut flags = Flags::NONE;
        if version < ProtocolVersion::V2_2 {
            if self.lifespan == Span::Default {
                flags |= Flags::DEFAULT_LIFESPAN;
            }
            if self.max_idle == Span::Default {
                flags |= Flags::DEFAULT_MAX_IDLE;
            }
        }
        flags
    }

    pub(crate) fn read(from: &mut Reader, version: ProtocolVersion, flags: Flags) -> Result<Self> {
        if version < ProtocolVersion::V2_2 {
            // Spans of 2^31 s and more are negative numbers, which mean unlimited.
            let span = |seconds, default| match seconds {
                0 if flags.contains(default) => Span::Default,
                0 | 0x8000_0000.. => Span::Infinite,
                seconds => Span::Of(seconds.into(), TimeUnit::Seconds),
            };
            return Ok(Self {
                lifespan: span(from.vint()?, Flags::DEFAULT_LIFESPAN),
                max_idle: span(from.vint()?, Flags::DEFAULT_MAX_IDLE),
            });
        }
        let units = from.u8()?;
        let mut span = |nibble: u8| match nibble {
            DEFAULT => Ok(Span::Default),
            INFINITE => Ok(Span::Infinite),
            _ => match TimeUnit::ALL.get(usize::from(nibble)) {
                Some(&unit) => Ok(Span::Of(from.vlong()?, unit)),
                None => from.invalid("unit of time", nibble),
            },
        };
        Ok(Self { lifespan: span(units >> 4)?, max_idle: span(units & 0xf)? })
    }

    pub(crate) fn write(&self, out: &mut Output, version: ProtocolVersion) {
        if version < ProtocolVersion::V2_2 {
            out.vint(self.lifespan.seconds());
            return out.vint(self.max_idle.seconds());
        }
        out.u8(self.lifespan.nibble() << 4 | self.max_idle.nibble());
        for span in [self.lifespan, self.max_idle] {
            if let Span::Of(amount, _) = span {
                out.vlong(amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts 1.7.
    #[test]
    fn units_are_nibbles_and_numbers_follow_where_they_are_needed() {
        let table: [(Expiration, &[u8]); 4] = [
            (Expiration::default(), b"\x77"),
            (Expiration::INFINITE, b"\x88"),
            (Expiration { lifespan: Span::Of(60, TimeUnit::Seconds), max_idle: Span::Default }, b"\x07\x3c"),
            (
                Expiration {
                    lifespan: Span::Of(1_000, TimeUnit::Milliseconds),
                    max_idle: Span::Of(500, TimeUnit::Milliseconds),
                },
                b"\x11\xe8\x07\xf4\x03",
            ),
        ];
        for (expiration, bytes) in table {
            let mut out = Output::new();
            expiration.write(&mut out, ProtocolVersion::V2_2);
            let written = out.into_bytes();
            assert_eq!(&written[..], bytes);
            let mut reader = Reader::new(written, 0);
            assert_eq!(Expiration::read(&mut reader, ProtocolVersion::V4_1, Flags::NONE), Ok(expiration));
        }
    }

    /// Facts 1.7.
    #[test]
    fn long_spans_are_points_in_time_until_3_0() {
        let (now, days) = (|| Duration::from_secs(1_700_000_000), |n: u64| Duration::from_secs(n * 86_400));
        let span = |n| Span::Of(n, TimeUnit::Seconds);
        let later = span(1_700_000_060);
        assert_eq!(later.duration(ProtocolVersion::V2_9, None, now), Some(Duration::from_secs(60)));
        assert_eq!(
            later.duration(ProtocolVersion::V3_0, None, now),
            Some(Duration::from_secs(1_700_000_060))
        );
        let month = Span::Of(30, TimeUnit::Days);
        assert_eq!(month.duration(ProtocolVersion::V2_0, None, now), Some(days(30)));
        assert_eq!(span(3_000_000).duration(ProtocolVersion::V2_9, None, now), Some(Duration::ZERO));
        assert_eq!(Span::Default.duration(ProtocolVersion::V2_9, Some(days(1)), now), Some(days(1)));
        assert_eq!(Span::Infinite.duration(ProtocolVersion::V4_1, Some(days(1)), now), None);
    }

    /// Facts 1.7: before 2.2 a number of 0 is the default or unlimited; from then on it is a span like others.
    #[test]
    fn span_of_zero_ends_at_once_since_units_exist() {
        for (version, bytes, lifespan, duration) in [
            (ProtocolVersion::V2_1, &b"\0\0"[..], Span::Infinite, None),
            (ProtocolVersion::V2_2, b"\x08\0", Span::Of(0, TimeUnit::Seconds), Some(Duration::ZERO)),
            (ProtocolVersion::V4_1, b"\x18\0", Span::Of(0, TimeUnit::Milliseconds), Some(Duration::ZERO)),
        ] {
            let mut reader = Reader::new(bytes::Bytes::from_static(bytes), 0);
            let read = Expiration::read(&mut reader, version, Flags::NONE).unwrap();
            assert_eq!((read.lifespan, read.max_idle), (lifespan, Span::Infinite), "{version}");
            assert_eq!(read.lifespan.duration(version, None, || Duration::ZERO), duration, "{version}");
        }
    }

    #[test]
    fn expirations_encoded_for_versions_before_3_0_mean_the_same() {
        let (now, day) = (Duration::from_millis(1_700_000_000_500), 86_400);
        let at_server =
            |span| Expiration { lifespan: span, max_idle: Span::Default }.before_3_0(now).lifespan;
        let month = Span::Of(30 * day, TimeUnit::Seconds);
        assert_eq!([month, Span::Infinite].map(at_server), [month, Span::Infinite]);
        let longer = Span::Of(31, TimeUnit::Days);
        let meant = at_server(longer).duration(ProtocolVersion::V2_9, None, || now).unwrap();
        let requested = longer.duration(ProtocolVersion::V3_0, None, || now).unwrap();
        assert!(requested <= meant && meant < requested + Duration::from_secs(1), "{meant:?}");
        assert_eq!(at_server(Span::Of(u64::MAX, TimeUnit::Milliseconds)), Span::Infinite);
    }

    #[test]
    fn old_versions_say_default_with_flags() {
        let default_lifespan = Expiration { lifespan: Span::Default, max_idle: Span::Infinite };
        let flags = default_lifespan.flags(ProtocolVersion::V2_1);
        assert_eq!(flags, Flags::DEFAULT_LIFESPAN);
        assert_eq!(default_lifespan.flags(ProtocolVersion::V2_2), Flags::NONE);
        let read = |bytes, flags| {
            let mut reader = Reader::new(bytes::Bytes::from_static(bytes), 0);
            Expiration::read(&mut reader, ProtocolVersion::V2_1, flags).unwrap()
        };
        assert_eq!(read(b"\0\0", flags), default_lifespan);
        assert_eq!(read(b"\xff\xff\xff\xff\x0f\x05", flags).lifespan, Span::Infinite);
    }
}
