//! The system's error texts for limits. A program that reaches a limit reports it with one of these
//! texts.

/// The system's error texts for limits.
const LIMITS: [&str; 7] = [
    "Too many open files",
    "File too large",
    "No space left on device",
    "Permission denied",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "Operation not permitted",
];

/// Whether a text contains one of the system's error texts for limits.
pub(crate) fn names_a_limit(text: &str) -> bool {
    LIMITS.iter().any(|words| text.contains(words))
}
