//! The changes of one version, from the changelog.

/// Returns the section of a version, or that of unreleased changes if the version has none yet.
///
/// # Errors
///
/// If the changelog has neither.
pub(super) fn section(changelog: &str, version: &str) -> Result<String, String> {
    let of = |name: &str| {
        let start = changelog.find(&format!("\n## [{name}]"))? + 1;
        let rest = &changelog[start..];
        let end = rest[1..].find("\n## ").map_or(rest.len(), |end| end + 1);
        Some(rest[..end].trim_end().to_owned() + "\n")
    };
    of(version).or_else(|| of("Unreleased")).ok_or_else(|| {
        format!(
            "CHANGELOG.md has neither a section [{version}] nor [Unreleased]: add what has changed for users"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn the_section_of_the_version_or_of_unreleased_changes_is_returned() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n- next\n\n## [1.0.0] - 2026-01-01\n\n- first\n";
        assert_eq!(section(changelog, "1.0.0").as_deref(), Ok("## [1.0.0] - 2026-01-01\n\n- first\n"));
        assert_eq!(section(changelog, "1.1.0").as_deref(), Ok("## [Unreleased]\n\n- next\n"));
        assert!(section("# Changelog\n", "1.0.0").is_err_and(|error| error.contains("neither")));
    }
}
