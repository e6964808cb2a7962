use bytes::Bytes;
use consort_capture::Kind;
use consort_group::wire::{self, Packet};
use consort_group::{AddressBook, HeaderBody, Message};

use crate::terminal::Escaped;

#[derive(Default)]
pub(super) struct Shown {
    pub(super) messages: usize,
    pub(super) others: usize,
    book: AddressBook,
}

impl Shown {
    pub(super) fn payload(&mut self, connection: &str, kind: Kind, bytes: &Bytes) {
        match kind {
            Kind::Goodbye => println!("{connection}  graceful close"),
            Kind::Setup => match wire::decode_setup(bytes) {
                Ok(Some((version, peer, _))) => {
                    println!("{connection}  connection of {peer}, version {version}");
                }
                Ok(None) => println!("{connection}  the beginning of a connection"),
                Err(error) => println!("{connection}  not a connection's beginning: {error}"),
            },
            Kind::Packet => match wire::decode_packet(bytes, &[]) {
                Ok(Packet::Single { message, .. }) => self.message(connection, "", &message),
                Ok(Packet::List { cluster, messages, .. }) => {
                    let cluster = cluster.unwrap_or_default();
                    for message in &messages {
                        self.message(connection, &cluster, message);
                    }
                }
                Err(_) => self.others += 1,
            },
        }
    }

    fn message(&mut self, connection: &str, cluster: &str, message: &Message) {
        self.messages += 1;
        self.learn(message);
        let name = |address: Option<&consort_group::Address>| {
            address.map_or_else(|| "all".to_owned(), |address| self.book.display(address))
        };
        let headers: Vec<String> = message
            .headers
            .0
            .iter()
            .map(|header| {
                let id = header.id.name().map_or_else(|| header.id.0.to_string(), str::to_owned);
                format!("{id}: {:?}", header.body)
            })
            .collect();
        let line = format!(
            "{connection}  {} -> {}{}{}  {} bytes  {:?}  {}",
            name(message.src.as_ref()),
            name(message.dest.as_ref()),
            if cluster.is_empty() { "" } else { " in " },
            cluster,
            message.length(),
            message.flags,
            headers.join(", ")
        );
        println!("{}", Escaped(line));
    }

    fn learn(&mut self, message: &Message) {
        let is_ping = message.headers.0.iter().any(|header| matches!(header.body, HeaderBody::Ping(_)));
        if let (true, Some(bytes)) = (is_ping, message.payload_bytes())
            && let Ok(list) = wire::decode_ping_data(bytes)
        {
            for data in list {
                self.book.learn(&data.sender, data.name.as_deref(), data.phys);
            }
        }
    }
}
