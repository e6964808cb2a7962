//! Known holes in the command's packages, by a copy of the advisory database of RustSec.
//!
//! This command does not fetch the database: a check without network must not look like one that has found
//! nothing. The output begins with the date of the named copy.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use semver::{Version, VersionReq};
use serde::Deserialize;

use crate::sbom;

#[derive(Deserialize, Debug)]
struct Advisory {
    advisory: About,
    #[serde(default)]
    versions: Versions,
}

#[derive(Deserialize, Debug)]
struct About {
    id: String,
    package: String,
    date: String,
    withdrawn: Option<String>,
    /// Set for kinds such as `unmaintained`, which are no vulnerability.
    informational: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
struct Versions {
    #[serde(default)]
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
}

impl Advisory {
    fn read(text: &str) -> Result<Self, String> {
        let block = text.split_once("```toml").and_then(|(_, rest)| rest.split_once("```"));
        let (block, _) = block.ok_or("it has no block of TOML")?;
        toml::from_str(block).map_err(|error| error.to_string())
    }

    fn concerns(&self, name: &str, version: &Version) -> bool {
        let is_safe = |versions: &[VersionReq]| versions.iter().any(|versions| versions.matches(version));
        self.advisory.withdrawn.is_none()
            && self.advisory.package == name
            && !is_safe(&self.versions.patched)
            && !is_safe(&self.versions.unaffected)
    }
}

/// The part of `deny.toml` that names advisories whose hole has no effect here, with the reason.
#[derive(Deserialize)]
struct Rules {
    advisories: Ignored,
}

#[derive(Deserialize)]
struct Ignored {
    ignore: Vec<IgnoredAdvisory>,
}

#[derive(Deserialize)]
struct IgnoredAdvisory {
    id: String,
    reason: String,
}

fn ignored(rules: &str) -> Result<BTreeMap<String, String>, String> {
    let rules: Rules = toml::from_str(rules).map_err(|error| format!("deny.toml: {error}"))?;
    Ok(rules.advisories.ignore.into_iter().map(|one| (one.id, one.reason)).collect())
}

struct Database {
    date: String,
    advisories: Vec<Advisory>,
}

impl Database {
    fn open(directory: &Path) -> Result<Self, String> {
        let crates = directory.join("crates");
        let mut advisories = Vec::new();
        for file in files(&crates)? {
            let told = |error: String| format!("{}: {error}", file.display());
            let text = fs::read_to_string(&file).map_err(|error| told(error.to_string()))?;
            advisories.push(Advisory::read(&text).map_err(told)?);
        }
        if advisories.is_empty() {
            return Err(format!("{}: there are no advisories in it", crates.display()));
        }
        let newest = advisories.iter().map(|one| &*one.advisory.date).max().unwrap_or_default();
        let date = match committed(directory) {
            Some(date) => format!("of {date}"),
            None => format!(
                "whose newest advisory is of {newest} (it is no git repository, so its own date is unknown)"
            ),
        };
        Ok(Self { date, advisories })
    }
}

fn files(crates: &Path) -> Result<Vec<PathBuf>, String> {
    let told = |error: std::io::Error| format!("{}: {error}", crates.display());
    let mut found = Vec::new();
    for package in fs::read_dir(crates).map_err(told)? {
        for file in fs::read_dir(package.map_err(told)?.path()).into_iter().flatten() {
            let path = file.map_err(told)?.path();
            found.extend(Some(path).filter(|path| path.extension().is_some_and(|kind| kind == "md")));
        }
    }
    found.sort();
    Ok(found)
}

/// `None` if the copy is no repository of its own.
fn committed(directory: &Path) -> Option<String> {
    if !directory.join(".git").exists() {
        return None;
    }
    let told =
        Command::new("git").arg("-C").arg(directory).args(["log", "-1", "--format=%cI"]).output().ok()?;
    let date = String::from_utf8(told.stdout).ok()?.trim().to_owned();
    (told.status.success() && !date.is_empty()).then_some(date)
}

/// Returns the advisories of a package, and whether one is a vulnerability.
fn check(
    database: &Database,
    packages: &[(String, String)],
    ignored: &BTreeMap<String, String>,
) -> Result<(Vec<String>, bool), String> {
    let (mut found, mut is_bad) = (Vec::new(), false);
    for (name, version) in packages {
        let version: Version = version.parse().map_err(|error| format!("{name} {version}: {error}"))?;
        for one in database.advisories.iter().filter(|one| one.concerns(name, &version)) {
            if let Some(reason) = ignored.get(&one.advisory.id) {
                found.push(format!("{}: {name} {version}: ignored, because {reason}", one.advisory.id));
                continue;
            }
            let kind = one.advisory.informational.as_deref().unwrap_or("vulnerability");
            is_bad |= one.advisory.informational.is_none();
            found.push(format!("{}: {name} {version}: {kind}", one.advisory.id));
        }
    }
    Ok((found, is_bad))
}

pub(crate) fn run(database: Option<&str>) -> ExitCode {
    let Some(directory) = database else {
        eprintln!(
            "advisories: nothing was checked: there is no database. Name a copy of RustSec's advisory-db with --database DIR"
        );
        return ExitCode::FAILURE;
    };
    let checked = Database::open(Path::new(directory)).and_then(|database| {
        println!("advisory database {}: {} advisories", database.date, database.advisories.len());
        let packages: Vec<(String, String)> =
            sbom::materials()?.packages.into_values().map(|one| (one.name, one.version)).collect();
        let rules = fs::read_to_string("deny.toml").map_err(|error| format!("deny.toml: {error}"))?;
        let (found, is_bad) = check(&database, &packages, &ignored(&rules)?)?;
        found.iter().for_each(|line| println!("{line}"));
        println!("{} packages were checked, {} advisories concern them", packages.len(), found.len());
        Ok(is_bad)
    });
    match checked {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("advisories: nothing was checked: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLE: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2030-0001\"\npackage = \"leaky\"\ndate = \"2030-02-03\"\n\
        url = \"https://example.org\"\n\n[versions]\npatched = [\n    \">= 1.2.3\",\n    \"^1.1.9\",\n]\n\
        unaffected = [\"< 1.0.0\"]\n```\n\n# It leaks\n";

    fn packages(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
    }

    fn database(texts: &[&str]) -> Database {
        let advisories = texts.iter().map(|text| Advisory::read(text).unwrap()).collect();
        Database { date: String::new(), advisories }
    }

    #[test]
    fn a_version_is_concerned_that_is_neither_patched_nor_unaffected() {
        let database = database(&[HOLE]);
        let none = BTreeMap::new();
        let of =
            |version| check(&database, &packages(&[("leaky", version), ("other", version)]), &none).unwrap();
        assert_eq!(of("1.0.5"), (vec!["RUSTSEC-2030-0001: leaky 1.0.5: vulnerability".to_owned()], true));
        for safe in ["0.9.9", "1.1.9", "1.2.3", "2.0.0"] {
            assert_eq!(of(safe), (Vec::new(), false), "{safe}");
        }
    }

    #[test]
    fn what_was_withdrawn_concerns_nothing_and_what_only_informs_fails_nothing() {
        let withdrawn = HOLE.replace("url", "withdrawn = \"2030-03-01\"\nurl");
        let informs = HOLE.replace("url", "informational = \"unmaintained\"\nurl");
        let leaky = packages(&[("leaky", "1.0.5")]);
        let none = BTreeMap::new();
        assert_eq!(check(&database(&[&withdrawn]), &leaky, &none).unwrap(), (Vec::new(), false));
        let (found, is_bad) = check(&database(&[&informs]), &leaky, &none).unwrap();
        assert!(found[0].ends_with("leaky 1.0.5: unmaintained") && !is_bad);
    }

    #[test]
    fn an_ignored_advisory_is_shown_with_its_reason_and_fails_nothing() {
        let rules = "[advisories]\nignore = [{ id = \"RUSTSEC-2030-0001\", reason = \"it is dry here\" }]";
        let ignored = ignored(rules).unwrap();
        let (found, is_bad) = check(&database(&[HOLE]), &packages(&[("leaky", "1.0.5")]), &ignored).unwrap();
        assert_eq!(found, ["RUSTSEC-2030-0001: leaky 1.0.5: ignored, because it is dry here"]);
        assert!(!is_bad);
    }

    #[test]
    fn the_advisories_of_the_repository_are_ignored_with_reasons() {
        let rules = include_str!("../../deny.toml");
        assert!(ignored(rules).unwrap().values().all(|reason| reason.len() > 40));
    }

    #[test]
    fn a_database_has_a_date_and_one_that_is_missing_or_empty_is_an_error() {
        let directory = std::env::temp_dir().join(format!("consort-advisories-{}", std::process::id()));
        assert!(Database::open(&directory).is_err());
        fs::create_dir_all(directory.join("crates/leaky")).unwrap();
        let empty = Database::open(&directory).err().unwrap();
        assert!(empty.contains("there are no advisories"), "{empty}");
        fs::write(directory.join("crates/leaky/RUSTSEC-2030-0001.md"), HOLE).unwrap();
        let database = Database::open(&directory).ok().unwrap();
        assert!(database.date.contains("newest advisory is of 2030-02-03"), "{}", database.date);
        fs::write(directory.join("crates/leaky/RUSTSEC-2030-0002.md"), "# none").unwrap();
        let broken = Database::open(&directory).err().unwrap();
        assert!(broken.contains("RUSTSEC-2030-0002.md: it has no block of TOML"), "{broken}");
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(run(None), ExitCode::FAILURE, "without a database nothing was checked");
    }
}
