use super::{Frag, FragKind};
use crate::wire;
use crate::{Frag3Header, FragHeader, HeaderBody, Message, Payload, Protocol};

impl Frag {
    pub(super) fn fragment(&mut self, message: Message, out: &mut Vec<Message>) {
        let size = (self.config.frag_size.0 as usize).max(1);
        self.next_id += 1;
        let mut header = FragHeader {
            id: self.next_id,
            frag_id: 0,
            num_frags: 0,
            needs_deserialization: false,
            original_type: 0,
        };
        let whole = match &message.payload {
            Payload::Bytes(Some(bytes)) | Payload::Nio { bytes: Some(bytes), .. }
                if self.kind != FragKind::Frag =>
            {
                bytes.clone()
            }
            _ if self.kind != FragKind::Frag4 => {
                header.needs_deserialization = true;
                wire::encode_typed(&message)
            }
            _ => {
                header.original_type = wire::message_type(&message.payload);
                wire::encode_body(&message)
            }
        };
        let is_split_unencoded = !header.needs_deserialization && header.original_type == 0;
        header.num_frags = whole.len().div_ceil(size) as u32;
        self.pieces_sent += u64::from(header.num_frags);
        for nth in 0..header.num_frags {
            header.frag_id = nth;
            let from = nth as usize * size;
            let piece = whole.slice(from..whole.len().min(from + size));
            let payload = match &message.payload {
                Payload::Nio { direct, .. } if is_split_unencoded => {
                    Payload::Nio { bytes: Some(piece), direct: *direct }
                }
                _ if header.original_type != 0 => Payload::Fragment(piece),
                _ => Payload::Bytes(Some(piece)),
            };
            let mut part = Message::new(message.dest.clone(), payload);
            part.src.clone_from(&message.src);
            part.flags = message.flags;
            part.transient = message.transient;
            if nth == 0 && is_split_unencoded {
                part.headers = message.headers.clone();
            }
            if nth == 0 {
                part.ticket = message.ticket;
            }
            part.headers.put(self.id(), self.header(header, whole.len(), from));
            out.push(part);
        }
    }

    fn header(&self, header: FragHeader, length: usize, offset: usize) -> HeaderBody {
        match self.kind {
            FragKind::Frag => {
                HeaderBody::Frag(Box::new(FragHeader { needs_deserialization: false, ..header }))
            }
            FragKind::Frag2 | FragKind::Frag4 => HeaderBody::Frag(Box::new(header)),
            FragKind::Frag3 => HeaderBody::Frag3(Box::new(Frag3Header {
                id: header.id as u32,
                frag_id: header.frag_id,
                num_frags: header.num_frags,
                original_length: length as u32,
                offset: offset as u32,
                needs_deserialization: header.needs_deserialization,
            })),
        }
    }
}
