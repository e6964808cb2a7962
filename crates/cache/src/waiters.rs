//! Callers that wait for an operation's end, by its number.

use std::task::{Context, Poll, Waker};

use consort_grid::{OperationError, Outcome};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

pub(crate) type Result = std::result::Result<Outcome, OperationError>;

enum Waiter {
    Waiting { waker: Waker, is_write: bool },
    Done(Result),
}

/// At most one per future.
#[derive(Default)]
pub(crate) struct Waiters {
    waiters: HashMap<u64, Waiter, FixedState>,
}

impl Waiters {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn insert(&mut self, number: u64, waker: Waker, is_write: bool) {
        self.waiters.insert(number, Waiter::Waiting { waker, is_write });
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.waiters.remove(&number);
    }

    /// The waker is to be woken outside the lock.
    pub(crate) fn finish(&mut self, number: u64, result: Result) -> Option<Waker> {
        let waiter = self.waiters.get_mut(&number)?;
        match std::mem::replace(waiter, Waiter::Done(result)) {
            Waiter::Waiting { waker, .. } => Some(waker),
            Waiter::Done(_) => None,
        }
    }

    pub(crate) fn poll(&mut self, number: u64, cx: &mut Context<'_>) -> Poll<Result> {
        match self.waiters.get_mut(&number) {
            Some(Waiter::Waiting { waker, .. }) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            Some(Waiter::Done(_)) => match self.waiters.remove(&number) {
                Some(Waiter::Done(result)) => Poll::Ready(result),
                _ => Poll::Ready(Err(OperationError::Closed)),
            },
            None => Poll::Ready(Err(OperationError::Closed)),
        }
    }

    /// The member has ended: the results of writes stay unknown.
    pub(crate) fn end(&mut self) -> Vec<Waker> {
        let end = |waiter: &mut Waiter| {
            let Waiter::Waiting { is_write, .. } = waiter else { return None };
            let error = if *is_write { OperationError::Uncertain } else { OperationError::Closed };
            match std::mem::replace(waiter, Waiter::Done(Err(error))) {
                Waiter::Waiting { waker, .. } => Some(waker),
                Waiter::Done(_) => None,
            }
        };
        self.waiters.values_mut().filter_map(end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_waiter_is_removed() {
        let mut waiters = Waiters::default();
        let mut cx = Context::from_waker(Waker::noop());
        waiters.insert(1, Waker::noop().clone(), true);
        waiters.insert(2, Waker::noop().clone(), false);
        assert_eq!(waiters.poll(2, &mut cx), Poll::Pending);
        waiters.remove(1);
        assert!(waiters.finish(1, Ok(Outcome::Read(None))).is_none(), "no task is woken");
        assert!(waiters.finish(2, Ok(Outcome::Read(None))).is_some());
        assert_eq!(waiters.poll(2, &mut cx), Poll::Ready(Ok(Outcome::Read(None))));
        assert!(waiters.waiters.is_empty());
    }

    #[test]
    fn at_the_end_only_reads_are_known_to_have_changed_nothing() {
        let mut waiters = Waiters::default();
        let mut cx = Context::from_waker(Waker::noop());
        waiters.insert(1, Waker::noop().clone(), true);
        waiters.insert(2, Waker::noop().clone(), false);
        assert_eq!(waiters.end().len(), 2);
        assert_eq!(waiters.poll(1, &mut cx), Poll::Ready(Err(OperationError::Uncertain)));
        assert_eq!(waiters.poll(2, &mut cx), Poll::Ready(Err(OperationError::Closed)));
    }
}
