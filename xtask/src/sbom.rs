//! The bill of materials of the command: every crate that is compiled into it, in CycloneDX 1.5. The same lock
//! file gives the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

use crate::claims::root;

/// The package of the shipped binary.
const SHIPPED: &str = "consort-cli";

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    license: Option<String>,
    is_own: bool,
}

impl Package {
    /// Bills and advisories name a package so.
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

/// Packages by cargo's ids, and the packages that each needs.
pub(crate) struct Materials {
    root: String,
    pub(crate) packages: BTreeMap<String, Package>,
    needs: BTreeMap<String, BTreeSet<String>>,
}

pub(crate) fn run(output: Option<&str>) -> ExitCode {
    let written = materials().and_then(|materials| {
        let text = text_of(&materials)?;
        match output {
            None => print!("{text}"),
            Some(file) => std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))?,
        }
        Ok(materials.packages.len())
    });
    match written {
        Ok(count) => {
            eprintln!("{count} packages are compiled into {SHIPPED}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sbom: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the bill as JSON.
pub(crate) fn text() -> Result<String, String> {
    text_of(&materials()?)
}

fn text_of(materials: &Materials) -> Result<String, String> {
    let lock =
        std::fs::read_to_string(root().join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    let bill = bill(materials, &checksums(&lock)).ok_or("a package has no entry")?;
    Ok(serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())? + "\n")
}

pub(crate) fn materials() -> Result<Materials, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--locked"]);
    let told = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !told.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&told.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&told.stdout).map_err(|error| error.to_string())?;
    read(&metadata, SHIPPED).ok_or_else(|| "cargo metadata says something else than expected".to_owned())
}

/// All that a package needs to be compiled, on any system, without dependencies of tests.
fn read(metadata: &Value, shipped: &str) -> Option<Materials> {
    let mut known = BTreeMap::new();
    for package in metadata["packages"].as_array()? {
        let own = Package {
            name: package["name"].as_str()?.to_owned(),
            version: package["version"].as_str()?.to_owned(),
            license: package["license"].as_str().map(str::to_owned),
            is_own: package["source"].is_null(),
        };
        known.insert(package["id"].as_str()?.to_owned(), own);
    }
    let root = known.iter().find(|(_, package)| package.is_own && package.name == shipped)?.0.clone();
    let mut nodes = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array()? {
        let mut needs = BTreeSet::new();
        for dependency in node["deps"].as_array()? {
            // Kinds are null for usual ones, `build` and `dev`.
            let is_compiled = |kind: &Value| kind["kind"].is_null();
            if dependency["dep_kinds"].as_array()?.iter().any(is_compiled) {
                needs.insert(dependency["pkg"].as_str()?.to_owned());
            }
        }
        nodes.insert(node["id"].as_str()?.to_owned(), needs);
    }
    let (mut materials, mut left) =
        (Materials { root: root.clone(), packages: BTreeMap::new(), needs: BTreeMap::new() }, vec![root]);
    while let Some(id) = left.pop() {
        if materials.packages.insert(id.clone(), known.get(&id)?.clone()).is_some() {
            continue;
        }
        let needs = nodes.get(&id)?.clone();
        left.extend(needs.iter().filter(|id| !materials.packages.contains_key(*id)).cloned());
        materials.needs.insert(id, needs);
    }
    Some(materials)
}

fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut all = BTreeMap::new();
    for entry in lock.split("[[package]]").skip(1) {
        let of = |name: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
            line.strip_suffix('"').map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(checksum)) = (of("name"), of("version"), of("checksum")) {
            all.insert((name, version), checksum);
        }
    }
    all
}

fn bill(materials: &Materials, checksums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let component = |package: &Package, kind: &str| {
        let mut told = json!({
            "type": kind,
            "bom-ref": package.url(),
            "name": package.name,
            "version": package.version,
            "purl": package.url(),
        });
        if let Some(license) = &package.license {
            // Older packages have a slash for OR.
            told["licenses"] = json!([{"expression": license.replace('/', " OR ").replace("  ", " ")}]);
        }
        if let Some(checksum) = checksums.get(&(package.name.clone(), package.version.clone())) {
            told["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        told
    };
    let root = materials.packages.get(&materials.root)?;
    let mut components: Vec<&Package> = materials
        .packages
        .iter()
        .filter(|(id, _)| **id != materials.root)
        .map(|(_, package)| package)
        .collect();
    components.sort();
    let mut dependencies = Vec::new();
    for (id, needs) in &materials.needs {
        let mut on = Vec::new();
        for need in needs {
            on.push(materials.packages.get(need)?.url());
        }
        on.sort();
        dependencies.push((materials.packages.get(id)?.url(), on));
    }
    dependencies.sort();
    let dependencies: Vec<Value> =
        dependencies.into_iter().map(|(of, on)| json!({"ref": of, "dependsOn": on})).collect();
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root, "application")},
        "components": components.into_iter().map(|one| component(one, "library")).collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_what_is_compiled_and_not_what_tests_and_builds_need() {
        let dependency = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                {"id": "r", "name": "app", "version": "1.0.0", "license": "Apache-2.0", "source": null},
                {"id": "a", "name": "a", "version": "0.2.0", "license": "MIT/Apache-2.0", "source": "registry"},
                {"id": "b", "name": "b", "version": "0.3.0", "license": null, "source": "registry"},
                {"id": "t", "name": "t", "version": "9.0.0", "license": "MIT", "source": "registry"},
            ],
            "resolve": {"nodes": [
                {"id": "r", "deps": [dependency("a", Value::Null), dependency("t", json!("dev"))]},
                {"id": "a", "deps": [dependency("b", Value::Null), dependency("t", json!("build"))]},
                {"id": "b", "deps": []},
                {"id": "t", "deps": []},
            ]},
        });
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"0.2.0\"\nchecksum = \"abc\"\n";
        let materials = read(&metadata, "app").unwrap();
        let bill = bill(&materials, &checksums(lock)).unwrap();
        assert_eq!(bill["metadata"]["component"]["purl"], "pkg:cargo/app@1.0.0");
        let names: Vec<&str> =
            bill["components"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "abc");
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        let expected = json!({"ref": "pkg:cargo/a@0.2.0", "dependsOn": ["pkg:cargo/b@0.3.0"]});
        assert_eq!(bill["dependencies"][0], expected);
    }

    #[test]
    fn the_bill_of_this_repository_names_what_it_ships_with_checksums_and_licenses() {
        let materials = materials().unwrap();
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
        let bill = bill(&materials, &checksums(&lock)).unwrap();
        let components = bill["components"].as_array().unwrap();
        let of = |name: &str| components.iter().find(|one| one["name"] == name);
        for name in ["rustls", "ring", "tokio", "consort-server"] {
            let found = of(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert!(found["licenses"][0]["expression"].is_string(), "{found}");
            assert_eq!(found["hashes"].is_null(), name.starts_with("consort-"), "{found}");
        }
        assert!(of("proptest").is_none() && of("allocation-counter").is_none(), "tests alone need these");
        let references: BTreeSet<&str> =
            components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(references.len(), components.len(), "each reference is there once");
        for dependency in bill["dependencies"].as_array().unwrap() {
            for on in dependency["dependsOn"].as_array().unwrap() {
                assert!(references.contains(on.as_str().unwrap()), "{on}");
            }
        }
    }
}
