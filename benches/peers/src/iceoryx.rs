//! `iceoryx2`: the publisher loans samples, and each subscriber has a queue of offsets. A full queue makes the
//! publisher wait, so nothing is lost.

use anyhow::{Context, Result};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use shmcast_bench::rig::publish::Sender;
use shmcast_bench::rig::receive::{Receiver, Sink};
use shmcast_bench::rig::spec::Spec;

/// The name of the transport.
pub(crate) const NAME: &str = "iceoryx2";
/// The release in Cargo.toml.
pub(crate) const VERSION: &str = "0.10.0";

/// The largest number of samples in all subscribers' queues together. Each sample is preallocated.
const SAMPLES: u64 = 16_384;

fn queue(spec: &Spec) -> usize {
    spec.ring_messages().min(SAMPLES / spec.receivers as u64).max(16) as usize
}

type Service = PortFactory<ipc::Service, [u8], ()>;

fn service(spec: &Spec) -> Result<(Node<ipc::Service>, Service)> {
    set_log_level(LogLevel::Error);
    // The name is the path of the round's directory, so that each round has a service of its own.
    let name = ServiceName::new(&spec.dir.display().to_string()).context("name the service")?;
    let node = NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create::<ipc::Service>();
    let node = node.context("make a node")?;
    let service = node
        .service_builder(&name)
        .publish_subscribe::<[u8]>()
        .max_publishers(1)
        .max_subscribers(spec.receivers)
        .max_nodes(spec.receivers + 1)
        .subscriber_max_buffer_size(queue(spec))
        .subscriber_max_borrowed_samples(1)
        .history_size(0)
        .enable_safe_overflow(false)
        .open_or_create()
        .context("open the service")?;
    Ok((node, service))
}

/// The publisher.
pub(crate) struct Sending {
    publisher: Publisher<ipc::Service, [u8], ()>,
    queue: usize,
    _service: Service,
    _node: Node<ipc::Service>,
}

impl Sending {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let (node, service) = service(spec)?;
        let publisher = service
            .publisher_builder()
            .initial_max_slice_len(spec.size)
            .max_loaned_samples(1)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .context("make the publisher")?;
        Ok(Self { publisher, queue: queue(spec), _service: service, _node: node })
    }
}

impl Sender for Sending {
    fn begin(&mut self) -> Result<()> {
        self.publisher.update_connections().context("connect to the subscribers")
    }

    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        let sample = self.publisher.loan_slice_uninit(payload.len()).context("loan a sample")?;
        sample.write_from_slice(payload).send().context("send a sample")?;
        Ok(0)
    }

    fn needs_gate(&self) -> bool {
        false
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("iceoryx2 {VERSION}, queues of {}, retries until delivered", self.queue)]
    }
}

/// A subscriber.
pub(crate) struct Receiving {
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    buffer: Vec<u8>,
    /// Whether the receiver copies each message before it reads the clock. If so, the latency includes the last byte of the message.
    copies: bool,
    _service: Service,
    _node: Node<ipc::Service>,
}

impl Receiving {
    pub(crate) fn open(spec: &Spec) -> Result<Self> {
        let (node, service) = service(spec)?;
        let builder = service.subscriber_builder().buffer_size(queue(spec));
        let subscriber = builder.create().context("make the subscriber")?;
        let copies = spec.interval_ns > 0;
        Ok(Self { subscriber, buffer: vec![0; spec.size], copies, _service: service, _node: node })
    }
}

impl Receiver for Receiving {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let Some(sample) = self.subscriber.receive().context("receive")? else { return Ok(false) };
        let payload = sample.payload();
        match self.buffer.get_mut(..payload.len()) {
            Some(buffer) if self.copies => {
                buffer.copy_from_slice(payload);
                sink.message(buffer);
            }
            _ => sink.message(payload),
        }
        Ok(true)
    }

    fn needs_gate(&self) -> bool {
        false
    }
}
