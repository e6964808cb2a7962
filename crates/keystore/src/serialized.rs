//! The two serialized Java objects of JCEKS: a sealed object, and the key that it seals.
//!
//! The reader knows Java's Object Serialization Stream Protocol as far as these objects use it. It creates no object of a
//! class that a file names: it keeps byte arrays and texts by the names of their fields.

use zeroize::Zeroizing;

use crate::{KeyStoreError, SecretKey};

type Result<T> = std::result::Result<T, KeyStoreError>;

const STREAM: [u8; 4] = [0xac, 0xed, 0x00, 0x05];
const NULL: u8 = 0x70;
const REFERENCE: u8 = 0x71;
const CLASS: u8 = 0x72;
const OBJECT: u8 = 0x73;
const STRING: u8 = 0x74;
const ARRAY: u8 = 0x75;
const END: u8 = 0x78;
const ENUM: u8 = 0x7e;
const FIRST_HANDLE: u32 = 0x7e_0000;

/// For classes, objects and handles. A sealed object has 5 handles.
const DEPTH_MAX: usize = 8;
const HANDLES_MAX: usize = 64;

/// An encrypted serialized key.
pub(crate) struct Sealed<'a> {
    pub(crate) algorithm: &'a str,
    /// Of the algorithm, in DER.
    pub(crate) parameters: &'a [u8],
    pub(crate) content: &'a [u8],
}

/// A handle refers to it.
#[derive(Clone)]
enum Value<'a> {
    Null,
    Text(&'a str),
    Bytes(&'a [u8]),
    Class(usize),
    /// A constant of an enumeration, or an object inside another one.
    Other,
}

/// Fields are type and name.
struct Class<'a> {
    name: &'a str,
    fields: Vec<(u8, &'a str)>,
    super_class: Option<usize>,
    /// Its objects write data of their own.
    has_own_data: bool,
}

struct Reader<'a> {
    rest: &'a [u8],
    handles: Vec<Value<'a>>,
    classes: Vec<Class<'a>>,
    /// Byte arrays and texts by field.
    fields: Vec<(&'a str, Value<'a>)>,
}

fn malformed() -> KeyStoreError {
    KeyStoreError::Malformed("serialized key")
}

impl<'a> Reader<'a> {
    fn begin(bytes: &'a [u8]) -> Result<Self> {
        let rest = bytes.strip_prefix(&STREAM).ok_or_else(malformed)?;
        Ok(Self { rest, handles: Vec::new(), classes: Vec::new(), fields: Vec::new() })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    fn text(&mut self) -> Result<&'a str> {
        let length = self.u16()?;
        std::str::from_utf8(self.take(length.into())?).map_err(|_| malformed())
    }

    fn assign(&mut self, value: Value<'a>) -> Result<usize> {
        if self.handles.len() == HANDLES_MAX {
            return Err(malformed());
        }
        self.handles.push(value);
        Ok(self.handles.len() - 1)
    }

