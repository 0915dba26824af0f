//! Stand-ins for the verbs of features that are not built in. A stand-in accepts any arguments, so that its error names the missing feature
//! and not an argument.

use anyhow::{Result, bail};
use std::ffi::OsString;
use std::process::ExitCode;

/// All arguments of the verb.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    given: Vec<OsString>,
}

fn refuse(verb: &str, args: &Args) -> Result<ExitCode> {
    let given: Vec<_> = args.given.iter().map(|argument| argument.to_string_lossy()).collect();
    bail!("cannot run `{}`: {}", [&[verb.into()], &given[..]].concat().join(" "), crate::without(verb))
}

#[cfg(not(feature = "top"))]
pub(super) mod top {
    //! The stand-in for `shmcast top`.

    pub(in crate::cli) use super::Args;

    pub(in crate::cli) fn run(args: &Args) -> super::Result<super::ExitCode> {
        super::refuse("top", args)
    }
}

#[cfg(not(feature = "tune"))]
pub(super) mod tune {
    //! The stand-in for `shmcast tune`.

    pub(in crate::cli) use super::Args;

    pub(in crate::cli) fn run(args: &Args) -> super::Result<super::ExitCode> {
        super::refuse("tune", args)
    }
}
