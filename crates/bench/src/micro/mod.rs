mod layers;
mod marshal;
mod timing;
mod trace;

use consort_testbed::Jar;

use crate::options::Options;
use crate::report;
use crate::results::Outcome;

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
