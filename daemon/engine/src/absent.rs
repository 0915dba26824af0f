//! Types that replace the client of NATS in builds without the feature `nats`. None of these types can be started.

use crate::EngineError;
use crate::options::{ReceiverOptions, SenderOptions};
use crate::status::{ReceiveCounters, SendCounters};
use shmcast::{PublisherBuilder, SubscriberBuilder};
use shmcast_bridge::RunningEnd;
use shmcast_bridge::proto::counters::Histogram;
use shmcast_bridge::spec::BridgeSpec;
use std::convert::Infallible;
use std::ops::{Deref, DerefMut};

/// Defines a sender or a receiver that cannot exist. Its `start` fails, so its other methods are never called.
macro_rules! never {
    ($end:ident, $counters:ident, $builder:ident, $options:ident) => {
        /// One end of a bridge through an engine.
        #[derive(Debug)]
        pub struct $end(Infallible);

        impl Deref for $end {
            type Target = RunningEnd;

            fn deref(&self) -> &RunningEnd {
                match self.0 {}
            }
        }

        impl DerefMut for $end {
            fn deref_mut(&mut self) -> &mut RunningEnd {
                match self.0 {}
            }
        }

        impl $end {
            /// Refuses to start.
            ///
            /// # Errors
            /// [`EngineError::NotBuilt`].
            pub fn start(
                _spec: &BridgeSpec,
                _channel: $builder,
                _options: $options,
            ) -> Result<Self, EngineError> {
                Err(EngineError::NotBuilt)
            }

            /// Cannot be called.
            pub fn counters(&self) -> $counters {
                match self.0 {}
            }

            /// Cannot be called.
            pub fn trouble(&self) -> Option<String> {
                match self.0 {}
            }
        }
    };
}

never!(Sender, SendCounters, SubscriberBuilder, SenderOptions);
never!(Receiver, ReceiveCounters, PublisherBuilder, ReceiverOptions);

impl Sender {
    /// Cannot be called.
    pub fn leave(&self) {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn take_over(&self) {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn acks(&self) -> Histogram {
        match self.0 {}
    }
}

impl Receiver {
    /// Cannot be called.
    pub fn trouble_of_servers(&self) -> Option<String> {
        match self.0 {}
    }
}

pub mod check {
    //! Reports that a bridge through an engine cannot work in this build.

    use super::{BridgeSpec, EngineError};

    pub use crate::results::{Finding, Verdict};

    /// Reports that this build does not support the bridge.
    pub fn check(_spec: &BridgeSpec) -> Vec<Finding> {
        let says = EngineError::NotBuilt.to_string();
        vec![Finding::new("engine", Verdict::Fails, says)]
    }
}

pub mod stream {
    //! Commands about a stream.

    use super::{BridgeSpec, EngineError};

    pub use crate::results::{Range, StreamInfo, Verified};

    /// Refuses.
    ///
    /// # Errors
    /// [`EngineError::NotBuilt`].
    pub fn create(_spec: &BridgeSpec, _mirror_of: Option<&str>) -> Result<StreamInfo, EngineError> {
        Err(EngineError::NotBuilt)
    }

    /// Refuses.
    ///
    /// # Errors
    /// [`EngineError::NotBuilt`].
    pub fn info(_spec: &BridgeSpec) -> Result<StreamInfo, EngineError> {
        Err(EngineError::NotBuilt)
    }

    /// Refuses.
    ///
    /// # Errors
    /// [`EngineError::NotBuilt`].
    pub fn remove(_spec: &BridgeSpec) -> Result<(), EngineError> {
        Err(EngineError::NotBuilt)
    }

    /// Refuses.
    ///
    /// # Errors
    /// [`EngineError::NotBuilt`].
    pub fn verify(_spec: &BridgeSpec, _progress: impl FnMut(u64, u64)) -> Result<Verified, EngineError> {
        Err(EngineError::NotBuilt)
    }
}
