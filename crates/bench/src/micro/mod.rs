//! Single steps in nanoseconds: messages written and read, beside JGroups; what an open BARRIER adds; what a trace
//! point costs that is off.

mod layers;
mod marshal;
mod timing;
mod trace;

use consort_jgroups::Jar;

use crate::options::Options;
use crate::targets::Row;

/// Measures all of them, `runs` times in turn.
pub(crate) fn measure(options: &Options, jar: Option<&Jar>) -> anyhow::Result<Vec<Row>> {
    let mut rows = marshal::measure(options, jar)?;
    rows.extend(layers::measure(options));
    rows.extend(trace::measure(options));
    Ok(rows)
}
