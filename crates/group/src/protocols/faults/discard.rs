//! DISCARD: drops messages by chance, by count, or of certain members.

use crate::config::Properties;
use crate::{
    Address, Cx, DropReason, HeaderBody, Message, MessageBatch, ProbeOut, Protocol, ProtocolId, Transient,
};

crate::properties! {
    /// DISCARD's properties, in JGroups' spelling.
    #[allow(non_snake_case)]
    DiscardConfig {
        /// The probability of dropping an incoming message, from 0 to 1.
        up: f64 = 0.0,
        /// The probability of dropping an outgoing message.
        down: f64 = 0.0,
        /// Whether this member's messages to itself always pass, including its copy of its multicasts.
        excludeItself: bool = true,
        /// Whether all messages are dropped.
        discard_all: bool = false,
        /// How many of the next outgoing unicasts are dropped.
        drop_down_unicasts: u32 = 0,
        /// How many of the next outgoing multicasts are dropped.
        drop_down_multicasts: u32 = 0,
    }
}

/// The DISCARD layer.
pub struct Discard {
    config: DiscardConfig,
    /// By logical name or address.
    ignored: Vec<String>,
    lost_up: u64,
    lost_down: u64,
}

impl Discard {
    /// Creates the layer.
    pub const fn new(config: DiscardConfig) -> Self {
        Self { config, ignored: Vec::new(), lost_up: 0, lost_down: 0 }
    }

    fn is_ignored(&self, cx: &Cx<'_>, member: &Address) -> bool {
        !self.ignored.is_empty() && {
            let name = cx.shared().book.display(member);
            let address = member.to_string();
            self.ignored.iter().any(|ignored| *ignored == name || *ignored == address)
        }
    }

    fn loses_up(&self, cx: &mut Cx<'_>, message: &Message) -> bool {
        let Some(src) = &message.src else { return false };
        if cx.is_local(src) {
            return !self.config.excludeItself && cx.rng().chance(self.config.up);
        }
        self.config.discard_all || self.is_ignored(cx, src) || cx.rng().chance(self.config.up)
    }

    fn loses_down(&mut self, cx: &mut Cx<'_>, message: &Message) -> bool {
        let left = match &message.dest {
            Some(dest) if self.config.excludeItself && cx.is_local(dest) => return false,
            Some(_) => &mut self.config.drop_down_unicasts,
            None => &mut self.config.drop_down_multicasts,
        };
        if *left > 0 {
            *left -= 1;
            return true;
        }
        let is_ignored = message.dest.as_ref().is_some_and(|dest| self.is_ignored(cx, dest));
        self.config.discard_all || is_ignored || cx.rng().chance(self.config.down)
    }
}

/// The transport loops a dropped multicast back in order, as a unicast.
fn to_self_only(cx: &Cx<'_>, message: &mut Message) {
    message.dest = Some(cx.local().clone());
    message.headers.put(ProtocolId::DISCARD, HeaderBody::Heartbeat);
}

fn was_to_self_only(message: &mut Message) -> bool {
    let is_marked =
        message.transient.has(Transient::LOOPED_BACK) && message.headers.take(ProtocolId::DISCARD).is_some();
    if is_marked {
        message.dest = None;
    }
    is_marked
}

