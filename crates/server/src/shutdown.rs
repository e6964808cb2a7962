//! The end of a server, without failed or unanswered requests of its clients.
//!
//! An ending server first leaves the topology for clients ([`crate::catalog::client_topology`]): with the next response they
//! learn the other servers. Meanwhile it executes requests. It closes a connection only when every request read there is answered
//! and no other has arrived for a short time. After [`MOVE_TIME_MAX`], and at once where no other server is left, it answers
//! further requests with `IllegalLifecycle`, which means that they were not executed.
//!
//! A request on its way while the connection closes is never read, but its client cannot know that, because a crash looks the
//! same. So a client can say with a parameter that it understands a close notice ([`consort_hotrod::CLOSE_NOTICE_PARAM`]): a
//! connection's last message, an unsolicited error response with the same status. Requests without a response were not started
//! then.

use std::future::pending;

use consort_hotrod::{
    CLOSE_NOTICE_PARAM, Intelligence, Opcode, Output, ProtocolVersion, RequestContext, RequestHeader,
    Response, Status,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::limits::{IDLE_BEFORE_CLOSE, IDLE_BEFORE_LAST_CLOSE, REFUSE_TIME_MAX};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    Serving,
    /// Clients move to other servers; requests are executed.
    Draining,
    /// Started requests are answered; no others are started.
    Closing,
}

const ENDS: &str = "this server is ending; the request was not started";

pub(crate) async fn closing(stage: &mut watch::Receiver<Stage>) {
    // Without a sender there is no server.
    let _ = stage.wait_for(|stage| *stage == Stage::Closing).await;
}

pub(crate) struct ConnectionEnding<'a> {
    watched: &'a mut watch::Receiver<Stage>,
    stage: Stage,
    since: Instant,
    heard_at: Instant,
    takes_notice: bool,
}

impl<'a> ConnectionEnding<'a> {
    pub(crate) fn new(watched: &'a mut watch::Receiver<Stage>) -> Self {
        let now = Instant::now();
        Self { watched, stage: Stage::Serving, since: now, heard_at: now, takes_notice: false }
    }

    pub(crate) fn note_input(&mut self) {
        if self.stage > Stage::Serving {
            self.heard_at = Instant::now();
        }
    }

    pub(crate) fn note(&mut self, header: &RequestHeader) {
        self.takes_notice |= header.params.iter().any(|(name, _)| name.as_str() == CLOSE_NOTICE_PARAM);
    }

    pub(crate) fn refuses(&self) -> bool {
        self.stage == Stage::Closing
    }

    /// A notice tells the client that they were not started.
    pub(crate) fn reads_nothing(&self) -> bool {
        self.refuses() && self.takes_notice
    }

    pub(crate) fn refusal(id: u64) -> Response {
        Response::error(id, Status::IllegalLifecycle, ENDS)
    }

    /// When the connection can be closed if all its requests are answered and no bytes arrive; `None` while the server does
    /// not end.
    fn idle_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Serving => None,
            Stage::Draining => Some(self.heard_at + IDLE_BEFORE_CLOSE),
            Stage::Closing if self.takes_notice => Some(self.since),
            Stage::Closing => {
                Some((self.heard_at + IDLE_BEFORE_LAST_CLOSE).min(self.since + REFUSE_TIME_MAX))
            }
        }
    }

    /// False for the server's next stage; true if the connection can be closed, with all requests answered.
    pub(crate) async fn next(&mut self, is_answered: bool) -> bool {
        let idle_at = self.idle_at().filter(|_| is_answered);
        let idle = async {
            match idle_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let (watched, stage) = (&mut *self.watched, self.stage);
        let advanced = async {
            if stage == Stage::Closing {
                pending::<()>().await;
            }
            // Without a sender there is no server.
            watched.wait_for(|next| *next > stage).await.map_or(Stage::Closing, |next| *next)
        };
        tokio::select! {
            stage = advanced => {
                self.stage = stage;
                self.since = Instant::now();
                self.heard_at = self.since;
                false
            }
            () = idle => true,
        }
    }

    /// Writes the close notice: requests without a response were not started. It is the last message.
    pub(crate) fn encode_notice(&self, output: &mut Output) {
        if self.takes_notice {
            let (version, opcode) = (ProtocolVersion::NEWEST, Opcode::Ping);
            let asked = RequestContext { version, opcode, intelligence: Intelligence::Basic };
            Self::refusal(0).encode(asked, output);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    fn header(params: &[&'static str]) -> RequestHeader {
        let params = params.iter().map(|name| ((*name).into(), Bytes::new())).collect();
        RequestHeader { params, ..RequestHeader::new(1, ProtocolVersion::NEWEST) }
    }

    #[tokio::test]
    async fn connection_closes_after_its_client_was_silent() {
        let stage = watch::Sender::new(Stage::Serving);
        let mut watched = stage.subscribe();
        let mut shutdown = ConnectionEnding::new(&mut watched);
        assert_eq!(shutdown.idle_at(), None, "the server does not end");
        stage.send_replace(Stage::Draining);
        assert!(!shutdown.next(true).await, "the stage");
        assert!(!shutdown.refuses());
        assert_eq!(shutdown.idle_at(), Some(shutdown.since + IDLE_BEFORE_CLOSE));
        shutdown.note_input();
        assert_eq!(shutdown.idle_at(), Some(shutdown.heard_at + IDLE_BEFORE_CLOSE));
        shutdown.heard_at -= IDLE_BEFORE_CLOSE;
        assert!(shutdown.next(true).await, "nothing has come");
        // A connection that waits for a response stays open.
        stage.send_replace(Stage::Closing);
        assert!(!shutdown.next(false).await, "the stage");
        assert!(shutdown.refuses() && !shutdown.reads_nothing());
        assert_eq!(shutdown.idle_at(), Some(shutdown.since + IDLE_BEFORE_LAST_CLOSE));
    }

    #[tokio::test]
    async fn client_that_keeps_sending_is_refused_for_a_bounded_time() {
        let stage = watch::Sender::new(Stage::Closing);
        let mut watched = stage.subscribe();
        let mut shutdown = ConnectionEnding::new(&mut watched);
        assert!(!shutdown.next(true).await, "the stage");
        shutdown.heard_at = shutdown.since + REFUSE_TIME_MAX - Duration::from_millis(1);
        assert_eq!(shutdown.idle_at(), Some(shutdown.since + REFUSE_TIME_MAX));
        let refusal = ConnectionEnding::refusal(7);
        assert_eq!((refusal.id, refusal.status), (7, Status::IllegalLifecycle));
    }

    #[tokio::test]
    async fn client_with_close_notices_gets_one_at_once() {
        let stage = watch::Sender::new(Stage::Closing);
        let mut watched = stage.subscribe();
        let mut shutdown = ConnectionEnding::new(&mut watched);
        shutdown.note(&header(&["other"]));
        let mut output = Output::new();
        shutdown.encode_notice(&mut output);
        assert_eq!(output.len(), 0, "it would not be understood");
        shutdown.note(&header(&["other", CLOSE_NOTICE_PARAM]));
        shutdown.note(&header(&[]));
        assert!(!shutdown.next(true).await, "the stage");
        assert!(shutdown.reads_nothing());
        assert!(shutdown.next(true).await, "all is answered");
        shutdown.encode_notice(&mut output);
        let bytes = output.into_bytes();
        // Magic, id, opcode of errors and status.
        assert_eq!(&bytes[..4], [0xa1, 0, 0x50, Status::IllegalLifecycle.byte()]);
    }
}
