//! A Consort member that takes the same commands as the Java one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use consort_channel::{Address, Channel, Delivery, Flags, Message, Payload, Receiver, View};
use consort_group::protocols::{Discard, DiscardConfig};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::numbered::{Tally, payload};
use crate::setting::Setting;

/// Tells the messages of one `send` from another's; 0 would say that they are filled anyhow.
static NEXT_RUN: AtomicU32 = AtomicU32::new(1);

#[derive(Default)]
struct Inbox {
    seen: Mutex<HashMap<Address, Tally>>,
    arrived: Notify,
    state: Mutex<Bytes>,
    /// Microseconds per message.
    slow: Mutex<u64>,
}

impl Receiver for Inbox {
    fn receive_batch(&self, mut delivery: Delivery) {
        let slow = *self.slow.lock().expect("unpoisoned");
        if slow > 0 {
            std::thread::sleep(Duration::from_micros(slow * delivery.messages().len() as u64));
        }
        let mut seen = self.seen.lock().expect("unpoisoned");
        for message in delivery.take() {
            let one = seen.entry(message.src.clone().expect("a source")).or_default();
            one.add(message.payload_bytes().map_or(&[], |bytes| bytes), !message.is_oob());
        }
        drop(seen);
        self.arrived.notify_waiters();
    }

    fn state(&self) -> Result<Option<Bytes>, String> {
        Ok(Some(self.state.lock().expect("unpoisoned").clone()))
    }

    fn set_state(&self, state: Option<Bytes>) {
        *self.state.lock().expect("unpoisoned") = state.unwrap_or_default();
    }
}

/// A Consort member.
pub struct ConsortMember {
    /// Its logical name.
    pub name: String,
    dispatcher: Option<RpcDispatcher>,
    inbox: Arc<Inbox>,
    views: watch::Receiver<Option<View>>,
}

impl ConsortMember {
    pub(crate) async fn start(setting: &Setting, name: &str) -> Self {
        let inbox = Arc::new(Inbox::default());
        let config = setting.config.to_string_lossy().into_owned();
        let own = name.to_owned();
        let builder = Channel::from_file_with(&config, &setting.variables())
            .unwrap_or_else(|error| panic!("{error}"))
            .name(name)
            .receiver(inbox.clone());
        let handler = move |request: &Message| {
            let text =
                String::from_utf8_lossy(request.payload_bytes().map_or(&[], |bytes| bytes)).into_owned();
            if text == "fail" {
                return Err("told to fail".to_owned());
            }
            Ok(Payload::Bytes(Some(format!("{text}@{own}").into())))
        };
        let connecting = RpcDispatcher::connect(builder, &setting.cluster, handler);
        let dispatcher = tokio::time::timeout(crate::PATIENCE, connecting)
            .await
            .unwrap_or_else(|_| panic!("{name} does not join"))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let views = dispatcher.channel().watch_view();
        Self { name: name.to_owned(), dispatcher: Some(dispatcher), inbox, views }
    }

    pub(crate) fn views(&mut self) -> &mut watch::Receiver<Option<View>> {
        &mut self.views
    }

    fn dispatcher(&self) -> &RpcDispatcher {
        self.dispatcher.as_ref().expect("a connected member")
    }

    fn channel(&self) -> &Channel {
        self.dispatcher().channel()
    }

    fn member(&self, name: &str) -> Address {
        self.channel()
            .member_named(name)
            .unwrap_or_else(|| panic!("no {name} in {}", self.channel().view_text()))
    }

