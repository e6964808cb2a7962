//! Single steps in nanoseconds: messages written and read, beside JGroups; what an open BARRIER adds; what a trace
//! point costs that is off.

mod layers;
mod marshal;
mod timing;
mod trace;

use consort_jgroups::Jar;

use crate::findings::Outcome;
use crate::options::Options;
use crate::report;

/// Measures all of them, `runs` times in turn, with the subscriber that the `consort` command has.
pub(crate) fn measure(options: &Options, jar: Option<&Jar>) -> Outcome {
    trace::subscribe();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    match marshal::measure(options, jar) {
        Ok(measured) => rows.extend(measured),
        Err(error) => failures.push(error),
    }
    rows.extend(layers::measure(options));
    rows.extend(trace::measure(options));
    report::print_rows(&rows);
    Outcome { rows, failures, ..Outcome::default() }
}
