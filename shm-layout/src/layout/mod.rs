//! The bytes: where each word of a segment lies and what it means. No memory is touched here, no system called.

pub mod charter;
pub mod geometry;
pub mod header;
pub mod reader_page;
pub mod record;
