//! Tests of the stores as their users see them, by what may go wrong.

#![forbid(unsafe_code)]

mod crash;
mod model;
