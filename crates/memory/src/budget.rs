use crate::limit::{Exceeded, Limit};
use crate::reservation::Reservation;

/// A limit of bytes with a name. Clones are handles to the same limit.
#[derive(Clone, Debug)]
pub struct Budget(Limit);

/// The figures of a budget at one moment, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The budget's name.
    pub name: &'static str,
    /// The most bytes reserved at the same time.
    pub limit: u64,
    /// The bytes reserved now, by budgets below, too.
    pub used: u64,
    /// The peak since the budget was made.
    pub peak: u64,
    /// Refused reservations since the budget was made.
    pub refused: u64,
}

impl Budget {
    /// Creates a budget of `limit` bytes without a parent. `name` appears in errors and metrics.
    pub fn new(name: &'static str, limit: u64) -> Self {
        Self(Limit::new(name, limit, None))
    }

    /// Creates a budget within this one: its reservations count in both. The limits of all children may add up
    /// to more than this limit.
    pub fn child(&self, name: &'static str, limit: u64) -> Self {
        Self(Limit::new(name, limit, Some(self.0.clone())))
    }

    /// Returns whether both are handles to the same limit.
    pub fn is(&self, other: &Self) -> bool {
        self.0.is(&other.0)
    }

    /// The budget's name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The most bytes reserved at the same time.
    pub fn limit(&self) -> u64 {
        self.0.bytes()
    }

    /// Changes the limit. Existing reservations stay, also beyond it.
    pub fn set_limit(&self, limit: u64) {
        self.0.set_bytes(limit);
    }

    /// The bytes reserved now.
    pub fn used(&self) -> u64 {
        self.0.used()
    }

    /// The figures for metrics.
    pub fn usage(&self) -> Usage {
        Usage {
            name: self.name(),
            limit: self.limit(),
            used: self.used(),
            peak: self.0.peak(),
            refused: self.0.refused(),
        }
    }

    /// Reserves `bytes`, or returns the limit that refuses and reserves nothing.
    pub fn try_reserve(&self, bytes: u64) -> Result<Reservation, Exceeded> {
        match self.0.add(bytes) {
            Ok(()) => Ok(Reservation::new(self.0.clone(), bytes)),
            Err(refusing) => Err(refusing.refuse(bytes)),
        }
    }

    /// Reserves `bytes` as soon as other holders have released enough, in the order of the calls.
    ///
    /// Fails at once if a limit is smaller than `bytes`. A caller that waits while it holds reservations of the
    /// same budget can wait forever: reserve the whole size first, or use [`Budget::try_reserve`].
    pub async fn reserve(&self, bytes: u64) -> Result<Reservation, Exceeded> {
        let _turn = self.0.turn().await;
        self.0.add_when_released(bytes).await?;
        Ok(Reservation::new(self.0.clone(), bytes))
    }

