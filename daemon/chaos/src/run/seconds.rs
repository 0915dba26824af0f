//! Tests with a separate daemon: a slow start, a service manager's store that is almost full, and many readers that attach again at the
//! same time.

use super::errands::{publish, subscribing};
use super::{PATIENCE, World};
use crate::actor::Place;
use crate::log::Deed;
use anyhow::Result;
use shmcast::sys::handoff;
use shmcast::{Client, Subscriber};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A time that is longer than a client's wait for an answer.
const LONG: Duration = Duration::from_secs(6);
/// The time within which clients notice that their daemon has died.
const NOTICE: Duration = Duration::from_millis(200);
/// The time within which many readers must have attached again. If the limits on requests applied to these readers, they would need far
/// longer.
const RETURN: Duration = Duration::from_secs(8);

/// The channel of a publisher that is interrupted.
const INTERRUPTED: &str = "interrupted";

/// A script that starts a daemon with inherited descriptors. The script adds $1 other descriptors before them.
const FILLED: &str = r#"
others=$1; shift
kept=${LISTEN_FDS:-0}
ulimit -n $((others + kept + 400)) || exit 9
for ((i = 2 + kept; i > 2; i--)); do eval "exec $((i + others))<&$i"; done
names=
for ((i = 3; i < 3 + others; i++)); do eval "exec $i</dev/null"; names+="other:"; done
export LISTEN_FDS=$((others + kept)) LISTEN_FDNAMES="$names$LISTEN_FDNAMES" LISTEN_PID=$$
exec "$@"
"#;

fn there_is(program: &str) -> bool {
    let tried = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

impl World<'_> {
    /// Tests that clients wait for a daemon that has not opened its channels yet.
    pub(super) fn start_slowly(&mut self) -> Result<bool> {
        let Some(mut daemon) = self.second_daemon("slow", false, false)?.filter(|_| there_is("strace"))
        else {
            return Ok(false);
        };
        let delay = format!("inject=memfd_create:delay_enter={}:when=1", LONG.as_micros());
        let words =
            ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=memfd_create", "-e", &delay];
        daemon.through = words.map(str::to_owned).into();
        daemon.start(self.programs)?;
        let until = Instant::now() + PATIENCE;
        while handoff::try_connect(&daemon.socket()).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Err(e) = Client::at(daemon.socket()).and_then(|client| client.channels()) {
            let what = format!("an answer of a daemon that needs {LONG:?} to make its memory: {e}");
            self.note(Deed::Refused { who: "client".into(), what })?;
        }
        self.finish(&mut daemon)?;
        Ok(true)
    }

    /// Tests that a publisher does not fail if signals interrupt the allocation of its memory. Newer kernels continue such an allocation by
    /// themselves. So a tracer gives the publisher the results of an older kernel.
    pub(super) fn interrupt(&mut self) -> Result<bool> {
        if !self.daemons.is_empty() || !there_is("strace") {
            return Ok(false);
        }
        let mut actor = self.start_actor('o')?;
        let pid = actor.pid().to_string();
        let inject = "inject=fallocate:error=EINTR:when=1+3";
        let arguments = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=fallocate", "-e", inject, "-p", &pid];
        let mut tracer = self.programs.command(Path::new("strace")).args(arguments).spawn()?;
        let is_traced = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        };
        let until = Instant::now() + PATIENCE;
        while !is_traced() && Instant::now() < until && tracer.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let order = self.opening(self.place(0), INTERRUPTED, Some([8 << 20, 1400]));
        self.ask(&mut actor, order)?;
        self.ask(&mut actor, publish(20))?;
        self.dismiss(actor)?;
        let _ = tracer.kill();
        tracer.wait()?;
        self.run_tool(0, &["rm", INTERRUPTED])?;
        Ok(true)
    }

    /// Tests that a channel's memory outlives its daemon, even if a service manager keeps many other descriptors.
    pub(super) fn fill_the_store(&mut self, others: u16) -> Result<bool> {
        let Some(mut daemon) = self.second_daemon("stored", true, false)?.filter(|_| there_is("bash")) else {
            return Ok(false);
        };
        self.begin(&mut daemon)?;
        let place = Place::Socket(daemon.socket());
        let mut publisher = self.start_publisher(&place, daemon.name)?;
        let published = self.ask(&mut publisher, publish(20))?;
        self.dismiss(publisher)?;
        self.finish(&mut daemon)?;
        daemon.through = ["bash", "-c", FILLED, "bash", &others.to_string()].map(str::to_owned).into();
        self.begin(&mut daemon)?;
        let mut reader = self.start_actor('n')?;
        self.ask(&mut reader, subscribing(place, daemon.name, false))?;
        self.see_the_last(reader, &published)?;
        self.finish(&mut daemon)?;
        Ok(true)
    }

    /// Tests that many readers can attach again after a crash. The limits on the requests of a user must not apply to these readers.
    pub(super) fn bring_back_a_crowd(&mut self, readers: u16) -> Result<bool> {
        let Some(mut daemon) = self.second_daemon("crowded", false, false)? else { return Ok(false) };
        self.begin(&mut daemon)?;
        let name = daemon.name;
        let open = |client: &Client| {
            let open = |_| Subscriber::builder(name).client(client).open();
            (0..readers).map(open).collect::<Result<Vec<_>, _>>()
        };
        let crowd = Client::at(daemon.socket()).and_then(|client| open(&client));
        let crowd = match crowd {
            Ok(crowd) => crowd,
            Err(e) => {
                let what = format!("one of {readers} places: {e}");
                self.note(Deed::Refused { who: "crowd".into(), what })?;
                Vec::new()
            }
        };
        daemon.limits = [1, 20];
        daemon.configure(false)?;
        daemon.kill();
        self.begin(&mut daemon)?;
        // After this pause, all programs have noticed the crash.
        std::thread::sleep(NOTICE);
        let until = Instant::now() + RETURN;
        let away = || crowd.iter().filter(|reader| reader.is_registered() != Some(true)).count();
        while away() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        if away() > 0 {
            let what = format!("their place after a crash: {} of {readers} after {RETURN:?}", away());
            self.note(Deed::Refused { who: "crowd".into(), what })?;
        }
        drop(crowd);
        self.finish(&mut daemon)?;
        Ok(true)
    }
}
