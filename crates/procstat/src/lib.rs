//! Measurements of a process: its use of CPU and memory, how its clients recover from its end, and formatted numbers.
//!
//! ```
//! use consort_procstat::{grouped, process};
//!
//! let before = process::cpu();
//! assert_eq!(grouped(12_345_678.0), "12,345,678");
//! assert!(process::cpu() >= before);
//! ```

#![forbid(unsafe_code)]

pub mod memory;
pub mod process;
pub mod recovery;

/// Formats a number with separators: 12345678 → 12,345,678.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(999.6), "1,000");
        assert_eq!(grouped(12_345_678.0), "12,345,678");
    }
}
