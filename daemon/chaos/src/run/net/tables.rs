//! The configurations of the bridges of each host.

use super::Network;
use crate::story::Way;
use std::fmt::Write;

/// The time after which a receiver gives up a message that no server has, in milliseconds. It is longer than a story, so no message is
/// given up.
const GIVE_UP_MS: u32 = 120_000;
/// The time for which a receiver without a server waits for a missing message, in microseconds. Another line can still deliver the message.
/// The time is long, because one line's thread can stall while another continues.
const HOLD_US: u32 = 1_000_000;
/// The size of a receiver's buffer in bytes. The buffer has room for all messages that a story publishes in one burst.
const BUFFER: u32 = 64 << 20;
/// For each host, the ports of two repair servers: the server of the daemon's sender, and the server of the second sender. The two senders
/// use the ports in `CLAIMS` to decide which of them sends.
const SERVERS: [u16; 2] = [30_002, 30_003];
const CLAIMS: [u16; 2] = [31_000, 31_001];

/// The names of two bridges: the one that receives, and the one that sends on.
pub(super) const IN: &str = "in";
pub(super) const OUT: &str = "out";

impl Network {
    /// Returns the address of a host on a line.
    fn address(&self, host: usize, line: usize, port: u16) -> String {
        match self.net.v6 {
            true => format!("[fd77:{line}::{}]:{port}", host + 1),
            false => format!("10.77.{line}.{}:{port}", host + 1),
        }
    }

    /// Returns the multicast group of a line, for the first or the second hop.
    fn group(&self, hop: usize, line: usize) -> String {
        match self.net.v6 {
            true => format!("[ff15::77:{hop}{line}]:3000{hop}"),
            false => format!("239.77.{hop}.{line}:3000{hop}"),
        }
    }

    fn allowed(&self) -> &'static str {
        if self.net.v6 { "fd77::/16" } else { "10.77.0.0/16" }
    }

    /// Returns the fields that all bridges have: the channel, the lines, and the format of packets.
    fn common(&self, name: &str, channel: &str, hop: usize) -> String {
        let lines: Vec<String> = (0..self.hubs.len())
            .map(|line| format!("{{ group = \"{}\", interface = \"v{line}\" }}", self.group(hop, line)))
            .collect();
        let mut text = format!(
            "[[bridge]]\nname = \"{name}\"\nchannel = \"{channel}\"\nline = [{}]\nwait = \"block\"\n",
            lines.join(", ")
        );
        if self.net.native {
            text.push_str("profile = \"native\"\n");
        }
        if self.net.sealed {
            let _ = writeln!(text, "keys = {:?}", self.keys_path());
        }
        text
    }

    fn from(&self) -> &'static str {
        if self.net.from_oldest { "oldest" } else { "resume" }
    }

    fn sends(&self, host: usize, name: &str, channel: &str, hop: usize, peer: Option<[String; 2]>) -> String {
        let state = self.dir.join(format!("{host}-{name}.state"));
        let mut text = self.common(name, channel, hop);
        let _ =
            writeln!(text, "[bridge.send]\nfrom = \"{}\"\nstate = {state:?}\nlinger_ms = 500", self.from());
        if let Some([own, peer]) = peer {
            let _ = writeln!(
                text,
                "role = \"auto\"\nrank = {host}\nclaim_bind = \"{own}\"\npeers = [\"{peer}\"]"
            );
        }
        if self.net.has_server {
            let (bind, allow) = (self.address(host, 0, SERVERS[0]), self.allowed());
            let _ = writeln!(text, "[bridge.send.repair]\nbind = \"{bind}\"\nallow = [\"{allow}\"]");
        }
        text
    }

    fn receives(&self, channel: &str, hop: usize, servers: &[String]) -> String {
        let mut text = self.common(IN, channel, hop);
        let _ = writeln!(
            text,
            "[bridge.receive]\nfrom = 1\ngive_up_ms = {GIVE_UP_MS}\nbuffer_bytes = {BUFFER}\nclock_limit_us = 0"
        );
        let _ = match self.net.has_server {
            true => writeln!(text, "servers = {servers:?}"),
            false => writeln!(text, "hold_us = {HOLD_US}"),
        };
        text
    }

    /// Returns the configuration tables of a host's daemon.
    pub(in super::super) fn tables(&self, host: usize, channel: &str) -> String {
        let mut first = vec![self.address(0, 0, SERVERS[0])];
        if self.net.has_peer {
            first.push(self.address(0, 0, SERVERS[1]));
        }
        let server = |host: usize| self.address(host, 0, SERVERS[0]);
        match (self.net.way, host) {
            (_, 0) => {
                let claims = || [CLAIMS[0], CLAIMS[1]].map(|port| format!("127.0.0.1:{port}"));
                self.sends(0, OUT, channel, 0, self.net.has_peer.then(claims))
            }
            (Way::Chain, 1) => {
                format!("{}{}", self.receives(channel, 0, &first), self.sends(1, OUT, channel, 1, None))
            }
            (Way::Mirrors, 1 | 2) => {
                let claims = [host, 3 - host].map(|host| self.address(host, 0, CLAIMS[0]));
                let sends = self.sends(host, OUT, channel, 1, Some(claims));
                format!("{}{sends}", self.receives(channel, 0, &first))
            }
            (Way::Chain, _) => self.receives(channel, 1, &[server(1)]),
            (Way::Mirrors, _) => self.receives(channel, 1, &[server(1), server(2)]),
            _ => self.receives(channel, 0, &first),
        }
    }

    /// Returns the words of the second sender's command.
    pub(super) fn second_sender(&self, channel: &str) -> Vec<String> {
        let mut words: Vec<String> = ["bridge", "send", channel].map(str::to_owned).to_vec();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        for line in 0..self.hubs.len() {
            add("--to", self.group(0, line));
            add("--interface", format!("v{line}"));
        }
        for set in [
            "wait=block".to_owned(),
            "send.linger_ms=500".to_owned(),
            format!("send.from={}", self.from()),
            format!("send.state={}", self.dir.join("0-second.state").display()),
            "send.role=auto".to_owned(),
            "send.rank=1".to_owned(),
            format!("send.claim_bind=127.0.0.1:{}", CLAIMS[1]),
            format!("send.peers=['127.0.0.1:{}']", CLAIMS[0]),
        ] {
            add("--set", set);
        }
        if self.net.has_server {
            add("--repair", self.address(0, 0, SERVERS[1]));
            add("--allow", self.allowed().to_owned());
        }
        if self.net.native {
            add("--set", "profile=native".to_owned());
        }
        if self.net.sealed {
            add("--set", format!("keys={}", self.keys_path().display()));
        }
        words
    }
}
