//! Reopens lines whose interface was replaced. The socket that sends repairs to all receivers stays open, and is moved to the new
//! interface.

use super::failover::EARS;
use super::line::open_connected;
use super::live::Live;
use super::{BridgeError, Egress};
use crate::renewal::{REPAIRS, Watch};
use crate::repair::Groups;
use crate::socket::{RefusedSettings, aim, open_line};
use crate::spec::{BridgeSpec, LineSpec, SendRole, SendSpec};
use std::net::UdpSocket;

impl Egress {
    /// Starts the thread that watches the interfaces of the lines, if there is a line to watch. `requests` is the socket of the repair
    /// server. From this socket, the server also sends the repairs for all receivers.
    pub(super) fn watch(
        &mut self,
        spec: &BridgeSpec,
        send: &SendSpec,
        (watch, requests): (Watch, Option<UdpSocket>),
    ) -> Result<(), BridgeError> {
        if watch.is_empty() {
            return Ok(());
        }
        let (shared, marks, send) = (self.shared.clone(), spec.marks(), send.clone());
        let group = send.repair.as_ref().and_then(|repair| repair.group);
        self.end.spawn(&format!("line-{}", spec.title()), None, move || {
            // Refusals of the system are not reported here: the bridge reported them at its start.
            let mut refusals = RefusedSettings::default();
            let renew = |at, line: &LineSpec| {
                if at == REPAIRS {
                    requests.iter().try_for_each(|socket| aim(socket, line, send.ttl, send.loopback))?;
                    if group == Some(line.group) {
                        shared.groups.give(at, Groups::join(line, &mut refusals)?);
                    }
                    return Ok(());
                }
                let socket = open_connected(line, marks, &send, &mut refusals)?;
                // An egress with the role `auto` also receives the packets of its peers on the line.
                if send.role == SendRole::Auto {
                    shared.ears.give(at, open_line(line, EARS, &mut refusals)?);
                }
                shared.renewal.give(at, socket);
                Ok(())
            };
            watch.run(renew, |_, _| {}, || shared.life.is_stopping());
        })
    }
}

impl Live {
    /// Replaces the sockets of lines that were opened again.
    pub(super) fn renew_lines(&mut self) {
        let outlet = &mut self.outlet;
        for (at, socket) in outlet.shared.renewal.take() {
            let second = outlet.second.iter_mut().flat_map(|second| &mut second.lines);
            if let Some(line) = outlet.lines.iter_mut().chain(second).find(|line| line.at == Some(at)) {
                let was = line.from;
                line.renew(socket);
                if let Some(failover) = &mut self.failover {
                    failover.note_own(was, line.from);
                }
            }
        }
        if let Some(failover) = &mut self.failover {
            failover.renew_ears(outlet.shared.ears.take());
        }
        outlet.counters.lines_anew = outlet.shared.renewal.counts().0;
    }
}
