//! Entry points for fuzz targets: parsers for untrusted bytes.

use std::sync::OnceLock;

use bytes::Bytes;

use consort_cache::{Decode, Encode, Postcard};
use consort_conf::Variables;
use consort_hotrod::ops::listener::Factory;
use consort_protostream::{QueryRequest, QueryResponse, Wrapped};
use consort_query::{Plan, Statement};

use crate::catalog::counter::Counter;
use crate::catalog::{definition, schemas};
use crate::http;
use crate::media::{Format, Types};
use crate::ops::bucket::Bucket;
use crate::ops::filter::{self, EntrySelection, Filter};
use crate::ops::query;
use crate::security::{Tokens, properties, tls};
use crate::server::ServerBuilder;
use crate::server_file::{OptionsBeside, ServerFile};
use crate::transactions;

/// Recodes a multimap's values; `None` if the bytes are no bucket.
pub fn bucket(bytes: &Bytes) -> Option<(Vec<Bytes>, Bytes)> {
    let bucket = Bucket::from_bytes(bytes)?;
    let written = bucket.to_bytes();
    Some((bucket.into_values(true), written))
}

/// Returns the head of an HTTP request as a text, and its length; `None` if it is incomplete. The error is the response.
pub fn http_head(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    http::read_whole(bytes)
}

/// Formats that [`convert`] knows; the last two are JSON and protostream's.
pub const FORMATS: usize = Format::ALL.len();

/// The schema of entities in these functions.
pub const SCHEMA: &str = "syntax = \"proto3\"; package s; enum E { A = 0; B = 1; }\n\
    /* @TypeId(70000) */ message M { string s = 1; int32 i = 2; M m = 3; repeated M ms = 4; repeated int64 is = 5; E e = 6;\n\
    bytes b = 7; double d = 8; float f = 9; map<string, M> x = 10; map<sint32, E> y = 11; repeated fixed32 z = 12;\n\
    bool o = 13; N n = 14; } message N { repeated N ns = 1; sfixed64 q = 2; }";

/// Converts between formats by index; `None` if that is not possible.
pub fn convert(bytes: &Bytes, from: usize, to: usize) -> Option<Bytes> {
    Format::ALL[from].convert(bytes.clone(), &Format::ALL[to], types()).ok()
}

fn types() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(|| schemas::types_of(Bytes::from_static(SCHEMA.as_bytes())))
}

/// Whether a query is valid, and its plan for [`SCHEMA`] with a parameter `p`.
pub fn query(text: &str) -> (bool, Result<Vec<u8>, String>) {
    let parameters = [("p".to_owned(), Wrapped::from(7))].into();
    let read = Statement::parse(text);
    let is_read = read.is_ok();
    let compiled = read.and_then(|statement| statement.compile(types(), &parameters));
    (is_read, compiled.map(|compiled| compiled.plan.to_bytes()).map_err(|error| error.to_string()))
}

/// Recodes a plan, with the row of an entity; `None` if it is no plan.
pub fn plan(bytes: &[u8], entity: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let plan = Plan::from_bytes(bytes)?;
    Some((plan.to_bytes(), plan.row(entity, 1)))
}

/// Whether the bytes are a client's query, and whether they are a response.
pub fn exchange(bytes: &Bytes) -> (bool, bool) {
    (QueryRequest::read(bytes).is_ok(), QueryResponse::read(bytes).is_ok())
}

/// Reads a whole server's file. Returns the number of its problems; `None` if a server could start with it.
pub fn server_file(text: &str) -> Option<usize> {
    let variables = Variables::new().with("a", "1");
    let beside = OptionsBeside { has_users: true, has_schemas: true };
    let starts_with_options =
        ServerFile::parse_beside("fuzz.xml", text, &variables, beside).is_startable(false);
    let file = ServerFile::parse("fuzz.xml", text, &variables);
    assert!(starts_with_options || !file.is_startable(false), "options replace only missing parts of a file");
    let shown = file.effective(&file.apply(ServerBuilder::default())).to_string();
    assert!(!shown.is_empty(), "settings are shown");
    (!file.is_startable(false)).then(|| file.problems().len())
}

/// Reads users and their groups in Infinispan's files of properties; whether they are valid.
pub fn properties(text: &str) -> bool {
    let Ok(groups) = properties::groups(text) else { return false };
    properties::users(text, &groups, |_, _| Default::default()).is_ok()
}

/// Recodes a definition in XML, JSON or YAML; `None` if it is refused.
pub fn definition(cache: &str, text: &str) -> Option<String> {
    definition::from_text(cache, text).ok().map(|definition| definition::to_text(&definition))
}

/// Like `definition`, for a document with several caches.
pub fn definitions(text: &str) -> Option<Vec<(String, String)>> {
    let read = definition::CacheDefinitions::parse("", text).ok()?;
    let written = |one: &definition::Definition| (one.config.name.to_string(), definition::to_text(one));
    Some(read.all.iter().map(written).collect())
}

/// The errors of a protobuf schema.
pub fn schema(text: &str) -> Option<String> {
    schemas::error_of(Bytes::copy_from_slice(text.as_bytes()))
}

/// Returns the user of a token for the audience `shop`, signed by one of the keys in a PEM text; fails for unusable keys or a
/// refused token.
pub fn token_owner(keys: &[u8], token: &str) -> Result<String, String> {
    let tokens = Tokens::from_pem("keys".to_owned(), keys, "shop").map_err(|error| error.to_string())?;
    tokens.owner(token)
}

/// The user and the expiry of a certificate in DER, in seconds since 1970; 0 if it has none.
pub fn certificate(der: &[u8]) -> (Option<std::sync::Arc<str>>, i64) {
    (tls::common_name(der), tls::expiry(der))
}

/// Recodes a counter's record; `None` if the bytes are none.
pub fn counter(bytes: &[u8]) -> Option<Bytes> {
    Counter::from_bytes(bytes).map(Counter::to_bytes)
}

/// Recodes a transaction's record; `None` if the bytes are none.
pub fn transaction(bytes: &Bytes) -> Option<Bytes> {
    let record: consort_cache::transactions::Record = Postcard.decode(bytes.clone()).ok()?;
    Some(Postcard.encode(&record).ok()?.into_bytes())
}

/// Recodes the key of a transaction's record; `None` if the bytes are none.
pub fn transaction_key(bytes: &[u8]) -> Option<Vec<u8>> {
    transactions::xid_from_key(bytes).map(|xid| transactions::record_key(&xid))
}

/// Returns whether this factory's filter passes an entry; fails if it is not available.
pub fn filter(factory: &Factory, key: &[u8], value: &[u8]) -> Result<bool, String> {
    Filter::of(factory).map(|filter| filter.passes(key, value)).map_err(|error| error.to_string())
}

/// The plan of a factory's query over [`SCHEMA`].
pub fn query_factory(factory: &Factory) -> Result<Vec<u8>, String> {
    let compiled = query::compile(factory, types()).map_err(|refusal| refusal.text().to_owned())?;
    Ok(compiled.plan.to_bytes())
}

/// Recodes an iteration's filter; `None` if the bytes are none.
pub fn wanted(bytes: &[u8]) -> Option<Bytes> {
    EntrySelection::from_bytes(bytes).map(|wanted| wanted.to_bytes())
}

/// The value bytes behind an owner's metadata; `None` if it is incomplete.
pub fn metadata(bytes: &Bytes) -> Option<usize> {
    let mut value = bytes.clone();
    filter::take_metadata(&mut value).map(|_| value.len())
}
