use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

pub(crate) const VARIABLE: &str = "CONSORT_LOG";

/// The library takes any word for a target: a mistyped level would log nothing.
///
/// # Errors
///
/// With the invalid part and the valid values.
pub(crate) fn filter(set: Option<&str>, default: &str) -> Result<EnvFilter, String> {
    let Some(set) = set.filter(|set| !set.trim().is_empty()) else { return Ok(EnvFilter::new(default)) };
    let wrong = |part: &str, why: &str| {
        format!(
            "{VARIABLE}={set}: '{part}' {why}; it is a level (off, error, warn, info, debug, trace), or TARGET=LEVEL such as \
             consort_server=debug, or several of these between commas"
        )
    };
    // Fields of spans in brackets may hold commas.
    if !set.contains('[') {
        for part in set.split(',').map(str::trim) {
            let level = match part.split_once('=') {
                Some((target, _)) if target.trim().is_empty() => return Err(wrong(part, "names no target")),
                Some((_, level)) => level.trim(),
                None => part,
            };
            if level.is_empty() || level.parse::<LevelFilter>().is_err() {
                return Err(wrong(part, "has no known level"));
            }
        }
    }
    EnvFilter::try_new(set).map_err(|error| wrong(set, &format!("is no filter ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_would_log_nothing_by_mistake_is_refused() {
        for wrong in
            ["nonsense", "debgu", "consort_server", "consort_server=loud", "=debug", "warn,", "info,nonsense"]
        {
            let error = filter(Some(wrong), "warn").expect_err(wrong);
            assert!(
                error.starts_with(&format!("CONSORT_LOG={wrong}: ")) && error.contains("off, error"),
                "{error}"
            );
        }
    }

    #[test]
    fn levels_and_targets_are_taken_and_nothing_is_the_default() {
        for good in ["debug", "off", "WARN", "warn,consort_server=info", "consort::server=trace,info"] {
            filter(Some(good), "warn").unwrap_or_else(|error| panic!("{error}"));
        }
        for none in [None, Some(""), Some(" ")] {
            assert_eq!(
                filter(none, "warn,consort_router=info").unwrap().to_string(),
                "consort_router=info,warn"
            );
        }
    }
}
