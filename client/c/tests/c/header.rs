//! Checks that the header agrees with the source: functions, their types, sizes, offsets and numbers.

use crate::support::{C, CPP, HERE, has, library, run};
use shmcast_c::{
    Batch, BoardCounters, BoardEntry, Event, Gate, GateStatus, PublishOptions, SubscribeOptions, What,
};
use shmcast_testkit::scratch;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;
use std::{fs, path::Path};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(HERE).join(path)).unwrap()
}

/// The header without comments.
fn header() -> String {
    let text = read("include/shmcast.h");
    text.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect()
}

/// The name in C of a type of the source. The type of bytes is `void` there.
fn in_c(rust: &str) -> &str {
    match rust {
        "" => "void",
        "u16" => "uint16_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "*mut Batch" => "shmcast_batch *",
        "*mut u64" => "uint64_t *",
        "*const u8" => "const void *",
        "*mut u8" => "void *",
        "*mut *mut u8" => "void **",
        "*const c_char" => "const char *",
        "*mut GateStatus" => "shmcast_gate_status *",
        "*mut BoardEntry" => "shmcast_board_entry *",
        "*mut BoardCounters" => "shmcast_board_counters *",
        "*const BoardHandle" => "const shmcast_board *",
        "*mut BoardHandle" => "shmcast_board *",
        "*mut *mut BoardHandle" => "shmcast_board **",
        "*mut Event" => "shmcast_event *",
        "*const PublishOptions" => "const shmcast_publish_options *",
        "*const SubscribeOptions" => "const shmcast_subscribe_options *",
        "*const PublisherHandle" => "const shmcast_publisher *",
        "*mut PublisherHandle" => "shmcast_publisher *",
        "*mut *mut PublisherHandle" => "shmcast_publisher **",
        "*const SubscriberHandle" => "const shmcast_subscriber *",
        "*mut SubscriberHandle" => "shmcast_subscriber *",
        "*mut *mut SubscriberHandle" => "shmcast_subscriber **",
        "*const *mut SubscriberHandle" => "shmcast_subscriber *const *",
        "*mut SelectHandle" => "shmcast_select *",
        "*mut *mut SelectHandle" => "shmcast_select **",
        "*mut usize" => "size_t *",
        other => panic!("the header has no type for {other:?}"),
    }
}

fn source_functions() -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    for file in ["error", "publisher", "subscriber", "select", "board"] {
        let text = read(&format!("src/{file}.rs"));
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let signature = part.split_once("extern \"C\" fn ").unwrap().1.split_once(" {\n").unwrap().0;
            let (name, rest) = signature.split_once('(').unwrap();
            let (arguments, result) = rest.split_once(") -> ").unwrap();
            let types: Vec<&str> = arguments
                .split(',')
                .filter(|argument| !argument.trim().is_empty())
                .map(|argument| in_c(argument.split_once(": ").unwrap().1.trim()))
                .collect();
            let types = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
            functions.insert(name.to_owned(), format!("{} ({types})", in_c(result)));
        }
    }
    functions
}

/// A declaration without its last word, which is a name: `const char *name` is `const char *`.
fn type_of(declaration: &str) -> String {
    let declaration = declaration.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = declaration.rfind([' ', '*']).map_or(declaration.len(), |end| end + 1);
    declaration[..end].trim_end().replace("uint8_t *", "void *")
}

fn header_functions() -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    for part in header().split("SHMCAST_API ").skip(2) {
        let (front, rest) = part.split_once('(').unwrap();
        let name = front.rsplit([' ', '*']).next().unwrap();
        let arguments = rest.split_once(");").unwrap().0;
        let types: Vec<String> = arguments.split(',').map(type_of).collect();
        let types = if arguments == "void" { arguments.to_owned() } else { types.join(", ") };
        functions.insert(name.to_owned(), format!("{} ({types})", type_of(front)));
    }
    functions
}

#[test]
fn functions_are_declared_as_they_are() {
    let (declared, defined) = (header_functions(), source_functions());
    assert_eq!(declared, defined);
    assert!(declared.len() > 25, "{declared:?}");
}

