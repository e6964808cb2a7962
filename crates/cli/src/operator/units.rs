//! Bytes and times as people read them, in few columns.

/// Three digits at least: `999 B`, `1.50 KiB`, `15.0 KiB`, `150 KiB`.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut value, mut unit) = (count as f64 / 1024.0, UNITS[0]);
    for larger in &UNITS[1..] {
        // 999.6 would be shown as 1000.
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

/// The two largest units.
pub(super) fn span(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let first = UNITS.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (name, unit) = UNITS[first];
    let text = format!("{}{name}", seconds / unit);
    match UNITS.get(first + 1) {
        Some((name, smaller)) if seconds % unit / smaller > 0 => {
            format!("{text} {}{name}", seconds % unit / smaller)
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        let texts = [0, 1023, 1024, 1536, 10 * 1024, 150 * 1024, 1_023_999, 5 << 30, u64::MAX].map(bytes);
        let expected = [
            "0 B",
            "1023 B",
            "1.00 KiB",
            "1.50 KiB",
            "10.0 KiB",
            "150 KiB",
            "0.98 MiB",
            "5.00 GiB",
            "16384 PiB",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn spans_have_the_two_largest_units() {
        let texts = [0, 59, 60, 61, 3_600, 3_661, 90_000, 864_001].map(span);
        assert_eq!(texts, ["0s", "59s", "1m", "1m 1s", "1h", "1h 1m", "1d 1h", "10d"]);
    }
}
