//! Opens the sockets, the state file and the channel of an egress at its start, and chooses its session.

use shmcast::{Start, Subscriber, SubscriberBuilder};
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;

use super::line::{Line, link_of};
use super::listening::heard_term;
use super::native::split_lines;
use super::{Attached, EgressOptions, attach, tag_bytes};
use crate::BridgeError;
use crate::native::Keys;
use crate::origins::{Origins, run_of};
use crate::proto::link::Link;
use crate::proto::session::Session;
use crate::proto::term::Terms;
use crate::renewal::Watch;
use crate::repair::Groups;
use crate::sending::term_at;
use crate::socket::{self, Marks, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, Profile, RepairSpec, SendSpec, StartAt};
use crate::state::{Progress, StateFile};
use crate::times;

/// Bytes of the receive buffer of the socket that receives requests.
const REPAIR_BUFFER_BYTES: usize = 1 << 20;

/// The feeds of an egress at its start.
pub(super) struct Feeds {
    pub(super) session: Session,
    /// The profile and the lines of the first feed. Receivers with a lease get this feed.
    pub(super) profile: Profile,
    pub(super) lines: Vec<Line>,
    /// The lines of the second feed, which has the other profile. Empty if there is only one feed.
    pub(super) others: Vec<Line>,
    /// The link over which the packets are sent, if its speed is known.
    pub(super) link: Option<Link>,
    pub(super) keys: Arc<Keys>,
}

/// Everything that is opened before the first thread of an egress starts.
pub(super) struct Opened<'a> {
    pub(super) feeds: Feeds,
    pub(super) attached: Attached,
    /// Whether the egress continues where an earlier bridge stopped.
    pub(super) resumes: bool,
    pub(super) state: Option<StateFile>,
    pub(super) server: Option<ServerSockets<'a>>,
    /// The lines whose interfaces a thread watches.
    pub(super) watch: Watch,
    pub(super) refusals: RefusedSettings,
}

impl<'a> Opened<'a> {
    pub(super) fn open(
        spec: &BridgeSpec,
        send: &'a SendSpec,
        channel: &SubscriberBuilder,
        options: &EgressOptions,
    ) -> Result<Opened<'a>, BridgeError> {
        let mut refusals = RefusedSettings::default();
        let keys = Arc::new(Keys::open(spec)?);
        if spec.is_any_native() {
            times::note_unknown_error(&mut refusals);
        }
        let watch = Watch::of(spec, send.repair.as_ref().and_then(|repair| Groups::line(spec, repair)));
        let lines = open_lines(spec, send, &mut refusals)?;
        let link = link_of(spec, &lines);
        let (profile, lines, others) = split_lines(spec, lines);
        let (state, noted) = open_state(send)?;
        let said = options.after.map(|after| after.progress).or(noted);
        let Resumed { attached, resumed } = attach_where_it_was(spec, send.from, options, channel, said)?;
        check_sizes(spec, &attached.subscriber)?;
        if resumed.is_none() {
            let is_noted = noted.is_some() || state.as_ref().is_some_and(StateFile::is_damaged);
            let path = send.state.as_ref().filter(|_| is_noted && send.from == StartAt::Resume);
            let next = attached.subscriber.next_sequence();
            refusals.0.extend(path.map(|path| not_resumed(path, noted.is_some(), next)));
        }
        // Check now whether the port is in use, so that the bridge reports this error before it listens for other sessions.
        drop(open_server(spec, send, &mut RefusedSettings::default())?);
        let heard = |most| heard_term(spec, send, &keys, most, &mut refusals);
        let own = own_term(spec, said);
        let session = session_to_send(spec, &attached.subscriber, &options.origins, own, resumed, heard)?;
        // Open this socket last. Otherwise requests would arrive while the bridge still listens for other sessions, and would be answered
        // late.
        let server = open_server(spec, send, &mut refusals)?;
        let feeds = Feeds { session, profile, lines, others, link, keys };
        let resumes = resumed.is_some();
        Ok(Opened { feeds, attached, resumes, state, server, watch, refusals })
    }
}

/// Opens a socket for each line of the spec.
pub(super) fn open_lines(
    spec: &BridgeSpec,
    send: &SendSpec,
    refusals: &mut RefusedSettings,
) -> Result<Vec<Line>, BridgeError> {
    let open = |line| Ok(Line::open(line, spec.marks(), send, refusals)?);
    spec.lines.iter().enumerate().map(open).collect()
}

