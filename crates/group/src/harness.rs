#![allow(dead_code)] // every protocol's tests use a part of it

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{
    Address, Answer, Control, Cx, Digest, Effect, Event, Indication, Message, MessageBatch, Outcome, Pass,
    PhysAddr, Protocol, ProtocolId, Query, Stack, StackCount, StackSetup, Time, Token, Uuid, Version, View,
    ViewId,
};

pub(crate) fn member(n: u64) -> Address {
    Address::Uuid(Uuid { most: n, least: n })
}

impl Message {
    pub(crate) fn sent_by(self, n: u64) -> Self {
        Self { src: Some(member(n)), ..self }
    }
}

pub(crate) fn phys(n: u16) -> PhysAddr {
    PhysAddr::new([127, 0, 0, 1].into(), 7800 + n)
}

pub(crate) fn view(id: u64, members: &[u64]) -> View {
    let members: Vec<Address> = members.iter().map(|&n| member(n)).collect();
    View::new(ViewId { creator: members[0].clone(), id }, members)
}

/// Rows: member number, highest delivered, highest received.
pub(crate) fn digest(rows: &[(u64, u64, u64)]) -> Digest {
    let mut digest = Digest::default();
    for &(n, hd, hr) in rows {
        digest.set(member(n), hd, hr);
    }
    digest
}

#[derive(Default)]
struct BottomRecord {
    down: Vec<Message>,
    down_events: Vec<Event>,
    controls: Vec<String>,
    digest: Option<Digest>,
    has_gap: Option<bool>,
    has_tcp_port: bool,
    raise: Option<Event>,
    learn: Option<u64>,
}

/// The layer below. Answers queries as set.
struct BottomStub(Arc<Mutex<BottomRecord>>);

impl Protocol for BottomStub {
    fn name(&self) -> &'static str {
        "BOTTOM"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId::TP
    }
    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.0.lock().unwrap().down.append(&mut batch.messages);
    }
    fn down_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        self.0.lock().unwrap().down_events.push(event.clone());
        Pass::Stop
    }
    fn control(&mut self, _cx: &mut Cx<'_>, control: &Control<'_>) {
        self.0.lock().unwrap().controls.push(format!("{control:?}"));
    }
    fn receive(&mut self, _cx: &mut Cx<'_>, _from: PhysAddr, _packet: bytes::Bytes) {}
    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        if name == "release" {
            let batch = std::mem::take(&mut self.0.lock().unwrap().down);
            for message in batch {
                cx.deliver(message);
            }
        }
        if let Some(n) = self.0.lock().unwrap().learn.take() {
            cx.book().learn(&member(n), None, Some(phys(n as u16)));
        }
        if let Some(event) = self.0.lock().unwrap().raise.take() {
            cx.raise(event);
        }
        None
    }
    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            Query::Digest | Query::DigestOf(_) => self.0.lock().unwrap().digest.clone().map(Answer::Digest),
            Query::HasGap { .. } => self.0.lock().unwrap().has_gap.map(Answer::Yes),
            Query::HasTcpPort => Some(Answer::Yes(self.0.lock().unwrap().has_tcp_port)),
            _ => None,
        }
    }
}

struct TopStub(Arc<Mutex<Vec<InjectedEvent>>>);

enum InjectedEvent {
    View(View),
    Lost(Vec<Address>),
    BecomeServer,
    SetDigest(Digest),
    MergeDigest(Digest),
    OverwriteDigest(Digest),
    Stable(Digest),
    SuspendStable(Duration),
    ResumeStable,
    Barrier(bool),
}

impl Protocol for TopStub {
    fn name(&self) -> &'static str {
        "TOP"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId(1999)
    }
    fn operation(&mut self, cx: &mut Cx<'_>, _name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        let injected: Vec<InjectedEvent> = self.0.lock().unwrap().drain(..).collect();
        for event in injected {
            match event {
                InjectedEvent::View(view) => cx.install(view),
                InjectedEvent::Lost(members) => cx.control(&Control::Lost(&members)),
                InjectedEvent::BecomeServer => cx.control(&Control::BecomeServer),
                InjectedEvent::SetDigest(digest) => cx.control(&Control::SetDigest(&digest)),
                InjectedEvent::MergeDigest(digest) => cx.control(&Control::MergeDigest(&digest)),
                InjectedEvent::OverwriteDigest(digest) => cx.control(&Control::OverwriteDigest(&digest)),
                InjectedEvent::Stable(digest) => cx.control(&Control::Stable(&digest)),
                InjectedEvent::SuspendStable(most) => cx.control(&Control::SuspendStable(most)),
                InjectedEvent::ResumeStable => cx.control(&Control::ResumeStable),
                InjectedEvent::Barrier(true) => cx.control(&Control::CloseBarrier),
                InjectedEvent::Barrier(false) => cx.control(&Control::OpenBarrier),
            }
        }
        None
    }
}

