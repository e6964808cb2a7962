//! The links of the documents: links of Markdown files with their anchors, the book's includes and summary,
//! paths in backticks in the documents for contributors, and the sections of `docs/protocols` that sources cite
//! as "facts section N".

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::steps::Outcome;

/// Folders with foreign or generated files.
const SKIPPED: &[&str] = &["target", "node_modules", ".git", "corpus"];

/// Documents whose paths in backticks have to exist.
const MAPS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/book/src/", "docs/guarantees.md"];

/// Such a path begins with one of these folders.
const ROOTS: &[&str] = &["crates/", "docs/", "xtask/", "interop/", "charts/", "fuzz/"];

const BOOK: &str = "docs/book/src/";

const HOT_ROD: &str = "docs/protocols/hotrod.md";
const HOT_ROD_CRATES: &[&str] = &["hotrod", "server", "client", "protostream", "query", "sasl"];

const JGROUPS: &str = "docs/protocols/jgroups.md";

/// Without blocks between fences. Code in backticks ends in the same paragraph.
fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_fenced = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fence || is_fenced {
            continue;
        }
        if line.trim().is_empty() || line.starts_with('|') {
            paragraphs.push(String::new());
        }
        if let Some(last) = paragraphs.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    paragraphs
}

/// Without blocks between fences and parts between backticks.
fn prose(text: &str) -> String {
    let paragraphs = paragraphs(text);
    paragraphs.iter().flat_map(|paragraph| paragraph.split('`').step_by(2)).collect()
}

fn quoted(text: &str) -> Vec<String> {
    let paragraphs = paragraphs(text);
    let parts = paragraphs.iter().flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    parts.map(str::to_owned).collect()
}

/// `[text](target)`, and `[name]: target` at the begin of a line.
fn targets(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let defined = text.lines().filter_map(|line| {
        let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
        (!name.contains(']')).then(|| target.trim())
    });
    inline.chain(defined).filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// A chapter includes a file in whole or in part (`FILE:PART`).
fn includes(text: &str) -> Vec<&str> {
    let parts = text.split("{{#include ").skip(1).filter_map(|rest| rest.split_once("}}"));
    parts.filter_map(|(file, _)| file.trim().split(':').next()).collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_fenced = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        if let Some(id) = line.split_once("<a id=\"").and_then(|(_, rest)| rest.split_once('"')) {
            anchors.insert(id.0.to_owned());
        }
        let heading = line.trim_start_matches('#');
        if !is_fenced && heading.len() < line.len() && heading.starts_with(' ') {
            anchors.insert(slug(&heading.replace('`', "")));
        }
    }
    anchors
}

