//! Runs `install.sh` into an empty directory, and moves the directory. Then builds programs from there by pkg-config, statically and by
//! CMake.

use crate::support::{C, HERE, has, run};
use shmcast_testkit::scratch;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The output of pkg-config, as words.
fn pkg_config(prefix: &Path, wanted: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(wanted).arg("shmcast");
    run(&mut command).split_whitespace().map(str::to_owned).collect()
}

/// Builds the program of all calls, and runs it.
fn build_and_run(prefix: &Path, words: &[String]) {
    let dir = scratch();
    let (program, channels) = (dir.path().join("calls"), dir.path().join("channels"));
    fs::create_dir(&channels).unwrap();
    let mut command = Command::new(C[0]);
    command.args(&C[1..]).arg(Path::new(HERE).join("tests/c/calls.c")).arg("-o").arg(&program);
    run(command.args(words).arg("-pthread"));
    run(Command::new(&program).arg(&channels).env("LD_LIBRARY_PATH", prefix.join("lib")));
}

#[test]
#[ignore = "a step of CI: install. It builds Rust again"]
fn what_is_installed_builds_programs_wherever_it_lies() {
    const NAME: &str = "what_is_installed_builds_programs_wherever_it_lies";
    if !has(NAME, C[0]) || !has(NAME, "pkg-config") {
        return;
    }
    // The directory is on a disk, because the library of a profile that is not for release is large.
    let dir = tempfile::tempdir().unwrap();
    let (first, prefix) = (dir.path().join("first"), dir.path().join("moved/here"));
    run(Command::new(Path::new(HERE).join("install.sh")).arg(&first).arg("dev"));
    fs::create_dir(dir.path().join("moved")).unwrap();
    fs::rename(&first, &prefix).unwrap();

    let shared = pkg_config(&prefix, &["--cflags", "--libs"]);
    build_and_run(&prefix, &shared);
    let mut fixed = pkg_config(&prefix, &["--cflags", "--libs", "--static"]);
    fixed
        .iter_mut()
        .filter(|word| *word == "-lshmcast")
        .for_each(|word| *word = "-l:libshmcast.a".to_owned());
    build_and_run(Path::new("/nowhere"), &fixed);

    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(prefix.join("lib/libshmcast.so")));
    let named: Vec<&str> = symbols.lines().filter_map(|line| line.split(" T ").nth(1)).collect();
    assert!(named.len() > 25 && named.iter().all(|name| name.ends_with("@@SHMCAST_0.1")), "{symbols}");
    if has(NAME, "cmake") && has(NAME, "c++") {
        by_cmake(&prefix, dir.path());
    }
}

fn by_cmake(prefix: &Path, dir: &Path) {
    let (build, channels) = (dir.join("build"), dir.join("channels"));
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(Path::new(HERE).join("../cpp/tests")).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["calls", "calls_static"] {
        let channels = channels.join(program);
        fs::create_dir_all(&channels).unwrap();
        run(Command::new(build.join(program)).arg(&channels));
    }
}
