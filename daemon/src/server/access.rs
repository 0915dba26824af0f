//! Identities of programs. The kernel reports a program's user. The user database has the names of this user and of the user's groups. The
//! daemon then compares the identity with a channel's lists.
//!
//! The user database can be a slow server on the network. So look-ups run on other threads, a program waits for a look-up only for a
//! limited time, and each answer is kept for a minute.

use crate::config::Principal;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use shmcast::Process;
use shmcast::hosting::fault;
use shmcast::sys::handoff::Peer;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// The time for which a program waits until its user's names are known. After this time, the program counts as a program of a user without
/// names.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time for which an answer of the user database stays valid.
pub const FRESH: Duration = Duration::from_secs(60);
/// The pause after a failed look-up before the user is looked up again. If a program has waited in vain for a user's names, no other
/// program waits for these names during the same time.
const FAILED_FOR: Duration = Duration::from_secs(5);
/// The largest number of look-ups that can run at the same time. If a look-up hangs, its thread stays in use.
const LOOK_UPS: usize = 4;
/// Largest number of users whose names are kept.
const MAX_USERS: usize = 4096;

/// The names that the user database gives a user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// The user's name; `None` if the uid has none. If a uid has several names, this is the first one in the database.
    pub user: Option<String>,
    /// The groups: the effective group, and the groups of the user in the database.
    pub groups: Vec<String>,
}

/// Looks up the names of user `uid` with the effective group `gid`. Can block for any time.
type LookUp = fn(uid: u32, gid: u32) -> io::Result<Names>;

/// The answer of the user database: `None` when it failed.
type Answer = Option<Arc<Names>>;

/// The names of the users who have connected recently.
#[derive(Debug)]
pub struct Access {
    /// The user that this daemon runs as.
    daemon_uid: u32,
    look_up: LookUp,
    turns: Arc<Semaphore>,
    users: Mutex<HashMap<(u32, u32), Asked>>,
}

/// A look-up, and its result after it has ended.
#[derive(Debug)]
struct Asked {
    at: Instant,
    answer: watch::Receiver<Option<Answer>>,
    /// The time at which a program last stopped waiting for the answer without getting it.
    in_vain: Option<Instant>,
}

impl Asked {
    /// Whether the look-up still runs, or its answer is still valid. In both cases, the user is not looked up again.
    fn is_fresh(&self) -> bool {
        match &*self.answer.borrow() {
            None => self.answer.has_changed().is_ok(),
            Some(None) => self.at.elapsed() < FAILED_FOR,
            Some(Some(_)) => self.at.elapsed() < FRESH,
        }
    }

    /// Whether a program waited in vain for this answer a short time ago. If so, other programs do not wait for the answer.
    fn hangs(&self) -> bool {
        self.answer.borrow().is_none() && self.in_vain.is_some_and(|at| at.elapsed() < FAILED_FOR)
    }
}

impl Access {
    /// Makes an `Access` that knows no user yet.
    pub fn new(daemon_uid: u32) -> Self {
        Self::with(daemon_uid, look_up)
    }

    fn with(daemon_uid: u32, look_up: LookUp) -> Self {
        Self { daemon_uid, look_up, turns: Arc::new(Semaphore::new(LOOK_UPS)), users: Mutex::default() }
    }

    /// Whether `uid` may use all channels. The user's names do not matter for this.
    pub fn is_privileged(&self, uid: u32) -> bool {
        uid == 0 || uid == self.daemon_uid
    }

    /// Identifies `peer`. Waits up to two seconds for the user database. Call this on the event loop's runtime.
    pub async fn identify(&self, peer: Peer) -> Identity {
        let names = self.names(peer).await;
        let command = fs::read_to_string(format!("/proc/{}/comm", peer.pid)).ok();
        let command = command.map(|name| name.trim().to_owned());
        Identity { pid: peer.pid, uid: peer.uid, gid: peer.gid, names, command }
    }

