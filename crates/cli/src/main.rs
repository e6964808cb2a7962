//! The `consort` command.

fn main() {}
