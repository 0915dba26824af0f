//! Helpers that the tests share: programs in C and C++ that are compiled against the library just built, and messages that can be checked.

use shmcast_testkit::{scratch, skip, works};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The directory of this package.
pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// The compiler and flags with which each C program must compile.
pub(crate) const C: &[&str] =
    &["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_GNU_SOURCE", "-g", "-O2"];
/// The compiler and flags with which each C++ program must compile.
pub(crate) const CPP: &[&str] =
    &["c++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O2"];
/// The flags of the sanitizers, with little optimization, because optimizing their code takes long.
pub(crate) const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-O1"];

/// Whether this command is installed; says that `test` is skipped if not.
pub(crate) fn has(test: &str, command: &str) -> bool {
    let is_there = works(command, &["--version"]);
    if !is_there {
        skip(test, format!("{command} is not installed"));
    }
    is_there
}

/// Whether programs of this language can be built with the sanitizers.
pub(crate) fn has_sanitizers(test: &str, compiler: &[&str]) -> bool {
    let dir = scratch();
    let source = dir.path().join(if compiler == CPP { "empty.cpp" } else { "empty.c" });
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = dir.path().join("empty");
    let words = [SANITIZERS[0], source.to_str().unwrap(), "-o", program.to_str().unwrap()];
    let runs = works(compiler[0], &words) && works(program.to_str().unwrap(), &[]);
    if !runs {
        skip(test, format!("{} has no sanitizers here", compiler[0]));
    }
    runs
}

/// The path at which cargo has put the library for this test.
pub(crate) fn library() -> PathBuf {
    let this = std::env::current_exe().expect("this program's own path");
    let library = this.parent().expect("a directory").join("libshmcast_c.so");
    assert!(library.exists(), "cargo builds {} before this test", library.display());
    library
}

/// Builds a program of this source against the library. Warnings are errors.
pub(crate) fn compile(compiler: &[&str], more: &[&str], source: &Path, program: &Path) {
    let library = library();
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(more).arg("-I").arg(Path::new(HERE).join("include"));
    command
        .arg("-I")
        .arg(Path::new(HERE).join("../cpp/include"))
        .arg("-I")
        .arg(Path::new(HERE).join("tests/c"));
    command.arg(source).arg("-o").arg(program).arg(&library).arg("-pthread");
    let mut path = std::ffi::OsString::from("-Wl,-rpath,");
    path.push(library.parent().expect("a directory"));
    run(command.arg(path));
}

/// The program of this package's source. It is compiled once for all tests that ask for it.
pub(crate) fn program(compiler: &[&str], more: &[&str], source: &str) -> PathBuf {
    type Programs = BTreeMap<String, Arc<OnceLock<PathBuf>>>;
    static PROGRAMS: Mutex<Programs> = Mutex::new(BTreeMap::new());
    let words = [compiler, more, &[source, library().to_str().expect("a path in UTF-8")]].concat().join(" ");
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    let once = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner).entry(words).or_default().clone();
    let build = || {
        let source = Path::new(HERE).join(source);
        let stem = source.file_stem().and_then(OsStr::to_str).expect("a name");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{stem}-{:x}", hasher.finish()));
        // Another run can be using the program that has this name.
        let unfinished = program.with_extension(std::process::id().to_string());
        compile(compiler, more, &source, &unfinished);
        std::fs::rename(unfinished, &program).unwrap();
        program
    };
    once.get_or_init(build).clone()
}

/// Runs a command, which must succeed. Returns its stdout.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn command(program: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped());
    command
}

/// The payload of a sequence, as in `c/pattern.h`.
pub(crate) fn pattern(sequence: u64) -> Vec<u8> {
    let hash = (sequence.wrapping_mul(2_654_435_761) as u32) >> 7;
    let length = match sequence % 8 {
        0 => 0,
        1 => (64 << 10) - hash % 3,
        2 => hash % 2048,
        _ => hash % 200,
    };
    (0..length as usize).map(|i| (sequence as usize * 31 + i * 7 + (i >> 8)) as u8).collect()
}

/// The numbers of a line such as `received 7 missed 0`, by their names.
pub(crate) fn number(said: &str, name: &str) -> u64 {
    let mut words = said.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {name} in {said:?}"))
}
