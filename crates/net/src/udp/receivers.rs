//! Tasks that read a socket for the driver (S000-63): in a flood they empty the kernel's buffer while the stack
//! works.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::{future::Future, pin::Pin};

use consort_group::PhysAddr;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::batch::Receiver;
use crate::inbox::Inbox;

pub(super) struct Receivers {
    tasks: Vec<JoinHandle<()>>,
}

impl Receivers {
    /// One sender's datagrams may overtake each other, as on any network.
    pub(super) fn start(count: usize, socket: &Arc<UdpSocket>, inbox: &Arc<Inbox>) -> Self {
        let tasks = (0..count).map(|_| tokio::spawn(read(socket.clone(), inbox.clone()))).collect();
        Self { tasks }
    }

    pub(super) fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }

    /// If not, the waker is woken at the end.
    pub(super) fn is_over(&mut self, waker: &Waker) -> bool {
        self.tasks
            .retain_mut(|task| matches!(Pin::new(task).poll(&mut Context::from_waker(waker)), Poll::Pending));
        self.tasks.is_empty()
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn read(socket: Arc<UdpSocket>, inbox: Arc<Inbox>) {
    let mut receiver = Receiver::new();
    let mut packets = Vec::new();
    loop {
        if let Err(error) = socket.readable().await {
            tracing::warn!(%error, "a receiver ends");
            return;
        }
        let result =
            receiver.try_receive(&socket, |from, packet| packets.push((PhysAddr::from(from), packet)));
        match result {
            Ok(_) => {
                let dropped = inbox.push(packets.drain(..)).dropped;
                if dropped > 0 {
                    tracing::debug!(dropped, "the driver does not keep up");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::debug!(%error, "receiving failed"),
        }
    }
}
