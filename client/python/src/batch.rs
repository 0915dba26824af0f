//! Batches: many messages in one Python object. A program reads their memory through Python's buffer protocol.

use crate::event::{self, Message};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use shmcast::{Clock, Records};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of bytes before each payload.
const HEADER: usize = 16;
/// The number of dropped batches whose memory is kept for later batches.
const KEPT: usize = 4;

/// A subscriber's pool of memory. A new batch reuses the memory of a dropped batch.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Records>>);

impl Pool {
    pub(crate) fn take(&self, room: usize) -> Records {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| Records::with_room(room))
    }

    pub(crate) fn put_back(&self, records: Records) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(records);
        }
    }
}

/// Messages that were received in one call, and the events after them.
///
/// `len` counts the messages, and a loop over the batch returns each as a `Message`. The batch is true if it has a message or an event.
///
/// The columns `sequence`, `tag`, `key`, `time`, `length`, `age_ns` and `conflated` are numpy arrays with one item per message. The first
/// access to a column imports numpy.
///
/// `memoryview(batch)` gives read-only access to the records, which have the same form as in the ring: 16 bytes of header, then the
/// payload, padded to a multiple of 64 bytes. The memory is reused when the batch and all its views are gone.
#[pyclass(frozen, module = "shmcast")]
pub(crate) struct Batch {
    /// `None` only while the batch is dropped.
    records: Option<Records>,
    pool: Arc<Pool>,
    clock: Clock,
    /// The time on the channel's clock when the batch was received.
    received: u64,
    /// The size of every payload in bytes; `None` if the sizes differ.
    size: Option<usize>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(records) = self.records.take() {
            self.pool.put_back(records);
        }
    }
}

/// Returns the size in bytes of a record with a payload of this size.
fn stride(size: usize) -> usize {
    (HEADER + size).next_multiple_of(64)
}

/// Reads the payload's length from the commit word, which is the first word of `record`.
fn length(record: &[u8]) -> usize {
    let word = record.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    (word & ((1 << 25) - 1)) as usize
}

/// Returns the size that all payloads have, or `None` if the sizes differ. Reads one word of each message.
fn common_size(records: &Records) -> Option<usize> {
    let bytes = records.as_bytes();
    let size = length(bytes);
    let is_common = !bytes.is_empty()
        && bytes.len() == records.len() * stride(size)
        && bytes.chunks_exact(stride(size)).all(|record| length(record) == size);
    is_common.then_some(size)
}

impl Batch {
    pub(crate) fn new(records: Records, pool: &Arc<Pool>, clock: Clock) -> Self {
        let size = common_size(&records);
        Self { records: Some(records), pool: pool.clone(), clock, received: clock.now(), size }
    }

    pub(crate) fn records(&self) -> &Records {
        self.records.as_ref().expect("taken only by the drop")
    }

