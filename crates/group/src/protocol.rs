//! The trait that every layer implements.

use bytes::Bytes;

use crate::config::Properties;
use crate::{
    Address, Answer, Control, Cx, Event, HeaderIds, MessageBatch, Outcome, Owed, Pass, PhysAddr, ProtocolId,
    Query, StackCount, TimerKey, Token,
};

/// Attributes that a layer shows: name and value, in the order of its choice.
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

    /// Adds all properties of a configuration.
    pub fn put_all(&mut self, config: &impl Properties) {
        self.attributes.extend(config.show().into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
}

/// One layer of the stack. Every method has a default that lets traffic through.
///
/// A handler edits the batch that travels in its own direction: what is left in it when the method returns goes on
/// to the next layer. Messages it creates are queued through [`Cx`] and never re-enter the caller: `cx.send` towards
/// the network, `cx.deliver` towards the application. Messages delivered from within `up` follow what is left in the
/// batch; messages sent from within `down` follow it likewise.
pub trait Protocol: Send {
    /// JGroups' name without package, such as `NAKACK2`.
    fn name(&self) -> &'static str;

    /// The id under which its headers are filed.
    fn id(&self) -> ProtocolId;

    /// Messages on their way to the network.
    fn down(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {}

    /// Whether `up` has anything to do for a batch that carries these headers. Most layers are passed by most batches:
    /// asking is cheaper than looking at every message again.
    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        true
    }

    /// Whether `up` only edits messages and takes some away: no other message stands in the batch afterwards, and none
    /// has a header that it did not have.
    fn only_takes(&self) -> bool {
        false
    }

    /// Messages on their way to the application.
    fn up(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {}

    /// An event on its way down, in order with the messages around it.
    fn down_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) -> Pass {
        Pass::On
    }

    /// An event on its way up, in order with the messages around it.
    fn up_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) -> Pass {
        Pass::On
    }

    /// A synchronous call from a layer above. All layers below the caller get it, from top to bottom.
    fn control(&mut self, _cx: &mut Cx<'_>, _control: &Control<'_>) {}

    /// The stack starts, from the bottom up. Called once, before anything else but `name` and `id`.
    fn start(&mut self, _cx: &mut Cx<'_>) {}

    /// The stack stops, from the top down. Nothing is delivered any more; packets sent here still go out.
    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    /// A timer of this layer fired.
    fn timer(&mut self, _cx: &mut Cx<'_>, _key: TimerKey) {}

    /// Something this layer asked of the world has an outcome.
    fn done(&mut self, _cx: &mut Cx<'_>, _token: Token, _outcome: Outcome) {}

    /// A packet from the network. Only the transport gets it.
    fn receive(&mut self, _cx: &mut Cx<'_>, _from: PhysAddr, _packet: Bytes) {}

    /// Whether `flush` has anything to do, ever: most layers have nothing, and asking them after every sweep would be
    /// what they cost.
    fn flushes(&self) -> bool {
        false
    }

    /// The sweep is over: what was collected for better packing goes out now. Only for layers that say so
    /// ([`Protocol::flushes`]).
    fn flush(&mut self, _cx: &mut Cx<'_>) {}

    /// The application (or a layer above that keeps a message) has consumed messages of `src` worth `credit` bytes.
    fn consumed(&mut self, _cx: &mut Cx<'_>, _src: &Address, _is_multicast: bool, _credit: u64) {}

    /// Whose credit the layers below have counted for what they are told next as consumed from `src`: a layer that
    /// delivers messages of one member in those of another says so here. `None`: the same member's.
    fn owed_below(&mut self, _src: &Address, _is_multicast: bool, _credit: u64) -> Option<Owed> {
        None
    }

    /// Bytes of application messages to this destination (`None` = multicasts) that wait in this layer for credit
    /// or for room in a window.
    fn held(&self, _dest: Option<&Address>) -> u64 {
        0
    }

    /// How many bytes may wait in this layer before the application has to (flow control); `None` if this layer has
    /// no say.
    fn hold_limit(&self, _is_multicast: bool) -> Option<u64> {
        None
    }

    /// A question from another layer. Reads only.
    fn answer(&self, _query: &Query<'_>) -> Option<Answer> {
        None
    }

    /// Configuration and counters, for metrics and probe.
    fn probe(&self, _out: &mut ProbeOut) {}

    /// What it counts for metrics. Reads only, and costs no more than a look at each member.
    fn counts(&self) -> Vec<(StackCount, u64)> {
        Vec::new()
    }

    /// Changes an attribute at run time. `None`: there is no such attribute; an error is for people.
    fn set_attribute(&mut self, _name: &str, _value: &str) -> Option<Result<(), String>> {
        None
    }

    /// The names of its operations.
    fn operations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Runs an operation by name, as probe's `op=` does. `None`: there is no such operation.
    fn operation(&mut self, _cx: &mut Cx<'_>, _name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        None
    }
}
