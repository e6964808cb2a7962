//! Installed views, for probe and metrics.

use std::collections::VecDeque;

use crate::{Cx, View};

#[derive(Default)]
pub(super) struct ViewHistory {
    pub(super) views: u64,
    pub(super) merge_views: u64,
    /// The newest view is last.
    previous: VecDeque<String>,
}

impl ViewHistory {
    pub(super) fn add(&mut self, cx: &Cx<'_>, view: &View, most: usize) {
        self.views += 1;
        self.merge_views += u64::from(view.is_merge());
        let text = view.display(&cx.shared().book);
        tracing::debug!(view = %text, "new view");
        self.previous.push_back(text);
        while self.previous.len() > most {
            self.previous.pop_front();
        }
    }

    pub(super) fn previous_views(&self) -> String {
        self.previous.iter().map(|view| format!("{view}\n")).collect()
    }
}
