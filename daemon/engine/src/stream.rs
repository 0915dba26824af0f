//! Commands about a stream: making it, looking at it, and checking all of it.
