//! Reader of a complete message; the skimmer has checked its lengths.

use bytes::Bytes;

use crate::error::{DecodeError, Reason, Result, error};
use crate::layout::{unzigzag, vint, vlong};
use crate::text::Text;

pub(crate) struct Reader {
    message: Bytes,
    at: usize,
}

impl Reader {
    pub(crate) const fn new(message: Bytes, at: usize) -> Self {
        Self { message, at }
    }

    pub(crate) fn read_since(&self, begin: usize) -> &[u8] {
        &self.message[begin..self.at]
    }

    pub(crate) fn end(&self) -> Result<()> {
        let (read, length) = (self.at, self.message.len());
        if read == length { Ok(()) } else { error(read, Reason::Layout { read, length }) }
    }

    fn short<T>(&self) -> Result<T> {
        Err(self.layout())
    }

    fn layout(&self) -> DecodeError {
        DecodeError { at: self.at, reason: Reason::Layout { read: self.at, length: self.message.len() } }
    }

    pub(crate) fn invalid<T>(&self, what: &'static str, value: impl Into<u64>) -> Result<T> {
        error(self.at, Reason::Invalid { what, value: value.into() })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.message.get(self.at..).and_then(<[u8]>::first_chunk).copied();
        let Some(taken) = taken else { return self.short() };
        self.at += N;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        let [byte] = self.take()?;
        Ok(byte)
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        Ok(self.u8()? != 0)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take()?))
    }

    pub(crate) fn vint(&mut self) -> Result<u32> {
        let Some((number, end)) = vint(&self.message, self.at, "number")? else { return self.short() };
        self.at = end;
        Ok(number)
    }

    pub(crate) fn vlong(&mut self) -> Result<u64> {
        let Some((number, end)) = vlong(&self.message, self.at, "number")? else { return self.short() };
        self.at = end;
        Ok(number)
    }

    pub(crate) fn signed_vint(&mut self) -> Result<i32> {
        Ok(unzigzag(self.vint()?))
    }

    fn slice(&mut self, length: usize) -> Result<Bytes> {
        if self.message.len() - self.at < length {
            return self.short();
        }
        let slice = self.message.slice(self.at..self.at + length);
        self.at += length;
        Ok(slice)
    }

    pub(crate) fn array(&mut self) -> Result<Bytes> {
        let length = self.vint()? as usize;
        self.slice(length)
    }

    pub(crate) fn optional_array(&mut self) -> Result<Option<Bytes>> {
        match usize::try_from(self.signed_vint()?) {
            Ok(length) => self.slice(length).map(Some),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn text(&mut self) -> Result<Text> {
        let bytes = self.array()?;
        self.checked_text(bytes)
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<Text>> {
        self.optional_array()?.map(|bytes| self.checked_text(bytes)).transpose()
    }

    fn checked_text(&self, bytes: Bytes) -> Result<Text> {
        let at = self.at - bytes.len();
        Text::from_utf8(bytes).ok_or(DecodeError { at, reason: Reason::Text })
    }

    /// Items have at least one byte each.
    pub(crate) fn times<T>(
        &mut self,
        count: u32,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = count as usize;
        let mut things = Vec::with_capacity(count.min(self.message.len() - self.at));
        for _ in 0..count {
            things.push(read(self)?);
        }
        Ok(things)
    }

    pub(crate) fn counted<T>(&mut self, read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.vint()?;
        self.times(count, read)
    }

    pub(crate) fn counted_in_byte<T>(&mut self, read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u8()?;
        self.times(count.into(), read)
    }

    pub(crate) fn while_one<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut things = Vec::new();
        while self.bool()? {
            things.push(read(self)?);
        }
        Ok(things)
    }
}
