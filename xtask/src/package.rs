//! The packages of public crates: each has the fields, documents and licenses that a registry needs, and
//! compiles from its package, without network.
//!
//! A crate is public unless its manifest has `publish = false`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::claims::root;
use crate::licenses;
use crate::steps::{Outcome, status};

const KEYWORDS_MAX: usize = 5;
const KEYWORD_LENGTH_MAX: usize = 20;
const CATEGORIES_MAX: usize = 5;

pub(crate) fn run() -> Outcome {
    match check() {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(error),
    }
}

fn check() -> Result<Outcome, String> {
    let metadata = metadata()?;
    let own: Vec<&Value> = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata has no packages")?
        .iter()
        .filter(|package| package["source"].is_null())
        .collect();
    let (public, internal): (Vec<&Value>, Vec<&Value>) =
        own.into_iter().partition(|package| is_public(package));
    let internal: BTreeSet<&str> = internal.iter().map(|package| text(package, "name")).collect();
    let mut wrong = licenses::refused(&metadata, root())?;
    let toolchain =
        fs::read_to_string(root().join("rust-toolchain.toml")).map_err(|error| error.to_string())?;
    for package in &public {
        let name = text(package, "name");
        let faults = [
            fields(package),
            dependencies(package, &internal),
            documents(package),
            minimum_toolchain(package, &toolchain),
        ];
        wrong.extend(faults.into_iter().flatten().map(|fault| format!("{name}: {fault}")));
    }
    println!("{} public crates, {} internal crates", public.len(), internal.len());
    if !wrong.is_empty() {
        return Ok(Outcome::Failed(wrong.join("\n")));
    }
    match pack(&internal) {
        Outcome::Passed => compile(&public),
        outcome => Ok(outcome),
    }
}

/// Packs the public crates, and returns their files in the order of their names.
pub(crate) fn pack_public() -> Result<Vec<PathBuf>, String> {
    let metadata = metadata()?;
    let own =
        metadata["packages"].as_array().into_iter().flatten().filter(|package| package["source"].is_null());
    let (public, internal): (Vec<&Value>, Vec<&Value>) = own.partition(|package| is_public(package));
    match pack(&internal.iter().map(|package| text(package, "name")).collect()) {
        Outcome::Failed(error) | Outcome::Missing(error) => return Err(error),
        _ => {}
    }
    let file = |package: &&Value| {
        format!("target/package/{}-{}.crate", text(package, "name"), text(package, "version"))
    };
    let mut files: Vec<PathBuf> = public.iter().map(|package| root().join(file(package))).collect();
    files.sort();
    Ok(files)
}

/// Returns the version that all crates share.
pub(crate) fn version() -> Result<String, String> {
    let manifest =
        fs::read_to_string(root().join("Cargo.toml")).map_err(|error| format!("Cargo.toml: {error}"))?;
    let manifest: toml::Table = manifest.parse().map_err(|error| format!("Cargo.toml: {error}"))?;
    let version =
        manifest.get("workspace").and_then(|workspace| workspace.get("package")?.get("version")?.as_str());
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml has no workspace.package.version".to_owned())
}

fn metadata() -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--locked", "--all-features"]).current_dir(root());
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn is_public(package: &Value) -> bool {
    package["publish"].is_null()
}

fn text<'v>(package: &'v Value, name: &str) -> &'v str {
    package[name].as_str().unwrap_or_default()
}

fn texts<'v>(package: &'v Value, name: &str) -> Vec<&'v str> {
    package[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn folder(package: &Value) -> PathBuf {
    Path::new(text(package, "manifest_path")).parent().map(Path::to_owned).unwrap_or_default()
}

fn fields(package: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for name in ["description", "license", "readme", "rust_version"] {
        if text(package, name).is_empty() {
            faults.push(format!("the manifest has no `{name}`"));
        }
    }
    let keywords = texts(package, "keywords");
    if keywords.is_empty() || keywords.len() > KEYWORDS_MAX {
        faults.push(format!("{} keywords, not 1 to {KEYWORDS_MAX}", keywords.len()));
    }
    faults.extend(
        keywords
            .iter()
            .filter(|keyword| keyword.len() > KEYWORD_LENGTH_MAX)
            .map(|keyword| format!("the keyword `{keyword}` is longer than {KEYWORD_LENGTH_MAX} bytes")),
    );
    let categories = texts(package, "categories");
    if categories.is_empty() || categories.len() > CATEGORIES_MAX {
        faults.push(format!("{} categories, not 1 to {CATEGORIES_MAX}", categories.len()));
    }
    if package["metadata"]["docs"]["rs"].is_null() {
        faults.push("the manifest has no section `package.metadata.docs.rs`".to_owned());
    }
    faults
}

/// Dependencies of tests may be internal: a package omits them if they have no version.
fn dependencies(package: &Value, internal: &BTreeSet<&str>) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let own = dependencies.filter(|dependency| !dependency["path"].is_null());
    own.filter_map(|dependency| {
        let (name, requirement) = (text(dependency, "name"), text(dependency, "req"));
        let is_for_tests = dependency["kind"] == "dev";
        if internal.contains(name) && !(is_for_tests && requirement == "*") {
            return Some(format!("it depends on the internal crate {name}"));
        }
        (requirement == "*" && !is_for_tests).then(|| format!("its dependency {name} has no version"))
    })
    .collect()
}

