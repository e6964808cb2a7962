//! A port for monitoring that client connections cannot exhaust: health in HTTP without TLS.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::catalog::caches::Caches;
use crate::http::HttpConnection;
use crate::limits::{HANDSHAKE_TIMEOUT, HEALTH_CONNECTIONS_MAX};
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
        caches: &watch::Sender<Option<Arc<Caches>>>,
        stage: &watch::Sender<Stage>,
    ) {
        while self.connections.try_join_next().is_some() {}
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= HEALTH_CONNECTIONS_MAX
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        let answering = answer(stream, security.clone(), caches.borrow().clone(), stage.subscribe());
        self.tasks.push_back(self.connections.spawn(answering));
    }
}

async fn answer(
    stream: TcpStream,
    security: Arc<Security>,
    caches: Option<Arc<Caches>>,
    mut ending: watch::Receiver<Stage>,
) {
    let peer = stream.peer_addr().ok();
    let mut stream = Stream::Plain(stream);
    let (from, to) = stream.split();
    let visitor = HttpConnection {
        caches: caches.as_deref(),
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
