"""client/kvferry.h over ctypes: its structs, its enums, and the functions that the package calls. Nothing is decided here.

Names are those of the header without `kvf_`; what a field means, who owns it and which thread may call stands there. Calls
release the GIL.
"""

from __future__ import annotations

import ctypes
import enum
import os
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Optional

LIBRARY = "libkvferry.so.0"
ENVIRONMENT = "KVFERRY_LIBRARY"
"""A path to take instead of searching where the loader does."""

KEY_MAX_BYTES = 64
NAMESPACE_MAX_BYTES = 200
BLOCK_MAX_BYTES = 128 << 20


class Code(enum.IntEnum):
    OK = 0
    INVALID = 1
    TOO_LARGE = 2
    NOT_FOUND = 3
    EXISTS = 4
    PENDING = 5
    STALE = 6
    BUSY = 7
    DRAINING = 8
    DENIED = 9
    DEADLINE = 10
    CANCELLED = 11
    UNAVAILABLE = 12
    PROTOCOL = 13
    CORRUPT = 14
    IO = 15
    NO_SPACE = 16
    NO_MEMORY = 17
    UNSUPPORTED = 18


class State(enum.IntEnum):
    DOWN = 0
    UP = 1
    DRAINING = 2


class Kind(enum.IntEnum):
    PUT = 1
    COMMIT = 2
    GET = 3
    LOOKUP = 4
    FORGET = 5


class Dtype(enum.IntEnum):
    F32 = 1
    F16 = 2
    BF16 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5
    I8 = 6
    U8 = 7


VERIFY = 1
STOP_AT_FIRST_MISS = 2


class Status(Structure):
    _fields_ = [("code", c_uint16), ("module", c_uint16), ("detail", c_int32)]


class Why(Structure):
    _fields_ = [("text", c_char * 320)]


class Key(Structure):
    _fields_ = [("length", c_uint8), ("bytes", c_uint8 * KEY_MAX_BYTES)]


class Generation(Structure):
    _fields_ = [("epoch", c_uint64), ("counter", c_uint64)]


class Geometry(Structure):
    _fields_ = [
        ("model", c_char_p),
        ("layout", c_char_p),
        ("salt", c_char_p),
        ("dtype", c_uint),
        ("layers", c_uint32),
        ("planes", c_uint32),
        ("page_tokens", c_uint32),
        ("token_elements", c_uint32),
        ("tp_rank", c_uint32),
        ("tp_size", c_uint32),
        ("pp_rank", c_uint32),
        ("pp_size", c_uint32),
        ("replicated", ctypes.c_bool),
        ("page_stride", c_uint64),
        ("layer_stride", c_uint64),
        ("plane_stride", c_uint64),
    ]


class Stats(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "put_blocks", "put_bytes", "put_exists", "put_failed",
        "get_dram", "get_ssd", "get_remote_dram", "get_remote_ssd", "get_bytes", "get_misses",
        "get_corrupt", "get_busy", "get_deadline", "get_unavailable",
        "copied_bytes", "registrations", "drain_notices", "held_blocks")]


class Item(Structure):
    _fields_ = [
        ("key", Key),
        ("length", c_uint64),
        ("memory", c_void_p),
        ("data", c_void_p),
        ("code", c_uint),
        ("tier", c_uint),
        ("origin", c_uint),
        ("crc32c", c_uint32),
        ("generation", Generation),
        ("session", c_uint64),
        ("handle", c_uint64),
        ("index", c_uint32),
        ("held", c_uint32),
    ]


class Op(Structure):
    _fields_ = [
        ("kind", c_uint),
        ("flags", c_uint),
        ("ns", c_char_p),
        ("source", c_char_p),
        ("timeout_ms", c_uint64),
        ("items", POINTER(Item)),
        ("count", c_size_t),
        ("user", c_void_p),
        ("status", Status),
        ("prefix", c_size_t),
        ("own", c_void_p * 8),
    ]


class EngineOptions(Structure):
    _fields_ = [
        ("socket_path", c_char_p),
        ("name", c_char_p),
        ("geometry", POINTER(Geometry)),
        ("mapped", c_void_p),
        ("unmapping", c_void_p),
        ("context", c_void_p),
    ]


_FUNCTIONS = {
    "kvf_library_version": (c_char_p, []),
    "kvf_code_name": (c_char_p, [c_uint]),
    "kvf_geometry_check": (Status, [POINTER(Geometry), POINTER(Why)]),
    "kvf_geometry_block_bytes": (c_uint64, [POINTER(Geometry)]),
    "kvf_geometry_namespace": (Status, [POINTER(Geometry), c_char_p, c_char_p]),
    "kvf_engine_open": (Status, [POINTER(EngineOptions), POINTER(c_void_p), POINTER(Why)]),
    "kvf_engine_close": (None, [c_void_p]),
    "kvf_engine_state": (c_uint, [c_void_p]),
    "kvf_engine_wait_up": (Status, [c_void_p, c_uint64, POINTER(Why)]),
    "kvf_engine_boot_epoch": (c_uint64, [c_void_p]),
    "kvf_engine_stats": (None, [c_void_p, POINTER(Stats)]),
    "kvf_engine_submit": (Status, [c_void_p, POINTER(Op)]),
    "kvf_engine_run": (Status, [c_void_p, POINTER(Op)]),
    "kvf_engine_cancel": (None, [c_void_p, POINTER(Op)]),
    "kvf_engine_event_fd": (c_int, [c_void_p]),
    "kvf_engine_next": (c_void_p, [c_void_p]),
}

_loaded: Optional[ctypes.CDLL] = None


def loaded() -> ctypes.CDLL:
    """libkvferry, loaded at the first call. ImportError says what to do when it is not there or is another version."""
    global _loaded
    if _loaded is None:
        path = os.environ.get(ENVIRONMENT) or LIBRARY
        try:
            opened = ctypes.CDLL(path)
        except OSError as error:
            raise ImportError(f"kvferry: {path} cannot be loaded ({error}): install libkvferry, or set {ENVIRONMENT} to its path") from error
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(opened, name)
            except AttributeError as error:
                raise ImportError(f"kvferry: {path} has no {name}: it is older than this package, install the same version") from error
            function.restype = result
            function.argtypes = arguments
        _loaded = opened
    return _loaded
