//! Aeron IPC: a log of three parts (terms), which receivers read in place. A driver observes how far each subscriber has read, and stops a
//! publisher that is too far ahead. The driver is a thread of the publisher's process, so its CPU time counts as the publisher's.

use anyhow::{Context, Result, bail};
use rusteron_client::{
    AERON_IPC_STREAM, Aeron, AeronContext, AeronExclusivePublication, AeronImage, AeronOfferError,
    AeronSubscription, Handlers, IntoCString,
};
use rusteron_media_driver::bindings::aeron_threading_mode_t;
use rusteron_media_driver::testing::EmbeddedDriver;
use shmcast_bench::rig::publish::Sender;
use shmcast_bench::rig::receive::{Receiver, Sink};
use shmcast_bench::rig::spec::Spec;
use std::time::{Duration, Instant};

/// The name of the transport.
pub(crate) const NAME: &str = "aeron";
/// The release of Aeron's C source, and in parentheses the crate in Cargo.toml that contains this source.
pub(crate) const VERSION: &str = "1.54.0 (rusteron 0.2.16)";

const STREAM: i32 = 1001;
/// The largest frame in bytes. The default of 1408 B would split messages of 1400 B.
const MTU: usize = 8 << 10;
/// The longest sleep of a client's thread between two keepalives to the driver. The default of 60 keepalives a second would cost too much
/// with a hundred receivers on few CPUs.
const CLIENT_SLEEP: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);
/// The greatest number of messages that one poll takes.
const BATCH: usize = 256;

fn dir(spec: &Spec) -> String {
    spec.dir.join("aeron").display().to_string()
}

/// The smallest size of each of the three parts (terms) of the log, in bytes. The publisher can be half a term ahead of its subscribers,
/// and then waits for the driver. A driver without its own CPU runs only every few milliseconds. A smaller term would be full before the
/// driver runs again.
const TERM_BYTES: u64 = 16 << 20;

fn term_bytes(spec: &Spec) -> usize {
    spec.ring_bytes.max(TERM_BYTES) as usize
}

fn client(spec: &Spec) -> Result<Aeron> {
    let context = AeronContext::new()?;
    context.set_dir(&dir(spec).into_c_string())?;
    context.set_pre_touch_mapped_memory(true)?;
    context.set_idle_sleep_duration_ns(CLIENT_SLEEP.as_nanos() as u64)?;
    let aeron = Aeron::new(&context).context("attach to the driver")?;
    aeron.start()?;
    Ok(aeron)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            bail!("{what} took longer than {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The publisher and the driver. Rust drops the fields in their order, so the driver ends last.
pub(crate) struct Sending {
    publication: AeronExclusivePublication,
    _client: Aeron,
    _driver: EmbeddedDriver,
    term_bytes: usize,
}

impl Sending {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let term_bytes = term_bytes(spec);
        let driver = EmbeddedDriver::launch_with(|context| {
            context.set_dir(&dir(spec).into_c_string())?;
            context.set_threading_mode(aeron_threading_mode_t::AERON_THREADING_MODE_SHARED)?;
            context.set_term_buffer_sparse_file(false)?;
            context.set_ipc_term_buffer_length(term_bytes)?;
            context.set_ipc_mtu_length(MTU)?;
            Ok(())
        })
        .context("start the driver")?;
        let client = client(spec)?;
        let publication = client
            .async_add_exclusive_publication(AERON_IPC_STREAM, STREAM)?
            .poll_blocking(PATIENCE)
            .context("add the publication")?;
        Ok(Self { publication, _client: client, _driver: driver, term_bytes })
    }
}

impl Sender for Sending {
    fn begin(&mut self) -> Result<()> {
        wait_until("the first subscriber", || self.publication.is_connected())
    }

    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        let mut again = 0;
        loop {
            match self.publication.offer(payload) {
                Ok(_) => return Ok(again),
                Err(AeronOfferError::BackPressured | AeronOfferError::AdminAction) => {
                    again += 1;
                    std::thread::yield_now(); // the driver can make room, and may be waiting for this CPU
                }
                Err(e) => bail!("offer: {e:?}"),
            }
        }
    }

    fn needs_gate(&self) -> bool {
        false
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("Aeron {VERSION}, terms of {} B, embedded driver", self.term_bytes)]
    }
}

/// A subscriber.
pub(crate) struct Receiving {
    image: AeronImage,
    buffer: Vec<u8>,
    /// Whether the receiver copies each message before it reads the clock. If so, the latency includes the last byte of the message.
    copies: bool,
    _subscription: AeronSubscription,
    _client: Aeron,
}

impl Receiving {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let client = client(spec)?;
        let subscription = client
            .async_add_subscription(AERON_IPC_STREAM, STREAM, Handlers::NONE, Handlers::NONE)?
            .poll_blocking(PATIENCE)
            .context("add the subscription")?;
        wait_until("the publication's image", || subscription.is_connected())?;
        let image = subscription.image_at_index(0).context("the image went away")?;
        let copies = spec.interval_ns > 0;
        Ok(Self { image, buffer: vec![0; spec.size], copies, _subscription: subscription, _client: client })
    }
}

impl Receiver for Receiving {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let Self { image, buffer, copies, .. } = self;
        let take = |payload: &[u8], _| match buffer.get_mut(..payload.len()) {
            Some(buffer) if *copies => {
                buffer.copy_from_slice(payload);
                sink.message(buffer);
            }
            _ => sink.message(payload),
        };
        Ok(image.poll_fn(take, BATCH).context("poll")? > 0)
    }

    fn needs_gate(&self) -> bool {
        false
    }
}
