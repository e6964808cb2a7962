//! The structure of the sources: modules without circles, types and functions that a reader can survey. Bounds
//! and exceptions only get fewer.

mod circles;
mod known;
mod modules;
mod sizes;

use std::collections::BTreeSet;
use std::fs;

use self::circles::circles;
use self::known::KNOWN;
use self::modules::Modules;
use self::sizes::Sizes;
use crate::claims::root;
use crate::steps::Outcome;

const METHODS_MAX: usize = 60;

const LINES_MAX: usize = 80;

pub(crate) fn run() -> Outcome {
    let found = match findings() {
        Ok(found) => found,
        Err(error) => return Outcome::Failed(error),
    };
    let known: BTreeSet<&str> = KNOWN.iter().copied().collect();
    let new: Vec<&str> =
        found.iter().map(String::as_str).filter(|finding| !known.contains(finding)).collect();
    let gone: Vec<&str> = known.iter().copied().filter(|known| !found.contains(*known)).collect();
    println!(
        "{} known circles, large types and long functions, the aim is only the named pairs",
        known.len()
    );
    match (&new[..], &gone[..]) {
        ([], []) => Outcome::Passed,
        ([], gone) => Outcome::Failed(format!("remove from KNOWN what is mended: {}", gone.join("; "))),
        (new, _) => Outcome::Failed(new.join("; ")),
    }
}

fn findings() -> Result<BTreeSet<String>, String> {
    let folder = root().join("crates");
    let mut crates: Vec<_> = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>())
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    crates.sort();
    let mut findings = BTreeSet::new();
    for directory in crates {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let files = ["lib.rs", "main.rs"].map(|file| directory.join("src").join(file));
        let Some(file) = files.iter().find(|file| file.exists()) else { continue };
        let modules = Modules::read(file)?;
        for circle in circles(&modules.references()) {
            let place = [vec![name.clone()], circle.parent].concat().join("::");
            let modules: Vec<String> = circle.modules.into_iter().collect();
            findings.insert(format!("circle in {place}: {}", modules.join(" ")));
        }
        let sizes = Sizes::of(&modules);
        let large = sizes.methods.iter().filter(|(_, methods)| **methods > METHODS_MAX);
        findings.extend(large.map(|(of, _)| format!("more than {METHODS_MAX} methods: {name} {of}")));
        let long = sizes.functions.iter().filter(|(_, lines)| *lines > LINES_MAX);
        findings.extend(long.map(|(function, _)| format!("more than {LINES_MAX} lines: {name} {function}")));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_architecture_names_the_crates_and_no_others() {
        let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        let table = text.lines().skip_while(|line| !line.starts_with("| crate | holds |")).skip(2);
        let cells = table.map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
        let named: BTreeSet<String> =
            cells.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`').to_owned()).collect();
        let folders = fs::read_dir(root().join("crates")).unwrap();
        let mut present: BTreeSet<String> =
            folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
        present.insert("xtask".to_owned());
        assert_eq!(named, present);
    }
}
