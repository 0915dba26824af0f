//! Common code of the verbs that publish: options for a new channel's ring, the wait for readers, and the summary.

use super::Host;
use super::figures::{grouped, readers_of, size};
use super::stop::Stop;
use super::units::{parse_board_key, parse_mode, parse_size, words};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use shmcast::{BoardSpec, PublisherBuilder};
use std::ops::Range;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct RingArgs {
    /// Size of the ring for a new channel: a power of two from 64KiB to 16GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// Largest message [default: an eighth of the capacity, at most 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_message: Option<u64>,
    /// Mode of a new channel: 700, yours alone; 750, your group reads; 755, all users read [default: 700]. An existing channel must have
    /// this mode
    #[arg(long, value_name = "MODE", value_parser = words(&["700", "750", "755"], parse_mode), hide_possible_values = true)]
    mode: Option<u32>,
    /// Give a new channel a board of the last message of each key: the bytes of a payload that are its key, as 0..8
    #[arg(long, value_name = "BYTES", value_parser = parse_board_key)]
    board: Option<Range<usize>>,
    /// With --board: number of keys for which there is room
    #[arg(long, value_name = "N", requires = "board", default_value_t = BoardSpec::DEFAULT_KEYS)]
    board_keys: u64,
    /// With --board: largest message on the board [default: 256, or up to the end of the key]
    #[arg(long, value_name = "SIZE", requires = "board", value_parser = parse_size)]
    board_value: Option<u64>,
    /// With --board: messages with this tag remove their key
    #[arg(long, value_name = "TAG", requires = "board")]
    board_remove_tag: Option<u16>,
}

impl RingArgs {
    fn board(&self) -> Option<BoardSpec> {
        let mut board = BoardSpec::new(self.board.clone()?).keys(self.board_keys);
        if let Some(value) = self.board_value {
            board = board.value(value);
        }
        Some(match self.board_remove_tag {
            Some(tag) => board.remove_tag(tag),
            None => board,
        })
    }

    /// Makes the builder of a publisher with these options.
    pub(super) fn publisher(&self, host: &Host, channel: &str) -> Result<PublisherBuilder> {
        let mut builder = host.publisher(channel);
        if let Some(capacity) = self.capacity {
            builder = builder.capacity(capacity);
        }
        if let Some(max_message) = self.max_message {
            builder = builder.max_message(max_message);
        }
        if let Some(mode) = self.mode {
            if let Host::Daemon(_) = host {
                bail!("{host} says who may read its channels: leave --mode out, or give --dir to use files");
            }
            builder = builder.mode(mode);
        }
        if let Some(board) = self.board() {
            builder = builder.board(board);
        }
        Ok(builder)
    }
}

/// Waits until so many readers are attached.
pub(super) fn wait_for_readers(wanted: usize, host: &Host, channel: &str, stop: &Stop) -> Result<()> {
    if wanted == 0 {
        return Ok(());
    }
    let bar = ProgressBar::new(wanted as u64).with_style(
        ProgressStyle::with_template("waiting for readers {bar:40} {pos}/{len}")
            .expect("the template is ours"),
    );
    loop {
        let attached = readers_of(&host.channel(channel)?);
        bar.set_position(attached as u64);
        if attached >= wanted {
            bar.finish_and_clear();
            return Ok(());
        }
        if stop.is_set() {
            bar.finish_and_clear();
            let said = format!(
                "{channel}: INTERRUPTED with {attached} of {wanted} readers attached, published nothing"
            );
            return Err(stop.interrupted(said).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the summary of a verb that published. The caller adds its own figures.
pub(super) fn told(
    verb: &str,
    channel: &str,
    is_complete: bool,
    published: u64,
    bytes: u64,
    seconds: f64,
    sequences: &str,
) -> String {
    format!(
        "{channel}: {}{verb} {} messages, {} of payload, in {seconds:.3} s ({}/s), {sequences}",
        if is_complete { "" } else { "INTERRUPTED: " },
        grouped(published),
        size(bytes),
        grouped((published as f64 / seconds.max(1e-9)) as u64),
    )
}
