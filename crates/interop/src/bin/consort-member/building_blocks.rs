//! Counters and fork channels, driven by the same lines as those of the Java member.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use consort_channel::counter::{Counter, CounterError, CounterService};
use consort_channel::fork::ForkChannel;
use consort_channel::{Address, Channel, Message, Receiver};
use serde_json::{Value, json};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Counters(BTreeMap<String, Counter>);

fn number(word: &str) -> i64 {
    word.parse().expect("a number")
}

impl Counters {
    pub(crate) async fn run(&mut self, channel: &Channel, words: &[&str]) -> Value {
        match self.value(channel, words).await {
            Ok(Some(value)) => json!({ "value": value }),
            Ok(None) => json!({}),
            Err(error) => json!({ "error": error.to_string() }),
        }
    }

    async fn value(&mut self, channel: &Channel, words: &[&str]) -> Result<Option<i64>, CounterError> {
        let service = CounterService::new(channel)?;
        let counter = |name: &str| self.0.get(name).cloned().expect("a created counter");
        let value = match *words {
            ["create", name, initial] => {
                let counter = service.get_or_create(name, number(initial)).await?;
                self.0.insert(name.to_owned(), counter.clone());
                counter.get().await?
            }
            ["get", name] => counter(name).get().await?,
            ["add", name, delta] => counter(name).add_and_get(number(delta)).await?,
            ["add", name, delta, times] => {
                let mut value = 0;
                for _ in 0..number(times) {
                    value = counter(name).add_and_get(number(delta)).await?;
                }
                value
            }
            ["set", name, value] => {
                counter(name).set(number(value)).await?;
                number(value)
            }
            ["swap", name, expected, update] => {
                counter(name).compare_and_swap(number(expected), number(update)).await?
            }
            ["delete", name] => {
                service.delete(name)?;
                return Ok(None);
            }
            _ => panic!("unknown command counter {}", words.join(" ")),
        };
        Ok(Some(value))
    }
}

/// The texts that a fork channel has received.
#[derive(Default)]
struct Texts {
    texts: Mutex<Vec<(String, Option<Address>)>>,
    arrived: Notify,
}

impl Receiver for Texts {
    fn receive(&self, message: Message) {
        let text = String::from_utf8_lossy(message.payload_bytes().map_or(&[], |bytes| bytes)).into_owned();
        self.texts.lock().expect("unpoisoned").push((text, message.src));
        self.arrived.notify_waiters();
    }
}

#[derive(Default)]
pub(crate) struct Forks(BTreeMap<(String, String), (ForkChannel, Arc<Texts>)>);

impl Forks {
    fn get(&self, stack: &str, channel: &str) -> &(ForkChannel, Arc<Texts>) {
        self.0.get(&(stack.to_owned(), channel.to_owned())).expect("an open fork channel")
    }

    pub(crate) async fn run(&mut self, channel: &Channel, words: &[&str]) -> Value {
        match *words {
            ["open", stack, fork] => {
                let texts = Arc::new(Texts::default());
                match channel.fork(stack, fork, texts.clone()) {
                    Ok(open) => {
                        self.0.insert((stack.to_owned(), fork.to_owned()), (open, texts));
                        json!({})
                    }
                    Err(error) => json!({ "error": error.to_string() }),
                }
            }
            ["view", stack, fork] => json!({ "view": self.get(stack, fork).0.channel().view_text() }),
            ["expect", stack, fork, count, millis] => {
                let (count, millis) = (number(count) as usize, number(millis) as u64);
                let until = Instant::now() + Duration::from_millis(millis);
                let texts = &self.get(stack, fork).1;
                loop {
                    let arrived = texts.arrived.notified();
                    let all = texts.texts.lock().expect("unpoisoned").clone();
                    if all.len() >= count || Instant::now() >= until {
                        let named = all.iter().map(|(text, src)| {
                            let src = src.as_ref().map_or_else(String::new, |src| channel.name_of(src));
                            format!("{text}@{src}")
                        });
                        return json!({ "texts": named.collect::<Vec<_>>() });
                    }
                    let _ = tokio::time::timeout_at(until.into(), arrived).await;
                }
            }
            ["close", stack, fork] => {
                self.0.remove(&(stack.to_owned(), fork.to_owned()));
                json!({})
            }
            _ => json!({ "error": format!("unknown command fork {}", words.join(" ")) }),
        }
    }

    pub(crate) async fn send(
        &self,
        (stack, channel): (&str, &str),
        text: &str,
        dest: Option<Address>,
    ) -> Value {
        match self.get(stack, channel).0.send(Message::bytes(dest, text.to_owned())).await {
            Ok(()) => json!({}),
            Err(error) => json!({ "error": error.to_string() }),
        }
    }
}
