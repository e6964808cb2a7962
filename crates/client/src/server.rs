//! A server with at most one connection, reconnected when it is lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use consort_hotrod::{ProtocolVersion, ServerAddress};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::connection::driver::Driver;
use crate::connection::handle::ConnectionHandle;
use crate::connection::legacy::Versions;
use crate::connection::security::Security;
use crate::connection::state_machine::Connection;
use crate::error::ConnectionError;
use crate::limits::{CONNECT_TIME_MAX, PAUSE_MAX};

enum State {
    Connecting,
    Up(Arc<ConnectionHandle>),
    Down(ConnectionError),
}

pub(crate) struct Server {
    pub(crate) address: ServerAddress,
    /// Cluster switches before the client learnt of this server.
    pub(crate) switches: u64,
    state: RwLock<State>,
    /// Failures to connect since it was last usable.
    failures: AtomicU32,
    retires: Notify,
    clock: Clock,
    version: Option<ProtocolVersion>,
    security: Security,
}

#[derive(Clone)]
pub(crate) struct ServerConnection {
    pub(crate) server: Arc<Server>,
    pub(crate) handle: Arc<ConnectionHandle>,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.address.host, self.address.port)
    }
}

impl Server {
    pub(crate) fn new(
        address: ServerAddress,
        clock: Clock,
        version: Option<ProtocolVersion>,
        security: Security,
        switches: u64,
    ) -> Self {
        let (state, failures) = (RwLock::new(State::Connecting), AtomicU32::new(0));
        Self { address, switches, state, failures, retires: Notify::new(), clock, version, security }
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Acquire)
    }

    pub(crate) async fn answers(&self) -> bool {
        self.connect().await.is_ok()
    }

    pub(crate) fn handle(&self) -> Option<Arc<ConnectionHandle>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Up(handle) => Some(handle.clone()),
            State::Connecting | State::Down(_) => None,
        }
    }

    pub(crate) fn trouble(&self) -> Option<ConnectionError> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Down(cause) => Some(cause.clone()),
            State::Connecting | State::Up(_) => None,
        }
    }

    fn set(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    pub(crate) fn retire(&self) {
        self.retires.notify_one();
    }

    /// Keeps a connection until the server is retired or the task aborted; notifies of changes.
    pub(crate) async fn keep(self: Arc<Self>, seed: u64, changed: Arc<Notify>) {
        let mut backoff = Backoff::new(seed);
        loop {
            let cause = tokio::select! {
                connected = self.connect() => match connected {
                    Ok(driver) => {
                        let since = self.clock.now();
                        self.failures.store(0, Ordering::Release);
                        self.set(State::Up(driver.handle.clone()));
                        changed.notify_waiters();
                        tracing::debug!(server = %self, "connected");
                        let Err(cause) = self.run(driver).await else { return };
                        if self.clock.now() - since >= PAUSE_MAX {
                            backoff.reset();
                        }
                        cause
                    }
                    Err(cause) => {
                        self.failures.fetch_add(1, Ordering::AcqRel);
                        cause
                    }
                },
                () = self.retires.notified() => return,
            };
            tracing::debug!(server = %self, %cause, "no connection");
            self.set(State::Down(cause));
            changed.notify_waiters();
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.retires.notified() => return,
            }
        }
    }

    async fn connect(&self) -> Result<Driver, ConnectionError> {
        let mut greeting = Versions::new(self.version).initial();
        loop {
            match timeout(CONNECT_TIME_MAX, self.connect_in(greeting)).await {
                Ok(Ok(driver)) => return Ok(driver),
                Ok(Err((_, Some(next)))) => greeting = next,
                Ok(Err((cause, None))) => return Err(cause),
                Err(_) => return Err(ConnectionError::ConnectTimedOut(CONNECT_TIME_MAX)),
            }
        }
    }

    /// The error has the version to try next, if the server did not understand this one.
    async fn connect_in(
        &self,
        greeting: ProtocolVersion,
    ) -> Result<Driver, (ConnectionError, Option<ProtocolVersion>)> {
        let begin = async {
            let stream = TcpStream::connect((self.address.host.as_str(), self.address.port)).await?;
            // Requests are batched already; Nagle's algorithm would only add delay.
            stream.set_nodelay(true)?;
            let stream = self.security.open(self.address.host.as_str(), stream).await?;
            let login = self.security.login(&self.address)?;
            let connection = Connection::new(self.clock.now(), Versions::new(self.version), greeting, login);
            Ok(Driver::new(stream, Arc::new(ConnectionHandle::new(connection, self.clock))))
        };
        let mut driver = begin.await.map_err(|cause| (cause, None))?;
        match self.security.greet(&mut driver).await {
            Ok(()) => Ok(driver),
            Err(cause) => {
                let next = driver.handle.lock().next_greeting();
                Err((cause, next))
            }
        }
    }

    async fn run(&self, mut driver: Driver) -> Result<(), ConnectionError> {
        tokio::select! {
            ended = driver.until(|_| false) => return ended,
            () = self.retires.notified() => {}
        }
        driver.handle.lock().drain();
        driver.until(Connection::is_drained).await.or(Ok(()))
    }
}
