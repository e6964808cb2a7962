//! The parameters of a task.

use bytes::Bytes;
use consort_hotrod::Text;

use crate::catalog::admin_error::AdminError;

pub(super) struct Params(Vec<(Text, Bytes)>);

impl Params {
    pub(super) const fn new(params: Vec<(Text, Bytes)>) -> Self {
        Self(params)
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        let (_, value) = self.0.iter().find(|(own, _)| own.as_str() == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    pub(super) fn needed(&self, name: &'static str) -> Result<String, AdminError> {
        self.get(name).ok_or(AdminError::Missing(name))
    }

    pub(super) fn flags(&self) -> String {
        self.get("flags").unwrap_or_default()
    }
}
