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

/// The program of this name, built into `dir`.
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

#[test]
fn several_channels_are_read_as_it_is_quoted() {
    const NAME: &str = "several_channels_are_read_as_it_is_quoted";
    if !has(NAME, C[0]) || !has(NAME, CPP[0]) {
        return;
    }
    let dir = scratch();
    let readers = [built(C, "select.c", dir.path()), built(CPP, "select.cpp", dir.path())];
    let channels = scratch();
    let start = |program: &PathBuf| {
        let mut command = command(program, [""; 0]);
        Process::start(command.env(shmcast::DIR_VARIABLE, channels.path()))
    };
    let waiting: Vec<_> = readers.iter().map(start).collect();
    let open = |name: &str| {
        let preparation = shmcast::Preparation::NONE;
        shmcast::Publisher::builder(name)
            .dir(channels.path())
            .capacity(1 << 20)
            .prepare(preparation)
            .open()
            .unwrap()
    };
    let (mut prices, mut news) = (open("prices"), open("news"));
    for number in 0..3 {
        prices.publish(format!("bid {number}").as_bytes()).unwrap();
        news.publish(b"nothing new").unwrap();
    }
    drop((prices, news));
    for reader in waiting {
        let output = reader.output();
        let said = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        let due =
            ["news: nothing new"; 3].into_iter().chain(["prices: bid 0", "prices: bid 1", "prices: bid 2"]);
        assert_eq!(lines, due.collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0));
    }
}