    /// Returns the names of the user of `peer`. Returns `None` if the look-up fails, or does not end within two seconds. In the five
    /// seconds after such a failure, no program waits for the user's names. Names are not looked up for a privileged user, who is always
    /// permitted. An answer is valid for a minute.
    pub async fn names(&self, Peer { uid, gid, .. }: Peer) -> Option<Arc<Names>> {
        if self.is_privileged(uid) {
            return Some(Arc::default());
        }
        if fault!("names_are_looked_up_on_the_loop") {
            return (self.look_up)(uid, gid).ok().map(Arc::new);
        }
        let mut answer = {
            let mut users = self.users();
            if !users.get(&(uid, gid)).is_some_and(Asked::is_fresh) {
                users.retain(|_, asked| asked.is_fresh());
                if users.len() >= MAX_USERS {
                    return None;
                }
                users.insert((uid, gid), self.ask(uid, gid));
            }
            users.get(&(uid, gid)).filter(|asked| !asked.hangs())?.answer.clone()
        };
        match timeout(PATIENCE, answer.wait_for(Option::is_some)).await {
            Ok(answered) => answered.ok()?.clone().flatten(),
            Err(_) => {
                if let Some(asked) = self.users().get_mut(&(uid, gid)) {
                    asked.in_vain = Some(Instant::now());
                }
                None
            }
        }
    }

    /// Starts a look-up on another thread.
    fn ask(&self, uid: u32, gid: u32) -> Asked {
        let (tell, answer) = watch::channel(None);
        let (turns, look_up) = (Arc::clone(&self.turns), self.look_up);
        tokio::spawn(async move {
            let Ok(turn) = turns.acquire_owned().await else { return };
            let found = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                look_up(uid, gid)
            });
            let found = found.await.map_err(io::Error::other).and_then(|found| found);
            let _ = tell.send(Some(found.ok().map(Arc::new)));
        });
        Asked { at: Instant::now(), answer, in_vain: None }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<(u32, u32), Asked>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look_up(uid: u32, gid: u32) -> io::Result<Names> {
    let mut groups = vec![gid];
    let user = User::from_uid(Uid::from_raw(uid))?.map(|user| user.name);
    if let Some(name) = user.as_ref().and_then(|name| CString::new(name.as_str()).ok()) {
        let listed = getgrouplist(&name, Gid::from_raw(gid))?;
        groups.extend(listed.into_iter().map(Gid::as_raw));
    }
    groups.sort_unstable();
    groups.dedup();
    let mut names = Names { user, groups: Vec::new() };
    for gid in groups {
        // A group without a name cannot be in a list.
        names.groups.extend(Group::from_gid(Gid::from_raw(gid))?.map(|group| group.name));
    }
    Ok(names)
}

/// A connection's number, never used twice.
pub type ConnectionId = u64;

/// A program at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Process id; 0 if the process is in a PID namespace that the daemon cannot see.
    pub pid: u32,
    /// The program's effective user id.
    pub uid: u32,
    /// The program's effective group id.
    pub gid: u32,
    /// The user's names; `None` if the user database did not answer.
    pub names: Option<Arc<Names>>,
    /// Command name of the process when it connected.
    pub command: Option<String>,
}

impl Identity {
    /// Whether one of `principals` matches this program's user. Root and the daemon's own user always match. Makes no look-up.
    pub fn is_named_by(&self, principals: &[Principal], daemon_uid: u32) -> bool {
        let named = |principal: &Principal| match principal {
            Principal::Anyone => true,
            Principal::Uid(uid) => *uid == self.uid,
            Principal::User(name) => {
                self.names.as_ref().is_some_and(|names| names.user.as_ref() == Some(name))
            }
            Principal::Group(name) => self.names.as_ref().is_some_and(|names| names.groups.contains(name)),
        };
        self.uid == 0 || self.uid == daemon_uid || principals.iter().any(named)
    }

    /// Returns the process in the form that tools show.
    pub fn process(&self) -> Process {
        let pid = Some(self.pid).filter(|pid| *pid != 0);
        Process { pid, uid: Some(self.uid), command: self.command.clone() }
    }

