//! The programs of `client/LANGUAGES.md`, as they stand there: each publisher with each subscriber.

use crate::support::{C, CPP, HERE, command, compile, has, run};
use shmcast_testkit::{Process, scratch};
use std::fs;
use std::path::{Path, PathBuf};

/// The program of this name in the document.
fn quoted(name: &str) -> String {
    let text = fs::read_to_string(Path::new(HERE).join("../LANGUAGES.md")).unwrap();
    let (_, rest) = text.split_once(&format!("<!-- program: {name} -->\n```")).unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split_once("\n```").unwrap().0.to_owned() + "\n"
}

/// That program, built into `dir`.
fn built(compiler: &[&str], name: &str, dir: &Path) -> PathBuf {
    let (source, program) = (dir.join(name), dir.join(name.replace('.', "-")));
    fs::write(&source, quoted(name)).unwrap();
    compile(compiler, &[], &source, &program);
    program
}

#[test]
fn quick_starts_run_as_they_are_quoted() {
    const NAME: &str = "quick_starts_run_as_they_are_quoted";
    if !has(NAME, C[0]) || !has(NAME, CPP[0]) {
        return;
    }
    let dir = scratch();
    let publishers = [built(C, "publisher.c", dir.path()), built(CPP, "publisher.cpp", dir.path())];
    let subscribers = [built(C, "subscriber.c", dir.path()), built(CPP, "subscriber.cpp", dir.path())];
    for publisher in &publishers {
        let channels = scratch();
        let with = |program: &Path| {
            let mut command = command(program, [""; 0]);
            command.env(shmcast::DIR_VARIABLE, channels.path());
            command
        };
        let waiting: Vec<_> = subscribers.iter().map(|program| Process::start(&mut with(program))).collect();
        let published = run(&mut with(publisher));
        assert_eq!(published.lines().count(), 40);
        assert!(published.starts_with("1: bid 10000\n2: bid 10007\n"), "{published}");
        for subscriber in waiting {
            let output = subscriber.output();
            assert_eq!(
                (output.status.code(), String::from_utf8(output.stdout).unwrap()),
                (Some(0), published.clone())
            );
        }
    }
}
