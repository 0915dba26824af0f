//! The command in directories of other files: no verb removes or writes to a file that is not a channel's.
use serde_json::Value;
use shmcast_testkit::place::program;
use shmcast_testkit::process::as_user;
use shmcast_testkit::{Process, scratch, skip, works};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the command in `dir`, with no default directory of its own.
fn run(dir: &Path, arguments: &str) -> Output {
    let mut command = Command::new(program("shmcast"));
    command.args(arguments.split_whitespace()).current_dir(dir).env("SHMCAST_DIR", dir.join("channels"));
    Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).output()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeds(dir: &Path, arguments: &str) -> Output {
    let output = run(dir, arguments);
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    output
}

/// The paths below a directory, in order.
fn paths(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(paths(&path));
        }
        found.push(path.to_str().unwrap().to_owned());
    }
    found.sort();
    found
}

/// Makes projects as they lie in a home directory.
fn projects(dir: &Path) -> Vec<String> {
    fs::create_dir_all(dir.join("proj/.git/objects")).unwrap();
    fs::write(dir.join("proj/.git/HEAD"), "ref: refs/heads/main").unwrap();
    fs::create_dir_all(dir.join("lib/readers")).unwrap();
    fs::write(dir.join("lib/readers/alice.txt"), "dear alice").unwrap();
    fs::create_dir_all(dir.join("d2/a")).unwrap();
    fs::write(dir.join("d2/a/photo.jpg"), "1").unwrap();
    paths(dir)
}

#[test]
fn a_path_given_as_a_channel_leads_out_of_the_directory_of_channels() {
    let dir = scratch();
    let before = projects(dir.path());
    for verb in [
        "pub PATH",
        "sub PATH",
        "stat PATH",
        "rm PATH",
        "bridge send PATH --to 127.0.0.1:30001",
        "bridge recv PATH --from 127.0.0.1:30001",
    ] {
        for (path, hint) in [
            ("./proj", "`--dir . proj`"),
            ("../x", "`--dir .. x`"),
            ("proj/", "`--dir . proj`"),
            ("/tmp/a/b", "`--dir /tmp/a b`"),
            ("/b", "`--dir / b`"),
            ("a/b --dir d2", "not a path"),
        ] {
            let arguments = verb.replace("PATH", path);
            let output = run(dir.path(), &arguments);
            assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
            assert!(stderr(&output).contains(hint), "{arguments}: {}", stderr(&output));
            assert_eq!(paths(dir.path()), before, "{arguments}");
        }
    }
}

#[test]
fn a_repository_is_removed_without_a_question() {
    let dir = scratch();
    let before = projects(dir.path());
    for (arguments, entry) in [
        ("rm proj --dir .", "\".git\""),
        ("rm a --dir d2", "\"photo.jpg\""),
        ("rm lib --dir .", "\"readers\""),
        ("pub a --dir d2", "\"photo.jpg\""),
    ] {
        let output = run(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
        let told = stderr(&output);
        assert!(told.contains(entry) && told.contains("nothing was changed"), "{arguments}: {told}");
        assert_eq!(paths(dir.path()), before, "{arguments}");
    }
}

#[test]
fn looking_at_channels_removes_files() {
    let dir = scratch();
    succeeds(dir.path(), "pub t --dir . --capacity 64KiB");
    projects(dir.path());
    // The directory of reader pages is a link to another place.
    fs::remove_dir(dir.path().join("t/readers")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("lib/readers"), dir.path().join("t/readers")).unwrap();
    let before = paths(dir.path());
    for arguments in ["ls --dir .", "stat t --dir .", "top --json --interval 100ms --dir ."] {
        succeeds(dir.path(), arguments);
        assert_eq!(paths(dir.path()), before, "{arguments}");
    }
    let listed = succeeds(dir.path(), "ls --json --dir .").stdout;
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "projects are no channels: {listed}");
    for arguments in ["sub t --dir .", "rm t --dir .", "pub t --dir ."] {
        let output = run(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert!(stderr(&output).contains("\"readers\""), "{arguments}: {}", stderr(&output));
        assert_eq!(paths(dir.path()), before, "{arguments}");
    }
}

#[test]
fn what_was_removed_is_said() {
    let dir = scratch();
    succeeds(dir.path(), "pub a --capacity 1MiB");
    let told = stderr(&succeeds(dir.path(), "rm a"));
    assert!(told.contains("channels: lock, readers, segment; 1.1 MiB"), "{told}");
    succeeds(dir.path(), "pub b --capacity 1MiB");
    let told: Value = serde_json::from_slice(&succeeds(dir.path(), "rm b --json").stdout).unwrap();
    assert_eq!(told["removed"], "b");
    assert_eq!(told["files"], serde_json::json!(["lock", "readers", "segment"]));
    assert!(told["bytes"].as_u64().unwrap() > 1 << 20, "{told}");
}

/// The publisher's limit on memory is too low for the map, so the publisher fails after it has made the file.
#[test]
fn a_publisher_that_fails_takes_an_ordinary_folder_away() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("P/X")).unwrap();
    let limited =
        format!("ulimit -v 300000 && exec {} pub X --dir P --capacity 512MiB", program("shmcast").display());
    let publish = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited]).current_dir(dir.path()).stdin(Stdio::null());
        shell.output().unwrap()
    };
    let output = publish();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(fs::read_dir(dir.path().join("P/X")).unwrap().count(), 0);
    // A file in that folder is not overwritten either.
    fs::write(dir.path().join("P/X/lock"), "of my own").unwrap();
    assert_eq!(publish().status.code(), Some(1));
    assert_eq!(fs::read_to_string(dir.path().join("P/X/lock")).unwrap(), "of my own");
}

