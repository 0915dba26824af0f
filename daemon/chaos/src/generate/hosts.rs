//! Stories of several hosts. At least one copy of each message survives in every story. Rings are larger than all published messages
//! together. If one line loses a message, another line or a server has it.

use super::{READERS, Writer};
use crate::story::{
    Channel, Does, Forgery, How, Net, NetStep, Sending, Setup, Start, Step, Waiting, Way, Whom,
};
use fastrand::Rng;

/// The size of a ring in bytes. It is larger than everything that one story publishes.
const CAPACITY: u64 = 32 << 20;
/// The longest message that fits a packet of a plain line, in bytes.
const PLAIN: u64 = 1378;

/// A function that adds steps to a story, for the publisher and the reader with these numbers.
type Add = fn(&mut Writer, u8, u8);

/// Draws the state of a story before its first step.
pub(super) fn setup(random: &mut Rng) -> Setup {
    let way = [Way::Single, Way::Single, Way::Chain, Way::Mirrors][random.usize(..4)];
    let native = random.u8(..5) < 3;
    let has_server = way == Way::Mirrors || random.u8(..4) > 0;
    let net = Net {
        way,
        native,
        sealed: native && random.u8(..4) > 0,
        v6: random.u8(..3) == 0,
        lines: random.u8(1..3),
        has_peer: way != Way::Mirrors && random.u8(..3) > 0,
        has_server,
        from_oldest: random.u8(..4) == 0,
    };
    let largest = if native { [PLAIN, 20_000, 100_000][random.usize(..3)] } else { PLAIN };
    let strict = random.u8(..4) == 0;
    let channels =
        vec![Channel { name: "a".into(), capacity: CAPACITY, largest, strict, journal: None, shape: None }];
    Setup { channels, keeps: true, lines: None, net: Some(net), limits: None }
}

impl Writer {
    fn net(&self) -> &Net {
        self.setup.net.as_ref().expect("a story of hosts has hosts")
    }

    fn do_between_hosts(&mut self, step: NetStep) {
        self.steps.push(Step::Net(step));
    }

    /// Adds one or several steps.
    pub(super) fn add_between_hosts(&mut self) {
        let publisher = self.random.u8(..super::PUBLISHERS);
        let reader = self.random.u8(..READERS);
        let peer = if self.net().has_peer { 1 } else { 0 };
        let shared = if self.net().has_peer || self.net().way == Way::Mirrors { 1 } else { 0 };
        let server = if self.net().has_server { 1 } else { 0 };
        let sealed = if self.net().sealed { 1 } else { 0 };
        let weights: [(u32, Add); 18] = [
            (22, |this, who, _| this.publish_between_hosts(who)),
            (14, |this, _, who| this.read_on_a_host(who)),
            (3, |this, who, reader| this.kill(who, reader)),
            (3, |this, who, reader| this.stop(who, reader)),
            (8, |this, _, _| this.go_on()),
            (12, |this, _, _| this.steps.push(Step::Race {})),
            (4, |this, _, _| this.steps.push(Step::Settle {})),
            (4, |this, _, _| this.wait()),
            (14 * peer, |this, _, _| this.tell_the_second_sender()),
            (6 * shared, |this, _, _| this.take_over_between_hosts()),
            (10, |this, _, _| this.line_gets_worse()),
            (4 * server, |this, _, _| this.cut_a_host_off()),
            (4 * server, |this, _, _| this.remake_an_interface()),
            (6, |this, _, _| this.play_packets()),
            (7, |this, _, _| this.restart_a_host()),
            (3, |this, _, _| this.freeze_a_host()),
            (4 * sealed, |this, _, _| {
                let backwards = this.random.bool();
                this.do_between_hosts(NetStep::Keys { backwards });
            }),
            (2, |this, who, _| this.steps.push(Step::Gap { who, by: u64::from(who) * 40 + 1 })),
        ];
        self.add_one_of(&weights, publisher, reader);
    }

    /// Adds the end of a story. If a mirror sends to another host, the mirror is promoted in some stories.
    pub(super) fn end_between_hosts(&mut self) {
        if self.net().way != Way::Chain || self.random.u8(..3) > 0 {
            return;
        }
        self.do_between_hosts(NetStep::Promote {});
        let more = self.random.usize(2..8);
        let until = self.steps.len() + more;
        self.state.publishers = [None; super::PUBLISHERS as usize];
        while self.steps.len() < until {
            let (publisher, reader) = (self.random.u8(..super::PUBLISHERS), self.random.u8(..READERS));
            match self.random.u8(..6) {
                0 => self.restart_a_host(),
                1 => self.line_gets_worse(),
                2 | 3 => self.read_on_a_host(reader),
                _ => self.publish_between_hosts(publisher),
            }
        }
    }

