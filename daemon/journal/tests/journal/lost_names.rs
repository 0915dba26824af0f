//! Recorders whose directory, files or lock are removed or moved while they record.

use super::recorder::{Host, ending, fill_until_file, on_a_disk_that_refuses, payload, until};
use shmcast::journal::format::file_name;
use shmcast::journal::{Ending, Journal, JournalError};
use shmcast_journal::RecordError;
use shmcast_journal::core::SyncPolicy;
use shmcast_testkit::journal::{folder, read};
use shmcast_testkit::wait_until;

/// A recorder ends with an error if its directory or file is removed or moved: nobody can read its messages back.
#[test]
fn what_has_lost_its_name_is_not_durable() {
    for is_file in [false, true] {
        let host = Host::new();
        let mut publisher = host.publisher("t", 64 << 10);
        let recorder = host.record("t", SyncPolicy::Each);
        publisher.publish(b"a").unwrap();
        until(&recorder, |progress| progress.durable == 1);
        let path = match is_file {
            true => folder(host.dir()).join(file_name(1, 1)),
            false => host.dir().to_owned(),
        };
        std::fs::rename(&path, host.channels.path().join("elsewhere")).unwrap();
        wait_until("the recorder's end", || !recorder.is_running());
        let refused = recorder.stop().unwrap_err();
        assert!(matches!(refused, RecordError::Moved { .. }), "{refused}");
        // One that is stopped at once says so too.
        std::fs::rename(host.channels.path().join("elsewhere"), &path).unwrap();
        let recorder = host.record("t", SyncPolicy::Each);
        until(&recorder, |progress| progress.durable == 1);
        std::fs::rename(host.dir(), host.channels.path().join("elsewhere")).unwrap();
        assert!(matches!(recorder.stop(), Err(RecordError::Moved { .. })));
        std::fs::create_dir(host.dir()).unwrap();
    }
}

/// Somebody removes the lock's file, and another recorder can lock another file of this name. Each then once wrote to the other's files.
#[test]
fn a_recorder_whose_lock_was_removed_ends() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 64 << 10);
    let lock = |host: &Host| folder(host.dir()).join("lock");
    for is_stopped in [false, true] {
        let recorder = host.record("t", SyncPolicy::Each);
        let last = publisher.publish(b"a").unwrap();
        until(&recorder, |progress| progress.durable == last);
        std::fs::remove_file(lock(&host)).unwrap();
        // The spare file of the other recorder.
        let spare = folder(host.dir()).join("spare.tmp");
        std::fs::write(&spare, b"").unwrap();
        if !is_stopped {
            wait_until("the recorder's end", || !recorder.is_running());
        }
        let refused = recorder.stop().unwrap_err();
        assert!(matches!(&refused, RecordError::Moved { .. }), "{refused}");
        assert!(refused.to_string().contains("its file lock") && spare.exists(), "{refused}");
    }
    let recorder = host.record("t", SyncPolicy::Each);
    let last = publisher.publish(b"a").unwrap();
    until(&recorder, |progress| progress.durable == last);
    recorder.stop().unwrap();
    assert_eq!(read(host.dir()).messages().len(), 3);
    // So does the code that continues a channel after its journal.
    std::fs::remove_file(lock(&host)).unwrap();
    let ending = ending(&host);
    assert!(
        lock(&host).exists() && matches!(Ending::of(host.dir(), "t", None), Err(JournalError::Busy { .. }))
    );
    drop(ending);
}

/// The same for a recorder whose memory is full, because the disk takes nothing: it once looked at no name until it had room.
#[test]
fn a_removed_directory_is_noticed_while_the_memory_is_full() {
    let (host, _publisher, recorder) = on_a_disk_that_refuses(1);
    until(&recorder, |progress| progress.is_failed);
    std::fs::remove_dir_all(host.dir()).unwrap();
    wait_until("the recorder's end", || !recorder.is_running());
    let refused = recorder.stop().unwrap_err();
    assert!(matches!(refused, RecordError::Moved { .. }), "{refused}");
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 30_000);
    recorder.stop().unwrap();
    assert_eq!(read(host.dir()).messages().len(), 30_000, "the ring still had all of it");
}

/// Complete files are closed, so their names were once not looked at: a recorder ended without an error and called messages durable that
/// nobody could read.
#[test]
fn complete_files_that_were_removed_are_not_durable() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 8 << 20);
    let sealed = |host: &Host| {
        let journal = Journal::open(host.dir()).unwrap();
        let sealed = journal.files().iter().find(|file| file.trailer.is_some());
        sealed.map(|file| journal.path().join(&file.name)).unwrap()
    };
    for is_stopped in [true, false] {
        let recorder = host.record("t", SyncPolicy::Each);
        let file = recorder.progress().file;
        fill_until_file(&recorder, &mut publisher, file + 2);
        let gone = folder(host.dir()).join(sealed(&host));
        std::fs::remove_file(&gone).unwrap();
        if !is_stopped {
            let mut last = publisher.next_sequence() - 1;
            wait_until("the recorder's end", || {
                // The recorder looks when a file is complete.
                for sequence in last + 1..=last + 100 {
                    publisher.publish(&payload(sequence)).unwrap();
                }
                last += 100;
                !recorder.is_running()
            });
        }
        let refused = recorder.stop().unwrap_err();
        assert!(matches!(&refused, RecordError::Moved { .. }), "{refused}");
        let name = gone.file_name().unwrap().to_str().unwrap();
        assert!(refused.to_string().contains(name), "{refused}");
        std::fs::remove_dir_all(host.dir()).unwrap();
        std::fs::create_dir(host.dir()).unwrap();
    }
}
