//! The guard between a Python object and its publisher or subscriber. Only one thread can use the publisher or subscriber at a time. The
//! guard refuses calls after a close, and in a forked child.

use crate::error::misuse;
use pyo3::prelude::*;
use shmcast::sys::fork;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Owns a publisher or subscriber until it is closed.
pub(crate) struct Handle<T> {
    /// The value is in a box, because Python aligns its objects only to 16 bytes. A subscriber needs the alignment of a cache line.
    inner: Mutex<Option<Box<T>>>,
    /// The value of `fork::count` in the process that made this handle. A forked child has another value.
    born: u32,
    what: &'static str,
}

/// A handle that the calling thread uses.
pub(crate) struct InUse<'a, T>(MutexGuard<'a, Option<Box<T>>>);

impl<T> Handle<T> {
    pub(crate) fn new(what: &'static str, inner: T) -> Self {
        Self { inner: Mutex::new(Some(Box::new(inner))), born: fork::watch(), what }
    }

    /// Locks the publisher or subscriber for this thread. Never waits: if another thread has the lock, this is an error.
    #[inline]
    pub(crate) fn enter(&self) -> PyResult<InUse<'_, T>> {
        if self.born == fork::count()
            && let Ok(inner) = self.inner.try_lock()
            && inner.is_some()
        {
            return Ok(InUse(inner));
        }
        Err(self.refusal())
    }

    /// Calls `what` with the publisher or subscriber.
    pub(crate) fn ask<R>(&self, what: impl FnOnce(&T) -> R) -> PyResult<R> {
        Ok(what(&*self.enter()?))
    }

    #[cold]
    fn refusal(&self) -> PyErr {
        let what = self.what;
        if self.is_of_parent() {
            let todo =
                format!("this {what} belongs to the process that was forked: open one of its own here");
            return misuse("forked", &todo);
        }
        let todo = match self.inner.try_lock() {
            Err(TryLockError::WouldBlock) => {
                format!("another thread uses this {what} right now: give each thread its own, or take turns")
            }
            Err(TryLockError::Poisoned(_)) => format!("this {what} has failed before: open another"),
            Ok(_) => format!("this {what} is closed: open another"),
        };
        misuse("misuse", &todo)
    }

    fn is_of_parent(&self) -> bool {
        self.born != fork::count()
    }

    /// Takes the value out of the handle, so that the caller can close it. Returns `None` if it is already closed.
    pub(crate) fn close(&self) -> PyResult<Option<T>> {
        if self.is_of_parent() {
            // A forked child does not close the parent's value, and the end of a `with` block in the child is no error.
            return Ok(None);
        }
        match self.inner.try_lock() {
            Ok(mut inner) => Ok(inner.take().map(|inner| *inner)),
            Err(_) => Err(self.refusal()),
        }
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().expect("looked at when it was entered")
    }
}

impl<T> DerefMut for InUse<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("looked at when it was entered")
    }
}
