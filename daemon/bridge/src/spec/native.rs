//! The settings of native lines: the profile, which packets a receiver accepts if there are keys, and which times messages get.

use super::{BridgeSpec, Engine, LineSpec};
use crate::proto::native::fragments::MAX_MESSAGE_BYTES;
use crate::proto::sender::LEAST_NATIVE_BYTES;
use crate::proto::wire;

/// The form of the packets of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// MoldUDP64, for receivers of any make.
    #[default]
    Plain,
    /// This profile is for receivers of shmcast. Messages keep their tag, key flag and publish time, can be up to 16 MiB long, and can be
    /// sealed. Receivers of other makes take each packet for a MoldUDP64 packet with one message.
    Native,
}

/// The choice of the packets that a receiver accepts on native lines if there are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Accept only sealed packets.
    #[default]
    Required,
    /// Accept also packets without a seal. Use this while a group introduces keys.
    Offered,
}

/// The choice of the times that messages get on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeMode {
    /// The time at which the message was published, if the clocks of both hosts are accurate enough, and otherwise the time at which the
    /// message arrives.
    #[default]
    Origin,
    /// The time at which the message arrives.
    Arrival,
}

impl BridgeSpec {
    /// Returns the profile of a line.
    pub(crate) fn profile_of(&self, line: &LineSpec) -> Profile {
        line.profile.unwrap_or(self.profile)
    }

    /// Returns the profile of a receiver. All lines of a receiver have the same profile. If there are no lines, returns the bridge's
    /// profile.
    pub fn receive_profile(&self) -> Profile {
        self.lines.first().map_or(self.profile, |line| self.profile_of(line))
    }

    /// Whether native packets, or blocks of an engine, are accepted without a seal.
    pub fn takes_open(&self) -> bool {
        self.keys.is_none() || self.auth == Auth::Offered
    }

    /// Whether any packet of the bridge is native.
    pub fn is_any_native(&self) -> bool {
        self.profile == Profile::Native
            || self.lines.iter().any(|line| self.profile_of(line) == Profile::Native)
    }

    /// Whether any line, or the server for leases and repairs, is plain.
    pub(crate) fn is_any_plain(&self) -> bool {
        let serves = self.send.as_ref().is_some_and(|send| send.repair.is_some());
        let is_plain = |line| self.profile_of(line) == Profile::Plain;
        self.lines.iter().any(is_plain) || self.profile == Profile::Plain && serves
    }

    /// Returns the size of the largest message that the bridge can transport, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        if self.engine == Engine::Nats {
            return MAX_MESSAGE_BYTES;
        }
        let is_plain = if self.receive.is_some() {
            self.receive_profile() == Profile::Plain
        } else {
            self.is_any_plain()
        };
        match is_plain || !self.is_any_native() {
            true => wire::max_message_bytes(self.payload_bytes),
            false => MAX_MESSAGE_BYTES,
        }
    }

    pub(super) fn problems_of_native(&self, report: &mut impl FnMut(&'static str, String)) {
        let of_receiver = self.receive_profile();
        if self.receive.is_some() && self.lines.iter().any(|line| self.profile_of(line) != of_receiver) {
            let what = "all lines of a receiver have one profile: write it once, for the bridge";
            report("line", what.to_owned());
        }
        if self.keys.is_some() && !self.is_any_native() {
            report("keys", "plain packets cannot be sealed: give the lines profile = \"native\"".to_owned());
        }
        if self.is_any_native() && self.payload_bytes < LEAST_NATIVE_BYTES {
            let bytes = self.payload_bytes;
            report(
                "payload_bytes",
                format!("{bytes} is too little for native packets: write at least {LEAST_NATIVE_BYTES}"),
            );
        }
    }
}
