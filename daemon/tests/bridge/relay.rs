//! A bad network in user space. It forwards packets from a line to another group, and requests and answers between two hosts. It loses some
//! of each, chosen from a seed.

use shmcast::sys::datagrams;
use shmcast_bridge::socket::{
    RefusedSettings, Tuning, anywhere, open_line, open_sender, open_unicast, wait_for_any,
};
use shmcast_bridge::spec::LineSpec;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// The role's words are `SEED PER_MILLE FROM_GROUP TO_GROUP INTERFACE LISTEN SERVER`.
pub fn run(words: &[&str]) {
    let [seed, per_mille, from, to, interface, listen, server] = words else { panic!("{words:?}") };
    let mut rng = fastrand::Rng::with_seed(seed.parse().unwrap());
    let per_mille: u32 = per_mille.parse().unwrap();
    let line = |group: &str| {
        let interface = Some((*interface).to_owned());
        LineSpec { interface, ..LineSpec::to(group.parse().unwrap()) }
    };
    let tuning = Tuning { buffer_bytes: 16 << 20, busy_poll_us: 0 };
    let mut refusals = RefusedSettings::default();
    let lines_in = open_line(&line(from), tuning, &mut refusals).unwrap();
    let to = line(to);
    let lines_out = open_sender(&to, 1, true).unwrap();
    let server: SocketAddr = server.parse().unwrap();
    let clients = open_unicast(listen.parse().unwrap(), tuning, &mut refusals).unwrap();
    let upstream = open_unicast(anywhere(&server), tuning, &mut refusals).unwrap();
    let mut client = None;
    let mut inbox = datagrams::Inbox::new(2_048);
    eprintln!("relay: ready, losing {per_mille} of 1000");
    loop {
        let mut idle = true;
        let mut lost = || rng.u32(0..1_000) < per_mille;
        // An error is the echo of a datagram that was not received (port unreachable). Here it is just another loss.
        while inbox.receive(&lines_in).is_ok_and(|received| received > 0) {
            idle = false;
            let kept = inbox.datagrams().filter(|_| !lost()).map(|datagram| datagram.bytes);
            datagrams::send(&lines_out, to.group, kept);
        }
        while inbox.receive(&clients).is_ok_and(|received| received > 0) {
            idle = false;
            client = inbox.datagrams().last().map(|datagram| datagram.from);
            let kept = inbox.datagrams().filter(|_| !lost()).map(|datagram| datagram.bytes);
            datagrams::send(&upstream, server, kept);
        }
        while inbox.receive(&upstream).is_ok_and(|received| received > 0) {
            idle = false;
            let kept = inbox.datagrams().filter(|_| !lost()).map(|datagram| datagram.bytes);
            if let Some(client) = client {
                datagrams::send(&clients, client, kept);
            }
        }
        if idle {
            let sockets = [lines_in.as_fd(), clients.as_fd(), upstream.as_fd()];
            wait_for_any(sockets.into_iter(), Duration::from_millis(100));
        }
    }
}
