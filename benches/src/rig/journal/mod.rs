//! Rounds with a recorder in them. The recorder is a process of its own, as `shmcast record` is.
//!
//! | file | what |
//! |---|---|
//! | [`store`] | the file system and the drive that a journal lies on |
//! | [`limits`] | what bare calls do there |
//! | [`frozen`] | a disk that can stand still |
//! | [`role`] | the roles of a round, and the reports of its processes |
//! | [`publisher`], [`recorder`] | the roles, played in processes of their own |
//! | [`reader`] | readers of the journal, in processes of their own |
//! | [`scene`] | starts the processes, and collects their reports |

pub mod frozen;
pub mod limits;
pub mod publisher;
pub mod reader;
pub mod recorder;
pub mod role;
pub mod scene;
pub mod store;
