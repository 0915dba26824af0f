//! Compares what the reader at the far end saw with what was published.

/// The counts of a judge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Messages that were never published with their sequence.
    pub(super) wrong: u64,
    /// Messages that had come before.
    pub(super) twice: u64,
    /// Messages that did not come, and that no gap names.
    pub(super) silent: u64,
    /// Messages that a gap names although the sender's ring has them.
    pub(super) needless: u64,
    /// Messages that a gap names, and that the sender's ring no longer has.
    pub(super) named: u64,
}

impl Figures {
    pub(super) fn add(&mut self, other: Figures) {
        self.wrong += other.wrong;
        self.twice += other.twice;
        self.silent += other.silent;
        self.needless += other.needless;
        self.named += other.named;
    }

    /// Whether there is no fault. It is no fault if a gap names messages that nobody has.
    pub(super) fn are_clean(self) -> bool {
        Figures { named: 0, ..self } == Figures::default()
    }
}

/// Follows one reader from sequence 1 on, and counts its faults.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) due: u64,
    figures: Figures,
}

impl Default for Judge {
    fn default() -> Self {
        Judge { due: 1, figures: Figures::default() }
    }
}

impl Judge {
    /// Judges a message. `is_right` says whether its content is what was published with its sequence.
    pub(super) fn message(&mut self, sequence: u64, is_right: bool) {
        self.figures.wrong += u64::from(!is_right);
        self.figures.twice += u64::from(sequence < self.due);
        self.come_to(sequence, sequence.saturating_add(1));
    }

    /// Judges a gap. `oldest` is the first sequence that the sender's ring has now.
    pub(super) fn gap(&mut self, (from, to): (u64, u64), oldest: u64) {
        // A gap is wrong if it names messages that have already come.
        self.figures.wrong += self.due.min(to.saturating_add(1)).saturating_sub(from);
        let first = from.max(self.due);
        let kept = to.saturating_add(1).saturating_sub(first.max(oldest));
        self.figures.needless += kept;
        self.figures.named += to.saturating_add(1).saturating_sub(first) - kept;
        self.come_to(from, to.saturating_add(1));
    }

    fn come_to(&mut self, from: u64, next: u64) {
        self.figures.silent += from.saturating_sub(self.due);
        self.due = self.due.max(next);
    }

    /// Returns the counts since the last call.
    pub(super) fn take(&mut self) -> Figures {
        std::mem::take(&mut self.figures)
    }
}

#[test]
fn a_judge_counts_each_fault_in_its_own_column() {
    let of = |play: fn(&mut Judge)| {
        let mut judge = Judge::default();
        judge.message(1, true);
        judge.message(2, true);
        play(&mut judge);
        (judge.due, judge.take())
    };
    let none = Figures::default();
    assert_eq!(of(|judge| judge.message(3, true)), (4, none));
    assert_eq!(of(|judge| judge.message(3, false)), (4, Figures { wrong: 1, ..none }));
    assert_eq!(of(|judge| judge.message(2, true)), (3, Figures { twice: 1, ..none }));
    assert_eq!(of(|judge| judge.message(1, false)), (3, Figures { twice: 1, wrong: 1, ..none }));
    assert_eq!(of(|judge| judge.message(6, true)), (7, Figures { silent: 3, ..none }));
    assert_eq!(of(|judge| judge.gap((3, 9), 10)), (10, Figures { named: 7, ..none }));
    assert_eq!(of(|judge| judge.gap((3, 9), 8)), (10, Figures { named: 5, needless: 2, ..none }));
    assert_eq!(of(|judge| judge.gap((3, 9), 1)), (10, Figures { needless: 7, ..none }));
    assert_eq!(of(|judge| judge.gap((5, 9), 10)), (10, Figures { named: 5, silent: 2, ..none }));
    assert_eq!(of(|judge| judge.gap((2, 4), 10)), (5, Figures { wrong: 1, named: 2, ..none }));
    assert!(Figures { named: 1, ..none }.are_clean());
    let faults = [
        Figures { wrong: 1, ..none },
        Figures { twice: 1, ..none },
        Figures { silent: 1, ..none },
        Figures { needless: 1, ..none },
    ];
    assert!(faults.iter().all(|figures| !figures.are_clean()));
}
