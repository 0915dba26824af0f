//! Level 1: whether a header is accepted, and if not, why.

use crate::model::Start;
use crate::scribe::{CAPACITY, Life, MAX_MESSAGE, Scribe, WORDS, checksum};
use crate::stage::{Stage, Verdict, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;

/// A header: what is changed, and the reason for which it is refused.
#[derive(Debug)]
pub struct Vector {
    /// Its name.
    pub name: String,
    bytes: Vec<u8>,
    refused: Option<&'static str>,
}

/// Words with other values, under a true checksum.
type Change<'a> = &'a [(usize, u64)];

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// All vectors.
pub fn vectors() -> Vec<Vector> {
    let mut scribe = Scribe::take(crate::scribe::empty(), (0, 1), 1);
    scribe.publish(b"x", 0, false, 2);
    assert_eq!(scribe.words()[32] & 0xff, Life::Active as u64);
    let whole = scribe.words().to_vec();
    let mut vectors = Vec::new();
    let mut add = |name: String, bytes: Vec<u8>, refused| vectors.push(Vector { name, bytes, refused });
    let forged = |change: Change<'_>| {
        let mut words = whole.clone();
        change.iter().for_each(|(word, value)| words[*word] = *value);
        checksum(&mut words);
        bytes(&words)
    };

    add("whole".into(), bytes(&whole), None);
    let longer = [bytes(&whole), vec![0; 4096]].concat();
    add("longer-file".into(), longer, None);
    for length in [0, 1, 8, 4095] {
        add(format!("file-of-{length}"), bytes(&whole)[..length].to_vec(), Some("truncated"));
    }
    for length in [4096, 8192, WORDS * 8 - 4096, WORDS * 8 - 1] {
        add(format!("file-of-{length}"), bytes(&whole)[..length].to_vec(), Some("truncated"));
    }
    for (name, value) in
        [("zero", 0), ("of-a-page", u64::from_le_bytes(*b"SHMREAD1")), ("one-bit", whole[0] ^ 1)]
    {
        let mut words = whole.clone();
        words[0] = value;
        add(format!("magic-{name}"), bytes(&words), Some("foreign"));
    }
    for (major, minor, refused) in [
        (0, 0, Some("version")),
        (2, 0, Some("version")),
        (0xffff, 9, Some("version")),
        (1, 1, None),
        (1, 9, None),
        (1, 0xffff, None),
    ] {
        add(format!("version-{major}.{minor}"), forged(&[(1, major << 16 | minor)]), refused);
    }
    // Each word that the checksum covers, some of the names' and of what lies behind them.
    for word in (2..=15).chain([64, 65, 68, 70, 300, 511]) {
        for bit in [0, 31, 63] {
            let mut words = whole.clone();
            words[word] ^= 1 << bit;
            add(format!("damage-word-{word}-bit-{bit}"), bytes(&words), Some("checksum"));
        }
    }
    // Words that the checksum does not cover do not count.
    for word in [17, 31, 40, 60, 63] {
        let mut words = whole.clone();
        words[word] = u64::MAX;
        add(format!("reserved-word-{word}"), bytes(&words), None);
    }
    let sizes = Some("geometry");
    let geometry: [(&str, Change<'_>, Option<&'static str>); 14] = [
        ("capacity-0", &[(2, 0)], sizes),
        ("capacity-odd", &[(2, CAPACITY + 64)], sizes),
        ("capacity-small", &[(2, CAPACITY / 2), (4, 4096), (5, 512), (6, 4096), (7, 8192)], sizes),
        ("capacity-huge", &[(2, 1 << 35)], sizes),
        (
            "capacity-of-more-than-the-file",
            &[(2, CAPACITY * 2), (5, 2048), (7, 4096 + 16384)],
            Some("truncated"),
        ),
        ("chunk-0", &[(4, 0)], sizes),
        ("chunk-odd", &[(4, 100)], sizes),
        ("chunk-small", &[(4, 32)], sizes),
        ("chunk-large", &[(4, CAPACITY / 4)], sizes),
        ("index-half", &[(5, 512)], sizes),
        ("index-double", &[(5, 2048)], sizes),
        ("max-message-large", &[(6, MAX_MESSAGE + 1)], sizes),
        ("data-offset-early", &[(7, 4096)], sizes),
        ("data-offset-huge", &[(7, u64::MAX)], sizes),
    ];
    for (name, change, refused) in geometry {
        add(name.into(), forged(change), refused);
    }
    let fields: [(&str, Change<'_>, Option<&'static str>); 15] = [
        ("max-message-small", &[(6, 1)], None),
        ("chunk-smallest", &[(4, 64)], None),
        ("granule-32", &[(3, 32)], Some("field")),
        ("granule-128", &[(3, 128)], Some("field")),
        ("clock-counter", &[(12, 1)], None),
        ("clock-unknown", &[(12, 2)], Some("field")),
        ("clock-rate-low", &[(13, 999)], Some("field")),
        ("clock-rate-lowest", &[(13, 1000)], None),
        ("clock-rate-highest", &[(13, 1_000_000_000_000)], None),
        ("clock-rate-high", &[(13, 1_000_000_000_001)], Some("field")),
        ("name-too-long", &[(64, 3585)], Some("field")),
        ("name-huge", &[(64, u64::MAX)], Some("field")),
        ("name-no-text", &[(65, 0xff)], Some("field")),
        ("labels-leave-the-page", &[(68, 3584)], Some("field")),
        ("names-empty", &[(64, 0), (65, 0), (66, 0)], None),
    ];
    for (name, change, refused) in fields {
        add(name.into(), forged(change), refused);
    }
    // The first rule that fails gives the reason.
    add(
        "checksum-before-geometry".into(),
        {
            let mut w = whole.clone();
            w[2] = 0;
            bytes(&w)
        },
        Some("checksum"),
    );
    add(
        "version-before-checksum".into(),
        {
            let mut w = whole.clone();
            w[1] = 9 << 16;
            bytes(&w)
        },
        Some("version"),
    );
    add("granule-before-capacity".into(), forged(&[(2, 0), (3, 1)]), Some("field"));
    add("geometry-before-clock".into(), forged(&[(4, 0), (12, 7)]), Some("geometry"));
    vectors
}

impl Vector {
    /// Plays it.
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let stage = Stage::with(&self.bytes)?;
        let answer = stage.open(testee, Start::Oldest)?;
        let expected = match self.refused {
            Some(refused) => Answer::refused(refused),
            None => Answer::done(),
        };
        let verdict = same("open".into(), &expected, &answer);
        testee.ask(r#"{"do":"close"}"#)?;
        Ok(verdict)
    }
}
