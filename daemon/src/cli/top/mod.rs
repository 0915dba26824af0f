//! `shmcast top`: shows all channels in a terminal, continuously.
//!
//! [`state`] has the figures and handles keys, and [`view`] draws them. This module has the loop between terminal and channels.

use super::board::{Row, rows_of};
use super::{Host, HostArg, say::print_json, stop::Stop, units::parse_duration, waiting::nap};
use anyhow::{Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;
use shmcast::{Board, ChannelStatus};
use signal_hook::consts::SIGHUP;
use signal_hook::flag::register_conditional_shutdown;
use state::{Key, Top};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

mod state;
mod view;

const EXAMPLE: &str = "\
Examples:
  shmcast top
  shmcast top --json | jq '.channels[] | {channel, messages_per_second, worst_lag}'

Keys: q quit, s sort, up and down choose, enter open a channel, b its board, ? help.
Ctrl-C and SIGTERM quit too: exit code 0. With --json the code is 130 (Ctrl-C),
143 (SIGTERM) or 129 (SIGHUP), and nothing is printed.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    host: HostArg,
    /// Time between two readings of the channels, at least 100ms
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Print JSON once, after two readings of the channels, instead of showing a table
    #[arg(long)]
    json: bool,
}

/// The shortest interval. More frequent readings would cost much CPU time and show little more.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Time to wait for a key before the loop checks for other work.
const NAP: Duration = Duration::from_millis(50);

/// A reading of all channels.
struct Look {
    at: Duration,
    channels: Result<Vec<ChannelStatus>, String>,
    /// The channel whose board was read too, with the board's rows.
    board: Option<(String, Result<Vec<Row>, String>)>,
}

/// The channel whose board the user wants to see.
type Wanted = Arc<Mutex<Option<String>>>;

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.interval < MIN_INTERVAL {
        bail!("--interval must be at least 100ms");
    }
    let stop = Stop::listen()?;
    let host = args.host.host()?;
    if args.json {
        return once(&host, args.interval, &stop);
    }
    if !std::io::stdout().is_terminal() {
        bail!("stdout is no terminal: use --json, or `shmcast stat CHANNEL --watch`");
    }
    // The library that reads keys never returns after its terminal was closed. So SIGHUP must end the process, even if a shell has set
    // SIGHUP to be ignored.
    register_conditional_shutdown(SIGHUP, 128 + SIGHUP, Arc::new(AtomicBool::new(true)))?;
    let mut terminal = ratatui::init();
    let ended = show(&mut terminal, &host, args.interval, &stop);
    ratatui::restore();
    ended?;
    Ok(ExitCode::SUCCESS)
}

fn once(host: &Host, interval: Duration, stop: &Stop) -> Result<ExitCode> {
    let begun = Instant::now();
    let mut top = Top::new(host.to_string());
    top.look(begun.elapsed(), Ok(host.channels()?));
    nap(interval, stop);
    if stop.is_set() {
        return Err(stop.interrupted("INTERRUPTED: the second reading was not made").into());
    }
    top.look(begun.elapsed(), Ok(host.channels()?));
    print_json(&json!({"host": host.to_string(), "channels": top.report()}))?;
    Ok(ExitCode::SUCCESS)
}

fn show(terminal: &mut DefaultTerminal, host: &Host, interval: Duration, stop: &Stop) -> Result<()> {
    let wanted = Wanted::default();
    let looks = look_every(host.clone(), interval, Arc::clone(&wanted));
    let mut top = Top::new(host.to_string());
    let mut is_stale = true;
    while !stop.is_set() {
        while let Ok(look) = looks.try_recv() {
            top.look(look.at, look.channels);
            if let Some((channel, rows)) = look.board {
                top.look_at_board(&channel, rows);
            }
            is_stale = true;
        }
        if is_stale {
            terminal.draw(|frame| view::draw(frame, &top))?;
        }
        is_stale = event::poll(NAP)?;
        if is_stale
            && let Event::Key(pressed) = event::read()?
            && pressed.kind != KeyEventKind::Release
            && top.press(key(pressed))
        {
            break;
        }
        *wanted.lock().unwrap_or_else(PoisonError::into_inner) = top.wanted_board().map(str::to_owned);
    }
    Ok(())
}

/// Reads the channels, and the board that the user wants to see, at this interval on a separate thread. So keys work even if a daemon
/// answers slowly. When the user opens a board, the next reading follows at once.
fn look_every(host: Host, interval: Duration, wanted: Wanted) -> Receiver<Look> {
    let (tell, looks) = channel();
    let wanted = move || wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    std::thread::spawn(move || {
        let begun = Instant::now();
        let mut open = None;
        loop {
            let channels = host.channels().map_err(|e| e.to_string());
            let name = wanted();
            let board = name.clone().map(|name| {
                let rows = board_rows(&host, &name, &mut open).map_err(|e| format!("{e:#}"));
                (name, rows)
            });
            let at = begun.elapsed();
            if tell.send(Look { at, channels, board }).is_err() {
                return;
            }
            while begun.elapsed() < at + interval && wanted().is_none_or(|now| name.as_ref() == Some(&now)) {
                std::thread::sleep(NAP);
            }
        }
    });
    looks
}

/// Reads the board of channel `name`. `open` keeps the board open from one reading to the next one.
fn board_rows(host: &Host, name: &str, open: &mut Option<(String, Board)>) -> Result<Vec<Row>> {
    let (_, mut board) = match open.take() {
        Some(kept) if kept.0 == name => kept,
        _ => (name.to_owned(), host.subscriber(name).open_board()?),
    };
    let rows = rows_of(&mut board)?;
    *open = Some((name.to_owned(), board));
    Ok(rows)
}

fn key(pressed: KeyEvent) -> Key {
    let is_control = pressed.modifiers.contains(KeyModifiers::CONTROL);
    match pressed.code {
        KeyCode::Char('c') if is_control => Key::Quit,
        _ if is_control => Key::Other,
        KeyCode::Char('q') => Key::Quit,
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char('?' | 'h') => Key::Help,
        KeyCode::Enter | KeyCode::Right => Key::Open,
        KeyCode::Char('b') => Key::Board,
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => Key::Back,
        KeyCode::Up | KeyCode::Char('k') => Key::Up(1),
        KeyCode::Down | KeyCode::Char('j') => Key::Down(1),
        KeyCode::PageUp => Key::Up(10),
        KeyCode::PageDown => Key::Down(10),
        KeyCode::Home => Key::Up(usize::MAX),
        KeyCode::End => Key::Down(usize::MAX),
        _ => Key::Other,
    }
}