    fn publish_between_hosts(&mut self, who: u8) {
        match self.state.publishers[usize::from(who)] {
            None if self.state.publishers.iter().any(Option::is_some) && self.random.u8(..4) > 0 => {}
            None => return self.open(who),
            Some(_) if self.random.u8(..16) == 0 => {
                self.steps.push(Step::Close { who });
                self.state.publishers[usize::from(who)] = None;
                return;
            }
            Some(_) => {}
        }
        let who = self.state.publishers.iter().position(Option::is_some).map_or(who, |at| at as u8);
        self.publish(who);
        let native = self.net().native;
        if let Some(Step::Publish { sending, .. }) = self.steps.last_mut() {
            let of_native = [Sending::Old, Sending::Old, Sending::Marked, *sending];
            // Plain lines carry neither a tag nor a key flag.
            let of_plain = [Sending::Single, Sending::Batch, Sending::Single, Sending::Batch];
            let all = if native { of_native } else { of_plain };
            *sending = all[self.random.usize(..4)];
        }
    }

    fn read_on_a_host(&mut self, who: u8) {
        if self.state.readers[usize::from(who)].is_some() && self.random.u8(..3) > 0 {
            return self.act_as_reader(who);
        }
        let channel = self.random.u8(..self.net().hosts() as u8);
        let start = if self.random.u8(..3) == 0 { Start::Latest } else { Start::Oldest };
        let waits = [Waiting::Yield, Waiting::Sleep, Waiting::Sleep, Waiting::Park, Waiting::Backoff];
        let wait = waits[self.random.usize(..waits.len())];
        let (skip, page, live_only) = (false, self.random.u8(..8) > 0, false);
        self.steps.push(Step::Subscribe { who, channel, start, wait, skip, page, live_only });
        self.state.readers[usize::from(who)] = Some(channel);
        self.steps.push(Step::Read { who, how: How::Mixed, ms: 0, rest_us: 0 });
    }

    fn tell_the_second_sender(&mut self) {
        let does = [Does::Kill, Does::Kill, Does::End, Does::Start, Does::Start, Does::Stop, Does::Continue];
        let does = does[self.random.usize(..does.len())];
        self.do_between_hosts(NetStep::Sender { does });
    }

    fn take_over_between_hosts(&mut self) {
        let host = if self.net().way == Way::Mirrors { self.random.u8(1..3) } else { 0 };
        self.do_between_hosts(NetStep::TakeOver { host });
    }

    fn line_gets_worse(&mut self) {
        let Net { lines, has_server, .. } = *self.net();
        let random = &mut self.random;
        let percent = |random: &mut Rng, most: u8| if random.bool() { 0 } else { random.u8(..most) };
        let copies = percent(random, 30);
        let (loss, late) = (if random.u8(..5) == 0 { 100 } else { percent(random, 30) }, percent(random, 30));
        // Without a server, only one line loses packets, and always the same line.
        let line = if has_server { random.u8(..lines) } else { lines - 1 };
        let (loss, late) = if has_server || lines == 2 { (loss, late) } else { (0, 0) };
        self.do_between_hosts(NetStep::Quality { line, loss, copies, late });
    }

    fn host_and_line(&mut self) -> (u8, u8) {
        let (hosts, lines) = (self.net().hosts() as u8, self.net().lines);
        (self.random.u8(..hosts), self.random.u8(..lines))
    }

    fn cut_a_host_off(&mut self) {
        let (host, line) = self.host_and_line();
        let ms = self.random.u32(5..1200);
        self.do_between_hosts(NetStep::CutOff { host, line, ms });
    }

    fn remake_an_interface(&mut self) {
        let (host, line) = self.host_and_line();
        let ms = self.random.u32(..400);
        self.do_between_hosts(NetStep::Remake { host, line, ms });
    }

    fn play_packets(&mut self) {
        let Net { lines, native, sealed, .. } = *self.net();
        let line = self.random.u8(..lines);
        let forgery = match self.random.u8(..4) {
            0 => Forgery::Replay,
            _ if !native => Forgery::Plain(self.random.u8(..10)),
            1 if sealed => Forgery::Unsealed,
            _ if sealed => Forgery::Damaged,
            _ => Forgery::Replay,
        };
        self.do_between_hosts(NetStep::Play { line, forgery });
    }

    /// Draws a host whose daemon must fail. Without a repair server, this is always the first host. Any other host would lose the messages
    /// that are published while its daemon is down.
    fn failing_host(&mut self) -> Whom {
        let hosts = if self.net().has_server { self.net().hosts() as u8 } else { 1 };
        match self.random.u8(..hosts) {
            0 => Whom::Daemon,
            1 => Whom::Far,
            host => Whom::Host(host),
        }
    }

    fn restart_a_host(&mut self) {
        let whom = self.failing_host();
        let is_crash = self.random.bool();
        self.steps.push(if is_crash { Step::Crash { whom } } else { Step::Restart { whom } });
    }

    fn freeze_a_host(&mut self) {
        let whom = self.failing_host();
        self.steps.push(Step::Stop { whom });
        self.state.stopped.push(whom);
    }
}
