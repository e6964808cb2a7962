/// Infinispan's clients know the cache of schemas by this name.
pub(crate) const SCHEMAS: &str = "___protobuf_metadata";

/// Also names of aliases and templates among the definitions. Clients reach none of these but the cache of schemas;
/// [`Caches::get`](crate::catalog::caches::Caches::get) and [`Caches::find`](crate::catalog::caches::Caches::find) enforce that.
pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with("___")
}
