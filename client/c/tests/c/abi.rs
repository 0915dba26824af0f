//! Programs that were built with an earlier header work with this library. `abi/` has the header of each release that added something. No
//! item of these headers can disappear, or change its number, place or size.

use crate::support::{C, HERE, has, library, program, run};
use shmcast_testkit::scratch;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The headers of earlier releases.
fn earlier() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(Path::new(HERE).join("abi")).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(!all.is_empty());
    all
}

/// A program that prints each number, size and place that a header has, and refers to each of its functions.
fn witness(header: &str) -> String {
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let mut text = "#include <shmcast.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    let mut count = 0;
    for line in code.lines().map(str::trim) {
        let name = line.split(" = ").next().unwrap();
        if line.contains(" = ") && name.starts_with("SHMCAST_") {
            writeln!(text, "    printf(\"{name} %d\\n\", (int){name});").unwrap();
            count += 1;
        }
    }
    for part in code.split("typedef struct ").skip(1) {
        let Some((tag, rest)) = part.split_once(" {\n") else { continue };
        let Some((body, _)) = rest.split_once(&format!("}} {tag};")) else { continue };
        // Options say their own size, and grow at their end.
        if !body.trim_start().starts_with("uint32_t size;") {
            writeln!(text, "    printf(\"sizeof {tag} %zu\\n\", sizeof({tag}));").unwrap();
        }
        // The members of a union's structs have places of their own, which the size of the union holds.
        for field in body.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     ")) {
            for field in field.trim().trim_end_matches(';').split(", ") {
                let field = field.rsplit([' ', '*']).next().unwrap().split('[').next().unwrap();
                if field.is_empty() || field == "{" {
                    continue;
                }
                writeln!(text, "    printf(\"{tag}.{field} %zu\\n\", offsetof({tag}, {field}));").unwrap();
                count += 1;
            }
        }
    }
    for part in code.split("SHMCAST_API ").skip(2) {
        let name = part.split_once('(').unwrap().0.rsplit([' ', '*']).next().unwrap();
        writeln!(text, "    printf(\"{name} %d\\n\", {name} != 0);").unwrap();
        count += 1;
    }
    assert!(count > 100, "{count} things were found: {text}");
    text + "    return 0;\n}\n"
}

/// Compiles a program with the header in this directory, runs it and returns its output. An error if it does not compile or start.
fn says(text: &str, include: &Path) -> Result<String, String> {
    let dir = scratch();
    let (source, program) = (dir.path().join("witness.c"), dir.path().join("witness"));
    fs::write(&source, text).unwrap();
    let mut command = Command::new(C[0]);
    command
        .args(&C[1..])
        .arg("-Wno-address")
        .arg("-I")
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg(library());
    let built = command.output().unwrap();
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    Ok(run(Command::new(&program).env("LD_LIBRARY_PATH", library().parent().unwrap())))
}

/// Whether all of an earlier header means the same in a later one.
fn holds(earlier: &Path, later: &Path) -> Result<(), String> {
    let text = witness(&fs::read_to_string(earlier.join("shmcast.h")).unwrap());
    let (before, now) = (says(&text, earlier)?, says(&text, later)?);
    let changed = before.lines().zip(now.lines()).find(|(before, now)| before != now);
    changed.map_or(Ok(()), |(before, now)| Err(format!("{before} became {now}")))
}

#[test]
fn nothing_of_an_earlier_header_changes() {
    if !has("nothing_of_an_earlier_header_changes", C[0]) {
        return;
    }
    for earlier in earlier() {
        holds(&earlier, &Path::new(HERE).join("include")).unwrap();
    }
}

/// The check above detects changes.
#[test]
fn what_must_not_change_is_noticed() {
    if !has("what_must_not_change_is_noticed", C[0]) {
        return;
    }
    let header = fs::read_to_string(Path::new(HERE).join("include/shmcast.h")).unwrap();
    let (sequence, time) =
        ("    uint64_t sequence;   /* of a message", "    uint64_t time;       /* of a message");
    let moved = header.replacen(sequence, "@", 1).replacen(time, sequence, 1).replacen('@', time, 1);
    let renumbered = header.replacen("SHMCAST_GAP = 3,", "SHMCAST_GAP = 9,", 1);
    let removed =
        header.replacen("SHMCAST_API uint64_t shmcast_lag(", "SHMCAST_API uint64_t shmcast_gone(", 1);
    for (what, changed) in
        [("a field moved", moved), ("a number changed", renumbered), ("a function went", removed)]
    {
        assert_ne!(changed, header, "{what}: the header is as before");
        let dir = scratch();
        fs::write(dir.path().join("shmcast.h"), changed).unwrap();
        let found = holds(&earlier()[0], dir.path());
        println!("{what}: {}", found.clone().err().unwrap_or_default().lines().next().unwrap_or_default());
        assert!(found.is_err(), "{what}, and nobody noticed");
    }
}

#[test]
fn a_program_of_the_first_header_runs() {
    const NAME: &str = "a_program_of_the_first_header_runs";
    if !has(NAME, C[0]) {
        return;
    }
    let channels = scratch();
    // The earlier header comes first, so that it hides the present one.
    let earlier = earlier();
    let include = ["-I", earlier[0].to_str().unwrap()];
    let program = program(C, &include, "tests/c/calls.c");
    run(Command::new(&program).arg(channels.path()));
}
