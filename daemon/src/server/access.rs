//! Who is asking, by the kernel's word, and whether a channel's lists name him.

use crate::config::Principal;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use shmcast::Process;
use shmcast::hosting::handoff::Peer;
use std::ffi::CString;
use std::fmt;
use std::fs;

/// A program at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Process id; 0 when it lives in a namespace that we cannot see.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Its groups: the effective one, and those that the user database gives the user.
    pub groups: Vec<u32>,
    /// Command name, as it was when it connected.
    pub command: Option<String>,
}

impl Identity {
    /// Looks up what the kernel's word implies. Reads the user database: not for every packet.
    pub fn of(peer: Peer) -> Self {
        let mut groups = vec![peer.gid];
        if let Ok(Some(user)) = User::from_uid(Uid::from_raw(peer.uid))
            && let Ok(name) = CString::new(user.name)
            && let Ok(listed) = getgrouplist(&name, Gid::from_raw(peer.gid))
        {
            groups.extend(listed.into_iter().map(Gid::as_raw));
        }
        let command = fs::read_to_string(format!("/proc/{}/comm", peer.pid)).ok();
        let command = command.map(|name| name.trim().to_owned());
        Self { pid: peer.pid, uid: peer.uid, groups, command }
    }

    /// Whether one of `principals` is this program's user. Root and the daemon's own user always are.
    pub fn is_named_by(&self, principals: &[Principal], daemon_uid: u32) -> bool {
        let named = |principal: &Principal| match principal {
            Principal::Anyone => true,
            Principal::Uid(uid) => *uid == self.uid,
            // A name that does not exist (yet) matches nobody.
            Principal::User(name) => {
                matches!(User::from_name(name), Ok(Some(user)) if user.uid.as_raw() == self.uid)
            }
            Principal::Group(name) => {
                matches!(Group::from_name(name), Ok(Some(group)) if self.groups.contains(&group.gid.as_raw()))
            }
        };
        self.uid == 0 || self.uid == daemon_uid || principals.iter().any(named)
    }

    /// As tools show it.
    pub fn process(&self) -> Process {
        let pid = Some(self.pid).filter(|pid| *pid != 0);
        Process { pid, uid: Some(self.uid), command: self.command.clone() }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}, uid {})", self.command.as_deref().unwrap_or("?"), self.pid, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody(uid: u32, groups: &[u32]) -> Identity {
        Identity { pid: 1, uid, groups: groups.to_vec(), command: None }
    }

    #[test]
    fn lists_name_users_and_groups_and_nobody_else() {
        let nobody = somebody(65534, &[65534]);
        assert!(!nobody.is_named_by(&[], 1000));
        assert!(nobody.is_named_by(&[Principal::Anyone], 1000));
        assert!(nobody.is_named_by(&[Principal::Uid(65534)], 1000));
        assert!(nobody.is_named_by(&[Principal::User("nobody".into())], 1000));
        assert!(!nobody.is_named_by(&[Principal::User("root".into()), Principal::Uid(1)], 1000));
        assert!(!nobody.is_named_by(&[Principal::User("no such user".into())], 1000));
        assert!(!nobody.is_named_by(&[Principal::Group("root".into())], 1000));
        assert!(somebody(7, &[0]).is_named_by(&[Principal::Group("root".into())], 1000));
        assert!(somebody(0, &[]).is_named_by(&[], 1000) && somebody(1000, &[]).is_named_by(&[], 1000));
    }
}
