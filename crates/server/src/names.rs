//! Names of caches that are reserved for the server.

/// Infinispan's clients know the cache of schemas by this name.
pub(crate) const SCHEMAS: &str = "___protobuf_metadata";

/// Whether a name belongs to an internal cache, or to an alias or template among the definitions. Clients reach none of
/// these by name except the cache of schemas; [`Caches::get`](crate::catalog::caches::Caches::get) and
/// [`Caches::find`](crate::catalog::caches::Caches::find) enforce that.
pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with("___")
}
