//! The bounds between messages in a file or on a pipe.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::json;
use shmcast::Message;
use std::io::{self, BufRead, ErrorKind, Read, Write};

/// The way in which input is cut into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum InputFraming {
    /// One message a line, without its newline
    Lines,
    /// Two bytes of length, big-endian, before each message (as exchanges ship ITCH files)
    U16be,
    /// Four bytes of length, little-endian, before each message
    U32le,
}

/// The way in which messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFraming {
    /// Each message and a newline
    Lines,
    /// Two bytes of length, big-endian, before each message
    U16be,
    /// Four bytes of length, little-endian, before each message
    U32le,
    /// Sequence, tag and payload in hexadecimal, one line per message
    Hex,
    /// One JSON object a line, events of the stream included
    Json,
    /// Nothing: only count and measure
    None,
}

/// Reads one message into `message`. Returns false at the end of the input.
pub(super) fn read_message(
    framing: InputFraming,
    input: &mut impl BufRead,
    message: &mut Vec<u8>,
) -> Result<bool> {
    message.clear();
    let length = match framing {
        InputFraming::Lines => {
            if input.read_until(b'\n', message)? == 0 {
                return Ok(false);
            }
            if message.last() == Some(&b'\n') {
                message.pop();
            }
            return Ok(true);
        }
        InputFraming::U16be => read_prefix(input)?.map(|prefix| u64::from(u16::from_be_bytes(prefix))),
        InputFraming::U32le => read_prefix(input)?.map(|prefix| u64::from(u32::from_le_bytes(prefix))),
    };
    let Some(length) = length else { return Ok(false) };
    // The buffer grows with the data that arrives. So a false length cannot make us allocate more than the
    // input holds.
    let got = input.by_ref().take(length).read_to_end(message)? as u64;
    if got < length {
        bail!(
            "input ends {} B short of a message of {length} B: is it {} framed and complete?",
            length - got,
            framing.to_possible_value().expect("none is hidden").get_name()
        );
    }
    Ok(true)
}

fn read_prefix<const N: usize>(input: &mut impl BufRead) -> Result<Option<[u8; N]>> {
    let mut prefix = [0; N];
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    match input.read_exact(&mut prefix) {
        Ok(()) => Ok(Some(prefix)),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => bail!("input ends inside a length of {N} B"),
        Err(e) => Err(e.into()),
    }
}

/// Writes one message. `latency_ns` is the message's age when it was received, if the message has a time.
pub(super) fn write_message(
    framing: OutputFraming,
    out: &mut impl Write,
    message: &Message<'_>,
    latency_ns: Option<u64>,
) -> Result<()> {
    let payload = message.payload;
    match framing {
        OutputFraming::Lines => {
            out.write_all(payload)?;
            out.write_all(b"\n")?;
        }
        OutputFraming::U16be => {
            let length = u16::try_from(payload.len()).ok().with_context(|| {
                format!(
                    "message {} has {} B, more than u16be can frame: use u32le",
                    message.sequence,
                    payload.len()
                )
            })?;
            out.write_all(&length.to_be_bytes())?;
            out.write_all(payload)?;
        }
        OutputFraming::U32le => {
            let length = u32::try_from(payload.len()).expect("no message exceeds 16 MiB");
            out.write_all(&length.to_le_bytes())?;
            out.write_all(payload)?;
        }
        OutputFraming::Hex => {
            write!(out, "{} {:04x} ", message.sequence, message.tag)?;
            write_hex(out, payload)?;
            out.write_all(b"\n")?;
        }
        OutputFraming::Json => {
            let mut line = json!({
                "sequence": message.sequence, "tag": message.tag, "key": message.key, "latency_ns": latency_ns,
            });
            if let Some(left_out) = message.conflated {
                line["conflated"] = left_out.into();
            }
            match std::str::from_utf8(payload) {
                Ok(text) => line["payload"] = text.into(),
                Err(_) => {
                    line["payload_hex"] = hex(payload).into();
                }
            }
            serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
        OutputFraming::None => {}
    }
    Ok(())
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut hex = Vec::with_capacity(bytes.len() * 2);
    write_hex(&mut hex, bytes).expect("memory takes what is written");
    String::from_utf8(hex).expect("hexadecimal digits")
}

fn write_hex(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(framing: InputFraming, mut input: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mut messages, mut message) = (Vec::new(), Vec::new());
        while read_message(framing, &mut input, &mut message)? {
            messages.push(message.clone());
        }
        Ok(messages)
    }

    #[test]
    fn what_is_written_reads_back() {
        let messages: [&[u8]; 4] = [b"one", b"", b"three \r", b"\xff\x00"];
        for (output, input) in [
            (OutputFraming::Lines, InputFraming::Lines),
            (OutputFraming::U16be, InputFraming::U16be),
            (OutputFraming::U32le, InputFraming::U32le),
        ] {
            let mut bytes = Vec::new();
            for payload in messages {
                let message = Message { payload, sequence: 1, tag: 0, key: false, time: 0, conflated: None };
                write_message(output, &mut bytes, &message, None).unwrap();
            }
            assert_eq!(read_all(input, &bytes).unwrap(), messages, "{input:?}");
        }
    }

    #[test]
    fn a_cut_input_is_an_error_and_not_a_shorter_message() {
        assert!(read_all(InputFraming::U16be, b"\x00\x03ab").unwrap_err().to_string().contains("1 B short"));
        assert!(read_all(InputFraming::U16be, b"\x00").is_err());
        assert!(read_all(InputFraming::U32le, b"\xff\xff\xff\xffabc").is_err());
        assert_eq!(read_all(InputFraming::Lines, b"a\n\nlast").unwrap(), [&b"a"[..], b"", b"last"]);
    }
}
