//! Sockets of clients, and the limit of connections of an address.

pub(crate) mod addresses;
pub(crate) mod socket;
