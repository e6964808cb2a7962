//! Embedded in this process, or on servers.

use bytes::Bytes;
use consort_cache::{CacheError, OperationError};
use consort_client::ClientError;

pub(crate) const fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

pub(crate) trait Target: Clone + Send + Sync + 'static {
    type Error: std::error::Error + Send + Sync + 'static;

    fn read(&self, key: [u8; 4]) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    fn write(&self, key: [u8; 4], value: &Bytes) -> impl Future<Output = Result<(), Self::Error>> + Send;

    fn write_all(&self, entries: &[([u8; 4], Bytes)])
    -> impl Future<Output = Result<(), Self::Error>> + Send;

    fn is_uncertain(error: &Self::Error) -> bool;
}

macro_rules! targets {
    ($($cache:ty, $error:ty, $uncertain:pat => )+) => {$(
        impl Target for $cache {
            type Error = $error;

            async fn read(&self, key: [u8; 4]) -> Result<bool, $error> {
                self.get(&key[..]).await.map(|value| value.is_some())
            }

            async fn write(&self, key: [u8; 4], value: &Bytes) -> Result<(), $error> {
                self.put(&key[..], value).await
            }

            async fn write_all(&self, entries: &[([u8; 4], Bytes)]) -> Result<(), $error> {
                self.put_all(entries.iter().map(|(key, value)| (&key[..], value))).await?;
                Ok(())
            }

            fn is_uncertain(error: &$error) -> bool {
                matches!(error, $uncertain)
            }
        }
    )+};
}

targets! {
    consort_cache::RawCache, CacheError, CacheError::Operation(OperationError::Uncertain | OperationError::TimedOut(_)) =>
    consort_client::RawCache, ClientError,
        ClientError::Uncertain { .. } | ClientError::TimedOut { is_outcome_unknown: true, .. } =>
}
