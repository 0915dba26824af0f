//! The owners of the directories of channels, and the users that are let in: each user's default directory, the shared
//! one, and modes that were asked for.

use crate::support::{SMALL, as_nobody, drain, publisher};
use shmcast::{ChannelError, Directory, Start};
use shmcast_testkit::process::{as_user, in_dir, my_role, run, within};
use shmcast_testkit::{role, scratch, skip, works};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const NOBODY: u32 = 65534;

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Plays the roles of other processes, which other tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    match role.as_str() {
        "foreign default directory" => foreign_default_directory(),
        "several users" => several_users(),
        "user with a directory of their own" => own_directory(),
        "user of the shared directory" => shared_directory(),
        other => panic!("no such role: {other}"),
    }
}

/// Plays a role as root, in a mount namespace with its own `/dev/shm`.
fn with_an_empty_dev_shm(name: &str, role: &str) {
    let private = "mount -t tmpfs -o mode=1777 none /dev/shm";
    if !works("unshare", &["-m", "sh", "-c", private]) {
        return skip(name, "a private /dev/shm needs root and unshare");
    }
    let dir = tempfile::tempdir().unwrap();
    let private = format!("{private} && exec \"$0\" \"$@\"");
    let mut command = role!(under ["unshare", "-m", "sh", "-c", &private], role);
    run(in_dir(&mut command, dir.path()).env_remove(shmcast::DIR_VARIABLE)).unwrap();
}

#[test]
fn a_default_directory_of_somebody_elses_is_refused() {
    with_an_empty_dev_shm("a_default_directory_of_somebody_elses_is_refused", "foreign default directory");
}

fn publish_in(directory: &Directory) -> Result<(), ChannelError> {
    shmcast::Publisher::builder("t").directory(directory).capacity(SMALL).open().map(drop)
}

fn foreign_default_directory() {
    let default = Directory::default();
    assert_eq!(default.path(), Path::new("/dev/shm/shmcast-0"));
    assert_eq!(default.channels().unwrap().len(), 0);
    publish_in(&default).unwrap();
    assert_eq!(mode(default.path()), 0o700);
    fs::remove_dir_all(default.path()).unwrap();

    fs::create_dir(default.path()).unwrap();
    std::os::unix::fs::chown(default.path(), Some(NOBODY), None).unwrap();
    let refusals = [
        publish_in(&default).unwrap_err(),
        shmcast::Subscriber::builder("t").open().map(drop).unwrap_err(),
        default.channels().map(drop).unwrap_err(),
        default.remove("t").map(drop).unwrap_err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, ChannelError::ForeignDirectory { owner: NOBODY, .. }), "{refused:?}");
        assert!(refused.to_string().contains("SHMCAST_DIR"), "{refused}");
    }
    assert_eq!(fs::read_dir(default.path()).unwrap().count(), 0);
    // A link can be a trap like a directory.
    fs::rename(default.path(), "/dev/shm/elsewhere").unwrap();
    std::os::unix::fs::symlink("/dev/shm/elsewhere", default.path()).unwrap();
    std::os::unix::fs::lchown(default.path(), Some(NOBODY), None).unwrap();
    assert!(matches!(publish_in(&default), Err(ChannelError::ForeignDirectory { .. })));
    // If the user names the directory, it is the user's choice.
    publish_in(&Directory::at(default.path())).unwrap();
}

#[test]
fn the_first_user_does_not_own_everybodys_default_directory() {
    let name = "the_first_user_does_not_own_everybodys_default_directory";
    let program = std::env::current_exe().unwrap();
    if as_user(name, NOBODY, &program).is_some() {
        with_an_empty_dev_shm(name, "several users");
    }
}

