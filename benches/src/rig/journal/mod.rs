//! Rounds with a recorder. The recorder is a separate process, like `shmcast record`.
//!
//! | file | what |
//! |---|---|
//! | [`store`] | the file system and the drive of a journal |
//! | [`limits`] | the speed of bare system calls there |
//! | [`frozen`] | a disk that can be frozen |
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
