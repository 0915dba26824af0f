//! Tables of counters. A table defines each counter once: its name, what it counts, and its name in metrics. The struct, its JSON, the
//! board that other threads read, and the metrics all come from the table.

/// A table of counters, made by [`counters!`](crate::counters).
pub trait Table: Sized + 'static {
    /// The counters, in their order.
    const FIELDS: &'static [Field<Self>];
}

/// One counter of a table.
#[derive(Debug)]
pub struct Field<T: 'static> {
    /// The meaning of the counter: the lines of the counter's comment. Each line begins with the space that follows the `///`.
    pub help: &'static str,
    /// The form in which metrics show the counter; `None` if they do not show it.
    pub metric: Option<Metric>,
    /// Reads the counter.
    pub read: fn(&T) -> u64,
}

/// The form in which metrics show a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// The name of the metric's family, without the prefix that the families of all bridges have.
    pub name: &'static str,
    /// The label that distinguishes this metric from others of its family, and the value of this label. `None` if the family has only this
    /// metric.
    pub label: Option<(&'static str, &'static str)>,
}

/// Defines a struct of counters, each of 64 bits, and its [`Table`].
///
/// ```
/// shmcast_bridge::counters! {
///     /// What a line does.
///     pub struct LineCounters {
///         /// Datagrams that came.
///         datagrams: counter "line_datagrams_total",
///         /// Datagrams that were too short.
///         short: counter "line_malformed_total" { reason = "too-short" },
///         /// Of no interest to metrics.
///         other,
///     }
/// }
/// use shmcast_bridge::table::Table;
/// assert_eq!(LineCounters::FIELDS[0].metric.unwrap().name, "line_datagrams_total");
/// assert_eq!((LineCounters::FIELDS[1].read)(&LineCounters { short: 7, ..LineCounters::default() }), 7);
/// assert_eq!(LineCounters::FIELDS[2].metric, None);
/// ```
#[macro_export]
macro_rules! counters {
    (@) => { None };
    (@ $kind:ident $name:literal) => {
        Some($crate::table::Metric { kind: stringify!($kind), name: $name, label: None })
    };
    (@ $kind:ident $name:literal $key:ident $value:literal) => {
        Some($crate::table::Metric { kind: stringify!($kind), name: $name, label: Some((stringify!($key), $value)) })
    };
    (
        $(#[doc = $about:literal])+
        pub struct $table:ident {
            $( $(#[doc = $help:literal])+ $field:ident $(: $kind:ident $name:literal $({ $key:ident = $value:literal })?)? ),+ $(,)?
        }
    ) => {
        $(#[doc = $about])+
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $table {
            $( $(#[doc = $help])+ pub $field: u64, )+
        }

        impl $crate::table::Table for $table {
            const FIELDS: &'static [$crate::table::Field<Self>] = &[
                $( $crate::table::Field {
                    help: concat!($($help),+),
                    metric: $crate::counters!(@ $($kind $name $($key $value)?)?),
                    read: |counters| counters.$field,
                }, )+
            ];
        }
    };
}
