use serde::Serialize;

use crate::plan::Load;
use crate::sample::Samples;

#[derive(Serialize)]
pub(crate) struct Point {
    pub(crate) load: Load,
    pub(crate) consort: Samples,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jgroups: Option<Samples>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sockets: Option<Samples>,
}

impl Point {
    pub(crate) fn errors(&self) -> u64 {
        let all = [Some(&self.consort), self.jgroups.as_ref(), self.sockets.as_ref()];
        all.into_iter().flatten().map(Samples::errors).sum()
    }
}

#[derive(Serialize)]
pub(crate) struct Record {
    pub(crate) java: Option<String>,
    pub(crate) members: usize,
    pub(crate) runs: usize,
    pub(crate) seconds: f64,
    pub(crate) quick: bool,
    pub(crate) points: Vec<Point>,
}
