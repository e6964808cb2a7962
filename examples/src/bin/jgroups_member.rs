//! A member of a JGroups cluster: it joins Java members with their own stack file and exchanges Java strings with them.
//!
//! `cargo run -p consort-examples --bin jgroups_member -- NAME CLUSTER STACK`
//!
//! The defaults join `java -cp jgroups.jar org.jgroups.demos.Chat -props tcp.xml`. The program ends with its input.

use consort::Channel;
use consort::channel::{Flags, Message, Object, Payload, Primitive, Receiver};
use consort_examples::Failure;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Prints the strings of other members.
struct Printer;

impl Receiver for Printer {
    fn receive(&self, message: Message) {
        match &message.payload {
            Payload::Object(object) => match &**object {
                Object::Primitive(Primitive::String(text)) => println!("string: {text}"),
                other => println!("object: {other:?}"),
            },
            other => println!("payload: {other:?}"),
        }
    }
}

/// A message whose payload is a `java.lang.String`.
fn java_string(text: String) -> Message {
    let object = Object::Primitive(Primitive::String(text));
    Message::new(None, Payload::Object(Box::new(object))).with_flags(Flags::SERIALIZED)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: &str| arguments.next().unwrap_or_else(|| default.to_owned());
    let (name, cluster, stack) = (argument("rust"), argument("chat"), argument("tcp.xml"));
    let channel = Channel::from_file(&stack)?.name(name).receiver(Printer).connect(&cluster).await?;
    println!("view: {}", channel.view_text());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        channel.send(java_string(line)).await?;
    }
    channel.close().await;
    Ok(())
}
