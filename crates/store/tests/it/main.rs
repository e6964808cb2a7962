//! Tests of the stores, by kind of failure.

#![forbid(unsafe_code)]

mod contract;
mod corrupt;
mod crash;
mod full;
mod kill;
mod model;
mod writer;
