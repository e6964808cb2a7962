//! A port for monitoring that client connections cannot exhaust: health in HTTP without TLS.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::catalog::caches::Caches;
use crate::http::HttpConnection;
use crate::http::not_ready::NotServing;
use crate::limits::{ACCEPT_RETRY_DELAY, HANDSHAKE_TIMEOUT, HEALTH_CONNECTIONS_MAX};
use crate::security::Security;
use crate::shutdown::Stage;
use crate::transport::socket::Stream;

pub(crate) struct HealthPort {
    listener: TcpListener,
    connections: JoinSet<()>,
    tasks: VecDeque<AbortHandle>,
}

impl HealthPort {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, connections: JoinSet::new(), tasks: VecDeque::new() }
    }

    pub(crate) async fn accept(port: Option<&Self>) -> io::Result<TcpStream> {
        match port {
            Some(port) => Ok(port.listener.accept().await?.0),
            None => std::future::pending().await,
        }
    }

    /// At the limit of connections, the oldest one is closed.
    pub(crate) fn serve(
        &mut self,
        stream: TcpStream,
        security: &Arc<Security>,
        caches: Result<Arc<Caches>, NotServing>,
        stage: &watch::Sender<Stage>,
    ) {
        while self.connections.try_join_next().is_some() {}
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= HEALTH_CONNECTIONS_MAX
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        let answering = answer(stream, security.clone(), caches, stage.subscribe());
        self.tasks.push_back(self.connections.spawn(answering));
    }

    /// Answers that the server has stopped with its cluster.
    pub(crate) async fn answer_as_stopped(mut self, security: Arc<Security>) -> Infallible {
        let stage = watch::Sender::new(Stage::Serving);
        loop {
            match Self::accept(Some(&self)).await {
                Ok(stream) => self.serve(stream, &security, Err(NotServing::Stopped), &stage),
                // Usually for lack of descriptors.
                Err(_) => sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }
}

async fn answer(
    stream: TcpStream,
    security: Arc<Security>,
    caches: Result<Arc<Caches>, NotServing>,
    mut ending: watch::Receiver<Stage>,
) {
    let peer = stream.peer_addr().ok();
    let mut stream = Stream::Plain(stream);
    let (from, to) = stream.split();
    let visitor = HttpConnection {
        caches: caches.as_deref().map_err(|state| *state),
        security: &security,
        peer,
        certificate: None,
        from,
        to,
        input: BytesMut::new(),
        is_authenticated: false,
        is_health_port: true,
    };
    if let Err(error) = visitor.serve(Instant::now() + HANDSHAKE_TIMEOUT, &mut ending).await {
        tracing::debug!(%error, "a connection on the port for health has ended");
    }
}
