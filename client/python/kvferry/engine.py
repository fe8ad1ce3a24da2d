"""Engine: libkvferry's kvf_engine with Python's types. It registers by itself, again and again, whenever a daemon is READY.

    engine = Engine("/run/kvferry/engine.sock", name="decode rank 0")
    codes = engine.run(Op.put(ns, [(key, address, length), ...], timeout_ms=2000))
    codes = engine.run(Op.get(ns, [(key, address, length), ...], timeout_ms=2000, source="10.0.0.7:9470"))

An operation copies once, between the memory that it is given and the daemon's arenas, on libkvferry's thread and without the
GIL. No daemon, one that drains, one that does not answer: the codes say so, and nothing is raised. Every method may be
called from every thread; after close() all operations end as if there were no daemon.
"""

from __future__ import annotations

import ctypes
import select
import struct
import threading
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import binding
from .binding import Code, Dtype, Kind, State

__all__ = ["Code", "Dtype", "Engine", "Geometry", "KvferryError", "Memory", "Op", "State"]

Memory = Tuple[bytes, int, int]
"""A block in the caller's memory: key (1 to 64 bytes), address, length."""

EXIT_PATIENCE_S = 3.0
"""For calls of daemon threads when the process ends."""

SILENCE_S = 1.0
"""After a daemon has let a whole operation run into its deadline, so long is nothing asked of it: see Engine.is_silent."""

_ITEM = struct.Struct(f"=B{binding.KEY_MAX_BYTES}s7xQQ{ctypes.sizeof(binding.Item) - 88}x")  # key, length, memory; the rest is zero


class KvferryError(ValueError):
    """A setting that cannot be; its text says what to change. Raised by constructors only."""


class Geometry(NamedTuple):
    """What a rank's blocks are made of (client/geometry.h). Other geometry is another namespace."""

    model: str
    dtype: Dtype = Dtype.U8
    layers: int = 1
    planes: int = 1
    page_tokens: int = 1
    token_elements: int = 1
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    replicated: bool = False
    layout: str = ""
    salt: str = ""

    def to_c(self) -> binding.Geometry:
        """Raises KvferryError with a line that names the field."""
        texts = {name: getattr(self, name).encode() for name in ("model", "layout", "salt")}
        made = binding.Geometry(**{**self._asdict(), **texts})
        why = binding.Why()
        if binding.loaded().kvf_geometry_check(made, why).code != Code.OK:
            raise KvferryError(f"kvferry: {why.text.decode()}")
        return made

    def namespace(self, tenant: str) -> str:
        text = ctypes.create_string_buffer(binding.NAMESPACE_MAX_BYTES + 1)
        if binding.loaded().kvf_geometry_namespace(self.to_c(), tenant.encode(), text).code != Code.OK:
            raise KvferryError(f"kvferry: {tenant!r} is no tenant's name: letters, digits, '.', '_' and '-', and not too long")
        return text.value.decode()


