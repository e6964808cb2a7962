//! What Hot Rod clients and servers have to agree on, without any IO.

#![forbid(unsafe_code)]

pub mod hash;
