//! The daemon's side of the charter in a model. Each call of the daemon runs the real code on a charter file. Between the calls, the model
//! keeps the words of that file in memory. So the model can continue from each earlier charter.

use crate::hosting::Cut;
use shmcast_layout::charter::{Entry, HostCharter};
use shmcast_layout::layout::charter::{BYTES, SETTLED, SLOT_WORDS, Verdict, WORDS, slot};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

const BOOT: [u64; 2] = [1, 2];

/// The words of a charter that are not zero.
pub(super) type Charter = Rc<Vec<(u16, u64)>>;

/// A call by which a daemon changes the charter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// `HostCharter::open` by the next daemon.
    Open,
    Close,
    Reopen,
    Grant,
    /// `HostCharter::go_on`. The daemon dies after `stores` stores.
    GoOn {
        first: u64,
        below: u64,
        stores: usize,
    },
}

/// A file with a charter, and the results of earlier calls.
pub(super) struct Host {
    file: File,
    known: RefCell<HashMap<(Charter, Call), Charter>>,
    granted: RefCell<HashMap<Charter, bool>>,
}

impl Host {
    pub(super) fn new() -> Self {
        let file = tempfile::tempfile().expect("a file");
        drop(HostCharter::create(&file, "t", BOOT).expect("a charter"));
        Self { file, known: RefCell::default(), granted: RefCell::default() }
    }

    /// The charter of a channel in its first generation. Call this before all other calls.
    pub(super) fn first(&self) -> Charter {
        self.call(&self.read(), Call::GoOn { first: 1, below: 1, stores: STORES })
    }

    fn write(&self, charter: &Charter) {
        let mut words = vec![0; WORDS];
        charter.iter().for_each(|(word, value)| words[usize::from(*word)] = *value);
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, 0).expect("the file is written");
    }

    fn read(&self) -> Charter {
        let mut bytes = vec![0; BYTES as usize];
        self.file.read_exact_at(&mut bytes, 0).expect("the file is read");
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Rc::new((0..).zip(bytes.chunks_exact(8).map(word)).filter(|(_, value)| *value != 0).collect())
    }

    /// Opens the charter with these words, as the next daemon does.
    fn open(&self, charter: &Charter) -> HostCharter {
        self.write(charter);
        HostCharter::open(&self.file, "t", BOOT).expect("the file is read").expect("it is the charter")
    }

    /// The charter after a call of a daemon that knows the current generation.
    pub(super) fn call(&self, charter: &Charter, call: Call) -> Charter {
        let key = (charter.clone(), call);
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        let mut host = self.open(charter);
        if call != Call::Open {
            // `HostCharter::open` can reopen a charter that is closing. A living daemon does not open its charter again, so the words are
            // written back.
            self.write(charter);
        }
        match call {
            Call::Open => {}
            Call::Close => host.close(),
            Call::Reopen => host.reopen(),
            Call::Grant => host.grant(),
            Call::GoOn { first, below, .. } => {
                let generation = host.next_generation();
                let entry = Entry { generation, first, restarted: 1, is_strict: true, ..Entry::default() };
                let (below, ended) = MADE.at(Some(below), || false);
                host.go_on(entry, below, ended);
            }
        }
        let mut after = self.read();
        if let Call::GoOn { stores, .. } = call {
            let generation = host.current().expect("just begun").generation;
            after = first_stores(charter, &after, generation, stores);
        }
        self.known.borrow_mut().insert(key, after.clone());
        after
    }

    /// Whether the charter says that the daemon has let a publisher into the current generation.
    pub(super) fn is_granted(&self, charter: &Charter) -> bool {
        if let Some(known) = self.granted.borrow().get(charter) {
            return *known;
        }
        let is_granted = self.open(charter).current().is_some_and(|entry| entry.is_granted);
        self.granted.borrow_mut().insert(charter.clone(), is_granted);
        is_granted
    }
}

/// Whether the model makes moves with this cut. If a new kind of cut is added, this does not compile until the kind is listed here.
const fn is_made(cut: Cut) -> bool {
    match cut {
        Cut::Tail => true,
        // `Restart` differs only in the first sequence of the next generation. With `Lost` and `Void`, there is no tail that the daemon
        // could read too early.
        Cut::Restart | Cut::Lost | Cut::Void => false,
    }
}

const _: () = assert!(is_made(MADE));

/// The cut of each move in the model.
const MADE: Cut = Cut::Tail;

/// Number of stores of `HostCharter::go_on`. Their order is that of the specification: the entry of the next generation, its verdict
/// *open*, the cut, and the hint.
pub(super) const STORES: usize = 4;

/// Returns the charter after the first `stores` stores. Panics if a store changes a word that the model does not know.
fn first_stores(before: &Charter, after: &Charter, generation: u64, stores: usize) -> Charter {
    let of = |charter: &Charter| charter.iter().copied().collect::<HashMap<u16, u64>>();
    let (mut shown, after) = (of(before), of(after));
    for (word, value) in &after {
        let at = usize::from(*word);
        let store = match at {
            _ if shown.get(word) == Some(value) => continue,
            _ if (slot(generation) + 1..slot(generation) + SLOT_WORDS).contains(&at) => 1,
            _ if at == slot(generation) => 2,
            _ if at == slot(generation - 1) => 3,
            SETTLED => 4,
            _ => panic!("a move stores word {at}, which the model does not know"),
        };
        if store <= stores {
            shown.insert(*word, *value);
        }
    }
    let mut words: Vec<_> = shown.into_iter().collect();
    words.sort_unstable();
    Rc::new(words)
}

/// The verdict on the generation with this number, from 0.
pub(super) fn verdict(charter: &Charter, generation: usize) -> Verdict {
    let generation = generation as u64 + 1;
    let word = charter.iter().find(|(word, _)| usize::from(*word) == slot(generation));
    Verdict::unpack(generation, word.map_or(0, |(_, value)| *value))
}