    /// Calls a function of `shmcast/_columns.py`, which uses numpy.
    fn column<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._columns")?.call_method1(name, (slf,))
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.records().len()
    }

    /// Whether the batch has a message or an event.
    fn __bool__(&self) -> bool {
        !self.records().is_empty() || self.records().event().is_some()
    }

    fn __repr__(&self) -> String {
        let records = self.records();
        let event = records.event().map_or(String::new(), |event| format!(", then {event:?}"));
        format!("<shmcast.Batch of {} messages from {} on{event}>", records.len(), records.first_sequence())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let messages = self.records().iter().map(|message| Message::of(py, &message));
        let objects = messages.map(|message| Py::new(py, message)).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, objects)?.try_iter()?.into_any())
    }

    /// Gives read-only access to the records.
    ///
    /// # Safety
    /// Only the interpreter may call this. `view` must be null, or point to a `Py_buffer` that this function can fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no place for the view"));
        }
        let bytes = slf.get().records().as_bytes();
        // SAFETY: the view is not null, and the interpreter lets this function write to it. The bytes belong to the batch, which does not
        // change them until it is dropped. The view holds a reference to the batch, and is read-only.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast::<c_void>().cast_mut(),
                bytes.len() as isize,
                1,
                flags,
            )
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// The sequence of the first message; 0 if the batch has no message.
    #[getter]
    fn first_sequence(&self) -> u64 {
        self.records().first_sequence()
    }

    /// The size of every payload in bytes; `None` if the sizes differ, or if there is no message.
    #[getter]
    fn payload_size(&self) -> Option<usize> {
        self.size
    }

    /// The distance in bytes from one record to the next; `None` if the sizes of payloads differ.
    #[getter]
    fn stride(&self) -> Option<usize> {
        self.size.map(stride)
    }

    /// The events after the messages, in their order.
    #[getter]
    fn events(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        self.records().event().iter().map(|event| event::object(py, event)).collect()
    }

    /// The sequences of the messages.
    #[getter]
    fn sequence<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "sequence")
    }

    /// The tags of the messages. If all payloads have the same size, this is a view and not a copy.
    #[getter]
    fn tag<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "tag")
    }

    /// The key marks of the messages.
    #[getter]
    fn key<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "key")
    }

    /// The times of publication, in ticks of the channel's clock; 0 for a message without a time.
    #[getter]
    fn time<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "time")
    }

    /// The sizes of the payloads in bytes.
    #[getter]
    fn length<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "length")
    }

    /// The age of each message in ns when the batch was received; -1 for a message without a time.
    #[getter]
    fn age_ns<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "age_ns")
    }

    /// The number of older messages of the same key that were left out, for messages of the channel's board; -1 for all other messages. A
    /// message of the board is alone in its batch.
    #[getter]
    fn conflated<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::column(slf, "conflated")
    }

    /// The payloads as items of a numpy type: a read-only view with a stride, without a copy.
    ///
    /// Raises `ValueError` if a payload does not have the size of the type.
    fn view<'py>(slf: &Bound<'py, Self>, dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._columns")?.call_method1("view", (slf, dtype))
    }

    /// The payloads of one numpy type, as a new array.
    ///
    /// - With `tag`, the array has the payloads of all messages with this tag. Raises `ValueError` if one of them does not have the size of
    ///   the type.
    /// - Without `tag`, the array has all payloads of the type's size.
    #[pyo3(signature = (dtype, tag = None))]
    fn gather<'py>(
        slf: &Bound<'py, Self>,
        dtype: &Bound<'py, PyAny>,
        tag: Option<u16>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("shmcast._columns")?.call_method1("gather", (slf, dtype, tag))
    }

    /// The value of the column `conflated`, which is the same for all messages.
    fn _left_out(&self) -> i64 {
        let left_out = self.records().iter().next().and_then(|message| message.conflated);
        left_out.map_or(-1, |left_out| left_out as i64)
    }

    /// The offset of each record, as words of 64 bits.
    fn _offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let records = self.records();
        PyBytes::new_with(py, records.len() * 8, |out| {
            let mut at = 0;
            for (message, place) in records.iter().zip(out.as_chunks_mut::<8>().0) {
                *place = (at as u64).to_le_bytes();
                at += stride(message.payload.len());
            }
            Ok(())
        })
    }

    /// The age of each message in ns when the batch was received, as signed words of 64 bits; -1 for a message without a time.
    fn _ages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let records = self.records();
        PyBytes::new_with(py, records.len() * 8, |out| {
            for (message, place) in records.iter().zip(out.as_chunks_mut::<8>().0) {
                let age = match message.time {
                    0 => -1,
                    time => self.clock.latency_ns(time, self.received) as i64,
                };
                *place = age.to_le_bytes();
            }
            Ok(())
        })
    }

    /// The wanted payloads, joined without gaps. With `tag`, these are the payloads of all messages with this tag, and each must have the
    /// given size. Without `tag`, these are all payloads of the given size.
    fn _gather<'py>(&self, py: Python<'py>, size: usize, tag: Option<u16>) -> PyResult<Bound<'py, PyBytes>> {
        let is_wanted = |message: &shmcast::Message<'_>| match tag {
            Some(tag) => message.tag == tag,
            None => message.payload.len() == size,
        };
        let wanted = || self.records().iter().filter(is_wanted);
        if let Some(other) = wanted().find(|message| message.payload.len() != size) {
            let (sequence, tag, found) = (other.sequence, other.tag, other.payload.len());
            return Err(PyValueError::new_err(format!(
                "message {sequence} with tag {tag} has {found} B, and the type {size}: gather with the type of this tag"
            )));
        }
        PyBytes::new_with(py, wanted().count() * size, |out| {
            for (message, place) in wanted().zip(out.chunks_exact_mut(size.max(1))) {
                place.copy_from_slice(message.payload);
            }
            Ok(())
        })
    }
}