    /// Returns the identity in the form that the kernel reports.
    pub fn peer(&self) -> Peer {
        Peer { pid: self.pid, uid: self.uid, gid: self.gid }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command.as_deref().unwrap_or("?");
        write!(f, "{command} (pid {}, uid {})", self.pid, self.uid)?;
        match self.names {
            Some(_) => Ok(()),
            None => f.write_str(", whose names the name service does not tell,"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn peer(uid: u32) -> Peer {
        Peer { pid: std::process::id(), uid, gid: uid }
    }

    fn somebody(uid: u32, user: Option<&str>, groups: &[&str]) -> Identity {
        let groups = groups.iter().map(|&name| name.to_owned()).collect();
        let names = Some(Arc::new(Names { user: user.map(str::to_owned), groups }));
        Identity { pid: 1, uid, gid: uid, names, command: None }
    }

    #[test]
    fn lists_name_users_and_groups_and_nobody_else() {
        let nobody = somebody(65534, Some("nobody"), &["nogroup"]);
        assert!(!nobody.is_named_by(&[], 1000));
        assert!(nobody.is_named_by(&[Principal::Anyone], 1000));
        assert!(nobody.is_named_by(&[Principal::Uid(65534)], 1000));
        assert!(nobody.is_named_by(&[Principal::User("nobody".into())], 1000));
        assert!(!nobody.is_named_by(&[Principal::User("root".into()), Principal::Uid(1)], 1000));
        assert!(!nobody.is_named_by(&[Principal::User("nogroup".into())], 1000));
        assert!(!nobody.is_named_by(&[Principal::Group("root".into())], 1000));
        assert!(nobody.is_named_by(&[Principal::Group("nogroup".into())], 1000));
        assert!(!somebody(7, None, &[]).is_named_by(&[Principal::User(String::new())], 1000));
        assert!(
            somebody(0, None, &[]).is_named_by(&[], 1000) && somebody(1000, None, &[]).is_named_by(&[], 1000)
        );
    }

    #[test]
    fn a_user_whose_names_are_not_known_is_named_by_number_alone() {
        let unknown = Identity { names: None, ..somebody(7, None, &[]) };
        assert!(unknown.is_named_by(&[Principal::Uid(7)], 1000));
        assert!(
            !unknown.is_named_by(&[Principal::User("root".into()), Principal::Group("root".into())], 1000)
        );
        assert!(unknown.to_string().contains("name service"), "{unknown}");
    }

    #[test]
    fn this_machines_user_database_names_root() {
        let names = look_up(0, 0).unwrap();
        assert_eq!(names.user.as_deref(), Some("root"));
        assert!(names.groups.contains(&"root".to_owned()), "{names:?}");
        assert_eq!(look_up(u32::MAX - 7, u32::MAX - 7).unwrap(), Names::default());
    }

    #[tokio::test]
    async fn a_user_is_asked_for_once_a_minute_however_many_connect() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let access = Access::with(1000, |_, _| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Ok(Names { user: Some("alice".into()), groups: vec!["traders".into()] })
        });
        let (one, other) = tokio::join!(access.identify(peer(7)), access.identify(peer(7)));
        assert_eq!(one, other);
        assert!(one.is_named_by(&[Principal::Group("traders".into())], 1000));
        assert!(access.identify(peer(7)).await.names.is_some());
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        // Privileged users are always permitted, so their names are not looked up.
        access.identify(peer(0)).await;
        access.identify(peer(1000)).await;
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_name_service_that_hangs_is_given_few_threads_and_little_time() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let started = Instant::now();
        runtime.block_on(async {
            let access = Access::with(1000, |_, _| {
                ASKED.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_secs(600));
                Ok(Names::default())
            });
            let twenty = (1..=20).map(|uid| {
                let access = &access;
                async move { access.identify(peer(uid)).await }
            });
            let mut all: Vec<_> = twenty.map(Box::pin).collect();
            // A user who needs no look-up is identified while the look-ups of the other users hang.
            let mut at_once = std::pin::pin!(access.identify(peer(0)));
            let found = std::future::poll_fn(|context| {
                for one in &mut all {
                    assert!(one.as_mut().poll(context).is_pending());
                }
                at_once.as_mut().poll(context)
            });
            assert_eq!(found.await.uid, 0);
            for one in all {
                assert_eq!(one.await.names, None);
            }
            // For two seconds, one program of this user has waited in vain. The user's next program does not wait.
            let mut again = std::pin::pin!(access.identify(peer(1)));
            let found = std::future::poll_fn(|context| std::task::Poll::Ready(again.as_mut().poll(context)));
            assert!(matches!(found.await, std::task::Poll::Ready(Identity { names: None, .. })));
        });
        runtime.shutdown_background();
        assert_eq!(ASKED.load(Ordering::Relaxed), LOOK_UPS);
        assert!(started.elapsed() < Duration::from_secs(60), "they waited one after the other");
    }
}