    pub(crate) async fn run(&mut self, command: &str) -> Value {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["view"] => json!({ "view": self.channel().view_text() }),
            ["send", count, size, ref options @ ..] => {
                self.send(count.parse().expect("a count"), size.parse().expect("a size"), options).await
            }
            ["expect", sender, count, millis] => {
                let until = Instant::now() + Duration::from_millis(millis.parse().expect("a time"));
                self.expect(sender, count.parse().expect("a count"), until).await
            }
            ["reset"] => {
                self.inbox.seen.lock().expect("unpoisoned").clear();
                json!({})
            }
            ["slow", micros] => {
                *self.inbox.slow.lock().expect("unpoisoned") = micros.parse().expect("microseconds");
                json!({})
            }
            ["state", "set", text] => {
                *self.inbox.state.lock().expect("unpoisoned") = Bytes::copy_from_slice(text.as_bytes());
                json!({ "state": text })
            }
            ["state", "fetch"] => self.fetch_state(None).await,
            ["state", "fetch", name] => self.fetch_state(Some(self.member(name))).await,
            ["rpc", dest, text, millis] => self.rpc(dest, text, millis.parse().expect("a time")).await,
            ["discard", up, down] => {
                self.discard(vec![("up", up.to_owned()), ("down", down.to_owned())], None).await
            }
            ["ignore", "none"] => self.discard(Vec::new(), Some(("ignoreNobody", Vec::new()))).await,
            ["ignore", ref names @ ..] => {
                let names = names.iter().map(|&name| name.to_owned()).collect();
                self.discard(Vec::new(), Some(("ignore", names))).await
            }
            ["leave"] => {
                if let Some(dispatcher) = self.dispatcher.take() {
                    dispatcher.channel().clone().close().await;
                }
                json!({})
            }
            _ => json!({ "error": format!("unknown command {command}") }),
        }
    }

    async fn send(&self, count: u32, size: usize, options: &[&str]) -> Value {
        let mut dest = None;
        let mut flags = Flags::NONE;
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match *option {
                "to" => dest = Some(self.member(options.next().expect("a name"))),
                "oob" => flags |= Flags::OOB,
                "rsvp" => flags |= Flags::RSVP,
                other => panic!("unknown option {other}"),
            }
        }
        let run = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        for number in 0..count {
            let message = Message::bytes(dest.clone(), payload(number, run, size)).with_flags(flags);
            if let Err(error) = self.channel().send(message).await {
                return json!({ "error": error.to_string() });
            }
        }
        json!({ "sent": count })
    }

    async fn expect(&self, sender: &str, count: u64, until: Instant) -> Value {
        let sender = self.member(sender);
        loop {
            let arrived = self.inbox.arrived.notified();
            {
                let mut seen = self.inbox.seen.lock().expect("unpoisoned");
                let one = seen.entry(sender.clone()).or_default();
                if one.received() >= count || Instant::now() >= until {
                    return one.report();
                }
            }
            let _ = tokio::time::timeout_at(until.into(), arrived).await;
        }
    }

    async fn fetch_state(&self, from: Option<Address>) -> Value {
        match self.channel().fetch_state(from, Duration::from_secs(10)).await {
            Ok(_) => {
                let state = self.inbox.state.lock().expect("unpoisoned").clone();
                json!({ "state": String::from_utf8_lossy(&state) })
            }
            Err(error) => json!({ "error": error.to_string() }),
        }
    }

    async fn rpc(&self, dest: &str, text: &str, millis: u64) -> Value {
        let options = RequestOptions::all(Duration::from_millis(millis));
        let request = Payload::Bytes(Some(Bytes::copy_from_slice(text.as_bytes())));
        let mut answers = serde_json::Map::new();
        if dest == "all" {
            for answer in self.dispatcher().call_all(request, &options).await.expect("a call") {
                let value = match answer.result {
                    Ok(payload) => text_of(&payload),
                    Err(error) => format!("exception {error}"),
                };
                answers.insert(self.channel().name_of(&answer.member), value.into());
            }
        } else {
            match self.dispatcher().call(&self.member(dest), request, &options).await {
                Ok(payload) => answers.insert(dest.to_owned(), text_of(&payload).into()),
                Err(error) => answers.insert("exception".to_owned(), error.to_string().into()),
            };
        }
        answers.into()
    }

    /// Makes the stack's DISCARD do this; it is put in first if need be.
    async fn discard(
        &self,
        attributes: Vec<(&'static str, String)>,
        operation: Option<(&'static str, Vec<String>)>,
    ) -> Value {
        let done = self
            .channel()
            .with_stack(move |stack, now| {
                if stack.probe("DISCARD").is_none() {
                    let bottom = stack.layers().next().map_or("", |(name, _)| name);
                    stack.insert_above(now, bottom, Box::new(Discard::new(DiscardConfig::default())));
                }
                for (name, value) in &attributes {
                    stack.set_attribute("DISCARD", name, value).expect("an attribute").expect("a value");
                }
                if let Some((name, args)) = &operation {
                    let args: Vec<&str> = args.iter().map(String::as_str).collect();
                    stack.operation(now, "DISCARD", name, &args).expect("an operation").expect("done");
                }
            })
            .await;
        done.map_or_else(|| json!({ "error": "closed" }), |()| json!({}))
    }

    /// Ends it as a crash does: the stack stops where it is, and its sockets close without a word.
    pub(crate) async fn kill(mut self) {
        if let Some(dispatcher) = self.dispatcher.take() {
            dispatcher.channel().clone().abort().await;
        }
    }
}

fn text_of(payload: &Payload) -> String {
    match payload {
        Payload::Object(object) => match &**object {
            consort_group::Object::Primitive(consort_group::Primitive::Bytes(bytes)) => {
                String::from_utf8_lossy(bytes).into_owned()
            }
            other => format!("{other:?}"),
        },
        Payload::Bytes(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}
