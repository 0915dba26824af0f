//! The start and the end of a command: the command line, errors, and exit codes.

use crate::say::{self, note};
use crate::stop;
use anyhow::Error;
use clap::Parser;
use shmcast::hosting::advice;
use std::io::Write;
use std::process::ExitCode;

/// Exit code of an error.
pub const FAILED: u8 = 1;
/// Exit code of a command line that makes no sense.
pub const WRONG_USAGE: u8 = 2;

/// Parses the command line of this process. Prints the texts of `--help` and `--version` to stdout, and errors to stderr. An error text
/// quotes arguments, which can contain secrets, so `shown` changes the text before it is printed.
///
/// # Errors
/// The exit code, if a text or an error was printed.
pub fn parse<P: Parser>(shown: impl Fn(&str) -> String) -> Result<P, ExitCode> {
    P::try_parse().map_err(|usage| {
        if usage.use_stderr() {
            let text = usage.render().to_string();
            let hidden = Some(shown(&text)).filter(|shown| *shown != text);
            // clap's own text has colours on a terminal. A failed write cannot be reported anywhere.
            let _ = match hidden {
                Some(hidden) => write!(std::io::stderr(), "{hidden}"),
                None => usage.print(),
            };
            return ExitCode::from(WRONG_USAGE);
        }
        match usage.print().map_err(say::unwritable) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => ExitCode::from(end(&e.into())),
        }
    })
}

/// Prints why a verb failed. Returns the exit code.
#[must_use]
pub fn end(error: &Error) -> u8 {
    if say::has_reader_left(error) {
        return 0;
    }
    note!("{}", describe(error));
    error.downcast_ref().map_or(FAILED, stop::Interrupted::exit_code)
}

/// An error, its causes and the next step after an error of the system, in one line.
#[must_use]
pub fn describe(error: &Error) -> String {
    let mut text = with_causes(error);
    let refused = error.chain().filter_map(|cause| cause.downcast_ref()).next_back();
    let advice = refused.map_or("", advice);
    if !text.contains(advice) {
        text += advice;
    }
    text
}

fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some errors already contain the text of their cause, so this text is not added again.
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use std::io;

    #[test]
    fn an_error_of_the_system_says_what_to_do_next() {
        let of = |number| Err::<(), _>(io::Error::from_raw_os_error(number));
        let said = |number| describe(&of(number).context("/x").unwrap_err());
        let (mfile, rofs, noent) = (24, 30, 2);
        assert!(said(mfile).ends_with(": raise the limit on open files (ulimit -n, LimitNOFILE=)"));
        assert!(said(rofs).ends_with("mount it for writing, or give a place on another"));
        assert_eq!(said(noent), "/x: No such file or directory (os error 2)");
        let twice = Error::new(io::Error::from_raw_os_error(mfile)).context(said(mfile));
        assert_eq!(describe(&twice).matches("raise the limit").count(), 1);
    }
}