/// Returns a path from the root, without `.` and `..`; `None` if it leads out.
fn joined(folder: &Path, relative: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in folder.join(relative).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// Numbers after "facts", "facts section" or "facts sections".
fn cited(source: &str) -> BTreeSet<String> {
    let mut sections = BTreeSet::new();
    for rest in source.split("facts").skip(1) {
        let rest = rest.trim_start_matches([' ', '(']);
        let rest = rest.strip_prefix("sections").or_else(|| rest.strip_prefix("section")).unwrap_or(rest);
        let mut rest = rest.trim_start();
        loop {
            let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
            let number = rest[..length].trim_end_matches('.');
            if number.is_empty() {
                break;
            }
            sections.insert(number.to_owned());
            let after = &rest[number.len()..];
            let next = [" and ", " to ", ", "].into_iter().find_map(|word| after.strip_prefix(word));
            match next {
                Some(next) => rest = next,
                None => break,
            }
        }
    }
    sections
}

struct Tree {
    /// Markdown files and Rust sources, by their paths from the root.
    texts: BTreeMap<String, String>,
    paths: BTreeSet<PathBuf>,
}

impl Tree {
    fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self { texts: BTreeMap::new(), paths: BTreeSet::new() };
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
                if SKIPPED.contains(&&*name) {
                    continue;
                }
                let relative = path.strip_prefix(root).unwrap_or(&path).to_owned();
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else if name.ends_with(".md") || name.ends_with(".rs") {
                    tree.texts.insert(relative.to_string_lossy().into_owned(), fs::read_to_string(path)?);
                }
                tree.paths.insert(relative);
            }
        }
        Ok(tree)
    }

    fn exists(&self, path: &Path) -> bool {
        path.as_os_str().is_empty() || self.paths.contains(path)
    }

    fn documents(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().filter(|(file, _)| file.ends_with(".md")).map(|(file, text)| (&**file, &**text))
    }

    fn broken_links(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (file, text) in self.documents() {
            let folder = Path::new(file).parent().unwrap_or(Path::new(""));
            let prose = prose(text);
            self.check_links(file, &prose, &mut broken);
            for target in includes(&prose) {
                let included = joined(folder, target).filter(|path| self.exists(path));
                match included.and_then(|path| self.texts.get(&*path.to_string_lossy())) {
                    // The chapter has the links of the text.
                    Some(text) => self.check_links(file, &self::prose(text), &mut broken),
                    None => broken.push(format!("{file}: the included {target} does not exist")),
                }
            }
        }
        broken
    }

    /// Returns the anchors of a text and of those that it includes.
    fn anchors_of(&self, path: &Path) -> Option<BTreeSet<String>> {
        let text = self.texts.get(&*path.to_string_lossy())?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let included = includes(text).into_iter().filter_map(|target| joined(folder, target));
        let included = included.filter_map(|path| self.texts.get(&*path.to_string_lossy()));
        Some(included.chain([text]).flat_map(|text| anchors(text)).collect())
    }

    /// Adds broken links, and links out of the book from one of its chapters.
    fn check_links(&self, file: &str, prose: &str, broken: &mut Vec<String>) {
        let folder = Path::new(file).parent().unwrap_or(Path::new(""));
        for target in targets(prose) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { Some(PathBuf::from(file)) } else { joined(folder, path) };
            let Some(path) = path.filter(|path| self.exists(path)) else {
                broken.push(format!("{file}: {target} does not exist"));
                continue;
            };
            if file.starts_with(BOOK) && !path.starts_with(BOOK) {
                broken.push(format!("{file}: {target} is not part of the book"));
            }
            if !anchor.is_empty() && self.anchors_of(&path).is_some_and(|all| !all.contains(anchor)) {
                broken.push(format!("{file}: {} has no anchor {anchor}", path.display()));
            }
        }
    }

    fn missing_chapters(&self) -> Vec<String> {
        let summary = format!("{BOOK}SUMMARY.md");
        let Some(text) = self.texts.get(&summary) else { return vec![format!("{summary} does not exist")] };
        let listed: BTreeSet<&str> = targets(text).into_iter().collect();
        let chapters = self.documents().filter_map(|(file, _)| file.strip_prefix(BOOK));
        let missing = chapters.filter(|chapter| *chapter != "SUMMARY.md" && !listed.contains(chapter));
        missing.map(|chapter| format!("{summary} lacks {chapter}")).collect()
    }

    fn missing_paths(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (file, text) in self.documents().filter(|(file, _)| MAPS.iter().any(|map| file.starts_with(map)))
        {
            let paths =
                quoted(text).into_iter().filter(|part| ROOTS.iter().any(|root| part.starts_with(root)));
            for path in paths.filter(|path| !path.contains(['*', ' ', '\n', ':', '…'])) {
                if !self.exists(Path::new(path.trim_end_matches('/'))) {
                    missing.push(format!("{file}: {path} does not exist"));
                }
            }
        }
        missing
    }

    fn missing_facts(&self) -> Vec<String> {
        let facts = [HOT_ROD, JGROUPS].map(|file| self.texts.get(file).map(|text| anchors(text)));
        let mut missing = Vec::new();
        let sources =
            self.texts.iter().filter(|(file, _)| file.ends_with(".rs") && file.starts_with("crates/"));
        for (file, source) in sources {
            let of = file.split('/').nth(1).unwrap_or_default();
            let (document, sections) = match HOT_ROD_CRATES.contains(&of) {
                true => (HOT_ROD, &facts[0]),
                false => (JGROUPS, &facts[1]),
            };
            let is_known = |section: &str| sections.as_ref().is_some_and(|known| known.contains(section));
            let unknown = cited(source).into_iter().filter(|section| !is_known(section));
            missing.extend(unknown.map(|section| format!("{file}: {document} has no section {section}")));
        }
        missing
    }

    fn mistakes(&self) -> Vec<String> {
        let parts =
            [self.broken_links(), self.missing_chapters(), self.missing_paths(), self.missing_facts()];
        parts.concat()
    }
}

