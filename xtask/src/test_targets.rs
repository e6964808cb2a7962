//! The programs of integration tests by name. Steps that select programs by name share the packages, and so the features and
//! the builds: a selection by package would compile dependencies again with other features.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::claims::root;

/// Returns the names of all integration tests of the packages that `is_selected` accepts.
///
/// # Errors
///
/// A text if `cargo metadata` fails.
pub(crate) fn names(is_selected: impl Fn(&str) -> bool) -> Result<BTreeSet<String>, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--locked", "--no-deps"]).current_dir(root());
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    Ok(names_in(&metadata, is_selected))
}

fn names_in(metadata: &Value, is_selected: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let selected = packages.filter(|package| package["name"].as_str().is_some_and(&is_selected));
    let targets = selected.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    // A test that needs a feature has a step of its own.
    let is_test = |target: &&Value| {
        let kinds = target["kind"].as_array().into_iter().flatten();
        target["required-features"].is_null() && kinds.into_iter().any(|kind| kind == "test")
    };
    targets.filter(is_test).filter_map(|target| target["name"].as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::names_in;

    #[test]
    fn tests_of_selected_packages_without_required_features_are_returned() {
        let metadata = json!({"packages": [
            {"name": "a", "targets": [
                {"kind": ["lib"], "name": "a"},
                {"kind": ["test"], "name": "it"},
                {"kind": ["test"], "name": "bugs", "required-features": ["bugs"]},
            ]},
            {"name": "b", "targets": [{"kind": ["test"], "name": "it"}, {"kind": ["test"], "name": "live"}]},
            {"name": "c", "targets": [{"kind": ["test"], "name": "other"}]},
        ]});
        let names: Vec<String> = names_in(&metadata, |package| package != "c").into_iter().collect();
        assert_eq!(names, ["it", "live"]);
    }
}
