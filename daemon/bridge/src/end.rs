//! The common part of the running senders and receivers of bridges. A bridge uses lines or an engine. A sender or a receiver is called an
//! end here.

use super::BridgeError;
use super::native::Keys;
use super::spec::BridgeSpec;
use super::status::Life;
use super::thread::spawn;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The threads of a running sender or receiver, with their status and their keys. The threads stop when this value is dropped.
#[derive(Debug)]
pub struct RunningEnd {
    life: Arc<Life>,
    pub(crate) keys: Arc<Keys>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningEnd {
    /// Makes a sender or receiver without threads.
    pub fn new(life: Arc<Life>, keys: Arc<Keys>) -> Self {
        Self { life, keys, threads: Vec::new() }
    }

    /// Starts one more thread for this end (sender or receiver), pins it, and runs `body` in it. Returns once the thread is pinned, or
    /// pinning has failed.
    ///
    /// # Errors
    /// [`BridgeError`]. After an error the thread does not run.
    pub fn spawn(
        &mut self,
        name: &str,
        cpu: Option<usize>,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), BridgeError> {
        self.threads.push(spawn(name, cpu, body)?);
        Ok(())
    }

    /// Tells this sender or receiver to stop soon.
    ///
    /// - A sender does not announce that it stops, so another bridge can continue the session.
    /// - A receiver returns its leases and leaves the local channel open, so that another bridge can continue it.
    pub fn stop(&self) {
        self.life.stop();
    }

    /// Whether all threads have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all threads have ended. Call [`stop`](Self::stop) first, or tell the sender to leave. If a thread has panicked, the
    /// status gets an error.
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.life.fail("its thread panicked: please report this".to_owned());
            }
        }
    }

    /// Returns the phase, the session, the refusals and the error.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Reads the keys file of the spec again. The threads use the new keys within 20 ms.
    ///
    /// # Errors
    /// [`BridgeError::Keys`]; the keys stay as they were.
    pub fn reload_keys(&self, spec: &BridgeSpec) -> Result<(), BridgeError> {
        self.keys.reload(spec)
    }
}

impl Drop for RunningEnd {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}