/// The sockets of a repair server.
pub(super) struct ServerSockets<'a> {
    pub(super) repair: &'a RepairSpec,
    /// The socket that receives requests, and that sends repairs.
    pub(super) requests: UdpSocket,
    /// The groups to which repairs for all receivers are sent.
    pub(super) groups: Groups,
    /// The socket that sends live packets.
    pub(super) live: UdpSocket,
}

/// Opens the sockets of the repair server, if the spec names one.
pub(super) fn open_server<'a>(
    spec: &BridgeSpec,
    send: &'a SendSpec,
    refusals: &mut RefusedSettings,
) -> Result<Option<ServerSockets<'a>>, BridgeError> {
    let Some(repair) = &send.repair else { return Ok(None) };
    let tuning = Tuning { buffer_bytes: REPAIR_BUFFER_BYTES, busy_poll_us: 0 };
    let requests = socket::open_unicast(repair.bind, tuning, refusals)?;
    let live = socket::open_beside(&requests)?;
    let marks = spec.marks();
    socket::mark(&live, marks, format_args!("leases from {}", repair.bind), refusals);
    let marks = Marks { dscp: repair.dscp.or(marks.dscp), ..marks };
    socket::mark(&requests, marks, format_args!("repairs from {}", repair.bind), refusals);
    let groups = Groups::open(spec, send, repair, &requests, refusals)?;
    Ok(Some(ServerSockets { repair, requests, groups, live }))
}

/// Opens the state file and reads it, if the spec names one.
pub(super) fn open_state(send: &SendSpec) -> Result<(Option<StateFile>, Option<Progress>), BridgeError> {
    let Some(path) = &send.state else { return Ok((None, None)) };
    let (file, said) =
        StateFile::open(path).map_err(|source| BridgeError::State { path: path.clone(), source })?;
    Ok((Some(file), said))
}

/// Returns the text that reports a state file from which this bridge cannot continue.
fn not_resumed(path: &Path, is_whole: bool, next: u64) -> String {
    let why = if is_whole { "names another stream than the channel's" } else { "has no whole record" };
    format!("the state file {} {why}: this bridge begins with message {next}", path.display())
}

/// Returns the session to send. If this egress resumes an earlier bridge, it sends the session of that bridge. Otherwise it sends the
/// channel's own session, or a new one. `own` is the term (the number in a session's name) in the state file.
pub(super) fn session_to_send(
    spec: &BridgeSpec,
    subscriber: &Subscriber,
    origins: &Origins,
    own: Option<u64>,
    resumed: Option<Progress>,
    heard: impl FnOnce(u64) -> Result<Option<u64>, BridgeError>,
) -> Result<Session, BridgeError> {
    match resumed.filter(|_| subscriber.remote_session().is_none() || spec.session.is_some()) {
        Some(resumed) => {
            origins.add(resumed.session, run_of(subscriber.header()));
            Ok(resumed.session)
        }
        None => {
            let terms = Terms { own, ..Terms::default() };
            session_of(spec, subscriber, origins, terms, heard)
        }
    }
}

/// A subscriber, and the progress of the earlier bridge that is resumed; `None` if no bridge is resumed.
pub(super) struct Resumed {
    pub(super) attached: Attached,
    pub(super) resumed: Option<Progress>,
}

/// Attaches to the channel. Messages that the ring no longer holds are counted as lost.
///
/// `said` is the progress of an earlier bridge. This bridge continues where that bridge stopped if two conditions hold:
///
/// - This bridge resumes or replaces that bridge.
/// - That bridge sent the same ring, or the same session of another host.
///
/// Otherwise this bridge begins where the spec says, or with the oldest message of a new channel. A channel is also new if the bridge that
/// this one replaces had sent an earlier ring: that bridge would have sent all messages of the new ring.
pub(super) fn attach_where_it_was(
    spec: &BridgeSpec,
    from: StartAt,
    options: &EgressOptions,
    channel: &SubscriberBuilder,
    said: Option<Progress>,
) -> Result<Resumed, BridgeError> {
    let (mut is_new, goes_on) = (options.is_channel_new, options.after.is_some());
    if let Some(said) = said {
        let latest = attach(&channel.clone().start(Start::Latest), spec.wait)?.subscriber;
        let is_same = said.ring == run_of(latest.header())
            || latest.remote_session().map(Session::from_bytes) == Some(said.session);
        let is_ours = spec.session.is_none() || said.session.tag() == tag_bytes(spec);
        if is_same && is_ours && said.next <= latest.next_sequence() {
            let start = match from {
                _ if goes_on || from == StartAt::Resume => Start::Sequence(said.next),
                StartAt::Latest if !is_new => Start::Latest,
                _ => Start::Oldest,
            };
            let attached = attach(&spec.through_gate(channel).start(start), spec.wait)?;
            return Ok(Resumed { attached, resumed: Some(said) });
        }
        is_new |= goes_on && !is_same;
    }
    let start = match from {
        StartAt::Resume | StartAt::Latest if !is_new => Start::Latest,
        _ => Start::Oldest,
    };
    let attached = attach(&spec.through_gate(channel).start(start), spec.wait)?;
    Ok(Resumed { attached, resumed: None })
}