    /// Counts bytes that are already in use, in this budget and all above, without checking limits.
    pub fn reserve_forced(&self, bytes: u64) -> Reservation {
        self.0.add_forced(bytes);
        Reservation::new(self.0.clone(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn reservation_beyond_the_limit_is_refused_with_name_limit_and_use() {
        let budget = Budget::new("responses", 100);
        let held = budget.try_reserve(70).unwrap();
        let error = budget.try_reserve(31).unwrap_err();
        assert_eq!(error, Exceeded { name: "responses", limit: 100, used: 70, wanted: 31 });
        assert_eq!(budget.usage().refused, 1);
        drop(held);
        assert_eq!((budget.used(), budget.usage().peak), (0, 70));
    }

    #[test]
    fn child_counts_in_its_parent_and_is_refused_by_it() {
        let process = Budget::new("process", 100);
        let requests = process.child("requests", 80);
        let responses = process.child("responses", 80);
        let held = requests.try_reserve(60).unwrap();
        assert_eq!(process.used(), 60);
        assert_eq!(responses.try_reserve(41).unwrap_err().name, "process");
        assert_eq!((responses.used(), process.used()), (0, 60));
        drop(held);
        assert!(responses.try_reserve(80).is_ok());
    }

    #[test]
    fn waiters_are_served_in_order_when_bytes_are_released() {
        let budget = Budget::new("b", 10);
        let held = budget.try_reserve(8).unwrap();
        let mut large = pin!(budget.reserve(9));
        let mut small = pin!(budget.reserve(1));
        assert!(poll(large.as_mut()).is_pending());
        assert!(poll(small.as_mut()).is_pending(), "the small reservation does not overtake the large one");
        drop(held);
        let Poll::Ready(Ok(large)) = poll(large.as_mut()) else { panic!("bytes were released") };
        assert_eq!(large.bytes(), 9);
        assert!(poll(small.as_mut()).is_ready());
    }

    #[test]
    fn waiter_of_a_child_is_woken_by_a_release_in_its_parent() {
        let process = Budget::new("process", 10);
        let child = process.child("child", 10);
        let held = process.try_reserve(10).unwrap();
        let mut waiting = pin!(child.reserve(5));
        assert!(poll(waiting.as_mut()).is_pending());
        drop(held);
        assert!(poll(waiting.as_mut()).is_ready());
    }

    #[test]
    fn reservation_larger_than_the_limit_fails_without_waiting() {
        let budget = Budget::new("b", 10);
        let Poll::Ready(Err(error)) = poll(pin!(budget.reserve(11))) else { panic!("it would wait forever") };
        assert_eq!(error.wanted, 11);
    }

    #[test]
    fn dropped_waiter_holds_nothing() {
        let budget = Budget::new("b", 10);
        let held = budget.try_reserve(10).unwrap();
        {
            let mut waiting = pin!(budget.reserve(5));
            assert!(poll(waiting.as_mut()).is_pending());
        }
        drop(held);
        assert_eq!(budget.used(), 0);
        assert!(poll(pin!(budget.reserve(10))).is_ready());
    }

    #[test]
    fn lowered_limit_refuses_new_reservations_only() {
        let budget = Budget::new("b", 10);
        let held = budget.try_reserve(10).unwrap();
        budget.set_limit(5);
        assert!(budget.try_reserve(1).is_err());
        assert_eq!(held.bytes(), 10);
        drop(held);
        assert!(budget.try_reserve(5).is_ok());
    }

    #[test]
    fn forced_bytes_count_beyond_the_limit_and_reservations_of_one_budget_join() {
        let (budget, other) = (Budget::new("b", 10), Budget::new("o", 10));
        let mut held = budget.try_reserve(8).unwrap();
        held.grow_forced(5);
        assert_eq!((held.bytes(), budget.used()), (13, 13));
        assert!(budget.try_reserve(1).is_err());
        held.shrink(10);
        assert!(held.join(budget.try_reserve(2).unwrap()).is_none());
        assert!(held.join(other.try_reserve(2).unwrap()).is_some_and(|other| other.bytes() == 2));
        assert_eq!((held.bytes(), budget.used(), other.used()), (5, 5, 0));
        drop(held);
        assert_eq!(budget.used(), 0);
    }

    proptest! {
        #[test]
        fn use_is_the_sum_of_what_is_held_and_never_above_the_limits(
            steps in prop::collection::vec((0_usize..3, 0_u64..60, 0_usize..8), 0..64),
        ) {
            let process = Budget::new("process", 100);
            let budgets = [process.clone(), process.child("a", 50), process.child("b", 90)];
            let mut held: Vec<(usize, Reservation)> = Vec::new();
            for (which, bytes, victim) in steps {
                match held.get_mut(victim) {
                    Some((_, reservation)) if bytes % 3 == 0 => reservation.shrink(bytes.min(reservation.bytes())),
                    Some((_, reservation)) if bytes % 3 == 1 => drop(reservation.try_grow(bytes)),
                    Some(_) => drop(held.swap_remove(victim)),
                    None => held.extend(budgets[which].try_reserve(bytes).map(|reservation| (which, reservation))),
                }
                let sum = |which: usize| held.iter().filter(|(at, _)| *at == which).map(|(_, r)| r.bytes()).sum::<u64>();
                prop_assert_eq!(budgets[1].used(), sum(1));
                prop_assert_eq!(budgets[2].used(), sum(2));
                prop_assert_eq!(process.used(), sum(0) + sum(1) + sum(2));
                prop_assert!(budgets.iter().all(|budget| budget.used() <= budget.limit()));
            }
        }
    }
}
