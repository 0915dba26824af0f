//! The bytes of shared files: the position and the meaning of each word. This module touches no memory and makes no system call.

pub mod board;
pub mod charter;
pub mod gate;
pub mod geometry;
pub mod header;
pub mod reader_page;
pub mod record;
pub mod stream;
