//! Lines over real sockets, with the bridge's own threads: what goes over them, and what others see of it.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]
#![allow(clippy::too_many_lines, reason = "a test is one story, read from top to bottom")]

mod another;
mod board;
mod link;
mod marks;
mod native;
mod segments;
mod wireshark;