/// README and license text are in the package, and the front page begins with a program.
fn documents(package: &Value) -> Vec<String> {
    let folder = folder(package);
    let mut faults = Vec::new();
    if fs::read_to_string(folder.join("LICENSE")).is_err() {
        faults.push("the file LICENSE is missing".to_owned());
    }
    match fs::read_to_string(folder.join("README.md")) {
        Ok(readme) if begins_with_program(&readme) => {}
        Ok(_) => faults.push("README.md does not begin with a program".to_owned()),
        Err(error) => faults.push(format!("README.md: {error}")),
    }
    let page = fs::read_to_string(folder.join("src/lib.rs")).ok().map(|library| front_page(&library));
    match page {
        None => {}
        Some(page) if page == README_INCLUDED => {}
        Some(page) if !begins_with_program(&page) => {
            faults.push("the front page of its documentation does not begin with a program".to_owned());
        }
        // The documentation test of the front page tests the README, too.
        Some(page)
            if fs::read_to_string(folder.join("README.md"))
                .is_ok_and(|own| program(&own) != program(&page)) =>
        {
            faults.push("README.md begins with another program than the front page".to_owned());
        }
        Some(_) => {}
    }
    faults
}

/// A front page that is the README.
const README_INCLUDED: &str = "#![doc = include_str!(\"../README.md\")]";

fn front_page(library: &str) -> String {
    if library.starts_with(README_INCLUDED) {
        return README_INCLUDED.to_owned();
    }
    let lines = library.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|text| text.strip_prefix(' ').unwrap_or(text)).collect::<Vec<_>>().join("\n")
}

/// The first block of code, without lines that documentation hides.
fn program(page: &str) -> Vec<&str> {
    let block = page.split("```").nth(1).unwrap_or_default().lines().skip(1);
    block.filter(|line| !line.starts_with("# ")).map(str::trim_end).filter(|line| !line.is_empty()).collect()
}

/// Whether at most a heading and one paragraph precede the code.
fn begins_with_program(page: &str) -> bool {
    let before = page.split("```").next().unwrap_or_default();
    let paragraphs =
        before.split("\n\n").filter(|text| !text.trim().is_empty() && !text.trim().starts_with("# "));
    page.contains("```") && paragraphs.count() <= 1
}

/// The gate runs on the oldest toolchain that the manifest states.
fn minimum_toolchain(package: &Value, toolchain: &str) -> Vec<String> {
    let version = text(package, "rust_version");
    let is_tested = toolchain.contains(&format!("channel = \"{version}"));
    (!is_tested).then(|| format!("rust-toolchain.toml does not select {version}")).into_iter().collect()
}

fn pack(internal: &BTreeSet<&str>) -> Outcome {
    let mut command = Command::new(env!("CARGO"));
    // The compilation of all packages together takes a fraction of that of each by itself.
    command.args(["package", "--workspace", "--offline", "--allow-dirty", "--no-verify", "--quiet"]);
    command.args(internal.iter().map(|name| format!("--exclude={name}"))).current_dir(root());
    status(command)
}

/// Compiles one workspace, so that files that a package lacks and dependencies that resolve only in the
/// repository are errors.
fn compile(public: &[&Value]) -> Result<Outcome, String> {
    let folder = root().join("target/package/unpacked");
    let failed = |error: std::io::Error| format!("target/package/unpacked: {error}");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    let own =
        fs::read_to_string(root().join("Cargo.toml")).map_err(|error| format!("Cargo.toml: {error}"))?;
    // With the same profile the dependencies are compiled already: the lints have checked them.
    let profile = own.split_once("[profile.dev]").and_then(|(_, rest)| rest.split_once("[profile.release]"));
    let profile = profile.map_or("", |(profile, _)| profile);
    let mut manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"*-*\"]\n\n[profile.dev]{profile}\n[patch.crates-io]\n"
    );
    for package in public {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let mut unpack = Command::new("tar");
        unpack
            // The archives have one time for all files: without their own, an earlier check would count.
            .args(["--touch", "-xzf"])
            .arg(root().join(format!("target/package/{name}-{version}.crate")))
            .arg("-C")
            .arg(&folder);
        match status(unpack) {
            Outcome::Passed => manifest.push_str(&format!("{name} = {{ path = \"{name}-{version}\" }}\n")),
            outcome => return Ok(outcome),
        }
    }
    fs::write(folder.join("Cargo.toml"), manifest).map_err(failed)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).map_err(failed)?;
    let mut command = Command::new(env!("CARGO"));
    command.args(["check", "--workspace", "--offline", "--quiet", "--target-dir"]).arg(root().join("target"));
    command.current_dir(&folder);
    Ok(status(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_page_with_a_program_after_one_paragraph_begins_with_it() {
        assert!(begins_with_program("```rust\nx\n```\n"));
        assert!(begins_with_program("# name\n\nA definition.\n\n```\nx\n```\n"));
        assert!(!begins_with_program("A definition.\n\nMore.\n\n```\nx\n```\n"));
        assert!(!begins_with_program("A definition.\n"));
    }

    #[test]
    fn front_page_is_the_comment_at_the_beginning_or_the_readme() {
        assert_eq!(front_page("//! One.\n//!\n//! Two.\n\nmod a;\n"), "One.\n\nTwo.");
        assert_eq!(front_page("#![doc = include_str!(\"../README.md\")]\nmod a;\n"), README_INCLUDED);
    }

    #[test]
    fn program_is_the_first_block_without_hidden_lines() {
        let page = "One.\n\n```no_run\n# fn example() {\nlet a = 1;\n\nlet b = 2;\n# }\n```\n\n```\nlet c = 3;\n```\n";
        assert_eq!(program(page), ["let a = 1;", "let b = 2;"]);
        assert_eq!(program("No program."), [""; 0]);
    }
}
