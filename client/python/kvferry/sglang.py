"""SGLang HiCache over kvferry: a dynamic storage backend.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "kvferry",
        "module_path": "kvferry.sglang", "class_name": "KvferryHiCache", "interface_v1": 1, "tenant": "acme"}'

KvferryHiCache is made when it is asked for, for its base class is SGLang's; this module imports nothing of it before.

A page is one block, or several: what the host pool calls the buffers of a page (K and V, or one with MLA) are parts 0, 1, ... of
the page's key. With the generic interface a page is one flat part. A page is there when all its parts are.

SGLang's storage threads are never restarted after an exception, so nothing here raises once the backend is made: whatever goes
wrong is a miss, logged.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from . import memory, settings
from .engine import Code, Dtype, Engine, Geometry, Memory, Op

logger = logging.getLogger(__name__)

BASE_MODULE = "sglang.srt.mem_cache.hicache_storage"
KV_POOL = "kv"
FLAT_PART = 0xFFFF  # of a page that is stored as a whole, by the generic interface

STORED = (Code.OK, Code.EXISTS, Code.PENDING)
"""Ends of a put after which the page is there, or soon will be: PENDING is somebody else's put of the same bytes."""

_DTYPES = {"float32": Dtype.F32, "float16": Dtype.F16, "bfloat16": Dtype.BF16, "float8_e4m3fn": Dtype.F8_E4M3,
           "float8_e5m2": Dtype.F8_E5M2, "int8": Dtype.I8, "uint8": Dtype.U8}

_F = TypeVar("_F", bound=Callable[..., Any])


def _misses(result: Callable[..., Any]) -> Callable[[_F], _F]:
    """What a method returns in place of an exception, from its arguments."""

    def decorate(method: _F) -> _F:
        @functools.wraps(method)
        def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return method(self, *arguments, **named)
            except Exception:  # SGLang's threads would end with it
                logger.exception("kvferry: %s failed, taken for a miss", method.__name__)
                return result(*arguments, **named)

        return guarded  # type: ignore[return-value]

    return decorate


def _none_of_keys(keys: Sequence[str], *_: Any, **__: Any) -> List[Any]:
    return [None] * len(keys)


def _false_of_keys(keys: Sequence[str], *_: Any, **__: Any) -> List[bool]:
    return [False] * len(keys)


def _false_of_transfers(transfers: Sequence[Any], *_: Any, **__: Any) -> Dict[str, List[bool]]:
    return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}


def _is_replicated(config: Any, pool: Any, pool_name: str) -> bool:
    """Whether every TP rank has the same bytes in this pool. An MLA model's latents are; what it keeps beside them (Mamba states, a draft
    model of another kind) is cut among the ranks, unless the pool says that it holds latents."""
    if not config.is_mla_model:
        return False
    if pool_name in (KV_POOL, "indexer", "draft_indexer") or pool_name.startswith("deepseek_v4_"):
        return True
    return (pool_name == "swa" or pool_name.startswith("draft")) and getattr(pool, "kv_lora_rank", 0) > 0


