//! A chat: every line of the input goes to all members, and a member that joins gets the lines so far.
//!
//! `cargo run -p consort-examples --bin chat -- NAME`, in two shells. Variables such as `JGROUPS_BIND_ADDR` apply.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use consort::Channel;
use consort::channel::{Message, Receiver, View};
use consort_examples::Failure;
use tokio::io::{AsyncBufReadExt, BufReader};

/// The lines so far, which are this cluster's state.
#[derive(Default)]
struct Chat(Mutex<Vec<String>>);

impl Receiver for Chat {
    fn receive(&self, message: Message) {
        if let Some(bytes) = message.payload_bytes() {
            let line = String::from_utf8_lossy(bytes).into_owned();
            println!("{line}");
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    fn view_accepted(&self, view: &View) {
        println!("members: {}", view.len());
    }

    fn state(&self) -> Result<Option<Bytes>, String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Some(lines.join("\n").into()))
    }

    fn set_state(&self, state: Option<Bytes>) {
        let text = state.map(|state| String::from_utf8_lossy(&state).into_owned()).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.iter().for_each(|line| println!("before: {line}"));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = lines;
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "me".to_owned());
    let chat = Arc::new(Chat::default());
    let channel = Channel::from_file("tcp.xml")?.name(&name).receiver(chat).connect("chat").await?;
    if !channel.is_coordinator() {
        channel.fetch_state(None, Duration::from_secs(10)).await?;
    }
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        channel.send(Message::bytes(None, format!("{name}: {line}"))).await?;
    }
    channel.close().await;
    Ok(())
}
