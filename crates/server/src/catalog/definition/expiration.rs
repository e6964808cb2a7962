use consort_cache::Lifetime;

use super::Result;
use super::tree::Element;
use super::values::duration;
use super::without_effect;

pub(super) fn read(element: &Element) -> Result<Lifetime> {
    element.check_children(&[])?;
    let mut lifetime = Lifetime::FOREVER;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "lifespan" => lifetime.lifespan = duration(element, attribute, value)?,
            "max-idle" => lifetime.max_idle = duration(element, attribute, value)?,
            other => without_effect::accept(element, other, value)?,
        }
    }
    Ok(lifetime)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::in_each_form;
    use super::*;

    fn lifetime(attributes: &str) -> Result<Lifetime> {
        in_each_form("replicated", "expiration", attributes).map(|definition| definition.lifetime)
    }

    #[test]
    fn lifetimes_are_in_milliseconds_or_have_a_unit() {
        let lifespan = Some(Duration::from_secs(5));
        assert_eq!(lifetime("lifespan=5000 interval=1m"), Ok(Lifetime { lifespan, max_idle: None }));
        let max_idle = Some(Duration::from_secs(600));
        assert_eq!(lifetime("lifespan=5s max-idle=10m touch=ASYNC"), Ok(Lifetime { lifespan, max_idle }));
        assert_eq!(lifetime("lifespan=-1 max-idle=0"), Ok(Lifetime::FOREVER));
    }

    #[test]
    fn invalid_expiration_is_refused() {
        for refused in ["lifespan=soon", "max-idle=1w", "interval=x", "touch=NEVER", "reaper=1"] {
            assert!(lifetime(refused).is_err(), "{refused}");
        }
    }
}
