//! The guard between a Python object and its publisher or subscriber. It allows only one thread at a time, and refuses calls after a close
//! and in a forked child.

use crate::error::misuse;
use pyo3::prelude::*;
use shmcast::sys::fork;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Holds a publisher or subscriber until it is closed.
pub(crate) struct Handle<T> {
    /// The value is in a box, because Python aligns its objects only to 16 bytes. A subscriber needs the alignment of a cache line.
    inner: Mutex<Option<Box<T>>>,
    /// The count of forks of the process that made this handle.
    born: u32,
    what: &'static str,
}

/// A handle in use by the calling thread.
pub(crate) struct InUse<'a, T>(MutexGuard<'a, Option<Box<T>>>);

impl<T> Handle<T> {
    pub(crate) fn new(what: &'static str, inner: T) -> Self {
        Self { inner: Mutex::new(Some(Box::new(inner))), born: fork::watch(), what }
    }

    /// Locks the publisher or subscriber for this thread. Never waits for another thread.
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

    /// Asks the publisher or subscriber.
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

    /// Takes out the value to be closed; `None` if it is closed already.
    pub(crate) fn close(&self) -> PyResult<Option<T>> {
        if self.is_of_parent() {
            // The parent's value stays as it is, and a `with` in the child ends like any other.
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