/// Returns the term in the state file. Returns `None` if the session in the file does not have this bridge's tag.
pub(super) fn own_term(spec: &BridgeSpec, said: Option<Progress>) -> Option<u64> {
    said.filter(|said| said.session.tag() == tag_bytes(spec)).and_then(|said| said.session.epoch())
}

pub(super) fn check_sizes(spec: &BridgeSpec, subscriber: &Subscriber) -> Result<(), BridgeError> {
    let max_message = subscriber.header().geometry.max_message;
    let most = spec.max_message_bytes();
    if max_message <= most as u64 {
        return Ok(());
    }
    let (channel, payload_bytes) = (spec.channel.clone(), spec.payload_bytes);
    Err(BridgeError::MessageTooLong { channel, max_message, payload_bytes, most })
}

/// Returns the session under which the channel is sent.
///
/// - A channel that came from another host keeps its session, unless the spec names another session. So hosts farther away see the same
///   stream.
/// - Any other channel has a session of its own. [`Terms`] chooses the session's term, which is the number in the session's name. The
///   function `heard(limit)` returns the highest term of other senders' sessions, and ignores terms above `limit`.
///
/// If another publisher takes over the channel, the session continues. If the channel is replaced, another session begins.
pub(super) fn session_of(
    spec: &BridgeSpec,
    subscriber: &Subscriber,
    origins: &Origins,
    terms: Terms,
    heard: impl FnOnce(u64) -> Result<Option<u64>, BridgeError>,
) -> Result<Session, BridgeError> {
    if let Some(session) = subscriber.remote_session().filter(|_| spec.session.is_none()) {
        return Ok(Session::from_bytes(session));
    }
    let (tag, ring) = (tag_bytes(spec), run_of(subscriber.header()));
    let clock = term_at(subscriber.header().created_ns);
    // Returns the session under which the ring was sent before, if its term is above `terms.own`. Otherwise the error has the known terms,
    // from which the term of a new session is chosen.
    let look = |known: Result<Session, u64>| match known {
        Ok(session) if session.epoch() > terms.own => Ok(session),
        known => {
            let own = terms.own.max(known.err().and_then(|least| least.checked_sub(1)));
            Err(Terms { clock, own, ..terms })
        }
    };
    // Listen before the list is locked, because listening takes time and the other bridges use the list.
    let heard = match look(origins.of_ring(tag, ring)) {
        Ok(session) => return Ok(session),
        Err(terms) => heard(terms.most())?,
    };
    let session = origins.begin(tag, ring, |known| {
        look(known).or_else(|terms| Session::of_channel(&spec.tag(), Terms { heard, ..terms }.next()))
    })?;
    Ok(session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sending::Stopped;
    use shmcast::Publisher;

    /// An earlier mistake: a bridge that was replaced while its channel was made anew left out what was published meanwhile, and told nobody.
    #[test]
    fn a_bridge_that_replaces_another_sends_a_new_ring_from_its_first_message() {
        let dir = tempfile::tempdir().unwrap();
        let publish = || {
            let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
            (0..10).for_each(|_| assert!(publisher.publish(b"m").is_ok()));
            publisher
        };
        let spec = BridgeSpec::new("t");
        let channel = Subscriber::builder("t").dir(dir.path());
        let session = Session::of_channel("T", 1).unwrap();
        let begin = |ring, next, is_replaced: bool| {
            let progress = Progress { ring, session, next };
            let after = is_replaced.then_some(Stopped { progress, begin: 1 });
            let options = EgressOptions { after, ..EgressOptions::default() };
            let noted = Some(progress).filter(|_| !is_replaced);
            let resumed = after.map(|after| after.progress).or(noted);
            let from = StartAt::Resume;
            let found = attach_where_it_was(&spec, from, &options, &channel, resumed).unwrap();
            (found.attached.subscriber.next_sequence(), found.resumed.is_some())
        };
        let first = publish();
        let ring = run_of(first.header());
        assert_eq!(begin(ring, 7, true), (7, true));
        drop(first);
        std::fs::remove_dir_all(dir.path().join("t")).unwrap();
        let _second = publish();
        assert_eq!(begin(ring, 7, true), (1, false));
        assert_eq!(begin(ring, 7, false), (11, false), "a state file of long ago");
    }
}
