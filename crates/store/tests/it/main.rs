//! Tests of the stores as their users see them, by what may go wrong.

#![forbid(unsafe_code)]

mod contract;
mod corrupt;
mod crash;
mod full;
mod kill;
mod model;
mod writer;