#[test]
fn a_mode_that_is_not_what_is_there_is_ignored() {
    let dir = scratch();
    let mode = |path: &str| {
        fs::metadata(dir.path().join("channels").join(path)).unwrap().permissions().mode() & 0o7777
    };
    succeeds(dir.path(), "pub all --capacity 64KiB --set permissions=755");
    assert_eq!([mode("all"), mode("all/segment"), mode("")], [0o755, 0o644, 0o755]);
    succeeds(dir.path(), "pub mine --capacity 64KiB");
    let output = run(dir.path(), "pub mine --set permissions=755");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("exists with mode 0700"), "{}", stderr(&output));
    let output = run(dir.path(), "pub mine --set permissions=644");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

/// A reader that is not allowed to write in a channel's directory continues, and reports once that tools do not see it.
#[test]
fn a_reader_that_cannot_show_a_page_is_refused() {
    let name = "a_reader_that_cannot_show_a_page_is_refused";
    let dir = scratch();
    if !works("unshare", &["-m", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        return skip(name, "mounting a file system needs root and unshare");
    }
    let shmcast = program("shmcast").display().to_string();
    let script = format!(
        "mount -t tmpfs none . && cd . && seq 3 | {shmcast} pub t --dir $PWD --capacity 64KiB 2>/dev/null && \
         mount -o remount,ro $PWD && exec {shmcast} sub t --dir $PWD --from oldest"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).current_dir(dir.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n2\n3\n");
    assert_eq!(stderr(&output).matches("no reader page").count(), 1, "{}", stderr(&output));
}

/// An earlier mistake: readers that the user could not see were shown as no readers.
#[test]
fn readers_that_a_user_may_not_see_are_unknown() {
    const TEST: &str = "readers_that_a_user_may_not_see_are_unknown";
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    succeeds(dir.path(), "pub t --capacity 64KiB --set permissions=755");
    let channels = dir.path().join("channels");
    let readers = channels.join("t/readers");
    fs::create_dir_all(&readers).unwrap();
    fs::set_permissions(&readers, fs::Permissions::from_mode(0o700)).unwrap();
    let stranger = |arguments: &str| {
        let mut command = as_user(TEST, 65534, &program("shmcast"))?;
        command.args(arguments.split_whitespace()).env("SHMCAST_DIR", &channels).stdin(Stdio::null());
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let Some(listed) = stranger("ls") else { return };
    assert!(listed.lines().any(|line| line.starts_with(" t") && line.contains(" ? ")), "{listed}");
    assert!(stranger("stat t").unwrap().contains("readers unknown"));
    let status: Value = serde_json::from_str(&stranger("stat t --json").unwrap()).unwrap();
    assert!(status["unknown"].as_array().unwrap().contains(&"readers".into()), "{status}");
}
