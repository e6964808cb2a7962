//! A wake cannot be taken back when its timer is disarmed or armed for an earlier time, and each wake plans
//! the next one, so their number only grows. The wakes of one time are one entry in the schedule, with their
//! count.

use std::collections::BTreeMap;

use consort_group::Time;

#[derive(Default)]
pub(crate) struct Wakes {
    next: Option<Time>,
    planned: BTreeMap<Time, u64>,
}

impl Wakes {
    /// Returns whether the schedule has none at this time. Does nothing if there is an earlier wake.
    pub(crate) fn plan(&mut self, at: Time) -> bool {
        if self.next.is_some_and(|planned| planned <= at) {
            return false;
        }
        self.next = Some(at);
        let count = self.planned.entry(at).or_default();
        *count += 1;
        *count == 1
    }

    /// Those wakes found nothing to do.
    pub(crate) fn plan_same(&mut self, times: u64) {
        if let Some(count) = self.next.and_then(|at| self.planned.get_mut(&at)) {
            *count += times;
        }
    }

    pub(crate) fn take(&mut self, at: Time) -> u64 {
        self.planned.remove(&at).unwrap_or_default()
    }

    pub(crate) fn begin(&mut self) {
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_of_one_time_are_one_entry() {
        let mut wakes = Wakes::default();
        assert!(wakes.plan(Time(9)));
        assert!(!wakes.plan(Time(9)), "there is one");
        assert!(wakes.plan(Time(5)));
        assert_eq!(wakes.take(Time(5)), 1);
        wakes.begin();
        assert!(!wakes.plan(Time(9)), "it is in the schedule");
        assert_eq!(wakes.take(Time(9)), 2);
        wakes.begin();
        assert!(wakes.plan(Time(12)));
        wakes.plan_same(1);
        assert_eq!(wakes.take(Time(12)), 2);
    }

    #[test]
    fn plan_same_without_a_planned_wake_plans_nothing() {
        let mut wakes = Wakes::default();
        wakes.begin();
        wakes.plan_same(3);
        assert_eq!(wakes.take(Time(1)), 0);
    }
}
