//! The conformance suite with the testees in C and C++.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod support;

use support::{C, CPP, has, program, scratch};

fn passes(compiler: &[&str], source: &str) {
    let build = scratch();
    let testee = program(compiler, &[], source, build.path());
    let (played, failures) = shmcast_conformance::play(&[testee.into()]).unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(played > 400, "{played}");
}

#[test]
fn c_passes_the_conformance_suite() {
    if has("c_passes_the_conformance_suite", C[0]) {
        passes(C, "tests/c/testee.c");
    }
}

#[test]
fn cpp_passes_the_conformance_suite() {
    if has("cpp_passes_the_conformance_suite", CPP[0]) {
        passes(CPP, "../cpp/tests/testee.cpp");
    }
}
