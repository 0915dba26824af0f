use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use shmcast_layout::control::encode;
use shmcast_layout::mem::memfd;

fn file(name: &str) -> File {
    memfd::create(name).unwrap()
}

fn lost_attachment() -> Inner {
    let descriptors = ["segment", "lock"].map(file).into();
    let resume = Request::Hello { version: 0 };
    Inner::new(PathBuf::new(), None, resume, Preparation::NONE, file("charter"), descriptors)
}

#[test]
fn only_a_refusal_that_does_not_pass_soon_makes_a_pause() {
    use RefusalCode::{BadRequest, Denied, Failed, Limit, UnknownChannel, Version};
    for (code, pauses) in [(Failed, 0), (Limit, 0)]
        .into_iter()
        .chain([Denied, UnknownChannel, Version, BadRequest].map(|code| (code, 1)))
    {
        let shared = lost_attachment();
        assert!(shared.is_due());
        shared.pause_after(code);
        assert_eq!(lock(&shared.paused).iter().count(), pauses, "{code:?}");
    }
}

/// An earlier mistake: the keeper paused only after a refused request to attach, and not after a refusal that
/// the daemon sent by itself.
#[test]
fn a_refusal_without_a_request_makes_a_pause() {
    let shared = lost_attachment();
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.unwrap();
    *lock(&shared.socket) = Some(shown(ours));
    let refused = Response::Refused { code: RefusalCode::Denied, why: "not in the lists".into() };
    handoff::send(&theirs, &encode(&refused), &[]).unwrap();
    shared.listen(&mut vec![0; handoff::MAX_PACKET]);
    assert!(lock(&shared.paused).is_some());
}

#[test]
fn a_dropped_segment_leaves_its_charter_to_the_next_one() {
    let shared = lost_attachment();
    let note = |number: u64, charter| {
        let generation =
            Generation { generation: number, first: 1, restarted: 1, strict: true, journal: false };
        shared.note_generation(generation, vec![file("segment"), file("lock")], charter);
    };
    let charter = file("charter of the next daemon");
    note(1, Some(charter.try_clone().unwrap()));
    let most = MOST_WAITING as u64;
    for number in 2..=most + 3 {
        note(number, None);
    }
    let waiting = lock(&shared.moved);
    let numbers: Vec<u64> = waiting.iter().map(|next| next.generation.generation).collect();
    assert_eq!(numbers, (4..=most + 3).collect::<Vec<_>>());
    assert!(waiting[0].charter.as_ref().is_some_and(|first| is_same(first, &charter)));
    assert!(waiting.iter().skip(1).all(|next| next.charter.is_none()));
}
