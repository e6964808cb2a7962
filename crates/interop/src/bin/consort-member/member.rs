//! The member, and the commands that it executes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use consort_channel::{Address, Channel, Flags, Message, Payload};
use consort_conf::Variables;
use consort_group::protocols::{Discard, DiscardConfig};
use serde_json::{Value, json};

use crate::building_blocks::{Counters, Forks};
use crate::inbox::Inbox;
use crate::numbered::payload;

/// No two runs of this process are equal.
const RUNS_MAX: u32 = 1 << 10;

pub(crate) struct Member {
    variables: Variables,
    dispatcher: Option<RpcDispatcher>,
    inbox: Arc<Inbox>,
    counters: Counters,
    forks: Forks,
    /// Distinguishes the messages of one `send` from those of another; 0 would mean arbitrary filling.
    next_run: AtomicU32,
}

impl Member {
    pub(crate) fn new(variables: Variables) -> Self {
        let next_run = AtomicU32::new(std::process::id().wrapping_mul(RUNS_MAX) | 1);
        let (inbox, counters, forks) = (Arc::default(), Counters::default(), Forks::default());
        Self { variables, dispatcher: None, inbox, counters, forks, next_run }
    }

    async fn connect(&mut self, name: &str, cluster: &str, config: &str) -> Value {
        let builder = match Channel::from_file_with(config, &self.variables) {
            Ok(builder) => builder.name(name).receiver(self.inbox.clone()).site_listener(self.inbox.clone()),
            Err(error) => return json!({ "error": error.to_string() }),
        };
        let own = name.to_owned();
        let handler = move |request: &Message| {
            let text =
                String::from_utf8_lossy(request.payload_bytes().map_or(&[], |bytes| bytes)).into_owned();
            if text == "fail" {
                return Err("requested failure".to_owned());
            }
            Ok(Payload::Bytes(Some(format!("{text}@{own}").into())))
        };
        match RpcDispatcher::connect(builder, cluster, handler).await {
            Ok(dispatcher) => self.dispatcher = Some(dispatcher),
            Err(error) => return json!({ "error": error.to_string() }),
        }
        self.view()
    }

    fn view(&self) -> Value {
        json!({ "view": self.channel().view_text() })
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

    /// A member of the view, or one of another site that has sent a message: `NAME:SITE`.
    fn sender(&self, name: &str) -> Option<Address> {
        if name.contains(':') { self.inbox.sender_of_site(name) } else { Some(self.member(name)) }
    }

    /// Whether the member is site master, the other sites that are up, and those that were unreachable.
    fn sites(&self) -> Value {
        let status = self.channel().sites().expect("RELAY2 or RELAY3").status();
        json!({
            "master": status.is_site_master,
            "sites": status.reachable.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "unreachable": self.inbox.unreachable_sites(),
        })
    }

    pub(crate) async fn run(&mut self, command: &str) -> Value {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["connect", name, cluster, config] => self.connect(name, cluster, config).await,
            ["view"] => self.view(),
            ["send", count, size, ref options @ ..] => {
                self.send(count.parse().expect("a count"), size.parse().expect("a size"), options).await
            }
            ["expect", sender, count, millis] => {
                let until = Instant::now() + Duration::from_millis(millis.parse().expect("a time"));
                let count = count.parse().expect("a count");
                self.inbox.expect(|| self.sender(sender), count, until).await
            }
            ["sites"] => self.sites(),
            ["order"] => self.inbox.order(),
            ["reset"] => {
                self.inbox.reset();
                json!({})
            }
            ["slow", micros] => {
                self.inbox.slow(micros.parse().expect("microseconds"));
                json!({})
            }
            ["state", "set", text] => {
                self.inbox.keep_state(Bytes::copy_from_slice(text.as_bytes()));
                self.inbox.show_state()
            }
            ["state", "fetch"] => self.fetch_state(None).await,
            ["state", "fetch", name] => self.fetch_state(Some(self.member(name))).await,
            ["rpc", dest, text, millis] => self.rpc(dest, text, millis.parse().expect("a time")).await,
            ["counter", ref words @ ..] => {
                let channel = self.channel().clone();
                self.counters.run(&channel, words).await
            }
            ["fork", "send", stack, fork, text, ref to @ ..] => {
                let dest = to.get(1).map(|name| self.member(name));
                self.forks.send((stack, fork), text, dest).await
            }
            ["fork", ref words @ ..] => {
                let channel = self.channel().clone();
                self.forks.run(&channel, words).await
            }
            ["discard", up, down] => {
                self.discard(vec![("up", up.to_owned()), ("down", down.to_owned())], None).await
            }
            ["ignore", "none"] => self.discard(Vec::new(), Some(("ignoreNobody", Vec::new()))).await,
            ["ignore", ref names @ ..] => {
                let names = names.iter().map(|&name| name.to_owned()).collect();
                self.discard(Vec::new(), Some(("ignore", names))).await
            }
            ["leave" | "exit"] => {
                self.counters = Counters::default();
                self.forks = Forks::default();
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
                "to" => dest = self.sender(options.next().expect("a name")),
                "site" => dest = Some(Address::site_master(options.next().expect("a site"))),
                "oob" => flags |= Flags::OOB,
                "rsvp" => flags |= Flags::RSVP,
                other => panic!("unknown option {other}"),
            }
        }
        let run = self.next_run.fetch_add(1, Ordering::Relaxed);
        for number in 0..count {
            let message = Message::bytes(dest.clone(), payload(number, run, size)).with_flags(flags);
            if let Err(error) = self.channel().send(message).await {
                return json!({ "error": error.to_string() });
            }
        }
        json!({ "sent": count })
    }

    async fn fetch_state(&self, from: Option<Address>) -> Value {
        match self.channel().fetch_state(from, Duration::from_secs(10)).await {
            Ok(_) => self.inbox.show_state(),
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
            let called = match dest.strip_prefix('@') {
                Some(site) => Address::site_master(site),
                None => self.sender(dest).unwrap_or_else(|| panic!("no message of {dest} so far")),
            };
            match self.dispatcher().call(&called, request, &options).await {
                Ok(payload) => answers.insert(dest.to_owned(), text_of(&payload).into()),
                Err(error) => answers.insert("exception".to_owned(), error.to_string().into()),
            };
        }
        answers.into()
    }

    /// Inserts DISCARD first if necessary.
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
