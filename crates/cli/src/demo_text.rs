//! Texts as JGroups' demos send them: serialized strings.

use consort_channel::{Address, Flags, Message, Object, Payload, Primitive};

/// Returns a message with a text.
pub(crate) fn message(dest: Option<Address>, text: &str) -> Message {
    let object = Object::Primitive(Primitive::String(text.to_owned()));
    Message::new(dest, Payload::Object(Box::new(object))).with_flags(Flags::SERIALIZED)
}

/// Returns the text of a message, or a description of its payload.
pub(crate) fn of(message: &Message) -> String {
    match &message.payload {
        Payload::Object(object) => match &**object {
            Object::Primitive(Primitive::String(text)) => text.clone(),
            other => format!("{other:?}"),
        },
        payload => match message.payload_bytes() {
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            None => format!("{payload:?}"),
        },
    }
}
