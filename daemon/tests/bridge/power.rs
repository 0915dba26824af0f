//! A host loses its power right after its mirror was promoted. It loses everything that was not synced, and the channel's memory.

use super::daemons::{GROUP, bridge_of, channel};
use super::roles::make_channel;
use shmcast::{Client, Publisher};
use shmcast_testkit::disk::Disk;
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::{skip, wait_for};

/// The journal is synced when it must be. The interval of an hour causes no sync in this test.
const JOURNAL: &str = "sync = \"3600s\", io = \"buffered\", file = \"1MiB\"";

#[test]
fn a_power_cut_after_a_promotion_gives_no_sequence_twice() {
    let test = "a_power_cut_after_a_promotion_gives_no_sequence_twice";
    let Some(mut hosts) = Hosts::new(test, 1) else { return };
    let Some(mut disk) = Disk::make() else { return skip(test, "no ext4 can be mounted") };
    let mut publisher = make_channel(&hosts.channels(Host::A));
    let first =
        hosts.shmcast(Host::A, &format!("bridge send t --to {GROUP} --interface va0 --set send.from=oldest"));
    first.wait_for_log("sending session");
    hosts.use_daemons(true);
    let dir = disk.path().join("t");
    let channel = format!("{}journal = {{ dir = \"{}\", {JOURNAL} }}\n", channel(), dir.display());
    let receives = format!(
        "[[bridge]]\nname = \"in\"\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"vb0\" }}]\n\
         [bridge.receive]\nfrom = 1\n"
    );
    let b = hosts.daemon(Host::B, &format!("{channel}{receives}"));
    (1..=100u64).for_each(|number| assert_eq!(publisher.publish(&number.to_le_bytes()).unwrap(), number));
    let client = Client::at(hosts.socket(Host::B)).unwrap();
    let next = || client.channel("t").unwrap().next_sequence;
    wait_for("the mirror's messages", || (next() == Some(101)).then_some(()));
    wait_for("the mirror's session", || bridge_of(&hosts, Host::B, 0)["session"].as_str().map(str::to_owned));
    wait_for("the journal", || {
        client
            .channel("t")
            .unwrap()
            .journal
            .filter(|journal| journal.state == "recording" && journal.written >= 100)
    });
    first.kill();
    let promoted = hosts.shmcast(Host::B, "bridge promote t --force --json").end_well();
    let mut local = Publisher::builder("t").client(&client).open().unwrap();
    let mut last = 0;
    for _ in 0..200 {
        last = local.publish(b"a message of this host").unwrap();
    }
    if !disk.cut() {
        return skip(test, "no power cut of a file system");
    }
    assert!(promoted["to"].as_u64().is_some_and(|to| to + 200 == last), "{promoted} {last}");
    b.kill();
    drop((local, client));
    std::fs::remove_dir_all(hosts.socket(Host::B).parent().unwrap()).unwrap();
    assert!(disk.mount_again());

    let _b = hosts.daemon(Host::B, &channel);
    let client = Client::at(hosts.socket(Host::B)).unwrap();
    let mut local = Publisher::builder("t").client(&client).open().unwrap();
    let first = local.publish(b"behind the power cut").unwrap();
    assert!(first > last, "sequence {first} was given before: the last was {last}");
}
