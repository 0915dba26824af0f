//! The conformance suite with the testee in C.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod support;

use support::{C, has, program, scratch};

#[test]
fn c_passes_the_conformance_suite() {
    if !has("c_passes_the_conformance_suite", C[0]) {
        return;
    }
    let build = scratch();
    let testee = program(C, &[], "tests/c/testee.c", build.path());
    let (played, failures) = shmcast_conformance::play(&[testee.into()]).unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(played > 350, "{played}");
}
