//! The time limit for a client to send a request, or to read its responses: a fixed part, and one for the bytes at the least
//! rate. The time runs only while the server reads.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::TRANSFER_RATE_MIN;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    until: Instant,
    bytes: usize,
    stopped: Option<Instant>,
}

fn time_of(bytes: usize) -> Duration {
    Duration::from_secs(bytes as u64) / TRANSFER_RATE_MIN
}

impl Transfer {
    /// `time` is the fixed part.
    pub(crate) fn begin(bytes: usize, time: Duration) -> Self {
        Self::begin_at(Instant::now(), bytes, time)
    }

    fn begin_at(now: Instant, bytes: usize, time: Duration) -> Self {
        Self { until: now + time + time_of(bytes), bytes, stopped: None }
    }

    pub(crate) fn reach(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.until += time_of(bytes - self.bytes);
            self.bytes = bytes;
        }
    }

    pub(crate) fn extend(&mut self, bytes: usize) {
        self.reach(self.bytes + bytes);
    }

    pub(crate) fn run(&mut self, reads: bool) -> Option<Instant> {
        if reads == self.stopped.is_some() {
            self.turn_at(Instant::now());
        }
        reads.then_some(self.until)
    }

    fn turn_at(&mut self, now: Instant) {
        match self.stopped.take() {
            None => self.stopped = Some(now),
            Some(stopped) => self.until += now - stopped,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&self, now: Instant) -> bool {
        self.stopped.is_none() && now >= self.until
    }
}

/// Rarely reset, because transfers of a busy connection begin and end often.
#[derive(Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    pub(crate) async fn at(&mut self, until: Option<Instant>) {
        let Some(until) = until else { return std::future::pending().await };
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if sleep.is_elapsed() || sleep.deadline() > until {
            sleep.as_mut().reset(until);
        }
        poll_fn(|cx| sleep.as_mut().poll(cx)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    const TIME: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_limit_depends_on_bytes_and_stops_while_the_server_does_not_read() {
        let begun = Instant::now();
        let mut transfer = Transfer::begin_at(begun, 2 * TRANSFER_RATE_MIN as usize, TIME);
        assert_eq!(transfer.run(true), Some(begun + TIME + 2 * SECOND));
        transfer.extend(TRANSFER_RATE_MIN as usize);
        transfer.reach(1);
        assert_eq!(transfer.run(true), Some(begun + TIME + 3 * SECOND));
        transfer.turn_at(begun + SECOND);
        assert!(!transfer.is_over_at(begun + 9 * TIME));
        transfer.turn_at(begun + 11 * SECOND);
        assert_eq!(transfer.run(true), Some(begun + TIME + 13 * SECOND));
        assert!(!transfer.is_over_at(begun + TIME + 12 * SECOND));
        assert!(transfer.is_over_at(begun + TIME + 13 * SECOND));
        assert_eq!(transfer.run(false), None);
    }

    #[tokio::test]
    async fn alarm_fires_at_its_time_and_can_be_set_again() {
        let (mut alarm, begun) = (Alarm::default(), Instant::now());
        tokio::select! {
            biased;
            () = alarm.at(Some(begun + 1_000 * TIME)) => panic!("too early"),
            () = ready(()) => {}
        }
        for milliseconds in [5, 10] {
            let until = begun + Duration::from_millis(milliseconds);
            alarm.at(Some(until)).await;
            assert!(Instant::now() >= until);
        }
        tokio::select! {
            biased;
            () = alarm.at(None) => panic!("it was not set"),
            () = ready(()) => {}
        }
    }
}
