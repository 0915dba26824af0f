//! How much one user may have open and ask for, so that a client gone wild harms only itself.

use crate::config::LimitsConfig;
use std::collections::HashMap;
use std::time::Instant;

/// What each user uses. Users with nothing open and a full bucket are forgotten.
#[derive(Debug)]
pub struct Limits {
    config: LimitsConfig,
    users: HashMap<u32, Usage>,
}

#[derive(Debug)]
struct Usage {
    connections: u32,
    /// Requests that may be made at once; refilled over time.
    tokens: f64,
    refilled: Instant,
}

impl Limits {
    /// No user has anything yet.
    pub fn new(config: LimitsConfig) -> Self {
        Self { config, users: HashMap::new() }
    }

    /// Takes over changed limits; what is open stays.
    pub fn reload(&mut self, config: LimitsConfig) {
        self.config = config;
    }

    /// Counts a connection; false when the user has too many.
    pub fn connect(&mut self, uid: u32, now: Instant) -> bool {
        let burst = f64::from(self.config.request_burst);
        let usage = self.users.entry(uid).or_insert(Usage { connections: 0, tokens: burst, refilled: now });
        if usage.connections >= self.config.connections_per_uid {
            return false;
        }
        usage.connections += 1;
        true
    }

    /// Forgets a connection that was counted.
    pub fn disconnect(&mut self, uid: u32, now: Instant) {
        self.refill(uid, now);
        let burst = f64::from(self.config.request_burst);
        if let Some(usage) = self.users.get_mut(&uid) {
            usage.connections = usage.connections.saturating_sub(1);
            if usage.connections == 0 && usage.tokens >= burst {
                self.users.remove(&uid);
            }
        }
    }

    /// Counts a request; false when the user asks too often.
    pub fn request(&mut self, uid: u32, now: Instant) -> bool {
        self.refill(uid, now);
        let Some(usage) = self.users.get_mut(&uid) else { return false };
        let granted = usage.tokens >= 1.0;
        if granted {
            usage.tokens -= 1.0;
        }
        granted
    }

    fn refill(&mut self, uid: u32, now: Instant) {
        let (rate, burst) =
            (f64::from(self.config.requests_per_second), f64::from(self.config.request_burst));
        if let Some(usage) = self.users.get_mut(&uid) {
            let elapsed = now.saturating_duration_since(usage.refilled).as_secs_f64();
            usage.tokens = (usage.tokens + elapsed * rate).min(burst);
            usage.refilled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_user_gone_wild_leaves_the_others_alone() {
        let config = LimitsConfig {
            connections_per_uid: 2,
            requests_per_second: 10,
            request_burst: 3,
            ..LimitsConfig::default()
        };
        let mut limits = Limits::new(config);
        let start = Instant::now();
        assert!(limits.connect(1, start) && limits.connect(1, start) && limits.connect(2, start));
        assert!(!limits.connect(1, start), "a third connection");
        let granted = (0..10).filter(|_| limits.request(1, start)).count();
        assert_eq!(granted, 3);
        assert!(limits.request(2, start), "the other user is not touched");
        assert_eq!((0..10).filter(|_| limits.request(1, start + Duration::from_millis(200))).count(), 2);
        limits.disconnect(1, start);
        assert!(limits.connect(1, start));
        for uid in [1, 1, 2] {
            limits.disconnect(uid, start + Duration::from_secs(60));
        }
        assert!(limits.users.is_empty(), "users who left are forgotten");
    }
}
