//! Reader of selected fields of a message into slots, in one scan.

use protox::prost_reflect::{FieldDescriptor, Kind as FieldKind};
use smallvec::SmallVec;

use crate::limits::PATH_MAX;
use crate::plan_codec::{below, count, lossy, number, put_number, put_value, value};
use crate::value::{Scalar, Value};
use crate::work::{Exceeded, Work};
use consort_protostream::wire::{EIGHT, FOUR, Raw, VARINT, field, packed, unzigzag};

pub(crate) type Slot<'a> = SmallVec<[Option<Value<'a>>; 1]>;

/// Steps for each value, which is kept until the condition is evaluated.
const VALUE_STEPS: u64 = 64;

/// The slot of another reader with the same values, and their type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct SharedSlot {
    pub(crate) own: usize,
    pub(crate) scalar: Scalar,
}

enum ReadError {
    NoMessage,
    Exceeded,
}

impl From<Exceeded> for ReadError {
    fn from(_: Exceeded) -> Self {
        Self::Exceeded
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct FieldReader {
    fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Debug)]
struct Field {
    number: u32,
    is_repeated: bool,
    of: FieldType,
}

#[derive(Clone, PartialEq, Debug)]
enum FieldType {
    /// With the default value.
    Scalar { slot: usize, how: ReadMode, absent: Option<Value<'static>> },
    /// With a slot if the condition tests its presence.
    Message { slot: Option<usize>, inner: FieldReader },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReadMode {
    Int,
    SignedInt,
    FixedInt,
    Long,
    SignedLong,
    FixedLong,
    Float,
    Double,
    Bool,
    Text,
    Bytes,
}

impl ReadMode {
    const ALL: [Self; 11] = [
        Self::Int,
        Self::SignedInt,
        Self::FixedInt,
        Self::Long,
        Self::SignedLong,
        Self::FixedLong,
        Self::Float,
        Self::Double,
        Self::Bool,
        Self::Text,
        Self::Bytes,
    ];

    fn of(kind: &FieldKind) -> Option<Self> {
        Some(match kind {
            FieldKind::Int32 | FieldKind::Uint32 | FieldKind::Enum(_) => Self::Int,
            FieldKind::Sint32 => Self::SignedInt,
            FieldKind::Fixed32 | FieldKind::Sfixed32 => Self::FixedInt,
            FieldKind::Int64 | FieldKind::Uint64 => Self::Long,
            FieldKind::Sint64 => Self::SignedLong,
            FieldKind::Fixed64 | FieldKind::Sfixed64 => Self::FixedLong,
            FieldKind::Float => Self::Float,
            FieldKind::Double => Self::Double,
            FieldKind::Bool => Self::Bool,
            FieldKind::String => Self::Text,
            FieldKind::Bytes => Self::Bytes,
            FieldKind::Message(_) => return None,
        })
    }

    const fn scalar(self) -> Scalar {
        match self {
            Self::Int | Self::SignedInt | Self::FixedInt => Scalar::Int,
            Self::Long | Self::SignedLong | Self::FixedLong => Scalar::Long,
            Self::Float => Scalar::Float,
            Self::Double => Scalar::Double,
            Self::Bool => Scalar::Bool,
            Self::Text => Scalar::Text,
            Self::Bytes => Scalar::Bytes,
        }
    }

    fn value(self, raw: Raw<'_>) -> Option<Value<'_>> {
        Some(match (self, raw) {
            (Self::Int, Raw::Varint(number)) => Value::Int(number as i32),
            (Self::SignedInt, Raw::Varint(number)) => Value::Int(unzigzag(number) as i32),
            (Self::FixedInt, Raw::Four(number)) => Value::Int(number.cast_signed()),
            (Self::Long, Raw::Varint(number)) => Value::Long(number.cast_signed()),
            (Self::SignedLong, Raw::Varint(number)) => Value::Long(unzigzag(number)),
            (Self::FixedLong, Raw::Eight(number)) => Value::Long(number.cast_signed()),
            (Self::Float, Raw::Four(bits)) => Value::Float(f32::from_bits(bits)),
            (Self::Double, Raw::Eight(bits)) => Value::Double(f64::from_bits(bits)),
            (Self::Bool, Raw::Varint(number)) => Value::Bool(number != 0),
            (Self::Text, Raw::Length(bytes)) => Value::Text(lossy(bytes)),
            (Self::Bytes, Raw::Length(bytes)) => Value::Bytes(bytes.into()),
            _ => return None,
        })
    }

    const fn packed(self) -> Option<u32> {
        match self {
            Self::Text | Self::Bytes => None,
            Self::FixedInt | Self::Float => Some(FOUR),
            Self::FixedLong | Self::Double => Some(EIGHT),
            _ => Some(VARINT),
        }
    }
}

/// `None` for messages.
pub(crate) fn scalar(kind: &FieldKind) -> Option<Scalar> {
    ReadMode::of(kind).map(ReadMode::scalar)
}

fn absent(descriptor: &FieldDescriptor) -> Option<Value<'static>> {
    use protox::prost_reflect::Value as Default;
    // An implicit default counts as null.
    descriptor.field_descriptor_proto().default_value.as_ref()?;
    Some(match descriptor.default_value() {
        Default::Bool(is) => Value::Bool(is),
        Default::I32(number) | Default::EnumNumber(number) => Value::Int(number),
        Default::U32(number) => Value::Int(number.cast_signed()),
        Default::I64(number) => Value::Long(number),
        Default::U64(number) => Value::Long(number.cast_signed()),
        Default::F32(number) => Value::Float(number),
        Default::F64(number) => Value::Double(number),
        Default::String(text) => Value::Text(text.into()),
        Default::Bytes(bytes) => Value::Bytes(bytes.to_vec().into()),
        _ => return None,
    })
}

impl FieldReader {
    /// Returns the existing slot, or `free`.
    pub(crate) fn add(&mut self, path: &[FieldDescriptor], free: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let at = self.fields.iter().position(|field| field.number == first.number());
        let at = at.unwrap_or_else(|| {
            let of = match ReadMode::of(&first.kind()) {
                Some(how) => FieldType::Scalar { slot: free, how, absent: absent(first) },
                None => FieldType::Message { slot: None, inner: Self::default() },
            };
            let is_repeated = first.is_list() || first.is_map();
            self.fields.push(Field { number: first.number(), is_repeated, of });
            self.fields.len() - 1
        });
        match &mut self.fields[at].of {
            FieldType::Scalar { slot, .. } if rest.is_empty() => Some(*slot),
            FieldType::Message { slot, .. } if rest.is_empty() => Some(*slot.get_or_insert(free)),
            FieldType::Message { inner, .. } => inner.add(rest, free),
            FieldType::Scalar { .. } => None,
        }
    }

    /// Needs as many slots as [`FieldReader::add`] added.
    pub(crate) fn read<'a>(
        &self,
        message: &'a [u8],
        slots: usize,
        work: &mut Work,
    ) -> Result<Option<Vec<Slot<'a>>>, Exceeded> {
        work.spend(slots as u64)?;
        let mut all = vec![Slot::new(); slots];
        match self.fill(message, &mut all, work) {
            Ok(()) => Ok(Some(all)),
            Err(ReadError::NoMessage) => Ok(None),
            Err(ReadError::Exceeded) => Err(Exceeded),
        }
    }