pub(crate) fn run() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => return Outcome::Failed(format!("cannot read the repository: {error}")),
    };
    let mistakes = tree.mistakes();
    mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
    match mistakes.len() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("{count} links, paths or citations lead nowhere")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(texts: &[(&str, &str)]) -> Tree {
        let texts: BTreeMap<String, String> =
            texts.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        let mut paths = BTreeSet::new();
        for file in texts.keys() {
            paths.extend(Path::new(file).ancestors().map(Path::to_owned));
        }
        Tree { texts, paths }
    }

    #[test]
    fn links_resolve_from_the_folder_of_their_file() {
        let good = tree(&[
            ("a.md", "[b](docs/b.md) [c](docs/b.md#two-words) [d](#here)\n\n## Here\n\n[e](https://x.y/z)"),
            ("docs/b.md", "## Two `words`\n\n[a](../a.md) [folder](../docs)\n```text\n[no](no.md)\n```\n"),
        ]);
        assert_eq!(good.broken_links(), [""; 0]);
        let bad = tree(&[("a.md", "[b](b.md) [c](#c) [out](../out.md)\n\n[d]: d.md\n")]);
        let expected = [
            "b.md does not exist",
            "a.md has no anchor c",
            "../out.md does not exist",
            "d.md does not exist",
        ];
        assert_eq!(bad.broken_links(), expected.map(|mistake| format!("a.md: {mistake}")));
    }

    #[test]
    fn chapter_has_the_anchors_of_the_texts_that_it_includes() {
        let with = |link: &'static str| {
            tree(&[
                ("docs/book/src/a.md", link),
                ("docs/book/src/reference/b.md", "{{#include ../../../b.md}}"),
                ("docs/b.md", "## Here\n\n[own](#here)"),
            ])
        };
        assert_eq!(with("[b](reference/b.md#here)").broken_links(), [""; 0]);
        let expected = ["docs/book/src/a.md: docs/book/src/reference/b.md has no anchor there"];
        assert_eq!(with("[b](reference/b.md#there)").broken_links(), expected);
    }

    #[test]
    fn chapters_and_included_files_exist() {
        let book = |summary: &'static str| {
            tree(&[
                ("docs/book/src/SUMMARY.md", summary),
                ("docs/book/src/a.md", "{{#include ../../b.md}} {{#include ../../b.md:use}}"),
                ("docs/b.md", ""),
            ])
        };
        assert_eq!(book("[a](a.md)").mistakes(), [""; 0]);
        assert_eq!(book("").mistakes(), ["docs/book/src/SUMMARY.md lacks a.md"]);
        let lost =
            tree(&[("docs/book/src/SUMMARY.md", "{{#include c.md}} [x](../../x.md)"), ("docs/x.md", "")]);
        let expected = ["../../x.md is not part of the book", "the included c.md does not exist"];
        assert_eq!(lost.mistakes(), expected.map(|mistake| format!("docs/book/src/SUMMARY.md: {mistake}")));
    }

    #[test]
    fn paths_of_the_map_exist() {
        let map = tree(&[
            ("CONTRIBUTING.md", "`crates/a/b.rs`, `crates/a`, `two\nlines`, `crates/c.rs`, `crates/*/d.rs`"),
            ("crates/a/b.rs", ""),
        ]);
        assert_eq!(map.missing_paths(), ["CONTRIBUTING.md: crates/c.rs does not exist"]);
    }

    #[test]
    fn cited_sections_exist() {
        let sections = ["1", "2", "8", "12.4"].map(str::to_owned);
        assert_eq!(cited("(facts sections 1, 2 and 12.4). facts section 8. Facts: none"), sections.into());
        let facts = tree(&[
            (JGROUPS, "<a id=\"4.2\"></a>\n### 4.2 Set-up"),
            ("crates/net/src/a.rs", "// facts 4.2"),
            ("crates/server/src/b.rs", "// facts section 2.5"),
        ]);
        let expected = format!("crates/server/src/b.rs: {HOT_ROD} has no section 2.5");
        assert_eq!(facts.missing_facts(), [expected]);
    }
}
