"""LMCache over kvferry: a native plugin of the multiprocess server's L2.

    {"type": "native_plugin", "module_path": "kvferry.lmcache", "class_name": "KvferryClient",
     "adapter_params": {"tenant": "acme", "fingerprint": "bf16, chunks of 256"}, "max_capacity_gb": 512}

Every submit_* starts one of libkvferry's operations and returns its number; event_fd is libkvferry's eventfd. LMCache's names hold
model, rank and hash, but neither dtype nor chunk size: `fingerprint` is for those, and must be set. No daemon, one that drains or does
not answer: completions come nevertheless, with every key false.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any, List, Optional, Sequence, Tuple

from . import memory, settings
from .binding import BLOCK_MAX_BYTES
from .engine import Code, Engine, Geometry, KvferryError, Memory, Op

logger = logging.getLogger(__name__)

Completion = Tuple[int, bool, str, Optional[List[bool]]]
"""(number, ok, what went wrong, one bool a key)"""

STORED = (Code.OK, Code.EXISTS, Code.PENDING)


class _Request:
    """One submit: which keys took part, and which ends are good ones."""

    def __init__(self, number: int, keys: int, good: Sequence[int], all_or_none: bool):
        self.number, self.keys, self.good, self.all_or_none = number, keys, good, all_or_none
        self.places: List[int] = list(range(keys))  # of the operation's blocks among the keys

    def completion(self, op: Op) -> Completion:
        results = [False] * self.keys
        codes = op.codes()
        for place, code in zip(self.places, codes):
            results[place] = code in self.good
        bad = next((code for code in codes if code not in self.good), Code.OK)
        if len(codes) < self.keys:
            bad = Code.INVALID
        ok = all(results) if self.all_or_none else op.status == Code.OK
        return self.number, ok, "" if ok else _name(bad if bad != Code.OK else op.status), results


def _name(code: int) -> str:
    return f"kvferry: {Code(code).name}" if code in Code.__members__.values() else f"kvferry: code {code}"


class KvferryClient:
    """What LMCache's native plugin asks of a client. Every method may be called from every thread, and none waits but close."""

    def __init__(self, fingerprint: str = "", **options: Any):
        unknown = set(options) - set(settings.Settings._fields)
        if unknown:
            raise KvferryError(f"kvferry: adapter_params has {', '.join(sorted(unknown))}, which is none of its options")
        if not isinstance(fingerprint, str) or not fingerprint:
            raise KvferryError("kvferry: adapter_params needs a fingerprint: what LMCache's keys do not say of the bytes, "
                               'such as dtype and chunk size, e.g. "bf16, chunks of 256"')
        self._settings = settings.read(options)
        geometry = Geometry(model=self._settings.model or "lmcache", layout="lmcache/chunk",
                            salt=self._settings.salted({"fingerprint": fingerprint}))
        self._namespace = geometry.namespace(self._settings.tenant)
        self._engine = Engine(self._settings.socket_path, "lmcache")
        self._numbers = itertools.count(1)

    @property
    def engine(self) -> Engine:
        return self._engine

    def event_fd(self) -> int:
        return self._engine.event_fd()

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[Any]) -> int:
        request = _Request(next(self._numbers), len(keys), (Code.OK,), False)
        blocks = self._blocks(request, keys, memoryviews, writable=True)
        return self._start(request, Op.get(self._namespace, blocks, self._settings.timeout_ms, self._settings.source_for(None),
                                           self._settings.verify, keep=memoryviews, user=request))

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[Any]) -> int:
        request = _Request(next(self._numbers), len(keys), STORED, True)
        blocks = self._blocks(request, keys, memoryviews, writable=False)
        return self._start(request, Op.put(self._namespace, blocks, self._settings.timeout_ms, keep=memoryviews, user=request))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        request = _Request(next(self._numbers), len(keys), (Code.OK,), False)
        return self._start(request, Op.lookup(self._namespace, [memory.key_of_name(key) for key in keys],
                                              self._settings.lookup_timeout_ms, self._settings.source_for(None), user=request))

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        request = _Request(next(self._numbers), len(keys), (Code.OK,), False)
        return self._start(request, Op.forget(self._namespace, [memory.key_of_name(key) for key in keys],
                                              self._settings.timeout_ms, user=request))

    def drain_completions(self) -> List[Completion]:
        return [op.user.completion(op) for op in self._engine.take_ended()]

    def close(self) -> None:
        self._engine.close()

    def _blocks(self, request: _Request, keys: Sequence[str], views: Sequence[Any], writable: bool) -> List[Memory]:
        """Of the keys whose memory can be used; the others stay false."""
        blocks: List[Memory] = []
        request.places = []
        for i, (key, view) in enumerate(zip(keys, views)):
            at = memory.of_target(view, writable=writable)
            if at is None or not 1 <= at[1] <= BLOCK_MAX_BYTES:
                logger.error("kvferry: the memory for %s cannot be used: contiguous, 1 B to 128 MiB%s", key,
                             ", writable" if writable else "")
                continue
            request.places.append(i)
            blocks.append((memory.key_of_name(key), *at))
        return blocks

    def _start(self, request: _Request, op: Op) -> int:
        if self._engine.is_silent() or not self._engine.submit(op):
            self._end_at_once(request, op)
        return request.number

    def _end_at_once(self, request: _Request, op: Op) -> None:
        """Through the eventfd like any other: an operation without blocks ends by itself."""
        if op.status == Code.OK:
            op.fail(Code.UNAVAILABLE)
        empty = Op.lookup(self._namespace, [], 1, user=_Ended(request, op))
        self._engine.submit(empty)


class _Ended:
    """A request that had its end before it was started."""

    def __init__(self, request: _Request, op: Op):
        self.request, self.op = request, op

    def completion(self, _: Op) -> Completion:
        return self.request.completion(self.op)
