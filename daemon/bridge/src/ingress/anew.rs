//! Reopens the lines, and the multicast group for repairs, if their interface was replaced. Joins the group of a line again if the line
//! receives nothing.

use super::merging::Merging;
use super::port::{Port, Role};
use super::receiving::Receiving;
use super::{BridgeError, IngressState};
use crate::end::RunningEnd;
use crate::renewal::{REPAIRS, Silences, Watch, rejoin};
use crate::socket::{Drops, RefusedSettings, Tuning, open_line, open_merging_line};
use crate::spec::{BridgeSpec, LineSpec, ReceiveSpec};
use crate::status::Phase;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Instant;

/// Starts the thread that watches the interfaces of the lines, if there is a line to watch.
pub(super) fn watch(
    spec: &BridgeSpec,
    receive: &ReceiveSpec,
    (watch, ports): (Watch, &[Port]),
    shared: &Arc<IngressState>,
    end: &mut RunningEnd,
) -> Result<(), BridgeError> {
    if watch.is_empty() {
        return Ok(());
    }
    let tuning = Tuning { buffer_bytes: receive.buffer_bytes, busy_poll_us: spec.busy_poll_us };
    // Clones of the sockets. The thread uses them to join groups again.
    let lines = ports.iter().filter_map(|port| Some((port.role.line()?, &port.socket)));
    let sockets = lines.map(|(line, socket)| Ok((line, socket.try_clone()?))).collect::<io::Result<_>>();
    let sockets: RefCell<HashMap<usize, UdpSocket>> = RefCell::new(sockets.map_err(BridgeError::Start)?);
    let shared = shared.clone();
    let body = move || {
        let mut silences = Silences::default();
        // Refusals of the system are not reported here: the bridge reported them at its start.
        let mut refusals = RefusedSettings::default();
        let renew = |at, line: &LineSpec| {
            let socket = if at == REPAIRS {
                open_line(line, tuning, &mut refusals)?
            } else {
                let socket = open_merging_line(line, tuning, &mut refusals)?;
                sockets.borrow_mut().extend(socket.try_clone().map(|socket| (at, socket)));
                socket
            };
            shared.renewal.give(at, socket);
            Ok(())
        };
        let rejoin_silent = |at, line: &LineSpec| {
            if silences.is_due(at, &shared.counters.read(), Instant::now()) {
                sockets.borrow().get(&at).iter().for_each(|socket| rejoin(&shared.renewal, line, socket));
            }
        };
        let is_over =
            || shared.life.is_stopping() || matches!(shared.life.phase(), Phase::Ended | Phase::Failed);
        watch.run(renew, rejoin_silent, is_over);
    };
    end.spawn(&format!("line-{}", spec.title()), None, body)
}

impl Receiving {
    /// Replaces the sockets of lines that were opened again.
    pub(super) fn renew_lines(&mut self) {
        for (line, socket) in self.shared.renewal.take() {
            let role = if line == REPAIRS { Role::Repairs } else { Role::Line(line) };
            if let Some(port) = self.ports.iter_mut().find(|port| port.role == role) {
                port.local = socket.local_addr().unwrap_or(port.local);
                if let Some(line) = port.line_or(self.lines) {
                    port.drops.look(&port.socket, &mut self.inlet.counters.lines[line].socket.kernel_drops);
                }
                // A new socket counts its drops from 0, and the kernel does not merge its packets yet.
                (port.socket, port.drops, port.merging) = (socket, Drops::default(), Merging::default());
            }
        }
        let counters = &mut self.inlet.counters;
        (counters.host.lines_anew, counters.host.lines_rejoined) = self.shared.renewal.counts();
    }
}
