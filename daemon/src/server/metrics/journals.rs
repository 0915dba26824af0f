//! Metrics of journals: how many messages each has recorded and lost, and how large it is.

use super::exposition::Text;
use shmcast::control::JournalStatus;

/// A family: its name, kind and help, and the figure.
type Family = (&'static str, &'static str, &'static str, fn(&JournalStatus) -> u64);

const FAMILIES: [Family; 9] = [
    (
        "up",
        "gauge",
        "1 while the channel is recorded, 0 while its recorder starts or has failed.",
        |journal| u64::from(matches!(journal.state.as_str(), "recording" | "refused")),
    ),
    ("refused", "gauge", "1 while the disk takes nothing.", |journal| u64::from(journal.state == "refused")),
    ("drained_sequence", "gauge", "Last sequence that the recorder took from the ring.", |journal| {
        journal.drained
    }),
    (
        "durable_sequence",
        "gauge",
        "Everything up to this sequence is safe from a power cut, or named as lost.",
        |journal| journal.durable,
    ),
    ("oldest_sequence", "gauge", "The oldest sequence that is kept; 0 if none is.", |journal| journal.oldest),
    ("messages_total", "counter", "Messages recorded since the recorder began.", |journal| journal.messages),
    ("written_bytes_total", "counter", "Bytes written to files since the recorder began.", |journal| {
        journal.written_bytes
    }),
    ("waiting_bytes", "gauge", "Bytes in memory that wait for the disk.", |journal| journal.waiting_bytes),
    ("size_bytes", "gauge", "Bytes of all files.", |journal| journal.size_bytes),
];

/// Writes all families of all journals.
pub(super) fn render(text: &mut Text, journals: &[(String, JournalStatus)]) {
    for (name, kind, help, figure) in FAMILIES {
        let name = format!("shmcast_journal_{name}");
        text.family(&name, kind, help);
        for (channel, journal) in journals {
            text.sample(&name, &[("channel", channel)], figure(journal));
        }
    }
    let name = "shmcast_journal_lost_messages_total";
    text.family(name, "counter", "Messages that the journal lacks and names, by cause.");
    for (channel, journal) in journals {
        for (cause, lost) in journal.lost() {
            text.sample(name, &[("channel", channel), ("cause", cause.name())], lost);
        }
    }
}
