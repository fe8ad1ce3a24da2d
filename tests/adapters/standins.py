"""Stand-ins for the engines: the base classes and types that the adapters find, by their published signatures, and host pools with
the engines' layouts. torch is used where it is installed; else Tensor below has as much of it as the adapters touch.
"""

import ctypes
import enum
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Optional

try:
    import torch
except ImportError:
    torch = None


class Tensor:
    """Flat bytes in host memory, or a list of indices."""

    class device:
        type = "cpu"

    def __init__(self, values=(), length=0):
        self.values = list(values)
        self.memory = (ctypes.c_uint8 * length)()

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def numel(self):
        return len(self)

    def __len__(self):
        return len(self.memory) or len(self.values)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True

    def cpu(self):
        return self

    contiguous = cpu

    def tolist(self):
        return self.values


def indices(values):
    return torch.tensor(list(values), dtype=torch.int64) if torch else Tensor(values)


def flat(length):
    return torch.zeros(length, dtype=torch.uint8) if torch else Tensor(length=length)


def content(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


# ---- SGLang ----


class HostPool:
    """page_first: [K or V][token][layer][head][dim]; MLA: [token][layer][1][latent]. Begins 64 bytes past a page."""

    layout = "page_first"

    def __init__(self, page_size=16, layers=3, heads=2, dim=24, pages=8, mla=False, dtype="torch.bfloat16", itemsize=2):
        self.page_size, self.layer_num, self.mla, self.dtype = page_size, layers, mla, dtype
        if mla:
            self.kv_lora_rank, self.qk_rope_head_dim = heads, dim
        else:
            self.head_num, self.head_dim = heads, dim
        self.token_bytes = layers * (heads + dim if mla else heads * dim) * itemsize
        self.size = pages * page_size
        self.planes = 1 if mla else 2
        if torch and not mla:
            self.buffer = torch.zeros((2 * self.size * layers * heads * dim + 4096,), dtype=torch.bfloat16 if itemsize == 2 else torch.uint8)
        else:
            self.buffer = flat(self.planes * self.size * self.token_bytes + 8192)
        self.base = (self.buffer.data_ptr() + 4095) // 4096 * 4096 + 64

    @property
    def part_bytes(self):
        return self.page_size * self.token_bytes

    def of(self, *pages):
        """Host indices of these pages."""
        return indices(page * self.page_size + i for page in pages for i in range(self.page_size))

    def _pointers(self, first):
        return [self.base + (plane * self.size + first) * self.token_bytes for plane in range(self.planes)]

    def get_page_buffer_meta(self, host_indices):
        listed = host_indices.tolist()
        assert len(listed) % self.page_size == 0
        pointers = [at for i in range(0, len(listed), self.page_size) for at in self._pointers(listed[i])]
        return pointers, [self.part_bytes] * len(pointers)

    def get_dummy_flat_data_page(self):
        return flat(self.planes * self.part_bytes)

    def get_data_page(self, index, flat=True):
        page = self.get_dummy_flat_data_page()
        for plane, at in enumerate(self._pointers(index)):
            ctypes.memmove(page.data_ptr() + plane * self.part_bytes, at, self.part_bytes)
        return page

    def page(self, number):
        return b"".join(ctypes.string_at(at, self.part_bytes) for at in self._pointers(number * self.page_size))

    def fill(self, number, data):
        for plane, at in enumerate(self._pointers(number * self.page_size)):
            ctypes.memmove(at, data[plane * self.part_bytes:(plane + 1) * self.part_bytes], self.part_bytes)


class HiCacheStorage(ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    @abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...

    @abstractmethod
    def exists(self, key): ...

    def batch_exists(self, keys, extra_info=None):
        raise AssertionError("the adapter's own is faster")

    def clear(self):
        pass

    def get_stats(self):
        return None


def clear_storage_backend(backend):
    """What SGLang's cache controllers answer to /clear_hicache_storage_backend: False is HTTP 400."""
    if not hasattr(backend, "clear"):
        return False
    backend.clear()
    return True


@dataclass
class HiCacheStorageConfig:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: Optional[str] = "acme/model"
    extra_config: Optional[dict] = None


@dataclass
class HiCacheStorageExtraInfo:
    prefix_keys: Optional[list] = None
    extra_info: Optional[dict] = None


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    INDEXER = "indexer"
    DRAFT = "draft"


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    device_indices: Any = None
    keys: Optional[list] = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclass(frozen=True)
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict


def install(path, **members):
    """A module of that name, and its parents."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[path].__dict__.update(members)


def install_sglang(v2=True):
    later = {"PoolName": PoolName, "PoolHitPolicy": PoolHitPolicy, "PoolTransfer": PoolTransfer, "PoolTransferResult": PoolTransferResult}
    path = "sglang.srt.mem_cache.hicache_storage"
    sys.modules.pop(path, None)
    install(path, HiCacheStorage=HiCacheStorage, HiCacheStorageConfig=HiCacheStorageConfig,
            HiCacheStorageExtraInfo=HiCacheStorageExtraInfo, **(later if v2 else {}))


# ---- vLLM ----


class LookupResult(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


@dataclass
class ReqContext:
    req_id: str
    kv_transfer_params: Optional[dict] = None


@dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"


@dataclass
class JobMetadata:
    job_id: int
    keys: Any
    block_ids: Any
    is_promotion: bool
    req_context: ReqContext


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_size: Optional[int] = None
    transfer_time: Optional[float] = None


@dataclass
class OldJobResult:
    job_id: int
    success: bool


class SecondaryTierManager(ABC):
    medium = None

    def __init__(self, offloading_spec, primary_kv_view, tier_type):
        self.offloading_spec, self.primary_kv_view, self.tier_type = offloading_spec, primary_kv_view, tier_type

    @abstractmethod
    def lookup(self, key, req_context): ...

    @abstractmethod
    def submit_store(self, job_metadata): ...

    @abstractmethod
    def submit_load(self, job_metadata): ...

    @abstractmethod
    def get_finished_jobs(self): ...

    @abstractmethod
    def on_new_request(self, req_context): ...

    @abstractmethod
    def drain_jobs(self): ...


class OldSecondaryTierManager(ABC):
    """Of a release that knew bool | None and get_finished."""

    def __init__(self, offloading_spec, primary_kv_view, tier_type):
        pass

    @abstractmethod
    def lookup(self, key, req_context): ...

    @abstractmethod
    def submit_store(self, job_metadata): ...

    @abstractmethod
    def submit_load(self, job_metadata): ...

    @abstractmethod
    def get_finished(self): ...


def offloading_spec(model="acme/model", dtype="bfloat16", tp_size=1, replica=0):
    """OffloadingSpec, as far as it describes the blocks."""
    spec = types.SimpleNamespace
    parallel = ParallelConfig(tp_size=tp_size, data_parallel_index=replica)
    return spec(config=spec(model=spec(name=model, dtype=dtype), cache=spec(tokens_per_hash=16, blocks_per_chunk=1),
                            parallel=parallel, groups=(spec(tokens_per_block=16, layer_names=("l0", "l1")),), replicated_layout=False))


@dataclass(frozen=True)
class ParallelConfig:
    rank: int = 0
    tp_size: int = 1
    pp_size: int = 1
    data_parallel_index: int = 0
    more: dict = field(default_factory=dict)


def install_vllm(old=False):
    for path in ("vllm.v1.kv_offload.base", "vllm.v1.kv_offload.tiering.base"):
        sys.modules.pop(path, None)
    later = {} if old else {"LookupResult": LookupResult, "Medium": Medium, "RequestOffloadingContext": RequestOffloadingContext}
    install("vllm.v1.kv_offload.base", ReqContext=ReqContext, **later)
    install("vllm.v1.kv_offload.tiering.base", JobMetadata=JobMetadata, JobResult=OldJobResult if old else JobResult,
            SecondaryTierManager=OldSecondaryTierManager if old else SecondaryTierManager)
