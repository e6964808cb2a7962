//! The trait that every layer implements.

use bytes::Bytes;

use crate::config::Properties;
use crate::{
    Address, Answer, Control, Cx, Event, HeaderIds, MessageBatch, Outcome, OwedCredits, Pass, PhysAddr,
    ProtocolId, Query, StackCount, TimerKey, Token,
};

/// The attributes of a layer: name and value, in the layer's order.
#[derive(Default, Debug)]
pub struct ProbeOut {
    /// The attributes.
    pub attributes: Vec<(String, String)>,
}

impl ProbeOut {
    /// Adds an attribute.
    pub fn put(&mut self, name: &str, value: impl ToString) {
        self.attributes.push((name.to_owned(), value.to_string()));
    }

    /// Adds all properties of a configuration struct.
    pub fn put_all(&mut self, config: &impl Properties) {
        self.attributes.extend(config.show().into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
}

/// One layer of the stack. The default of every method lets traffic pass.
///
/// A handler edits the batch that travels in its direction: the messages left in it when the method returns
/// go to the next layer. New messages are queued through [`Cx`] and never re-enter the caller: `cx.send`
/// towards the network, `cx.deliver` towards the application. Messages delivered by `up` follow those left in
/// the batch; so do messages sent by `down`.
pub trait Protocol: Send {
    /// JGroups' name without package, such as `NAKACK2`.
    fn name(&self) -> &'static str;

    /// The id of its headers.
    fn id(&self) -> ProtocolId;

    /// Handles messages on their way to the network.
    fn down(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {}

    /// Returns whether `up` handles a batch with these headers. Most batches skip most layers, because this
    /// check is cheaper than inspecting every message again.
    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        true
    }

    /// Returns whether `up` only edits or removes messages: it adds no message to the batch and no header to
    /// a message.
    fn only_takes(&self) -> bool {
        false
    }

    /// Handles messages on their way to the application.
    fn up(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {}

    /// Handles an event on its way down, in order with the messages around it.
    fn down_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) -> Pass {
        Pass::On
    }

    /// Handles an event on its way up, in order with the messages around it.
    fn up_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) -> Pass {
        Pass::On
    }

    /// Handles a synchronous call from a layer above. All layers below the caller get it, from top to bottom.
    fn control(&mut self, _cx: &mut Cx<'_>, _control: &Control<'_>) {}

    /// Starts the layer, from the bottom up. Called once, before any method but `name` and `id`.
    fn start(&mut self, _cx: &mut Cx<'_>) {}

    /// Stops the layer, from the top down. Messages delivered here are lost; packets sent here still go out.
    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    /// Handles a timer of this layer that fired.
    fn timer(&mut self, _cx: &mut Cx<'_>, _key: TimerKey) {}

    /// Handles the outcome of an effect that this layer requested.
    fn done(&mut self, _cx: &mut Cx<'_>, _token: Token, _outcome: Outcome) {}

    /// Handles a packet from the network. Only the transport gets it.
    fn receive(&mut self, _cx: &mut Cx<'_>, _from: PhysAddr, _packet: Bytes) {}

    /// Returns whether `flush` ever does anything. Layers without it are not called after every sweep.
    fn flushes(&self) -> bool {
        false
    }

    /// Sends what was collected for better packing, at the end of a sweep. Called only if
    /// [`Protocol::flushes`] returns true.
    fn flush(&mut self, _cx: &mut Cx<'_>) {}

    /// Records that the application (or a layer above that keeps a message) consumed messages of `src` with
    /// `credit` bytes.
    fn consumed(&mut self, _cx: &mut Cx<'_>, _src: &Address, _is_multicast: bool, _credit: u64) {}

    /// Returns the members whose credit the layers below have counted for the next consumed bytes of `src`. A
    /// layer that delivers messages of one member that another member sent implements it. `None`: the credit
    /// is `src`'s.
    fn owed_below(&mut self, _src: &Address, _is_multicast: bool, _credit: u64) -> Option<OwedCredits> {
        None
    }

    /// Returns the bytes of application messages to this destination (`None` = multicasts) that wait in this
    /// layer for credits or for room in a window.
    fn queued_bytes(&self, _dest: Option<&Address>) -> u64 {
        0
    }

    /// Returns how many bytes may wait in this layer before the application has to wait (flow control);
    /// `None` if the layer sets no limit.
    fn hold_limit(&self, _is_multicast: bool) -> Option<u64> {
        None
    }

    /// Answers a query of another layer. Reads only.
    fn answer(&self, _query: &Query<'_>) -> Option<Answer> {
        None
    }

    /// Adds configuration and counters for metrics and probe.
    fn probe(&self, _out: &mut ProbeOut) {}

    /// Returns the counts for metrics. Reads only; its cost is at most linear in the number of members.
    fn counts(&self) -> Vec<(StackCount, u64)> {
        Vec::new()
    }

    /// Changes an attribute at run time. `None`: no such attribute. The error is a text for the operator.
    fn set_attribute(&mut self, _name: &str, _value: &str) -> Option<Result<(), String>> {
        None
    }

    /// Returns the names of the operations.
    fn operations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Runs an operation by name, as probe's `op=` does. `None`: no such operation.
    fn operation(&mut self, _cx: &mut Cx<'_>, _name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        None
    }
}
