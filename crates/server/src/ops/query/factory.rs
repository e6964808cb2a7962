use std::collections::BTreeMap;

use bytes::Bytes;
use consort_hotrod::ops::listener::Factory;
use consort_protostream::Wrapped;
use consort_query::{Compiled, Statement};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::media::Types;
use crate::reply::Refusal;

pub(super) async fn compiled(
    caches: &Caches,
    served: &ServedCache,
    factory: &Factory,
) -> Result<Compiled, Refusal> {
    super::check(served)?;
    compile(factory, &*caches.types().await)
}

/// The parameters are the text, then names and values in turn. Fails for a query that deletes entries, or needs several entities.
pub(crate) fn compile(factory: &Factory, types: &Types) -> Result<Compiled, Refusal> {
    let wrapped = |bytes: &Bytes| Wrapped::read(Bytes::copy_from_slice(bytes));
    let text = |bytes: &Bytes| match wrapped(bytes) {
        Some(Wrapped::Text(text)) => Ok(text),
        _ => Err(Refusal::new(format!(
            "the first parameter of '{}' has to be the query, followed by names and values",
            factory.name.as_str()
        ))),
    };
    let none = Bytes::new();
    let (query, named) = factory.params.split_first().unwrap_or((&none, &[]));
    let mut parameters = BTreeMap::new();
    for pair in named.chunks(2) {
        let [name, value] = pair else {
            return Err(Refusal::new("a parameter has a name but no value"));
        };
        let name = text(name)?;
        let value = wrapped(value).ok_or_else(|| {
            Refusal::new(format!("parameter '{name}' has to be a number, a text, true or false"))
        })?;
        parameters.insert(name, value);
    }
    let statement = Statement::parse(&text(query)?)?;
    if statement.is_delete() {
        return Err(Refusal::new(format!("'{}' cannot remove entries", factory.name.as_str())));
    }
    let compiled = statement.compile(types, &parameters)?;
    compiled.check_per_entity()?;
    Ok(compiled)
}
