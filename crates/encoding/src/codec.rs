//! The encodings of a cache handle.

use std::marker::PhantomData;

use bytes::Bytes;

use crate::{Decode, Encode, Encoded, EncodingError, Raw};

/// The encodings of a handle's keys and values, with their types.
#[derive(Debug)]
pub struct Codec<K, V, KE, VE> {
    keys: KE,
    values: VE,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V, KE: Clone, VE: Clone> Clone for Codec<K, V, KE, VE> {
    fn clone(&self) -> Self {
        Self::new(self.keys.clone(), self.values.clone())
    }
}

impl Codec<Bytes, Bytes, Raw, Raw> {
    /// The codec of plain bytes.
    pub const RAW: Self = Self::new(Raw, Raw);
}

impl<K, V, KE, VE> Codec<K, V, KE, VE> {
    /// Returns a codec with these encodings.
    pub const fn new(keys: KE, values: VE) -> Self {
        Self { keys, values, types: PhantomData }
    }

    /// Returns the encoding of keys.
    pub const fn keys(&self) -> &KE {
        &self.keys
    }

    /// Returns the encoding of values.
    pub const fn values(&self) -> &VE {
        &self.values
    }

    /// Encodes a key in a borrowed form.
    ///
    /// # Errors
    ///
    /// If the key cannot be encoded.
    #[inline]
    pub fn key<'q, Q: ?Sized>(&self, key: &'q Q) -> Result<Encoded<'q>, EncodingError>
    where
        KE: Encode<Q>,
    {
        self.keys.encode(key)
    }

    /// Encodes a value in a borrowed form.
    ///
    /// # Errors
    ///
    /// If the value cannot be encoded.
    #[inline]
    pub fn value<'w, W: ?Sized>(&self, value: &'w W) -> Result<Encoded<'w>, EncodingError>
    where
        VE: Encode<W>,
    {
        self.values.encode(value)
    }

    /// Decodes a value.
    ///
    /// # Errors
    ///
    /// If the bytes are invalid.
    #[inline]
    pub fn decode_value(&self, value: Bytes) -> Result<V, EncodingError>
    where
        VE: Decode<V>,
    {
        self.values.decode(value)
    }
}
