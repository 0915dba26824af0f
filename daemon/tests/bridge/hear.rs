//! A listener on a line. It notes, by the kernel's time stamps, when one sender's packets follow another sender's.

use serde_json::json;
use shmcast::sys::datagrams::Inbox;
use shmcast_bridge::proto::wire::{Body, Downstream};
use shmcast_bridge::socket::{RefusedSettings, Tuning, open_line, wait_for_any};
use shmcast_bridge::spec::LineSpec;
use std::os::fd::AsFd;
use std::time::Duration;

/// The role's words are `GROUP INTERFACE`. Ends with the session. Prints, for each change of the sender, the silence of the line. Also
/// prints the longest silence between two packets of one sender. Both are in microseconds.
pub fn run(words: &[&str]) {
    let [group, interface] = words else { panic!("{words:?}") };
    let line = LineSpec { interface: Some((*interface).to_owned()), ..LineSpec::to(group.parse().unwrap()) };
    let tuning = Tuning { buffer_bytes: 16 << 20, busy_poll_us: 0 };
    let socket = open_line(&line, tuning, &mut RefusedSettings::default()).unwrap();
    let (mut inbox, mut last) = (Inbox::new(2_048), None);
    let (mut changes, mut longest_ns) = (Vec::new(), 0);
    eprintln!("hear: ready");
    loop {
        while inbox.receive(&socket).is_ok_and(|received| received > 0) {
            for datagram in inbox.datagrams() {
                let Ok(Downstream { body, .. }) = Downstream::parse(datagram.bytes) else { continue };
                match (body, datagram.time_ns) {
                    (Body::Messages(_), Some(now_ns)) => {
                        if let Some((from, before_ns)) = last.replace((datagram.from, now_ns)) {
                            let silent_ns = now_ns.saturating_sub(before_ns);
                            match from == datagram.from {
                                true => longest_ns = silent_ns.max(longest_ns),
                                false => changes.push(silent_ns / 1_000),
                            }
                        }
                    }
                    (Body::End, _) => {
                        println!("\n{}", json!({ "changes_us": changes, "longest_us": longest_ns / 1_000 }));
                        return;
                    }
                    _ => {}
                }
            }
        }
        wait_for_any([socket.as_fd()].into_iter(), Duration::from_millis(100));
    }
}
