//! Limits on the connections and requests of each user, so that a faulty client harms only its own user.
//!
//! Limits apply to users and not to processes, because a user can have any number of processes. A connection is counted as soon as it is
//! accepted.

use crate::config::LimitsConfig;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// The usage of each user. A user without open connections and with full buckets is forgotten.
#[derive(Debug)]
pub struct Limits {
    config: LimitsConfig,
    users: HashMap<u32, Usage>,
}

#[derive(Debug)]
struct Usage {
    connections: u32,
    arrivals: Bucket,
    requests: Bucket,
    turns: Turns,
}

/// The semaphores of a user. Each has one permit.
#[derive(Debug, Clone)]
pub struct Turns {
    /// Only the program that has this permit is served.
    pub served: Arc<Semaphore>,
    /// Only the program that has this permit waits for the daemon to make memory. So a user's requests for memory delay each other, and
    /// another user's request waits for at most one of them.
    pub memory: Arc<Semaphore>,
}

/// The reason why a connection is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowded {
    /// The user has too many connections open.
    Open,
    /// The user connects too often.
    Often,
}

/// A token bucket. It holds tokens up to a limit (the burst), and is refilled at a rate.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    /// Makes a full bucket.
    pub fn full(burst: f64, now: Instant) -> Self {
        Self { tokens: burst, filled: now }
    }

    /// Takes a token. Returns false if there is none. `rate` tokens are added each second, up to `burst`.
    pub fn take(&mut self, rate: f64, burst: f64, now: Instant) -> bool {
        self.fill(rate, burst, now);
        let granted = self.tokens >= 1.0;
        if granted {
            self.tokens -= 1.0;
        }
        granted
    }

    /// Whether the bucket is full.
    pub fn is_full(&mut self, rate: f64, burst: f64, now: Instant) -> bool {
        self.fill(rate, burst, now);
        self.tokens >= burst
    }

    fn fill(&mut self, rate: f64, burst: f64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate).min(burst);
        self.filled = now;
    }
}

impl Limits {
    /// Makes limits that know no user yet.
    pub fn new(config: LimitsConfig) -> Self {
        Self { config, users: HashMap::new() }
    }

    /// Takes over changed limits. Connections that are open stay.
    pub fn reload(&mut self, config: LimitsConfig) {
        self.config = config;
    }

    /// Counts a connection, and returns the user's semaphores.
    ///
    /// # Errors
    /// [`Crowded`]. The connection then does not count as open.
    pub fn connect(&mut self, uid: u32, now: Instant) -> Result<Turns, Crowded> {
        let (rate, burst, arrivals) = (self.rate(), self.request_burst(), self.arrival_burst());
        let usage = self.users.entry(uid).or_insert_with(|| Usage {
            connections: 0,
            arrivals: Bucket::full(arrivals, now),
            requests: Bucket::full(burst, now),
            turns: Turns { served: Arc::new(Semaphore::new(1)), memory: Arc::new(Semaphore::new(1)) },
        });
        if usage.connections >= self.config.connections_per_uid {
            return Err(Crowded::Open);
        }
        if !usage.arrivals.take(rate, arrivals, now) {
            return Err(Crowded::Often);
        }
        usage.connections += 1;
        Ok(usage.turns.clone())
    }

    /// Forgets a connection that was counted.
    pub fn disconnect(&mut self, uid: u32) {
        if let Some(usage) = self.users.get_mut(&uid) {
            usage.connections = usage.connections.saturating_sub(1);
        }
    }

    /// Counts a request. Returns false if the user asks too often.
    pub fn request(&mut self, uid: u32, now: Instant) -> bool {
        let (rate, burst) = (self.rate(), self.request_burst());
        self.users.get_mut(&uid).is_some_and(|usage| usage.requests.take(rate, burst, now))
    }

    /// Forgets users without open connections and with full buckets. Call this regularly.
    pub fn tidy(&mut self, now: Instant) {
        let (rate, burst, arrivals) = (self.rate(), self.request_burst(), self.arrival_burst());
        self.users.retain(|_, usage| {
            let is_owed =
                !usage.requests.is_full(rate, burst, now) || !usage.arrivals.is_full(rate, arrivals, now);
            usage.connections > 0 || is_owed
        });
    }

    /// The rate of requests per second. Connections have the same rate.
    fn rate(&self) -> f64 {
        f64::from(self.config.requests_per_second)
    }

    fn request_burst(&self) -> f64 {
        f64::from(self.config.request_burst)
    }

    /// The burst of connections. It is at least `connections_per_uid`, so that all programs of a user can attach again at the same time.
    fn arrival_burst(&self) -> f64 {
        f64::from(self.config.request_burst.max(self.config.connections_per_uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn limits() -> Limits {
        Limits::new(LimitsConfig {
            connections_per_uid: 2,
            requests_per_second: 10,
            request_burst: 3,
            ..LimitsConfig::default()
        })
    }

    #[test]
    fn one_user_gone_wild_leaves_the_others_alone() {
        let mut limits = limits();
        let start = Instant::now();
        assert!(limits.connect(1, start).is_ok() && limits.connect(1, start).is_ok());
        assert!(limits.connect(2, start).is_ok());
        assert_eq!(limits.connect(1, start).unwrap_err(), Crowded::Open, "a third connection");
        let granted = (0..10).filter(|_| limits.request(1, start)).count();
        assert_eq!(granted, 3);
        assert!(limits.request(2, start), "the other user is not touched");
        assert_eq!((0..10).filter(|_| limits.request(1, start + Duration::from_millis(200))).count(), 2);
        limits.disconnect(1);
        assert!(limits.connect(1, start).is_ok());
        limits.tidy(start);
        assert_eq!(limits.users.len(), 2, "who is there is not forgotten");
        for uid in [1, 1, 2] {
            limits.disconnect(uid);
        }
        limits.tidy(start);
        assert!(limits.users.contains_key(&1), "coming and going fills no bucket");
        limits.tidy(start + Duration::from_secs(60));
        assert!(limits.users.is_empty(), "users who left are forgotten");
    }

    #[test]
    fn coming_and_going_costs_as_much_as_asking() {
        let mut limits = limits();
        let start = Instant::now();
        let mut come_and_go = |times: usize, now| {
            let let_in = (0..times).filter(|_| {
                let let_in = limits.connect(1, now);
                assert!(let_in.is_ok() || matches!(let_in, Err(Crowded::Often)));
                let_in.is_ok().then(|| limits.disconnect(1)).is_some()
            });
            let_in.count()
        };
        assert_eq!(come_and_go(10, start), 3);
        assert_eq!(come_and_go(10, start + Duration::from_millis(500)), 3);
        assert_eq!(come_and_go(10, start + Duration::from_millis(600)), 1);
    }
}
