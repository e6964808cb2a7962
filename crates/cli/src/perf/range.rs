use std::fmt::Display;
use std::str::FromStr;

use super::member::VALUE_LEN_MAX;

pub(crate) const THREADS_MAX: u32 = 100_000;

/// Each may be a process of this host.
pub(crate) const MEMBERS_MAX: usize = 1_000;

pub(crate) fn within<V: FromStr + PartialOrd + Display>(text: &str, least: V, most: V) -> Result<V, String> {
    match text.parse::<V>() {
        Ok(value) if (&least..=&most).contains(&&value) => Ok(value),
        _ => Err(format!("`{text}` is not from {least} to {most}")),
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.1, 1e6)
}

pub(super) fn warmup(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e6)
}

pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0)
}

pub(crate) fn size(text: &str) -> Result<usize, String> {
    within(text, 0, VALUE_LEN_MAX)
}

pub(super) fn members(text: &str) -> Result<usize, String> {
    within(text, 1, MEMBERS_MAX)
}

pub(super) fn threads(text: &str) -> Result<usize, String> {
    within(text, 1, THREADS_MAX as usize)
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    within(text, 1, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_out_of_range_is_reported_with_the_range() {
        assert_eq!(fraction("80"), Err("`80` is not from 0 to 1".to_owned()));
        assert_eq!(members("0"), Err("`0` is not from 1 to 1000".to_owned()));
        assert_eq!(seconds("0"), Err("`0` is not from 0.1 to 1000000".to_owned()));
        for text in ["NaN", "inf", "-1", "x", ""] {
            assert!(seconds(text).is_err() && warmup(text).is_err(), "{text}");
        }
        assert_eq!((threads("1"), warmup("0"), count("0").is_err()), (Ok(1), Ok(0.0), true));
    }
}
