//! The settings of UPerf, by their names in Java.

use consort_channel::Primitive;

use crate::perf::member::VALUE_LEN_MAX;
use crate::perf::range::THREADS_MAX;
use crate::perf::uperf::Uperf;

/// A day.
const SECONDS_MAX: i32 = 24 * 3_600;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Settings {
    pub(super) oob: bool,
    pub(super) threads: i32,
    pub(super) seconds: i32,
    pub(super) size: i32,
    pub(super) anycast: i32,
    pub(super) reads: f64,
    /// In milliseconds; 0: none.
    pub(super) timeout: i64,
    /// For the output of Java's members.
    prints_invokers: bool,
    prints_details: bool,
}

impl Settings {
    pub(super) fn of(test: &Uperf) -> Self {
        Self {
            oob: test.oob,
            threads: number(test.common.threads),
            seconds: (test.common.time.ceil() as i32).clamp(1, SECONDS_MAX),
            size: number(test.common.size),
            anycast: number(test.anycast),
            reads: test.read,
            timeout: 0,
            prints_invokers: false,
            prints_details: false,
        }
    }

    /// With the types of Java's fields.
    pub(super) fn list(&self) -> [(&'static str, Primitive); 9] {
        [
            ("oob", Primitive::Boolean(self.oob)),
            ("num_threads", Primitive::Int(self.threads)),
            ("time", Primitive::Int(self.seconds)),
            ("msg_size", Primitive::Int(self.size)),
            ("anycast_count", Primitive::Int(self.anycast)),
            ("read_percentage", Primitive::Double(self.reads)),
            ("rpc_timeout", Primitive::Long(self.timeout)),
            ("print_invokers", Primitive::Boolean(self.prints_invokers)),
            ("print_details", Primitive::Boolean(self.prints_details)),
        ]
    }

    /// Nothing has changed after an error.
    pub(super) fn set(&mut self, name: &str, value: &Primitive) -> Result<(), String> {
        let wrong = || format!("{name}: {value:?} is no value of this setting");
        let within = |least: i32, most: i32| match value {
            Primitive::Int(number) if (least..=most).contains(number) => Ok(*number),
            _ => Err(format!("{name}: {value:?} is not a number from {least} to {most}")),
        };
        match (name, value) {
            ("oob", Primitive::Boolean(is_set)) => self.oob = *is_set,
            ("print_invokers", Primitive::Boolean(is_set)) => self.prints_invokers = *is_set,
            ("print_details", Primitive::Boolean(is_set)) => self.prints_details = *is_set,
            ("num_threads", _) => self.threads = within(1, THREADS_MAX as i32)?,
            ("time", _) => self.seconds = within(1, SECONDS_MAX)?,
            ("msg_size", _) => self.size = within(0, VALUE_LEN_MAX as i32)?,
            ("anycast_count", _) => self.anycast = within(0, i32::MAX)?,
            ("read_percentage", Primitive::Double(part)) if (0.0..=1.0).contains(part) => self.reads = *part,
            // Java's menu gives an int.
            ("rpc_timeout", Primitive::Int(time)) if *time >= 0 => self.timeout = i64::from(*time),
            ("rpc_timeout", Primitive::Long(time)) if *time >= 0 => self.timeout = *time,
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        test: Uperf,
    }

    fn settings(arguments: &[&str]) -> Settings {
        Settings::of(&Arguments::parse_from([&["consort"], arguments].concat()).test)
    }

    #[test]
    fn settings_of_one_member_apply_at_another() {
        let one =
            settings(&["--threads=7", "--time=2.5", "--size=9", "--anycast=3", "--reads=0.5", "--oob=false"]);
        let mut other = settings(&[]);
        assert!(one != other);
        for (name, value) in one.list() {
            other.set(name, &value).unwrap();
        }
        assert_eq!((other.seconds, other.clone()), (3, one));
    }

    #[test]
    fn values_that_cannot_be_used_change_nothing() {
        let mut own = settings(&[]);
        for (name, value) in [
            ("num_threads", Primitive::Int(0)),
            ("num_threads", Primitive::Int(i32::MAX)),
            ("msg_size", Primitive::Int(-1)),
            ("msg_size", Primitive::Int(i32::MAX)),
            ("time", Primitive::Long(5)),
            ("read_percentage", Primitive::Double(f64::NAN)),
            ("rpc_timeout", Primitive::Int(-1)),
            ("oob", Primitive::Null),
            ("other", Primitive::Int(1)),
        ] {
            let error = own.set(name, &value).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
        assert_eq!(own, settings(&[]));
    }
}