class Op:
    """One operation on a list of blocks. Made by put, get, lookup, forget; its memory must stay until it has ended."""

    def __init__(self, kind: Kind, ns: str, blocks: Sequence[Memory], timeout_ms: int, source: Optional[str] = None, flags: int = 0,
                 keep: Any = None, user: Any = None):
        self.user = user
        self.length = len(blocks)
        self._keep = keep  # whoever owns the memory
        self._places: Optional[List[int]] = None  # block -> item, where a key stands more than once
        if kind == Kind.PUT:
            blocks = self._without_doubles(blocks)
        self._items = (binding.Item * len(blocks))()
        for i, (key, address, length) in enumerate(blocks):
            _ITEM.pack_into(self._items, i * _ITEM.size, len(key), key, length, address)
        self.c = binding.Op(kind=kind, flags=flags, ns=ns.encode(), source=source.encode() if source else None,
                            timeout_ms=timeout_ms, items=self._items, count=len(blocks))

    def _without_doubles(self, blocks: Sequence[Memory]) -> Sequence[Memory]:
        """The second put of a key would find the first one still going on."""
        first: Dict[bytes, int] = {}
        unique: List[Memory] = []
        places = []
        for block in blocks:
            place = first.setdefault(block[0], len(unique))
            if place == len(unique):
                unique.append(block)
            places.append(place)
        if len(unique) == len(blocks):
            return blocks
        self._places = places
        return unique

    @classmethod
    def put(cls, ns: str, blocks: Sequence[Memory], timeout_ms: int, keep: Any = None, user: Any = None) -> "Op":
        return cls(Kind.PUT, ns, blocks, timeout_ms, keep=keep, user=user)

    @classmethod
    def get(cls, ns: str, blocks: Sequence[Memory], timeout_ms: int, source: Optional[str] = None, verify: bool = True,
            prefix_only: bool = False, keep: Any = None, user: Any = None) -> "Op":
        """A block of another length than asked for is a miss. prefix_only: what lies behind a gap may be a miss."""
        flags = (binding.VERIFY if verify else 0) | (binding.STOP_AT_FIRST_MISS if prefix_only else 0)
        return cls(Kind.GET, ns, blocks, timeout_ms, source, flags, keep, user)

    @classmethod
    def lookup(cls, ns: str, keys: Sequence[bytes], timeout_ms: int, source: Optional[str] = None, prefix_only: bool = False,
               user: Any = None) -> "Op":
        return cls(Kind.LOOKUP, ns, [(key, 0, 0) for key in keys], timeout_ms, source,
                   binding.STOP_AT_FIRST_MISS if prefix_only else 0, user=user)

    @classmethod
    def forget(cls, ns: str, keys: Sequence[bytes], timeout_ms: int, user: Any = None) -> "Op":
        return cls(Kind.FORGET, ns, [(key, 0, 0) for key in keys], timeout_ms, user=user)

    @property
    def status(self) -> int:
        return int(self.c.status.code)

    def codes(self) -> List[int]:
        """One a block, after the end: Code.OK, or why not."""
        codes = [item.code for item in self._items]
        return codes if self._places is None else [codes[place] for place in self._places]

    def fail(self, code: Code) -> None:
        """End it here, for it was not started."""
        self.c.status.code = code
        for item in self._items:
            item.code = code


