"""Columns of a batch as arrays. The first call imports numpy, so programs that use no columns do not need numpy.

A record has a commit word, a meta word and the payload, and is padded to a multiple of 64 bytes. If all payloads of a batch have the same
size, a column is a view with a stride. Otherwise it is a copy.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from ._shmcast import Batch

_HEADER = 16
_LENGTH = (1 << 25) - 1
_KEY = 1 << 27
_TIME = (1 << 48) - 1


def _field(batch: "Batch", dtype: str, at: int) -> "npt.NDArray[Any]":
    """Returns the field of each record at the offset `at`."""
    count, stride = len(batch), batch.stride
    if count == 0:
        return np.empty(0, dtype)
    if stride is not None:
        return np.ndarray((count,), dtype, memoryview(batch), at, (stride,))
    size = np.dtype(dtype).itemsize
    begins = np.frombuffer(batch._offsets(), "<u8")
    everything: "npt.NDArray[Any]" = np.frombuffer(memoryview(batch), dtype)
    gathered: "npt.NDArray[Any]" = everything[begins // size + at // size]
    return gathered


def sequence(batch: "Batch") -> "npt.NDArray[np.uint64]":
    first = batch.first_sequence
    ahead = _field(batch, "<u4", 4) - np.uint32(first & 0xFFFF_FFFF)
    return ahead.astype(np.uint64) + np.uint64(first)


def tag(batch: "Batch") -> "npt.NDArray[np.uint16]":
    return _field(batch, "<u2", 14)


def key(batch: "Batch") -> "npt.NDArray[np.bool_]":
    marks: "npt.NDArray[np.bool_]" = (_field(batch, "<u4", 0) & np.uint32(_KEY)) != 0
    return marks


def time(batch: "Batch") -> "npt.NDArray[np.uint64]":
    return _field(batch, "<u8", 8) & np.uint64(_TIME)


def length(batch: "Batch") -> "npt.NDArray[np.uint32]":
    return _field(batch, "<u4", 0) & np.uint32(_LENGTH)


def age_ns(batch: "Batch") -> "npt.NDArray[np.int64]":
    if len(batch) == 0:
        return np.empty(0, np.int64)
    return np.frombuffer(batch._ages(), "<i8")


def conflated(batch: "Batch") -> "npt.NDArray[np.int64]":
    return np.full(len(batch), batch._left_out(), np.int64)


def view(batch: "Batch", dtype: "npt.DTypeLike") -> "npt.NDArray[Any]":
    kind = np.dtype(dtype)
    if len(batch) == 0:
        return np.empty(0, kind)
    size, stride = batch.payload_size, batch.stride
    if size is None or stride is None:
        raise ValueError("the messages of this batch have several sizes: gather those of one type")
    if size != kind.itemsize:
        raise ValueError(f"the messages have {size} B, and the type {kind.itemsize}: view them as what was published")
    return np.ndarray((len(batch),), kind, memoryview(batch), _HEADER, (stride,))


def gather(batch: "Batch", dtype: "npt.DTypeLike", tag: int | None) -> "npt.NDArray[Any]":
    kind = np.dtype(dtype)
    if kind.itemsize == 0:
        raise ValueError("a type of 0 B holds no payload")
    payloads = batch._gather(kind.itemsize, tag)
    return np.frombuffer(payloads, kind) if payloads else np.empty(0, kind)
