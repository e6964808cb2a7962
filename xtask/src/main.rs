//! The gate and the benches: `cargo xtask test`, `cargo xtask bench`.

fn main() {}
