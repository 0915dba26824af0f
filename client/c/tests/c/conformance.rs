//! The conformance suite with the testees in C and C++.

use crate::support::{C, CPP, has, program};

fn passes(compiler: &[&str], source: &str) {
    let testee = program(compiler, &[], source);
    let (played, failures) = shmcast_conformance::play(&[testee.into()]).unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(played > 600, "{played}");
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
