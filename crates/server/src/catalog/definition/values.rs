use std::time::Duration;

use super::Result;
use super::tree::Element;

pub(super) fn flag(element: &Element, attribute: &str, value: &str) -> Result<bool> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(element.invalid(attribute, value)),
    }
}

pub(super) fn number<N: std::str::FromStr>(element: &Element, attribute: &str, value: &str) -> Result<N> {
    value.parse().map_err(|_| element.invalid(attribute, value))
}

pub(super) fn one_of<V: Clone>(
    element: &Element,
    attribute: &str,
    value: &str,
    all: &[(&str, V)],
) -> Result<V> {
    let found = all.iter().find(|(name, _)| *name == value);
    found.map(|(_, value)| value.clone()).ok_or_else(|| element.invalid(attribute, value))
}

fn split_unit(value: &str) -> (&str, &str) {
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    (number, unit.trim_start())
}

/// A decimal number, also `1.5` or `.5`, times a factor, rounded down.
fn scale(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = match number.split_once('.') {
        Some(("", part)) => ("0", part),
        Some(split_unit) => split_unit,
        None => (number, "0"),
    };
    let whole: u64 = whole.parse().ok()?;
    // 10^18 is the largest scale: more digits are refused.
    let scale = 10_u128.pow(u32::try_from(part.len()).ok().filter(|digits| *digits <= 18)?);
    let part = u128::from(part.parse::<u64>().ok()?) * u128::from(factor) / scale;
    whole.checked_mul(factor)?.checked_add(u64::try_from(part).ok()?)
}

/// Milliseconds, or `10s`, `5m`, `1.5h`, `7d`. `None`, forever, for 0 and negative numbers.
pub(super) fn duration(element: &Element, attribute: &str, value: &str) -> Result<Option<Duration>> {
    if value.trim().parse::<i64>().is_ok_and(|millis| millis <= 0) {
        return Ok(None);
    }
    let duration = duration_of(value).ok_or_else(|| element.invalid(attribute, value))?;
    Ok((!duration.is_zero()).then_some(duration))
}

/// Returns a duration in the notation of cache definitions: milliseconds, or `10s`, `5m`, `1.5h`, `7d`.
pub(crate) fn duration_of(value: &str) -> Option<Duration> {
    let (number, unit) = split_unit(value.trim());
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let millis = scale(number, factor).filter(|millis| i64::try_from(*millis).is_ok())?;
    Some(Duration::from_millis(millis))
}

/// Fails for 0.
pub(super) fn bytes(element: &Element, attribute: &str, value: &str) -> Result<u64> {
    amount_of_bytes(value).ok_or_else(|| element.invalid(attribute, value))
}

/// Returns the bytes of an amount in the notation of cache definitions: a number of bytes, `500MB`, `1.5GiB`. KB is 1,000 and KiB
/// 1,024 bytes. `None` if the text is no such amount, or 0.
pub fn amount_of_bytes(value: &str) -> Option<u64> {
    let (number, unit) = split_unit(value.trim());
    let (unit, base) = match unit.to_ascii_lowercase().strip_suffix("ib") {
        Some(unit) => (unit.to_owned(), 1_024_u64),
        None => (unit.to_ascii_lowercase().trim_end_matches('b').to_owned(), 1_000),
    };
    let power = match &unit[..] {
        "" if base == 1_000 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    scale(number, base.pow(power)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element() -> Element {
        Element::read("c", "<memory/>").unwrap()
    }

    #[test]
    fn spans_are_milliseconds_or_have_a_unit() {
        let of = |text| duration(&element(), "lifespan", text);
        let millis = |millis| Ok(Some(Duration::from_millis(millis)));
        assert_eq!((of("-1"), of("0"), of("0s")), (Ok(None), Ok(None), Ok(None)));
        assert_eq!((of("1500"), of("1500ms"), of(" 10s ")), (millis(1_500), millis(1_500), millis(10_000)));
        assert_eq!((of("5 m"), of("2h"), of("1d")), (millis(300_000), millis(7_200_000), millis(86_400_000)));
        assert_eq!((of("1.5s"), of(".5 m"), of("0.0001s")), (millis(1_500), millis(30_000), Ok(None)));
        for wrong in
            ["", "s", "1.", "1.5.5s", "10 weeks", "-1s", "1M", "99999999999999999999", "99999999999999999d"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn amounts_are_bytes_or_have_a_unit() {
        let of = |text| bytes(&element(), "max-size", text);
        assert_eq!((of("1000"), of("1000B"), of("1 KB")), (Ok(1_000), Ok(1_000), Ok(1_000)));
        assert_eq!(
            (of("500MB"), of("1GB"), of("2TB")),
            (Ok(500_000_000), Ok(1_000_000_000), Ok(2_000_000_000_000))
        );
        assert_eq!((of("1KiB"), of("3MiB"), of("1GiB")), (Ok(1 << 10), Ok(3 << 20), Ok(1 << 30)));
        assert_eq!((of("1.5GB"), of(".5 GiB"), of("0.1KB")), (Ok(1_500_000_000), Ok(1 << 29), Ok(100)));
        for wrong in [
            "",
            "0",
            "-1",
            "MB",
            "1XB",
            "1iB",
            "1.GB",
            "0.1",
            "1.5.5GB",
            "99999999999TB",
            "1.9999999999999999999GB",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let error = of("1XB").unwrap_err().to_string();
        assert_eq!(error, "cache configuration: max-size of memory cannot be 1XB");
    }
}
