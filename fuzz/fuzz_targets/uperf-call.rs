#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| consort_fuzz::run("uperf-call", bytes));
