use std::sync::Arc;

use consort_group::{Address, ForkHeader, HeaderBody, Message, ProtocolId, View};
use tokio::sync::watch;

use super::error::ForkError;
use super::handler::ForkHandler;
use crate::channel::Channel;
use crate::error::SendError;
use crate::receiver::Receiver;

/// A channel that shares the member of another one. It keeps the member running, as a clone of that channel does; its
/// drop closes it.
#[derive(Debug)]
pub struct ForkChannel {
    open: OpenFork,
    channel: Channel,
}

/// A drop removes the fork channel from the member.
struct OpenFork {
    handler: Arc<ForkHandler>,
    stack: String,
    channel: String,
}

impl Drop for OpenFork {
    fn drop(&mut self) {
        self.handler.close(&self.stack, &self.channel);
    }
}

impl std::fmt::Debug for OpenFork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fork channel {:?} of fork stack {:?}", self.channel, self.stack)
    }
}

impl Channel {
    /// Opens the fork channel with these ids. Its receiver gets the current view, then messages and views.
    ///
    /// # Errors
    ///
    /// [`ForkError`]: the stack has no FORK, an id is too long or in use, or there are too many fork channels.
    pub fn fork(
        &self,
        stack_id: &str,
        channel_id: &str,
        receiver: impl Receiver,
    ) -> Result<ForkChannel, ForkError> {
        let handler = self.extension::<ForkHandler>().ok_or(ForkError::NoProtocol)?;
        handler.open(stack_id, channel_id, Arc::new(receiver))?;
        let open = OpenFork { handler, stack: stack_id.to_owned(), channel: channel_id.to_owned() };
        Ok(ForkChannel { open, channel: self.clone() })
    }
}

impl ForkChannel {
    /// Returns the fork stack's id.
    pub fn stack_id(&self) -> &str {
        &self.open.stack
    }

    /// Returns the fork channel's id.
    pub fn channel_id(&self) -> &str {
        &self.open.channel
    }

    /// Returns the channel that it shares.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the member's address.
    pub fn address(&self) -> &Address {
        self.channel.address()
    }

    /// Returns the current view, which is the channel's.
    pub fn view(&self) -> Option<View> {
        self.channel.view()
    }

    /// Returns a receiver of views.
    pub fn watch_view(&self) -> watch::Receiver<Option<View>> {
        self.channel.watch_view()
    }

    fn marked(&self, message: Message) -> Message {
        let header =
            ForkHeader { stack: Some(self.open.stack.clone()), channel: Some(self.open.channel.clone()) };
        message.with_header(ProtocolId::FORK, HeaderBody::Fork(Box::new(header)))
    }

    /// Sends a message to the fork channels with the same ids, as [`Channel::send`].
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        self.channel.send(self.marked(message)).await
    }

    /// Sends a message if [`ForkChannel::send`] would not wait, as [`Channel::try_send`].
    ///
    /// # Errors
    ///
    /// As [`Channel::try_send`].
    pub fn try_send(&self, message: Message) -> Result<(), SendError> {
        self.channel.try_send(self.marked(message))
    }

    /// Closes it; the channel stays open. Messages that its receiver has not begun may still come.
    pub fn close(self) {
        drop(self);
    }
}
