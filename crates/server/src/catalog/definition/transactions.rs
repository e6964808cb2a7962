//! The elements `transaction` and `locking`.

use consort_cache::{CacheConfig, CacheMode};

use super::Result;
use super::tree::Element;
use super::without_effect;

pub(super) fn read(element: &Element, config: &CacheConfig) -> Result<bool> {
    element.check_children(&[])?;
    let mut is_transactional = false;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "mode" => match &value[..] {
                "NONE" => {}
                // For clients, batches are transactions: only a program in Infinispan's process can begin one.
                "BATCH" | "NON_XA" | "NON_DURABLE_XA" | "FULL_XA"
                    if config.mode != CacheMode::Invalidation =>
                {
                    is_transactional = true;
                }
                _ => return Err(element.invalid(attribute, value)),
            },
            other => without_effect::accept(element, other, value)?,
        }
    }
    Ok(is_transactional)
}

/// No setting of `locking` changes the server's behaviour.
pub(super) fn read_locking(element: &Element) -> Result<()> {
    element.check_children(&[])?;
    let mut attributes = element.attributes.iter();
    attributes.try_for_each(|(attribute, value)| without_effect::accept(element, attribute, value))
}

#[cfg(test)]
mod tests {
    use super::super::from_text;

    #[test]
    fn transactions_are_read_as_infinispan_writes_them() {
        let is_transactional = |text| from_text("c", text).map(|definition| definition.is_transactional);
        let json = r#"{"distributed-cache": {"mode": "SYNC", "locking": {"isolation": "REPEATABLE_READ"},
                       "transaction": {"mode": "NON_XA", "locking": "PESSIMISTIC"}}}"#;
        assert_eq!(is_transactional(json), Ok(true));
        let xml = r#"<infinispan><cache-container><replicated-cache name="c">
                     <locking isolation="READ_COMMITTED"/><transaction mode="FULL_XA" locking="OPTIMISTIC"/>
                     </replicated-cache></cache-container></infinispan>"#;
        assert_eq!(is_transactional(xml), Ok(true));
        assert_eq!(is_transactional(r#"{"local-cache": {"transaction": {"mode": "BATCH"}}}"#), Ok(true));
        assert_eq!(
            is_transactional(r#"{"distributed-cache": {"transaction": {"mode": "NONE"}}}"#),
            Ok(false)
        );
        for refused in [
            r#"{"invalidation-cache": {"transaction": {"mode": "NON_XA"}}}"#,
            r#"{"distributed-cache": {"mode": "ASYNC", "transaction": {"mode": "NON_XA"}}}"#,
            r#"{"distributed-cache": {"locking": {"isolation": "CHAOS"}}}"#,
            r#"{"distributed-cache": {"transaction": {"mode": "NON_XA", "mine": "1"}}}"#,
            r#"<distributed-cache><locking striping="true" mine="1"/></distributed-cache>"#,
        ] {
            assert!(is_transactional(refused).is_err(), "{refused}");
        }
    }
}
