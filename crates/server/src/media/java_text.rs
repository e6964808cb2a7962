//! Texts of protostream's own types, as Java's `toString` makes them. Times without a zone are in UTC.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use consort_protostream::wire::{ENUM, MESSAGE, Raw, TYPE_ID, TYPE_NAME, field};

use super::types::Types;
use crate::limits::{ENTITY_BYTES_MAX, ENTITY_JSON_MAX};

const PACKAGE: &str = "org.infinispan.protostream.commons.";

const NO_TEXT: &str = "it is not a number, a text or one of protostream's own types";

/// Numbers of more bytes have no text: the conversion takes time in the square of their length.
const BIG_NUMBER_BYTES_MAX: usize = 1_024;

const DAY: i64 = 86_400;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// Year, month and day of the proleptic Gregorian calendar, for a number of days since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years begin in March, so that leap days end them; eras have 400 years.
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn local_date(days: i64) -> String {
    let (year, month, day) = civil(days);
    let year = match year {
        10_000.. => format!("+{year}"),
        0..10_000 => format!("{year:04}"),
        _ => format!("-{:04}", -year),
    };
    format!("{year}-{month:02}-{day:02}")
}

/// Groups of three digits, as few as are needed.
fn fraction(nanos: i64) -> String {
    match nanos {
        0 => String::new(),
        nanos if nanos % 1_000_000 == 0 => format!(".{:03}", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!(".{:06}", nanos / 1_000),
        nanos => format!(".{nanos:09}"),
    }
}

fn clock(second_of_day: i64) -> (i64, i64, i64) {
    (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60)
}

/// Seconds are left out if they are zero.
fn local_time(nano_of_day: i64) -> String {
    let (hours, minutes, seconds) = clock(nano_of_day / 1_000_000_000);
    let nanos = nano_of_day % 1_000_000_000;
    match (seconds, nanos) {
        (0, 0) => format!("{hours:02}:{minutes:02}"),
        _ => format!("{hours:02}:{minutes:02}:{seconds:02}{}", fraction(nanos)),
    }
}

pub(super) fn date(millis: i64) -> String {
    let seconds = millis.div_euclid(1_000);
    let days = seconds.div_euclid(DAY);
    let ((year, month, day), (hours, minutes, seconds)) = (civil(days), clock(seconds.rem_euclid(DAY)));
    let weekday = WEEKDAYS[days.rem_euclid(7) as usize];
    let month = MONTHS[(month - 1) as usize];
    format!("{weekday} {month} {day:02} {hours:02}:{minutes:02}:{seconds:02} UTC {year}")
}

/// With seconds also if they are zero.
pub(super) fn instant(seconds: i64, nanos: i32) -> String {
    let (hours, minutes, in_minute) = clock(seconds.rem_euclid(DAY));
    let date = local_date(seconds.div_euclid(DAY));
    format!("{date}T{hours:02}:{minutes:02}:{in_minute:02}{}Z", fraction(nanos.into()))
}

/// Digits of a big-endian two's complement, with the sign.
fn decimal(bytes: &[u8]) -> Option<(bool, String)> {
    if bytes.len() > BIG_NUMBER_BYTES_MAX {
        return None;
    }
    let is_negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let mut magnitude = bytes.to_vec();
    if is_negative {
        let mut carry = true;
        for byte in magnitude.iter_mut().rev() {
            let (negated, overflows) = (!*byte).overflowing_add(carry.into());
            (*byte, carry) = (negated, overflows);
        }
        // The smallest number of its length.
        if carry {
            magnitude.insert(0, 1);
        }
    }
    Some((is_negative, decimal_digits(&magnitude)))
}

/// Digits of a big-endian number. Nine at a time, because a value may have thousands of long numbers.
fn decimal_digits(magnitude: &[u8]) -> String {
    const BASE: u64 = 1_000_000_000;
    let limb = |bytes: &[u8]| bytes.iter().fold(0, |limb, byte| limb << 8 | u64::from(*byte));
    // The lowest limb is the last one.
    let (first, others) = magnitude.split_at(magnitude.len() % 4);
    let mut limbs: Vec<u64> = std::iter::once(first).chain(others.chunks(4)).map(limb).collect();
    let mut groups = Vec::new();
    let mut begin = 0;
    while begin < limbs.len() {
        let mut rest = 0;
        for limb in &mut limbs[begin..] {
            let value = rest << 32 | *limb;
            (*limb, rest) = (value / BASE, value % BASE);
        }
        groups.push(rest);
        begin += limbs[begin..].iter().take_while(|limb| **limb == 0).count();
    }
    let mut digits = groups.pop().unwrap_or_default().to_string();
    groups.iter().rev().for_each(|group| {
        let _ = write!(digits, "{group:09}");
    });
    digits
}

fn big_decimal(unscaled: &[u8], scale: i32) -> Option<String> {
    let (is_negative, digits) = decimal(unscaled)?;
    let (scale, count) = (i64::from(scale), digits.len() as i64);
    let adjusted = count - 1 - scale;
    let sign = if is_negative { "-" } else { "" };
    let number = if scale == 0 {
        digits
    } else if scale > 0 && adjusted >= -6 {
        let whole = count - scale;
        if whole > 0 {
            let (whole, fraction) = digits.split_at(whole as usize);
            format!("{whole}.{fraction}")
        } else {
            format!("0.{}{digits}", "0".repeat(whole.unsigned_abs() as usize))
        }
    } else {
        let (first, others) = digits.split_at(1);
        let point = if others.is_empty() { "" } else { "." };
        format!("{first}{point}{others}E{adjusted:+}")
    };
    Some(format!("{sign}{number}"))
}

fn uuid(most: u64, least: u64) -> String {
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        most >> 32,
        most >> 16 & 0xffff,
        most & 0xffff,
        least >> 48,
        least & 0xffff_ffff_ffff
    )
}