    fn fill<'a>(
        &self,
        mut message: &'a [u8],
        slots: &mut [Slot<'a>],
        work: &mut Work,
    ) -> Result<(), ReadError> {
        use ReadError::NoMessage;
        work.spend(self.fields.len() as u64)?;
        let mut seen: SmallVec<[bool; 8]> = SmallVec::from_elem(false, self.fields.len());
        while !message.is_empty() {
            let (number, raw) = field(&mut message).ok_or(NoMessage)?;
            // Each field is looked up among those to read.
            work.spend(1 + self.fields.len() as u64)?;
            let Some(at) = self.fields.iter().position(|field| field.number == number) else { continue };
            let field = &self.fields[at];
            match (&field.of, raw) {
                (FieldType::Message { slot, inner }, Raw::Length(message)) => {
                    if let Some(slot) = slot {
                        work.spend(VALUE_STEPS)?;
                        slots.get_mut(*slot).ok_or(NoMessage)?.push(Some(Value::Bool(true)));
                    }
                    inner.fill(message, slots, work)?;
                }
                (FieldType::Scalar { slot, how, .. }, Raw::Length(mut bytes))
                    if field.is_repeated && how.packed().is_some() =>
                {
                    let slot = slots.get_mut(*slot).ok_or(NoMessage)?;
                    while !bytes.is_empty() {
                        work.spend(VALUE_STEPS)?;
                        let raw = how.packed().and_then(|how| packed(&mut bytes, how));
                        slot.push(Some(raw.and_then(|raw| how.value(raw)).ok_or(NoMessage)?));
                        seen[at] = true;
                    }
                    continue;
                }
                (FieldType::Scalar { slot, how, .. }, raw) => {
                    work.spend(VALUE_STEPS)?;
                    let slot = slots.get_mut(*slot).ok_or(NoMessage)?;
                    // The last occurrence counts.
                    if seen[at] && !field.is_repeated {
                        slot.pop();
                    }
                    slot.push(Some(how.value(raw).ok_or(NoMessage)?));
                }
                (FieldType::Message { .. }, _) => return Err(NoMessage),
            }
            seen[at] = true;
        }
        let missing = self.fields.iter().zip(&seen).filter(|(_, seen)| !**seen);
        missing.for_each(|(field, _)| match &field.of {
            FieldType::Scalar { slot, absent, .. } if !field.is_repeated => put(slots, *slot, absent.clone()),
            of => of.nothing(slots),
        });
        Ok(())
    }

