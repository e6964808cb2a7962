//! The counters that a member knows, with their versions, bounded in number and bytes.

use std::collections::{BTreeMap, HashMap};

use consort_group::wire::CounterRow;

use super::limits::{COUNTER_BYTES, COUNTERS_BYTES_MAX, COUNTERS_MAX, NAME_BYTES_MAX};

/// A value, and a version that grows with each change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct VersionedValue {
    pub(super) value: i64,
    pub(super) version: i64,
}

#[derive(Default)]
pub(super) struct CounterTable {
    counters: BTreeMap<String, VersionedValue>,
    bytes: usize,
}

impl CounterTable {
    pub(super) fn get(&self, name: &str) -> Option<VersionedValue> {
        self.counters.get(name).copied()
    }

    /// The error is the reason, for the caller.
    fn insert(&mut self, name: &str, counter: VersionedValue) -> Result<(), String> {
        let bytes = COUNTER_BYTES + name.len();
        if name.len() > NAME_BYTES_MAX {
            return Err(format!(
                "the name of a counter has at most {NAME_BYTES_MAX} bytes, not {}",
                name.len()
            ));
        }
        if self.counters.len() >= COUNTERS_MAX {
            return Err(format!("there are {COUNTERS_MAX} counters already: delete some"));
        }
        if self.bytes + bytes > COUNTERS_BYTES_MAX {
            return Err(format!(
                "all counters together have at most {COUNTERS_BYTES_MAX} bytes: delete some"
            ));
        }
        self.counters.insert(name.to_owned(), counter);
        self.bytes += bytes;
        Ok(())
    }

    pub(super) fn get_or_create(&mut self, name: &str, initial: i64) -> Result<VersionedValue, String> {
        if let Some(counter) = self.get(name) {
            return Ok(counter);
        }
        let counter = VersionedValue { value: initial, version: 1 };
        self.insert(name, counter).map(|()| counter)
    }

    /// Returns the previous value and the present state; `None`: there is no such counter. `change` returns the new
    /// value, or `None` to keep the present one.
    pub(super) fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(i64) -> Option<i64>,
    ) -> Option<(i64, VersionedValue)> {
        let counter = self.counters.get_mut(name)?;
        let previous = counter.value;
        if let Some(value) = change(previous) {
            *counter = VersionedValue { value, version: counter.version.wrapping_add(1) };
        }
        Some((previous, *counter))
    }

    /// Keeps the newer version. The error is the reason why a counter is not kept.
    pub(super) fn merge(&mut self, name: &str, other: VersionedValue) -> Result<(), String> {
        match self.counters.get_mut(name) {
            Some(own) => {
                if other.version > own.version {
                    *own = other;
                }
                Ok(())
            }
            None => self.insert(name, other),
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        if self.counters.remove(name).is_some() {
            self.bytes -= COUNTER_BYTES + name.len();
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = CounterRow> {
        let row = |(name, counter): (&String, &VersionedValue)| CounterRow {
            name: name.clone(),
            value: counter.value,
            version: counter.version,
        };
        self.counters.iter().map(row)
    }

    /// Returns the counters that are absent in `known` or have a lower version there.
    pub(super) fn newer_than(&self, known: &[CounterRow]) -> Vec<CounterRow> {
        let known: HashMap<&str, i64> = known.iter().map(|row| (row.name.as_str(), row.version)).collect();
        self.rows()
            .filter(|row| known.get(row.name.as_str()).is_none_or(|&version| row.version > version))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versioned(value: i64, version: i64) -> VersionedValue {
        VersionedValue { value, version }
    }

    #[test]
    fn version_grows_with_each_change_and_the_newer_one_replaces_the_other() {
        let mut table = CounterTable::default();
        assert_eq!(table.get_or_create("a", 5), Ok(versioned(5, 1)));
        assert_eq!(table.get_or_create("a", 9), Ok(versioned(5, 1)), "it exists");
        assert_eq!(table.change("a", |value| Some(value + 2)), Some((5, versioned(7, 2))));
        assert_eq!(table.change("a", |_| None), Some((7, versioned(7, 2))));
        assert_eq!(table.change("b", Some), None);
        for (other, kept) in [(versioned(1, 2), versioned(7, 2)), (versioned(1, 3), versioned(1, 3))] {
            table.merge("a", other).unwrap();
            assert_eq!(table.get("a"), Some(kept));
        }
        let row = |version| [CounterRow { name: "a".to_owned(), value: 0, version }];
        assert_eq!([2, 3, 4].map(|version| table.newer_than(&row(version)).len()), [1, 0, 0]);
        assert_eq!(table.newer_than(&[]).len(), 1);
    }

    #[test]
    fn counters_are_bounded_in_number_and_bytes_and_each_name_in_length() {
        let mut table = CounterTable::default();
        let name = |nth: usize, bytes: usize| format!("{nth:0bytes$}");
        assert!(
            table.get_or_create(&name(0, NAME_BYTES_MAX + 1), 0).unwrap_err().contains("at most 1024 bytes")
        );
        for nth in 0..COUNTERS_MAX {
            table.get_or_create(&name(nth, 8), 0).unwrap();
        }
        assert!(table.get_or_create("one more", 0).unwrap_err().contains("10000 counters already"));
        assert!(table.merge("one more", versioned(1, 1)).is_err());
        assert!(table.merge(&name(0, 8), versioned(1, 9)).is_ok(), "it exists");
        table.remove(&name(1, 8));
        assert!(table.get_or_create("one more", 0).is_ok());

        let mut table = CounterTable::default();
        let fitting = COUNTERS_BYTES_MAX / (NAME_BYTES_MAX + COUNTER_BYTES);
        for nth in 0..fitting {
            table.get_or_create(&name(nth, NAME_BYTES_MAX), 0).unwrap();
        }
        assert!(
            table.get_or_create(&name(fitting, NAME_BYTES_MAX), 0).unwrap_err().contains("4194304 bytes")
        );
        table.remove(&name(0, NAME_BYTES_MAX));
        assert!(table.get_or_create(&name(fitting, NAME_BYTES_MAX), 0).is_ok());
        for nth in 1..=fitting {
            table.remove(&name(nth, NAME_BYTES_MAX));
        }
        assert_eq!(table.bytes, 0);
    }
}