fn period(years: i64, months: i64, days: i64) -> String {
    let parts: String = [(years, 'Y'), (months, 'M'), (days, 'D')]
        .iter()
        .filter(|(number, _)| *number != 0)
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect();
    format!("P{}", if parts.is_empty() { "0D" } else { &parts })
}

/// `None`: the text would be too long.
fn bit_set(bits: &[u8]) -> Option<String> {
    let mut out = String::from("{");
    let bytes = bits.iter().enumerate().filter(|(_, byte)| **byte != 0);
    for bit in bytes
        .flat_map(|(nth, byte)| (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| nth * 8 + bit))
    {
        if out.len() > ENTITY_JSON_MAX {
            return None;
        }
        let separator = if out.len() == 1 { "" } else { ", " };
        let _ = write!(out, "{separator}{bit}");
    }
    out.push('}');
    Some(out)
}

/// No type has a field of a higher number.
const FIELD_MAX: u32 = 16;

/// Fields of a message, the last of each number.
struct Fields<'a>(BTreeMap<u32, Raw<'a>>);

impl<'a> Fields<'a> {
    fn read(mut message: &'a [u8]) -> Option<Self> {
        let mut fields = BTreeMap::new();
        while !message.is_empty() {
            let (number, raw) = field(&mut message)?;
            if number <= FIELD_MAX {
                fields.insert(number, raw);
            }
        }
        Some(Self(fields))
    }

    fn number(&self, field: u32) -> i64 {
        match self.0.get(&field) {
            Some(Raw::Varint(number) | Raw::Eight(number)) => number.cast_signed(),
            _ => 0,
        }
    }

    fn bytes(&self, field: u32) -> &'a [u8] {
        match self.0.get(&field) {
            Some(Raw::Length(bytes)) => bytes,
            _ => &[],
        }
    }

    fn text(&self, field: u32) -> Option<String> {
        std::str::from_utf8(self.bytes(field)).ok().map(str::to_owned)
    }

    fn message(&self, field: u32) -> Option<Self> {
        Self::read(self.bytes(field))
    }
}

fn of_message(name: &str, message: &[u8]) -> Option<String> {
    let fields = Fields::read(message)?;
    Some(match name {
        "UUID" => {
            let [most, least] = [(3, 1), (4, 2)].map(|(fixed, varint)| {
                let field = if fields.0.contains_key(&fixed) { fixed } else { varint };
                fields.number(field).cast_unsigned()
            });
            uuid(most, least)
        }
        "BigDecimal" => big_decimal(fields.bytes(1), fields.number(2) as i32)?,
        "BigInteger" => {
            let (is_negative, digits) = decimal(fields.bytes(1))?;
            if is_negative { format!("-{digits}") } else { digits }
        }
        "LocalDate" => local_date(fields.number(1)),
        "LocalTime" => local_time(fields.number(1)),
        "LocalDateTime" => {
            let (date, time) = (fields.message(1)?.number(1), fields.message(2)?.number(1));
            format!("{}T{}", local_date(date), local_time(time))
        }
        "OffsetTime" => {
            format!("{}{}", local_time(fields.message(1)?.number(1)), fields.message(2)?.text(1)?)
        }
        "MonthDay" => format!("--{:02}-{:02}", fields.number(1), fields.number(2)),
        "Year" => fields.number(1).to_string(),
        "Period" => period(fields.number(1), fields.number(2), fields.number(3)),
        "ZoneId" | "ZoneOffset" => fields.text(1)?,
        "BitSet" => bit_set(fields.bytes(1))?,
        // Without a database of time zones the time of a zone is unknown.
        _ => return None,
    })
}