#[test]
fn the_library_has_these_symbols_and_no_others() {
    if !has("the_library_has_these_symbols_and_no_others", "nm") {
        return;
    }
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let symbols: Vec<&str> = listed.lines().filter_map(|line| line.split(" T ").nth(1)).collect();
    assert_eq!(symbols, header_functions().keys().collect::<Vec<_>>());
}

/// Assertions for a C compiler.
fn asserted(text: &mut String, what: &str, value: impl std::fmt::Display) {
    writeln!(text, "_Static_assert({what} == {value}, \"{what} is not {value}\");").unwrap();
}

macro_rules! layout {
    ($text:ident, $rust:ident, $c:literal: $($field:ident)*) => {
        asserted(&mut $text, concat!("sizeof(", $c, ")"), size_of::<$rust>());
        asserted(&mut $text, concat!("_Alignof(", $c, ")"), align_of::<$rust>());
        $(asserted(&mut $text, concat!("offsetof(", $c, ", ", stringify!($field), ")"), offset_of!($rust, $field));)*
    };
}

#[test]
fn sizes_offsets_and_numbers_are_the_same() {
    if !has("sizes_offsets_and_numbers_are_the_same", C[0]) {
        return;
    }
    let mut text = "#include <shmcast.h>\n".to_owned();
    layout!(text, Event, "shmcast_event": kind tag key reserved sequence time payload length what reserved_too);
    asserted(&mut text, "sizeof(((shmcast_event *)0)->what)", size_of::<What>());
    layout!(text, Batch, "shmcast_batch": records bytes messages first event);
    layout!(text, PublishOptions, "shmcast_publish_options":
        size flags dir socket capacity max_message mode prepare schema_id schema_name labels
        continue_from numa_node reserved board_start board_stop board_keys board_value board_remove_tag
        board_reserved gates gate_count);
    layout!(text, Gate, "shmcast_gate": name flags lag_percent lag_bytes wait_ns reserved);
    layout!(text, GateStatus, "shmcast_gate_status": name state reserved lag_bytes behind_bytes pid held longest_ns total_ns
        dropped refused turned_away);
    layout!(text, SubscribeOptions, "shmcast_subscribe_options":
        size flags dir socket start wait resume prepare start_sequence spins reserved sleep_ns longest_nap_ns
        wait_for_channel_ns schema_id start_time_ns journal tags tag_count conflate_behind gate);
    layout!(text, BoardEntry, "shmcast_board_entry": key key_length sequence count message);
    layout!(text, BoardCounters, "shmcast_board_counters": through keys no_room too_large no_key since reserved);
    let (codes, mut module, mut numbers) = (read("src/codes.rs"), "", 0);
    for line in codes.lines() {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = name.trim_end_matches(" {");
        }
        let Some((name, rest)) =
            line.trim().strip_prefix("pub const ").and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let value = rest.split_once(" = ").unwrap().1.trim_end_matches(';');
        let middle = match module {
            "code" if value.starts_with('-') => "ERROR_",
            "state" => "STATE_",
            "gate" => "GATE_",
            "cause" => "CAUSE_",
            _ => "",
        };
        asserted(&mut text, &format!("SHMCAST_{middle}{name}"), value);
        numbers += 1;
    }
    let header = header();
    let enumerators =
        header.lines().filter(|line| line.trim().starts_with("SHMCAST_") && line.contains(" = "));
    assert_eq!(numbers, enumerators.count(), "each number of the header stands in the source");
    compiles(C, &text);
}

fn compiles(compiler: &[&str], text: &str) {
    let dir = scratch();
    let source = dir.path().join(if compiler == C { "t.c" } else { "t.cpp" });
    fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).arg("-fsyntax-only").arg("-I").arg(Path::new(HERE).join("include"));
    command.arg("-I").arg(Path::new(HERE).join("../cpp/include"));
    run(command.arg(&source));
}

#[test]
fn headers_need_nothing_before_them() {
    if has("headers_need_nothing_before_them", C[0]) {
        compiles(C, "#include <shmcast.h>\nint main(void) { return 0; }\n");
    }
    if has("headers_need_nothing_before_them", CPP[0]) {
        compiles(CPP, "#include <shmcast.h>\nint main() { return 0; }\n");
        compiles(CPP, "#include <shmcast.hpp>\nint main() { return 0; }\n");
    }
}
