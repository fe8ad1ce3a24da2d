"""Where bytes lie: addresses of buffers, tensors and pointers, and keys of blocks."""

from __future__ import annotations

import ctypes
import hashlib
import re
from typing import Any, Optional, Tuple

from .binding import KEY_MAX_BYTES


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_Buffer)]
_WRITABLE = 1


def of_buffer(buffer: Any, writable: bool) -> Tuple[int, int]:
    """Address and length of what has the buffer protocol and is C-contiguous; raises BufferError or TypeError otherwise. Whoever
    uses the address keeps the buffer."""
    view = _Buffer()
    _get_buffer(buffer, view, _WRITABLE if writable else 0)
    try:
        return view.buf or 0, view.len
    finally:
        _release_buffer(view)


def of_target(target: Any, size: Any = None, writable: bool = True) -> Optional[Tuple[int, int]]:
    """Address and length of a tensor (contiguous, in host memory), a buffer, or an address with its size. None: none of these."""
    if target is None:
        return None
    if hasattr(target, "data_ptr"):
        on_host = getattr(getattr(target, "device", None), "type", "cpu") == "cpu"
        if not on_host or not target.is_contiguous():
            return None
        return int(target.data_ptr()), int(target.numel()) * int(target.element_size())
    if isinstance(target, int):
        return (target, int(size)) if target > 0 and size is not None and int(size) > 0 else None
    try:
        return of_buffer(target, writable)
    except (BufferError, TypeError):
        return None


_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


def key_of_name(name: str, part: int = 0) -> bytes:
    """An engine's name of a page, and which part of it, as a key: SHA-256 digests in hex as their 32 bytes, other names as they are
    while they are short, else by their own digest. No two (name, part) share a key."""
    tail = part.to_bytes(2, "big")
    if _HEX_DIGEST.fullmatch(name):
        return b"h" + bytes.fromhex(name) + tail
    text = name.encode("utf-8", "surrogatepass")
    if len(text) <= KEY_MAX_BYTES - 3:
        return b"t" + text + tail
    return b"d" + hashlib.sha256(text).digest() + tail


def key_of_bytes(name: bytes) -> bytes:
    """An engine's own bytes, unchanged while they are shorter than a key may be; else their SHA-512, which is as long as a key."""
    return bytes(name) if 0 < len(name) < KEY_MAX_BYTES else hashlib.sha512(name).digest()