class _Handle:
    """libkvferry's engine and the calls that are in it: it is closed when the last of them has left, and never under one."""

    def __init__(self, close: Any, pointer: ctypes.c_void_p):
        self.pointer = pointer
        self._close = close
        self._changed = threading.Condition()  # the two below
        self._calls = 0
        self._closed = False

    def enter(self) -> bool:
        with self._changed:
            if not self._closed:
                self._calls += 1
            return not self._closed

    def leave(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def close(self, patience_s: Optional[float] = None) -> None:
        """Twice is fine. Calls that outlast the patience keep it open for ever."""
        with self._changed:
            first, self._closed = not self._closed, True
            left = self._changed.wait_for(lambda: self._calls == 0, patience_s)
        if first and left:
            self._close(self.pointer)


class Engine:
    """A connection to whichever daemon answers at socket_path; none needs to be there yet."""

    def __init__(self, socket_path: str, name: str = "", geometry: Optional[Geometry] = None):
        self._lib = binding.loaded()
        c_geometry = ctypes.pointer(geometry.to_c()) if geometry is not None else None
        options = binding.EngineOptions(socket_path=socket_path.encode(), name=name.encode(), geometry=c_geometry)
        handle, why = ctypes.c_void_p(), binding.Why()
        if self._lib.kvf_engine_open(options, handle, why).code != Code.OK:
            raise KvferryError(f"kvferry: {why.text.decode()}")
        self._life = _Handle(self._lib.kvf_engine_close, handle)
        self._handle = handle
        self._running: Dict[int, Op] = {}  # submitted and not taken
        self._silent_until = 0.0
        # Whoever forgets to close it: when the last reference goes, or at the end of the process, where daemon threads may still be in it.
        self._finalizer = weakref.finalize(self, self._life.close, EXIT_PATIENCE_S)

    # ---- life ----

    def close(self) -> None:
        """Wait for calls that run (their deadlines bound them), end what was submitted, unregister. Twice is fine."""
        self._life.close()
        self._finalizer.detach()
        self._running.clear()

    def state(self) -> State:
        if not self._life.enter():
            return State.DOWN
        try:
            return State(self._lib.kvf_engine_state(self._handle))
        finally:
            self._life.leave()

    def wait_up(self, timeout_ms: int) -> str:
        """Empty when a daemon has us within that time; else what the last attempt met."""
        if not self._life.enter():
            return "closed"
        try:
            why = binding.Why()
            up = self._lib.kvf_engine_wait_up(self._handle, timeout_ms, why).code == Code.OK
            return "" if up else why.text.decode(errors="replace") or "no daemon answers"
        finally:
            self._life.leave()

    def boot_epoch(self) -> int:
        """Of the daemon that has us, or had us last; 0 before."""
        if not self._life.enter():
            return 0
        try:
            return int(self._lib.kvf_engine_boot_epoch(self._handle))
        finally:
            self._life.leave()

    def stats(self) -> Dict[str, int]:
        """Of struct kvf_stats, since the Engine was made."""
        stats = binding.Stats()
        if self._life.enter():
            try:
                self._lib.kvf_engine_stats(self._handle, stats)
            finally:
                self._life.leave()
        return {name: getattr(stats, name) for name, _ in binding.Stats._fields_}

    def is_silent(self) -> bool:
        """A daemon that is stopped or swamped has lately let a whole operation run into its deadline. Callers that would rather miss
        at once than wait for the next one to do the same look here first."""
        return time.monotonic() < self._silent_until

    def _note(self, op: Op) -> None:
        if op.status == Code.DEADLINE and all(code == Code.DEADLINE for code in op.codes()):
            self._silent_until = time.monotonic() + SILENCE_S
        elif op.status == Code.OK and op.c.count > 0:
            self._silent_until = 0.0

    # ---- operations ----

    def run(self, op: Op) -> List[int]:
        """Start it and wait for its end, at most its timeout and a moment; its codes."""
        if not self._life.enter():
            op.fail(Code.UNAVAILABLE)
            return op.codes()
        try:
            if self._lib.kvf_engine_run(self._handle, op.c).code == Code.INVALID and op.status != Code.INVALID:
                op.fail(Code.INVALID)
        finally:
            self._life.leave()
        self._note(op)
        return op.codes()

    def submit(self, op: Op) -> bool:
        """Start it; take_ended gives it back. False: it makes no sense, or we are closed; it has ended and will not be given back."""
        if not self._life.enter():
            op.fail(Code.UNAVAILABLE)
            return False
        try:
            address = ctypes.addressof(op.c)
            self._running[address] = op  # first: another thread may take it at once
            if self._lib.kvf_engine_submit(self._handle, op.c).code == Code.OK:
                return True
            del self._running[address]
            op.fail(Code.INVALID)
            return False
        finally:
            self._life.leave()

    def take_ended(self) -> List[Op]:
        """Submitted operations that have ended since. Never waits."""
        ended: List[Op] = []
        if not self._life.enter():
            return ended
        try:
            while True:
                address = self._lib.kvf_engine_next(self._handle)
                if address is None:
                    return ended
                op = self._running.pop(address)
                self._note(op)
                ended.append(op)
        finally:
            self._life.leave()

    def running(self) -> int:
        """Submitted and not taken."""
        return len(self._running)

    def event_fd(self) -> int:
        """Readable while take_ended has something to give; -1 when closed. It stays the engine's."""
        if not self._life.enter():
            return -1
        try:
            return int(self._lib.kvf_engine_event_fd(self._handle))
        finally:
            self._life.leave()

    def wait_ended(self, timeout_s: float) -> bool:
        """Until take_ended has something to give."""
        fd = self.event_fd()
        if fd < 0:
            return False
        poller = select.poll()  # select() knows no descriptor above 1023
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