    /// Sets the fields of another reader that have the same values as these, by slot.
    pub(crate) fn shared_slots(&self, other: &Self, slots: &mut [Option<SharedSlot>]) {
        for field in &self.fields {
            let is_same = |one: &&Field| (one.number, one.is_repeated) == (field.number, field.is_repeated);
            match (&field.of, other.fields.iter().find(is_same).map(|one| &one.of)) {
                (
                    FieldType::Scalar { slot, how, absent },
                    Some(FieldType::Scalar { slot: own, how: own_how, absent: own_absent }),
                ) if (how, absent) == (own_how, own_absent) => {
                    if let Some(shared) = slots.get_mut(*slot) {
                        *shared = Some(SharedSlot { own: *own, scalar: how.scalar() });
                    }
                }
                (FieldType::Message { inner, .. }, Some(FieldType::Message { inner: other, .. })) => {
                    inner.shared_slots(other, slots);
                }
                _ => {}
            }
        }
    }

    /// If each field has its own.
    pub(crate) fn slots(&self) -> usize {
        let of = |field: &Field| match &field.of {
            FieldType::Scalar { .. } => 1,
            FieldType::Message { slot, inner } => usize::from(slot.is_some()) + inner.slots(),
        };
        self.fields.iter().map(of).sum()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_number(out, self.fields.len());
        for field in &self.fields {
            put_number(out, field.number as usize);
            out.push(field.is_repeated.into());
            match &field.of {
                FieldType::Scalar { slot, how, absent } => {
                    put_number(out, *how as usize);
                    put_number(out, *slot);
                    put_value(out, absent.as_ref());
                }
                FieldType::Message { slot, inner } => {
                    put_number(out, ReadMode::ALL.len());
                    put_number(out, slot.map_or(0, |slot| slot + 1));
                    inner.write(out);
                }
            }
        }
    }

    pub(crate) fn from(from: &mut &[u8], slots: usize) -> Option<Self> {
        Self::from_depth(from, slots, PATH_MAX)
    }

    fn from_depth(from: &mut &[u8], slots: usize, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let fields = (0..count(from)?).map(|_| {
            let number = u32::try_from(number(from)?).ok()?;
            let is_repeated = below(from, 2)? == 1;
            let of = match ReadMode::ALL.get(below(from, ReadMode::ALL.len() + 1)?) {
                Some(how) => FieldType::Scalar { how: *how, slot: below(from, slots)?, absent: value(from)? },
                None => {
                    let slot = below(from, slots + 1)?.checked_sub(1);
                    FieldType::Message { slot, inner: Self::from_depth(from, slots, depth)? }
                }
            };
            Some(Field { number, is_repeated, of })
        });
        Some(Self { fields: fields.collect::<Option<_>>()? })
    }
}

impl FieldType {
    fn nothing(&self, slots: &mut [Slot<'_>]) {
        match self {
            Self::Scalar { slot, .. } => put(slots, *slot, None),
            Self::Message { slot, inner } => {
                if let Some(slot) = slot {
                    put(slots, *slot, None);
                }
                inner.fields.iter().for_each(|field| field.of.nothing(slots));
            }
        }
    }
}

fn put<'a>(slots: &mut [Slot<'a>], slot: usize, value: Option<Value<'a>>) {
    if let Some(slot) = slots.get_mut(slot) {
        slot.push(value);
    }
}