impl Protocol for Discard {
    fn name(&self) -> &'static str {
        "DISCARD"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::DISCARD
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let messages = std::mem::take(&mut batch.messages);
        for mut message in messages {
            let is_own_multicast = was_to_self_only(&mut message);
            if self.loses_up(cx, &message) {
                self.lost_up += 1;
                cx.discard(&message, DropReason::Injected);
            } else if is_own_multicast {
                cx.deliver(message);
            } else {
                batch.messages.push(message);
            }
        }
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| {
            if !self.loses_down(cx, message) {
                return true;
            }
            self.lost_down += 1;
            cx.discard(message, DropReason::Injected);
            let has_own_copy = self.config.excludeItself
                && message.is_multicast()
                && !message.transient.has(Transient::DONT_LOOPBACK);
            if has_own_copy {
                to_self_only(cx, message);
            }
            has_own_copy
        });
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    /// `ignore` adds members, `ignoreNobody` clears the list.
    fn operations(&self) -> &'static [&'static str] {
        &["ignore", "ignoreNobody"]
    }

    fn operation(&mut self, _cx: &mut Cx<'_>, name: &str, args: &[&str]) -> Option<Result<String, String>> {
        match name {
            "ignore" => self.ignored.extend(args.iter().map(|&name| name.to_owned())),
            "ignoreNobody" => self.ignored.clear(),
            _ => return None,
        }
        Some(Ok(self.ignored.join(", ")))
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("ignored_members", self.ignored.join(", "));
        out.put("dropped_up_messages", self.lost_up);
        out.put("dropped_down_messages", self.lost_down);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};

    fn from(n: u64) -> Message {
        Message::bytes(Some(member(1)), "x").sent_by(n)
    }

    #[test]
    fn a_tenth_is_dropped_each_way_but_no_own_message() {
        let config = DiscardConfig { up: 0.1, down: 0.1, ..DiscardConfig::default() };
        let mut harness = Harness::new(Discard::new(config));
        harness.up_batch(vec![from(2); 1_000]);
        let up = harness.take_up().len();
        assert!((850..950).contains(&up), "{up}");
        harness.send_batch(vec![Message::bytes(Some(member(2)), "x"); 1_000]);
        let down = harness.take_down().len();
        assert!((850..950).contains(&down), "{down}");
        harness.send_batch(vec![Message::bytes(Some(member(1)), "x"); 100]);
        assert_eq!(harness.take_down().len(), 100);
    }

    #[test]
    fn messages_of_ignored_members_are_dropped_both_ways() {
        let mut harness = Harness::new(Discard::new(DiscardConfig::default()));
        let name = member(2).to_string();
        harness.stack.operation(harness.now, "DISCARD", "ignore", &[&name]);
        harness.up(from(2)).up(from(3)).send(Message::bytes(Some(member(2)), "x"));
        assert_eq!(harness.take_up().len(), 1);
        assert_eq!(harness.take_down(), []);
        harness.stack.operation(harness.now, "DISCARD", "ignoreNobody", &[]);
        harness.up(from(2));
        assert_eq!(harness.take_up().len(), 1);
    }

    #[test]
    fn attributes_change_at_run_time() {
        let mut harness = Harness::new(Discard::new(DiscardConfig::default()));
        assert_eq!(harness.stack.set_attribute("DISCARD", "discard_all", "true"), Some(Ok(())));
        assert_eq!(harness.up(from(2)).take_up(), []);
    }

    /// The transport loops back, as all do.
    fn over_transport(config: DiscardConfig) -> Harness {
        struct Loop;
        impl Protocol for Loop {
            fn name(&self) -> &'static str {
                "LOOP"
            }
            fn id(&self) -> ProtocolId {
                ProtocolId::TP
            }
            fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
                for message in &batch.messages {
                    if message.dest.as_ref().is_none_or(|dest| cx.is_local(dest)) {
                        let mut copy = message.clone();
                        copy.transient |= Transient::LOOPED_BACK;
                        cx.deliver(copy);
                    }
                }
                let local = cx.local().clone();
                batch.messages.retain(|message| message.dest.as_ref() != Some(&local));
            }
        }
        Harness::with_layers(1, vec![Box::new(Loop), Box::new(Discard::new(config))])
    }

    fn values(messages: &[Message]) -> Vec<u8> {
        messages.iter().map(|message| message.payload_bytes().unwrap()[0]).collect()
    }

    #[test]
    fn a_lost_multicast_still_comes_back_to_its_sender_and_in_order() {
        let mut harness = over_transport(DiscardConfig { down: 0.5, ..DiscardConfig::default() });
        harness.send_batch((0..100).map(|n| Message::bytes(None, vec![n])).collect());
        let back = harness.take_up();
        assert_eq!(values(&back), (0..100).collect::<Vec<u8>>());
        assert!(back.iter().all(|message| message.is_multicast() && message.headers.0.is_empty()));
        let sent = harness.take_down();
        assert!((30..70).contains(&sent.len()), "{}", sent.len());
    }

    #[test]
    fn with_discard_all_a_member_receives_its_own_messages_if_excluded() {
        for exclude in [true, false] {
            let config =
                DiscardConfig { discard_all: true, excludeItself: exclude, ..DiscardConfig::default() };
            let mut harness = over_transport(config);
            harness.send(Message::bytes(None, "x")).send(Message::bytes(Some(member(1)), "x"));
            assert_eq!(harness.take_up().len(), if exclude { 2 } else { 0 });
            assert_eq!(harness.take_down(), []);
        }
    }

    #[test]
    fn own_messages_are_dropped_on_the_way_up_only_if_not_excluded() {
        for exclude in [true, false] {
            let config = DiscardConfig { up: 1.0, excludeItself: exclude, ..DiscardConfig::default() };
            let mut harness = Harness::new(Discard::new(config));
            assert_eq!(harness.up(from(1)).take_up().len(), usize::from(exclude));
        }
    }
}
