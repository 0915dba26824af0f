//! The shmcast command.