def _geometry(config: Any, pool: Any, pool_name: str, made: settings.Settings) -> Geometry:
    """Of the blocks of a host pool. What the pool does not say is in the salt, or makes no difference."""
    dtype = str(getattr(pool, "dtype", "")).rpartition(".")[2]
    elements = getattr(pool, "head_num", 0) * getattr(pool, "head_dim", 0)
    replicated = _is_replicated(config, pool, pool_name)
    if replicated:
        elements = getattr(pool, "kv_lora_rank", 0) + getattr(pool, "qk_rope_head_dim", 0)
    facts = {name: getattr(config, name, None) for name in ("attn_cp_rank", "attn_cp_size", "should_split_heads", "tp_lcm_size")}
    facts.update(dtype=dtype, **{name: getattr(pool, name, None) for name in (
        "layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "page_size")})
    return Geometry(
        model=made.model or config.model_name or "unknown", dtype=_DTYPES.get(dtype, Dtype.U8),
        layers=max(1, getattr(pool, "layer_num", 1)), planes=1 if replicated else 2,
        page_tokens=max(1, getattr(pool, "page_size", 1)), token_elements=max(1, elements),
        tp_rank=config.tp_rank, tp_size=config.tp_size, pp_rank=config.pp_rank, pp_size=config.pp_size,
        replicated=replicated, layout=f"sglang/{pool_name}/{getattr(pool, 'layout', None)}", salt=made.salted(facts))


class HiCacheBackend:
    """All of KvferryHiCache but SGLang's base class."""

    mem_pool_host: Any = None

    def __init__(self, storage_config: Any, kwargs: Any = None):
        self._config = storage_config
        options = dict(storage_config.extra_config or {})
        self._settings = settings.read(options)
        self._zero_copy = bool(options.get("interface_v1"))
        self._parts = 1 if storage_config.is_mla_model else 2  # buffers of a page; the pool has the last word
        self._namespaces: Dict[str, str] = {}
        self._pools: Dict[str, Any] = {}
        self._replicated: Dict[str, bool] = {}
        self._opening = threading.Lock()
        self._engine: Optional[Engine] = None
        self._use_pool(None, KV_POOL)  # what cannot be is said now

    # ---- pools, and the engine, which is told of the first ----

    def _use_pool(self, pool: Any, name: str) -> None:
        geometry = _geometry(self._config, pool, name, self._settings)
        self._namespaces[name] = geometry.namespace(self._settings.tenant)
        self._pools[name] = pool
        self._replicated[name] = geometry.replicated
        if name == KV_POOL:
            self._geometry = geometry

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host
        self._use_pool(mem_pool_host, KV_POOL)
        with self._opening:
            old, self._engine = self._engine, None
        if old is not None:
            old.close()
        self.engine  # registers meanwhile

    def close(self) -> None:
        self.engine.close()  # one that was never asked for as well: a call that comes later must find it closed

    @property
    def clear(self) -> Callable[[], None]:
        """Not offered, for blocks are other engines' and other nodes' as well: SGLang, which looks for it and takes whatever returns for
        done, then answers that it is not supported."""
        logger.warning("kvferry: blocks stay, for other engines use them; start with another \"salt\" to begin with none")
        raise AttributeError("kvferry does not clear: blocks are other engines' as well")

    @property
    def engine(self) -> Engine:
        with self._opening:
            if self._engine is None:
                config = self._config
                name = f"sglang tp {config.tp_rank} of {config.tp_size}, pp {config.pp_rank} of {config.pp_size}"
                self._engine = Engine(self._settings.socket_path, name, self._geometry)
            return self._engine

    # ---- what every call comes down to ----

    def _source(self, extra_info: Any) -> Optional[str]:
        return self._settings.source_for(getattr(extra_info, "extra_info", None))

    def _skips_writing(self, pool: str) -> bool:
        """Where every TP rank has the same bytes, rank 0 writes them."""
        return self._replicated[pool] and self._config.tp_rank != 0

    def _put(self, pool: str, blocks: Sequence[Memory], keep: Any) -> List[bool]:
        engine = self.engine
        if engine.is_silent():
            return [False] * len(blocks)
        codes = engine.run(Op.put(self._namespaces[pool], blocks, self._settings.timeout_ms, keep=keep))
        return [code in STORED for code in codes]

    def _get(self, pool: str, blocks: Sequence[Memory], keep: Any, source: Optional[str], prefix_only: bool) -> List[bool]:
        engine = self.engine
        if engine.is_silent():
            return [False] * len(blocks)
        codes = engine.run(Op.get(self._namespaces[pool], blocks, self._settings.timeout_ms, source, self._settings.verify,
                                  prefix_only, keep=keep))
        return [code == Code.OK for code in codes]

    def _are_there(self, pool: str, keys: Sequence[bytes], source: Optional[str], prefix_only: bool) -> List[bool]:
        engine = self.engine
        if engine.is_silent() or not keys:
            return [False] * len(keys)
        codes = engine.run(Op.lookup(self._namespaces[pool], keys, self._settings.lookup_timeout_ms, source, prefix_only))
        return [code == Code.OK for code in codes]

    # ---- a page and its parts ----

    def _page_blocks(self, pool: Any, keys: Sequence[str], host_indices: Any) -> Tuple[List[Memory], int]:
        """The buffers of these pages in the host pool, page by page, and how many a page has."""
        pointers, sizes = pool.get_page_buffer_meta(host_indices)
        parts = len(pointers) // len(keys)
        if parts < 1 or parts * len(keys) != len(pointers) or len(sizes) != len(pointers):
            raise ValueError(f"{len(keys)} pages have {len(pointers)} buffers")
        return [(memory.key_of_name(keys[i // parts], i % parts), int(pointers[i]), int(sizes[i])) for i in range(len(pointers))], parts

    @staticmethod
    def _whole(results: Sequence[bool], parts: int) -> List[bool]:
        return [all(results[at:at + parts]) for at in range(0, len(results), parts)]

    def _set_pages(self, pool_name: str, keys: Sequence[str], host_indices: Any) -> List[bool]:
        if not keys:
            return []
        if self._skips_writing(pool_name):
            return [True] * len(keys)
        pool = self._pools[pool_name]
        blocks, parts = self._page_blocks(pool, keys, host_indices)
        self._learn_parts(pool_name, parts)
        return self._whole(self._put(pool_name, blocks, pool), parts)

    def _get_pages(self, pool_name: str, keys: Sequence[str], host_indices: Any, extra_info: Any) -> List[bool]:
        if not keys:
            return []
        pool = self._pools[pool_name]
        blocks, parts = self._page_blocks(pool, keys, host_indices)
        self._learn_parts(pool_name, parts)
        return self._whole(self._get(pool_name, blocks, pool, self._source(extra_info), pool_name == KV_POOL), parts)

    def _learn_parts(self, pool_name: str, parts: int) -> None:
        if pool_name == KV_POOL:
            self._parts = parts

    def _prefix(self, keys: Sequence[str], extra_info: Any) -> int:
        parts = range(self._parts) if self._zero_copy else (FLAT_PART,)
        wanted = [memory.key_of_name(key, part) for key in keys for part in parts]
        there = self._are_there(KV_POOL, wanted, self._source(extra_info), prefix_only=True)
        return _leading(self._whole(there, len(parts)))

    # ---- the abstract methods: whole pages, from and to tensors ----

    @_misses(lambda *_, **__: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location], [target_sizes])[0]

    @_misses(_none_of_keys)
    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[Any]:
        targets = self._targets(keys, target_locations)
        where = [memory.of_target(target, size) for target, size in zip(targets, _each(keys, target_sizes))]
        wanted = [i for i in range(len(keys)) if where[i] is not None]
        blocks: List[Memory] = [(memory.key_of_name(keys[i], FLAT_PART), *where[i]) for i in wanted]  # type: ignore[misc]
        results: List[Any] = [None] * len(keys)
        if blocks:
            for i, found in zip(wanted, self._get(KV_POOL, blocks, targets, self._source(None), False)):
                results[i] = targets[i] if found else None
        return results

    def _targets(self, keys: Sequence[str], targets: Any) -> List[Any]:
        """Where none is given, the host pool makes a page."""
        make = getattr(self.mem_pool_host, "get_dummy_flat_data_page", None)
        return [make() if target is None and make is not None else target for target in _each(keys, targets)]

    @_misses(lambda *_, **__: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value], [target_location], [target_sizes])

    @_misses(lambda *_, **__: False)
    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        if self._skips_writing(KV_POOL):
            return True
        given = [value if value is not None else target
                 for value, target in zip(_each(keys, values), _each(keys, target_locations))]
        given = [value.cpu().contiguous() if hasattr(value, "data_ptr") else value for value in given]
        where = [memory.of_target(value, size, writable=False) for value, size in zip(given, _each(keys, target_sizes))]
        blocks: List[Memory] = [(memory.key_of_name(key, FLAT_PART), *at) for key, at in zip(keys, where) if at is not None]
        stored = self._put(KV_POOL, blocks, given) if blocks else []
        return len(blocks) == len(keys) and all(stored)

    @_misses(lambda *_, **__: False)
    def exists(self, key: str) -> bool:
        return self._prefix([key], None) == 1

    @_misses(lambda *_, **__: 0)
    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many pages from the first on are there without a gap."""
        return self._prefix(keys, extra_info)

    # ---- zero-copy: from and to the host pool ----

    @_misses(_false_of_keys)
    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        return self._get_pages(KV_POOL, keys, host_indices, extra_info)

    @_misses(_false_of_keys)
    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        return self._set_pages(KV_POOL, keys, host_indices)


class HybridPools(HiCacheBackend):
    """v2: pools beside KV (Mamba states, sliding windows, indexers), where SGLang has the types."""

    _result_type: Callable[[int, Dict[str, int]], Any]

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        name = str(getattr(host_pool_name, "value", host_pool_name))
        if name != KV_POOL or self._pools.get(KV_POOL) is not host_pool:
            self._use_pool(host_pool, name)

    @_misses(_false_of_transfers)
    def batch_get_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        return {transfer.name: self._transfer(transfer, lambda name, keys, indices: self._get_pages(name, keys, indices, extra_info))
                for transfer in transfers}

    @_misses(_false_of_transfers)
    def batch_set_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        return {transfer.name: self._transfer(transfer, self._set_pages) for transfer in transfers}

    def _transfer(self, transfer: Any, move: Callable[[str, List[str], Any], List[bool]]) -> List[bool]:
        name, keys = _pool_name(transfer), list(transfer.keys or [])
        pool = self._pools.get(name)
        wanted = len(keys) * (getattr(pool, "page_size", 1) or 1)
        if pool is None or transfer.host_indices is None or len(transfer.host_indices) != wanted:
            if keys:
                logger.error("kvferry: pool %s: not registered, or not %d host indices for %d pages", name, wanted, len(keys))
            return [False] * len(keys)
        return move(name, keys, transfer.host_indices)

    def batch_exists_v2(self, keys: List[str], pool_transfers: Optional[List[Any]] = None, extra_info: Any = None) -> Any:
        """The longest prefix of KV pages that every pool can use: all its pages are there (all_pages), or the last ones are
        (trailing_pages)."""
        try:
            prefix, hits = self._prefix_of_all(keys, pool_transfers or [], extra_info)
        except Exception:  # as _misses
            logger.exception("kvferry: batch_exists_v2 failed, taken for a miss")
            prefix, hits = 0, {}
        return self._result_type(prefix, hits)

    def _prefix_of_all(self, keys: List[str], transfers: List[Any], extra_info: Any) -> Tuple[int, Dict[str, int]]:
        kv_pages = self._prefix(keys, extra_info)
        pools = [(transfer, self._found(transfer, keys[:kv_pages], extra_info)) for transfer in transfers] if kv_pages else []
        prefix = next((end for end in range(kv_pages, 0, -1)
                       if all(_is_usable(transfer, there, end) for transfer, there in pools)), 0)
        names = [KV_POOL] + [_pool_name(transfer) for transfer, _ in pools]
        return prefix, {name: prefix for name in names} if prefix else {}

    def _found(self, transfer: Any, keys: List[str], extra_info: Any) -> List[bool]:
        """The first part stands for the page: what lacks another one is a miss when it is read."""
        name = _pool_name(transfer)
        if name not in self._namespaces:
            return [False] * len(keys)
        return self._are_there(name, [memory.key_of_name(key, 0) for key in keys], self._source(extra_info), not _is_trailing(transfer))


def _is_trailing(transfer: Any) -> bool:
    return str(getattr(transfer.hit_policy, "value", transfer.hit_policy)) == "trailing_pages"


def _is_usable(transfer: Any, there: Sequence[bool], end: int) -> bool:
    """A prefix of `end` pages, as far as this pool goes."""
    first = max(0, end - max(1, len(transfer.keys or []))) if _is_trailing(transfer) else 0
    return all(there[first:end])


def _pool_name(transfer: Any) -> str:
    return str(getattr(transfer.name, "value", transfer.name))


def _each(keys: Sequence[str], values: Any) -> List[Any]:
    """One a key; None for those that were not given."""
    given = [] if values is None else list(values)
    return (given + [None] * len(keys))[:len(keys)]


def _leading(found: Sequence[bool]) -> int:
    return next((i for i, there in enumerate(found) if not there), len(found))


@functools.lru_cache(maxsize=None)
def _make_class() -> type:
    base = importlib.import_module(BASE_MODULE)
    result_type = getattr(base, "PoolTransferResult", None)
    parent = HiCacheBackend if result_type is None else HybridPools
    made = type("KvferryHiCache", (parent, base.HiCacheStorage), {"__module__": __name__, "__doc__": parent.__doc__})
    if result_type is not None:
        made._result_type = result_type  # type: ignore[attr-defined]
    return made


def __getattr__(name: str) -> Any:
    if name == "KvferryHiCache":
        return _make_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
