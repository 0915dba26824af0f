//! The system's words for a limit, by which a program names what it lacks.

/// The system's words for a limit.
const LIMITS: [&str; 7] = [
    "Too many open files",
    "File too large",
    "No space left on device",
    "Permission denied",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "Operation not permitted",
];

/// Whether a text names a limit by the system's words.
pub(crate) fn names_a_limit(text: &str) -> bool {
    LIMITS.iter().any(|words| text.contains(words))
}