    fn referred(&mut self) -> Result<Value<'a>> {
        let handle = self.u32()?.checked_sub(FIRST_HANDLE).ok_or_else(malformed)?;
        self.handles.get(handle as usize).cloned().ok_or_else(malformed)
    }

    /// The class's index; `None` for null.
    fn class(&mut self, depth: usize) -> Result<Option<usize>> {
        if depth == DEPTH_MAX {
            return Err(malformed());
        }
        match self.u8()? {
            NULL => Ok(None),
            REFERENCE => match self.referred()? {
                Value::Class(index) => Ok(Some(index)),
                _ => Err(malformed()),
            },
            CLASS => {
                let name = self.text()?;
                self.take(8)?;
                let index = self.classes.len();
                self.assign(Value::Class(index))?;
                let flags = self.u8()?;
                let count = self.u16()?;
                self.classes.push(Class {
                    name,
                    fields: Vec::new(),
                    super_class: None,
                    has_own_data: flags & 1 != 0,
                });
                for _ in 0..count {
                    let kind = self.u8()?;
                    let name = self.text()?;
                    if matches!(kind, b'[' | b'L') {
                        // The type's name, which the reader does not need.
                        self.value(depth + 1)?;
                    }
                    self.classes[index].fields.push((kind, name));
                }
                if self.u8()? != END {
                    return Err(malformed());
                }
                self.classes[index].super_class = self.class(depth + 1)?;
                Ok(Some(index))
            }
            _ => Err(malformed()),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>> {
        if depth == DEPTH_MAX {
            return Err(malformed());
        }
        match self.u8()? {
            NULL => Ok(Value::Null),
            REFERENCE => self.referred(),
            STRING => {
                let text = self.text()?;
                self.assign(Value::Text(text))?;
                Ok(Value::Text(text))
            }
            ARRAY => {
                let class = self.class(depth + 1)?.ok_or_else(malformed)?;
                let at = self.assign(Value::Null)?;
                if self.classes[class].name != "[B" {
                    return Err(malformed());
                }
                let length = self.u32()? as usize;
                let bytes = Value::Bytes(self.take(length)?);
                self.handles[at] = bytes.clone();
                Ok(bytes)
            }
            ENUM => {
                self.class(depth + 1)?;
                self.assign(Value::Other)?;
                self.value(depth + 1)?;
                Ok(Value::Other)
            }
            _ => Err(malformed()),
        }
    }

    /// Fields of super classes come first. Returns the class's name.
    fn object(&mut self) -> Result<&'a str> {
        if self.u8()? != OBJECT {
            return Err(malformed());
        }
        let class = self.class(0)?.ok_or_else(malformed)?;
        self.assign(Value::Other)?;
        let mut line = vec![class];
        while let Some(above) = self.classes[line[line.len() - 1]].super_class {
            if line.len() == DEPTH_MAX {
                return Err(malformed());
            }
            line.push(above);
        }
        for class in line.into_iter().rev() {
            for (kind, name) in std::mem::take(&mut self.classes[class].fields) {
                match kind {
                    b'B' | b'Z' => self.take(1).map(|_| ())?,
                    b'C' | b'S' => self.take(2).map(|_| ())?,
                    b'I' | b'F' => self.take(4).map(|_| ())?,
                    b'J' | b'D' => self.take(8).map(|_| ())?,
                    b'[' | b'L' => {
                        let value = self.value(0)?;
                        self.fields.push((name, value));
                    }
                    _ => return Err(malformed()),
                }
            }
            if self.classes[class].has_own_data && self.u8()? != END {
                return Err(malformed());
            }
        }
        Ok(self.classes[class].name)
    }

    fn bytes_of(&self, field: &str) -> Result<&'a [u8]> {
        match self.fields.iter().find(|(name, _)| *name == field) {
            Some((_, Value::Bytes(bytes))) => Ok(*bytes),
            _ => Err(malformed()),
        }
    }

    fn text_of(&self, field: &str) -> Result<&'a str> {
        match self.fields.iter().find(|(name, _)| *name == field) {
            Some((_, Value::Text(text))) => Ok(*text),
            _ => Err(malformed()),
        }
    }
}

/// Returns the bytes behind it, too.
pub(crate) fn read_sealed(bytes: &[u8]) -> Result<(Sealed<'_>, &[u8])> {
    let mut reader = Reader::begin(bytes)?;
    reader.object()?;
    let sealed = Sealed {
        algorithm: reader.text_of("sealAlg")?,
        parameters: reader.bytes_of("encodedParams")?,
        content: reader.bytes_of("encryptedContent")?,
    };
    Ok((sealed, reader.rest))
}

/// A `SecretKeySpec`, or a `KeyRep`, which replaces other key classes.
pub(crate) fn read_key(bytes: &[u8]) -> Result<SecretKey> {
    let mut reader = Reader::begin(bytes)?;
    let key = match reader.object()? {
        "javax.crypto.spec.SecretKeySpec" => reader.bytes_of("key")?,
        "java.security.KeyRep" => reader.bytes_of("encoded")?,
        class => return Err(KeyStoreError::Unsupported(format!("a key of class {class}"))),
    };
    Ok(SecretKey { algorithm: reader.text_of("algorithm")?.to_owned(), bytes: Zeroizing::new(key.to_vec()) })
}
