//! Options that no longer exist, and the settings that replace them. If the user gives such an option, the error names the replacement.

use shmcast_bridge::spec::server::without_accounts;

/// Options that no longer exist, and their replacements.
const MOVED: [(&[&str], &str); 22] = [
    (&["--max-message"], "--set max_message=SIZE"),
    (&["--mode"], "--set permissions=750"),
    (&["--board"], "--set board.key=0..8"),
    (&["--board-keys"], "--set board.keys=N"),
    (&["--board-value"], "--set board.value=SIZE"),
    (&["--board-remove-tag"], "--set board.remove_tag=TAG"),
    (&["--schema"], "--set schema_id=NUMBER"),
    (&["--continue-from"], "--set continue_from=DIR"),
    (&["--prepare"], "--set prepare=full"),
    (&["--name"], "--set process=NAME"),
    (&["--io", "--buffer", "--file", "--roll-after", "--gate"], "--set KEY=VALUE, with the name as the key"),
    (&["--keys", "--profile", "--key", "--remove-tag"], "--set KEY=VALUE, with the name as the key"),
    (&["--from"], "--set send.from=oldest"),
    (&["--first", "--unicast"], "--set receive.from=SEQUENCE, --set receive.unicast=true"),
    (&["--create", "--block"], "--set nats.create=true, --set nats.block_bytes=BYTES"),
    (&["--source"], "--from SOURCE@GROUP:PORT"),
    (&["--no-history"], "--history none"),
    (
        &["--pcap", "--speed", "--max-pause", "--unwrap", "--port"],
        "`shmcast replay FILE --into CHANNEL`, or for an export the file's name alone",
    ),
    (&["--session"], "--unwrap=SESSION"),
    (&["--stream"], "the folder of the stream, as DIR/STREAM"),
    (&["--only", "--bridge", "--for", "--address", "--nats"], "its value alone, without the option"),
    (&["--verbose", "-v"], "--json, or `shmcast doctor all`"),
];

/// Returns the text of an error of clap, without the user names and passwords of addresses. If an option no longer exists, the text also
/// names its replacement.
pub(super) fn shown(error: &str) -> String {
    let text = without_accounts(error);
    let option = text.split_once("unexpected argument '").and_then(|(_, rest)| rest.split_once('\''));
    let moved = option.and_then(|(option, _)| MOVED.iter().find(|(old, _)| old.contains(&option)));
    match (moved, text.split_once("\n\n"), text.rsplit_once("\n\nUsage:")) {
        // This text replaces clap's own tip, which would name an option with a similar name.
        (Some((_, now)), Some((error, _)), Some((_, usage))) => {
            format!("{error}\n\n  tip: write {now}\n\nUsage:{usage}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_has_gone_names_its_successor() {
        let of_clap = |option| {
            format!(
                "error: unexpected argument '{option}' found\n\n  tip: a similar argument exists: '--json'\n\nUsage: shmcast pub\n"
            )
        };
        let said = "error: unexpected argument '--mode' found\n\n  tip: write --set permissions=750\n\nUsage: shmcast pub\n";
        assert_eq!(shown(&of_clap("--mode")), said);
        assert_eq!(shown(&of_clap("--jsn")), of_clap("--jsn"));
    }
}