/// One protocol between two stubs, in virtual time. The local member is member 1, `A`, in cluster `demo`.
pub(crate) struct Harness {
    pub(crate) stack: Stack,
    pub(crate) now: Time,
    seen: Arc<Mutex<BottomRecord>>,
    injected: Arc<Mutex<Vec<InjectedEvent>>>,
}

impl Harness {
    pub(crate) fn count(&self, wanted: StackCount) -> u64 {
        self.stack
            .counts()
            .into_iter()
            .filter(|(_, count, _)| *count == wanted)
            .map(|(_, _, value)| value)
            .sum()
    }

    pub(crate) fn new(protocol: impl Protocol + 'static) -> Self {
        Self::with_layers(1, vec![Box::new(protocol)])
    }

    pub(crate) fn with_layers(n: u64, layers: Vec<Box<dyn Protocol>>) -> Self {
        Self::with_address(n, member(n), layers)
    }

    pub(crate) fn with_address(n: u64, local: Address, layers: Vec<Box<dyn Protocol>>) -> Self {
        let seen = Arc::new(Mutex::new(BottomRecord::default()));
        let injected = Arc::new(Mutex::new(Vec::new()));
        let setup = StackSetup {
            local,
            name: char::from(b'@' + n as u8).to_string().as_str().into(),
            phys: phys(n as u16),
            has_multicast: false,
            seed: n,
            version: Version::V5_5_7,
        };
        let mut all: Vec<Box<dyn Protocol>> = vec![Box::new(BottomStub(seen.clone()))];
        all.extend(layers);
        all.push(Box::new(TopStub(injected.clone())));
        let mut stack = Stack::new(setup, all);
        stack.start(Time::ZERO);
        stack.run(Time::ZERO);
        Self { stack, now: Time::ZERO, seen, injected }
    }

    pub(crate) fn up(&mut self, message: Message) -> &mut Self {
        self.up_batch(vec![message])
    }

    pub(crate) fn up_batch(&mut self, messages: Vec<Message>) -> &mut Self {
        let before = std::mem::replace(&mut self.seen.lock().unwrap().down, messages);
        self.stack.operation(self.now, "BOTTOM", "release", &[]);
        self.seen.lock().unwrap().down = before;
        self.stack.run(self.now);
        self
    }

    pub(crate) fn send(&mut self, message: Message) -> &mut Self {
        self.send_batch(vec![message])
    }

    pub(crate) fn send_batch(&mut self, messages: Vec<Message>) -> &mut Self {
        for mut message in messages {
            message.src.get_or_insert_with(|| self.stack.shared().local.clone());
            self.stack.handle_send(self.now, message);
        }
        self.stack.run(self.now);
        self
    }

    pub(crate) fn learn(&mut self, n: u64) -> &mut Self {
        self.seen.lock().unwrap().learn = Some(n);
        self.stack.operation(self.now, "BOTTOM", "learn", &[]);
        self
    }

    pub(crate) fn raise(&mut self, event: Event) -> &mut Self {
        self.seen.lock().unwrap().raise = Some(event);
        self.stack.operation(self.now, "BOTTOM", "raise", &[]);
        self.stack.run(self.now);
        self
    }

    pub(crate) fn lower(&mut self, event: Event) -> &mut Self {
        self.stack.handle_event(self.now, event);
        self.stack.run(self.now);
        self
    }

    fn inject(&mut self, injected: InjectedEvent) -> &mut Self {
        self.injected.lock().unwrap().push(injected);
        self.stack.operation(self.now, "TOP", "", &[]);
        self.stack.run(self.now);
        self
    }

