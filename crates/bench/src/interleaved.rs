//! Consort under several loads in turn, without a contestant.

use crate::options::Options;
use crate::progress::Progress;
use crate::sample::{Sample, Samples};
use crate::session::{CONSORT_OVERHEAD, shown};

pub(crate) trait Turn {
    fn name(&self) -> String;
    fn sample(&self, options: &Options) -> anyhow::Result<Sample>;
    fn samples(&mut self) -> &mut Samples;
}

/// Each in turn, as often as there are runs. Samples from before an error stay.
pub(crate) fn measure<T: Turn>(turns: &mut [T], options: &Options) -> anyhow::Result<()> {
    let planned = options.time() + options.lead() + CONSORT_OVERHEAD;
    let mut progress = Progress::new(planned * (turns.len() * options.runs()) as u32);
    for run in 1..=options.runs() {
        for turn in &mut *turns {
            progress.step(&format!("{}, run {run}", turn.name()));
            let sample = shown(turn.sample(options)?);
            turn.samples().samples.push(sample);
            progress.finish(planned);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use clap::Parser;

    use super::*;

    /// Succeeds this many times.
    struct Fragile(usize, Samples);

    impl Turn for Fragile {
        fn name(&self) -> String {
            "fragile".to_owned()
        }
        fn sample(&self, _options: &Options) -> anyhow::Result<Sample> {
            if self.1.samples.len() == self.0 {
                bail!("broken");
            }
            Ok(Sample { rate: 1.0, cpu_us: 1.0, latency: None, rss_mb: 1.0, errors: 2 })
        }
        fn samples(&mut self) -> &mut Samples {
            &mut self.1
        }
    }

    #[test]
    fn results_before_an_error_are_kept() {
        let options = Options::parse_from(["bench", "--runs=3"]);
        let mut turns = [Fragile(3, Samples::default()), Fragile(1, Samples::default())];
        assert!(measure(&mut turns, &options).is_err());
        assert_eq!(turns.each_ref().map(|turn| turn.1.samples.len()), [2, 1]);
        assert_eq!(turns.each_ref().map(|turn| turn.1.errors()), [4, 2]);
    }
}