/// Publishes as root, and plays a role as another user.
fn several_users() {
    let shared = Path::new(shmcast::SHARED_DIR);
    let other = |role: &str| {
        as_nobody(
            "the_first_user_does_not_own_everybodys_default_directory",
            &[],
            within(module_path!()),
            role,
            Path::new("/"),
        )
    };
    publish_in(&Directory::default()).unwrap();
    other("user with a directory of their own");
    // A user who makes the shared directory first gets no other user's channels, and keeps nobody from theirs.
    fs::create_dir(shared).unwrap();
    std::os::unix::fs::chown(shared, Some(NOBODY), None).unwrap();
    assert_eq!(Directory::default().path(), Path::new("/dev/shm/shmcast-0"));
    other("user with a directory of their own");
    fs::remove_dir(shared).unwrap();
    // If it is private to root, other users have their own.
    fs::create_dir(shared).unwrap();
    fs::set_permissions(shared, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(Directory::default().path(), shared);
    other("user with a directory of their own");
    // If root opens it to all, all users share it.
    fs::set_permissions(shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let mut root = shmcast::Publisher::builder("roots").capacity(SMALL).mode(0o755).open().unwrap();
    root.publish(b"for all").unwrap();
    let private = shmcast::Publisher::builder("private").capacity(SMALL).mode(0o700).open().unwrap();
    other("user of the shared directory");
    drop(private);
    Directory::default().remove("private").unwrap();
    let mine = Directory::default().channels().unwrap().into_iter().map(|channel| channel.name);
    assert_eq!(mine.collect::<Vec<_>>(), ["roots", "theirs"]);
}

fn own_directory() {
    let default = Directory::default();
    assert_eq!(default.path(), Path::new("/dev/shm/shmcast-65534"));
    publish_in(&default).unwrap();
    assert_eq!(default.channels().unwrap().len(), 1);
}

fn shared_directory() {
    assert_eq!(Directory::default().path(), Path::new(shmcast::SHARED_DIR));
    let mut reader = shmcast::Subscriber::builder("roots").start(Start::Oldest).open().unwrap();
    assert_eq!(drain(&mut reader).len(), 1);
    shmcast::Publisher::builder("theirs").capacity(SMALL).open().unwrap().close();
    assert!(Directory::default().remove("roots").is_err());
    let open = || shmcast::Publisher::builder("roots").open();
    for refused in [shmcast::Subscriber::builder("private").open().map(drop), open().map(drop)] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ChannelError::Private { owner: 0, .. }), "{refused:?}");
        assert!(refused.to_string().contains("755"), "{refused}");
    }
}

#[test]
fn a_mode_that_what_is_there_does_not_have_is_an_error_and_changes_nothing() {
    let dir = scratch();
    let modes =
        |path: &Path| ["", "t", "t/readers", "t/segment"].map(|file| format!("{:o}", mode(path.join(file))));
    let asked = |path: &Path, mode| publisher(path).capacity(SMALL).mode(mode).open().map(drop);
    let refused = |result: Result<(), ChannelError>| match result.unwrap_err() {
        e @ ChannelError::Mode { .. } => {
            let ChannelError::Mode { path, found, wanted } = &e else { unreachable!() };
            assert!(e.to_string().contains(&format!("{found:04o}")), "{e}");
            (path.clone(), *found, *wanted)
        }
        other => panic!("{other:?}"),
    };
    let private = dir.path().join("private");
    publisher(&private).capacity(SMALL).open().unwrap().close();
    assert_eq!(refused(asked(&private, 0o755)), (private.clone(), 0o700, 0o755), "nobody would get to it");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(refused(asked(&private, 0o755)), (private.join("t"), 0o700, 0o755));
    fs::set_permissions(private.join("t"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(refused(asked(&private, 0o755)), (private.join("t/segment"), 0o600, 0o644));
    assert_eq!(modes(&private), ["755", "755", "1700", "600"]);
    // The channel is taken over without a mode, and with the mode that it has. The directory around it may let in more
    // users than the channel does.
    publisher(&private).open().unwrap().close();
    fs::set_permissions(private.join("t"), fs::Permissions::from_mode(0o700)).unwrap();
    asked(&private, 0o700).unwrap();
    // A folder that exists without a channel is not changed either.
    fs::create_dir(private.join("new")).unwrap();
    fs::set_permissions(private.join("new"), fs::Permissions::from_mode(0o750)).unwrap();
    let new = shmcast::Publisher::builder("new").dir(&private).capacity(SMALL).mode(0o755).open();
    assert_eq!(refused(new.map(drop)), (private.join("new"), 0o750, 0o755));
    assert_eq!(fs::read_dir(private.join("new")).unwrap().count(), 0);
}
