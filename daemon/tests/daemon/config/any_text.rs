//! With any text in the file, the parser neither panics nor misreads the text.

use super::{default_with_everything, host};
use proptest::prelude::*;
use shmcast_daemon::config::{Config, ConfigError, Principal, Problem};

/// Text that the TOML reader accepts: real sections and fields with values of all kinds, right and wrong.
fn nearly_valid() -> impl Strategy<Value = String> {
    let fields = "socket socket_mode http http_allow_remote connections_per_uid request_burst events_queue shortest_us \
                  longest_us cpu name capacity max_message publishers subscribers mode mlock numa_node schema_id schema labels unknown";
    let field = prop::sample::select(fields.split_whitespace().collect::<Vec<_>>());
    let value = prop_oneof![
        prop::sample::select(vec![
            "\"64KiB\"",
            "\"1MiB\"",
            "65536",
            "\"a\"",
            "\"b\"",
            "true",
            "false",
            "\"strict\"",
            "[\"*\"]",
            "[\"uid:7\"]",
            "[]",
            "{ a = \"1\" }",
            "{ a = { b = 1 } }",
            "\"127.0.0.1:1\"",
            "\"0600\"",
            "1979-05-27",
            "nan",
            "-1",
            "99999999999999999999",
            "\"/run/x\"",
            "\"\"\"\nä\"\"\"",
            "[[1], [\"user:ä\"]]",
        ])
        .prop_map(str::to_owned),
        "\"[^\"\\\\\\p{Cc}]{0,8}\"",
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
    ];
    let line = (field, value).prop_map(|(field, value)| format!("{field} = {value}\n"));
    let heads = vec!["[daemon]\n", "[limits]\n", "[waker]\n", "[x]\n", "[[channel]]\n"];
    let other = (prop::sample::select(heads), prop::collection::vec(line.clone(), 0..5));
    let other = other.prop_map(|(head, lines)| head.to_owned() + &lines.concat());
    // Most of the text is right, so that later checks are reached, too.
    let right = "mlock = false\nmode = \"strict\"\npublishers = [\"*\"]\nsubscribers = [\"uid:7\"]\nhugepages = false\n\
                 numa_node = 9\nlabels = { b = \"2\" }\nmax_message = \"8KiB\"";
    let right = prop::sample::subsequence(right.lines().collect::<Vec<_>>(), 0..8);
    let wrong = prop_oneof![4 => Just(String::new()), 1 => line];
    let channel = ("[abAB]", 15..30u32, right, wrong).prop_map(|(name, log, right, wrong)| {
        format!("[[channel]]\nname = \"{name}\"\ncapacity = {}\n{}\n{wrong}", 1u64 << log, right.join("\n"))
    });
    let block = prop_oneof![1 => other, 3 => channel];
    prop::collection::vec(block, 0..4).prop_map(|blocks| blocks.concat())
}

/// The default file with one stretch of it replaced.
fn damaged() -> impl Strategy<Value = String> {
    let whole: Vec<char> = default_with_everything().chars().collect();
    (0..whole.len(), 0..12usize, "\\PC{0,6}").prop_map(move |(at, gone, new)| {
        let rest = &whole[(at + gone).min(whole.len())..];
        whole[..at].iter().copied().chain(new.chars()).chain(rest.iter().copied()).collect()
    })
}

/// Any text gives either a configuration that works, or mistakes with places in the text.
fn holds(text: &str) -> Result<(), TestCaseError> {
    match Config::parse(text, "x") {
        Ok(config) => {
            let mut names: Vec<&str> = config.channels.iter().map(|channel| channel.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), config.channels.len());
            for channel in &config.channels {
                prop_assert!(channel.spec().check().is_ok(), "{channel:?}");
            }
            let lines = text.lines().count();
            for warning in config.warnings_on(&host()) {
                prop_assert!(warning.line.is_none_or(|line| (1..=lines).contains(&line)), "{warning}");
            }
        }
        Err(ConfigError::Invalid { problems, .. }) => {
            prop_assert!(!problems.is_empty());
            for Problem { position, what, .. } in problems {
                let line = text.split('\n').nth(position.line - 1);
                prop_assert!(
                    line.is_some_and(|line| position.column <= line.chars().count() + 1),
                    "{position:?}"
                );
                prop_assert!(!what.is_empty());
            }
        }
        Err(e) => prop_assert!(false, "{e}"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_at_all_makes_the_reader_panic(text in "(?s).{0,200}") {
        holds(&text)?;
    }

    #[test]
    fn no_nearly_valid_file_makes_the_reader_panic(text in nearly_valid()) {
        holds(&text)?;
    }

    #[test]
    fn no_damaged_file_makes_the_reader_panic(text in damaged()) {
        holds(&text)?;
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(text) = std::str::from_utf8(&bytes) {
            holds(text)?;
        } else {
            let read = Config::read(&bytes[..], "x");
            prop_assert!(matches!(read, Err(ConfigError::Invalid { .. })), "{read:?}");
        }
    }

    #[test]
    fn principals_are_read_as_they_are_shown(text in "(user|group|uid|\\*)?:?\\PC{0,12}") {
        if let Ok(principal) = text.parse::<Principal>() {
            prop_assert_eq!(principal.to_string().parse::<Principal>(), Ok(principal));
        }
    }
}