    pub(crate) fn install(&mut self, view: View) -> &mut Self {
        self.inject(InjectedEvent::View(view))
    }
    pub(crate) fn lose(&mut self, members: Vec<Address>) -> &mut Self {
        self.inject(InjectedEvent::Lost(members))
    }
    pub(crate) fn become_server(&mut self) -> &mut Self {
        self.inject(InjectedEvent::BecomeServer)
    }
    pub(crate) fn set_digest(&mut self, digest: Digest) -> &mut Self {
        self.inject(InjectedEvent::SetDigest(digest))
    }
    pub(crate) fn merge_digest(&mut self, digest: Digest) -> &mut Self {
        self.inject(InjectedEvent::MergeDigest(digest))
    }
    pub(crate) fn overwrite_digest(&mut self, digest: Digest) -> &mut Self {
        self.inject(InjectedEvent::OverwriteDigest(digest))
    }
    pub(crate) fn stable(&mut self, digest: Digest) -> &mut Self {
        self.inject(InjectedEvent::Stable(digest))
    }
    pub(crate) fn suspend_stable(&mut self, most: Duration) -> &mut Self {
        self.inject(InjectedEvent::SuspendStable(most))
    }
    pub(crate) fn resume_stable(&mut self) -> &mut Self {
        self.inject(InjectedEvent::ResumeStable)
    }

    pub(crate) fn barrier(&mut self, is_closed: bool) -> &mut Self {
        self.inject(InjectedEvent::Barrier(is_closed))
    }

    pub(crate) fn answer_digest(&mut self, digest: Digest) -> &mut Self {
        self.seen.lock().unwrap().digest = Some(digest);
        self
    }

    pub(crate) fn answer_gap(&mut self, has_gap: bool) -> &mut Self {
        self.seen.lock().unwrap().has_gap = Some(has_gap);
        self
    }

    pub(crate) fn has_tcp_port(&mut self) -> &mut Self {
        self.seen.lock().unwrap().has_tcp_port = true;
        self
    }

    pub(crate) fn consumed(&mut self, src: &Address, is_multicast: bool, credit: u64) -> &mut Self {
        self.stack.handle_consumed(self.now, src, is_multicast, credit);
        self.stack.run(self.now);
        self
    }

    pub(crate) fn done(&mut self, token: Token, outcome: Outcome) -> &mut Self {
        self.stack.handle_done(self.now, token, outcome);
        self.stack.run(self.now);
        self
    }

    pub(crate) fn advance(&mut self, by: Duration) -> &mut Self {
        let until = self.now + by;
        while let Some(at) = self.stack.poll_timeout().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.stack.handle_timeout(self.now);
            self.stack.run(self.now);
        }
        self.now = until;
        self
    }

    /// The member is paused: its timers fire late.
    pub(crate) fn stop(&mut self, by: Duration) -> &mut Self {
        self.now = self.now + by;
        self.advance(Duration::ZERO)
    }

    pub(crate) fn take_down(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.seen.lock().unwrap().down)
    }

    pub(crate) fn take_down_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.seen.lock().unwrap().down_events)
    }

    pub(crate) fn take_controls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap().controls)
    }

    pub(crate) fn take_indications(&mut self) -> Vec<Indication> {
        std::iter::from_fn(|| self.stack.poll_indication()).collect()
    }

    pub(crate) fn take_up(&mut self) -> Vec<Message> {
        self.take_indications()
            .into_iter()
            .flat_map(|indication| match indication {
                Indication::Batch(batch) => batch.messages,
                Indication::Event(_) => Vec::new(),
            })
            .collect()
    }

    pub(crate) fn take_up_events(&mut self) -> Vec<Event> {
        self.take_indications()
            .into_iter()
            .filter_map(|indication| match indication {
                Indication::Event(event) => Some(event),
                Indication::Batch(_) => None,
            })
            .collect()
    }

    pub(crate) fn take_effects(&mut self) -> Vec<(Token, Effect)> {
        std::iter::from_fn(|| self.stack.poll_effect()).collect()
    }
}

pub(crate) fn exchange(one: &mut Harness, two: &mut Harness) -> Vec<Message> {
    let mut received = Vec::new();
    loop {
        let (mut forth, mut back) = (one.take_down(), two.take_down());
        if forth.is_empty() && back.is_empty() {
            return received;
        }
        forth.iter_mut().for_each(|message| message.src = Some(member(1)));
        back.iter_mut().for_each(|message| message.src = Some(member(2)));
        one.up_batch(forth.iter().filter(|message| message.is_multicast()).cloned().collect());
        one.up_batch(back);
        received.extend(two.up_batch(forth).take_up());
    }
}