/// The text of a wrapped message or enum of protostream's own types.
pub(super) fn of_entity(mut wrapped: &[u8], types: &Types) -> Result<String, String> {
    if wrapped.len() > ENTITY_BYTES_MAX {
        return Err(format!("a value of more than {ENTITY_BYTES_MAX} bytes cannot be converted to text"));
    }
    let mut name = None;
    while !wrapped.is_empty() {
        match field(&mut wrapped).ok_or(NO_TEXT)? {
            (TYPE_NAME, Raw::Length(text)) => name = std::str::from_utf8(text).ok(),
            (TYPE_ID, Raw::Varint(id)) => name = u32::try_from(id).ok().and_then(|id| types.name_of(id)),
            (MESSAGE, Raw::Length(message)) => {
                let own = name.and_then(|name| name.strip_prefix(PACKAGE)).ok_or(NO_TEXT)?;
                return of_message(own, message)
                    .ok_or_else(|| format!("a {own} cannot be converted to text"));
            }
            (ENUM, Raw::Varint(number)) => {
                let name = name.filter(|name| name.starts_with(PACKAGE)).ok_or(NO_TEXT)?;
                let value = types.enumeration(name).and_then(|one| one.get_value(number as i32));
                return value.map(|value| value.name().to_owned()).ok_or_else(|| NO_TEXT.to_owned());
            }
            _ => break,
        }
    }
    Err(NO_TEXT.to_owned())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::media::Format;

    fn wrapped(name: &str, message: &[u8]) -> Bytes {
        let name = format!("{PACKAGE}{name}");
        let begin = [&[0x82, 1, name.len() as u8], name.as_bytes(), &[0x8a, 1, message.len() as u8]].concat();
        [&begin[..], message].concat().into()
    }

    /// Bytes, JSON and text of Infinispan 16.0.7.
    #[test]
    fn own_types_are_converted_as_by_protostream() {
        let types = crate::catalog::schemas::types_of(Bytes::new());
        for (name, message, json, text) in [
            (
                "BigDecimal",
                &b"\n\x03\x12\xd6D\x10\x04"[..],
                r#""unscaledValue":"EtZE","scale":4"#,
                "123.4500",
            ),
            (
                "BigInteger",
                b"\n\r\x01\x8e\xe9\x0f\xf6\xc3s\xe0\xeeN?\n\xd2",
                r#""bytes":"AY7pD/bDc+DuTj8K0g==""#,
                "123456789012345678901234567890",
            ),
            ("LocalDate", b"\x08\xdb\x99\x01", r#""epochDay":19675"#, "2023-11-14"),
            (
                "LocalTime",
                b"\x08\x95\x9a\xc3\xd7\xa7\x98\x12",
                r#""nanoOfDay":80000123456789"#,
                "22:13:20.123456789",
            ),
            (
                "LocalDateTime",
                b"\n\x04\x08\xdb\x99\x01\x12\x08\x08\x85\x80\xd4\x9c\xa7\x98\x12",
                r#""localDate":{"epochDay":19675},"localTime":{"nanoOfDay":80000000000005}"#,
                "2023-11-14T22:13:20.000000005",
            ),
            (
                "OffsetTime",
                b"\n\x07\x08\x80\xdc\xde\xa0\xadl\x12\x08\n\x06+02:00",
                r#""localTime":{"nanoOfDay":3723000000000},"offset":{"id":"+02:00"}"#,
                "01:02:03+02:00",
            ),
            ("MonthDay", b"\x08\x02\x10\x1d", r#""month":2,"dayOfMonth":29"#, "--02-29"),
            ("Year", b"\x08\xe7\x0f", r#""year":2023"#, "2023"),
            ("Period", b"\x08\x01\x10\x02\x18\x03", r#""years":1,"months":2,"days":3"#, "P1Y2M3D"),
            ("ZoneId", b"\n\rEurope/Berlin", r#""zoneId":"Europe/Berlin""#, "Europe/Berlin"),
            ("ZoneOffset", b"\n\x06+02:00", r#""id":"+02:00""#, "+02:00"),
        ] {
            let bytes = wrapped(name, message);
            let json = format!(r#"{{"_type":"{PACKAGE}{name}",{json}}}"#);
            let made = Format::Protostream.convert(bytes.clone(), &Format::JSON, &types);
            assert_eq!(made.as_deref(), Ok(json.as_bytes()));
            let back = Format::JSON.convert(json.into(), &Format::Protostream, &types);
            assert_eq!(back, Ok(bytes.clone()), "{name}");
            let made = Format::Protostream.convert(bytes, &Format::TEXT, &types);
            assert_eq!(made.as_deref(), Ok(text.as_bytes()), "{name}");
        }
        let to_text = |bytes: &[u8]| {
            let made = Format::Protostream.convert(Bytes::copy_from_slice(bytes), &Format::TEXT, &types);
            String::from_utf8(made.unwrap().to_vec()).unwrap()
        };
        assert_eq!(to_text(b"\x98\x01\xf5\x07\x8a\x01\x03\n\x01\x05"), "{0, 2}");
        let month = [&b"\x82\x01(org.infinispan.protostream.commons.Month"[..], b"\x90\x01\x02"].concat();
        assert_eq!(to_text(&month), "MARCH");
        let zoned = wrapped("ZonedDateTime", b"\x08\xf0\xc5\xcf\xaa\x06\x10\x00\x1a\rEurope/Berlin");
        let error = Format::Protostream.convert(zoned, &Format::TEXT, &types).unwrap_err().to_string();
        assert!(error.contains("a ZonedDateTime cannot be converted to text"), "{error}");
    }

    #[test]
    fn texts_of_sets_of_bits_are_limited_in_bytes() {
        assert_eq!(bit_set(&[5, 0, 1]).as_deref(), Some("{0, 2, 16}"));
        assert_eq!(bit_set(&[]).as_deref(), Some("{}"));
        assert_eq!(bit_set(&vec![0xff; ENTITY_BYTES_MAX]), None);
        let long = vec![0; ENTITY_BYTES_MAX + 1];
        let types = crate::catalog::schemas::types_of(Bytes::new());
        assert!(of_entity(&long, &types).unwrap_err().contains("4194304 bytes"));
    }

    #[test]
    fn numbers_and_times_have_javas_texts() {
        for (unscaled, scale, text) in [
            (&[5][..], 0, "5"),
            (&[0xfb], 1, "-0.5"),
            (&[5], 6, "0.000005"),
            (&[5], 7, "5E-7"),
            (&[123], 9, "1.23E-7"),
            (&[5], -2, "5E+2"),
            (&[0], 2, "0.00"),
            (&[0x80], 0, "-128"),
            (&[], 0, "0"),
            (&[0x3b, 0x9a, 0xca, 0x00], 0, "1000000000"),
            (&[1, 0, 0, 0, 0, 0, 0, 0, 0], 0, "18446744073709551616"),
            (&[0xff, 0, 0, 0, 0, 0, 0, 0, 0], 0, "-18446744073709551616"),
        ] {
            assert_eq!(big_decimal(unscaled, scale).as_deref(), Some(text));
        }
        assert_eq!(decimal(&[1; BIG_NUMBER_BYTES_MAX + 1]), None);
        for (days, text) in [
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (2_932_897, "+10000-01-01"),
            (-719_529, "-0001-12-31"),
        ] {
            assert_eq!(local_date(days), text);
        }
        let _ = [i64::MIN, i64::MAX].map(|extreme| (date(extreme), instant(extreme, 0), local_date(extreme)));
        assert_eq!(
            [0, 60, 61].map(|second| local_time(second * 1_000_000_000)),
            ["00:00", "00:01", "00:01:01"]
        );
        assert_eq!(instant(0, 5_000_000), "1970-01-01T00:00:00.005Z");
        assert_eq!(instant(-1, 5_000), "1969-12-31T23:59:59.000005Z");
        assert_eq!(date(-1), "Wed Dec 31 23:59:59 UTC 1969");
        assert_eq!([period(0, 0, 0), period(0, -2, 0)], ["P0D", "P-2M"]);
    }
}
