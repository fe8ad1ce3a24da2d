"""vLLM over kvferry: a secondary tier of the tiering offload (OffloadingConnector with TieringOffloadingSpec).

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 34359738368,
        "secondary_tiers": [{"type": "KvferryTier", "module_path": "kvferry.vllm", "tenant": "acme"}]}}'

KvferryTier is made when it is asked for, for its base class is vLLM's; this module imports nothing of it before.

A block is a slot of the primary tier's host memory, under vLLM's own key. All methods run in the scheduler and none of them waits:
a lookup that is not known yet is queued and answered RETRY, a whole step's are asked for together, and jobs are libkvferry's
operations. The daemon being gone, draining or slow makes lookups misses and jobs failures, which vLLM recomputes.
"""

from __future__ import annotations

import functools
import importlib
import logging
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import memory, settings
from .binding import BLOCK_MAX_BYTES
from .engine import Code, Engine, Geometry, KvferryError, Memory, Op

logger = logging.getLogger(__name__)

BASE_MODULE = "vllm.v1.kv_offload.tiering.base"
TYPES_MODULE = "vllm.v1.kv_offload.base"

ANSWER_S = 1.0  # so long an answered lookup counts; then the next one asks again
ANSWERS_MOST = 65536
LOOKUPS_MOST = 512  # queued; then they are asked for before the step's end

STORED = (Code.OK, Code.EXISTS, Code.PENDING)

_Question = Tuple[Optional[str], bytes]
"""At which source, which key."""


class _Lookups(NamedTuple):
    """What a lookup operation is about."""

    questions: List[_Question]


class _Job(NamedTuple):
    job_id: Any
    keys: List[bytes]
    is_load: bool
    bytes: int
    started: float
    questions: List[_Question]


class _Answer(NamedTuple):
    found: Optional[bool]  # None: asked
    at: float


def _facts(spec: Any) -> Dict[str, Any]:
    """What tells this engine's blocks apart, as far as this release of vLLM says it; `model` at least."""
    config = getattr(spec, "config", None)
    if config is not None and getattr(config, "model", None) is not None:
        facts = {name: getattr(config, name, None) for name in
                 ("model", "cache", "parallel", "groups", "replicated_layout", "canonical_layout", "kv_cache_layout")}
        facts["storage_format"] = getattr(spec, "storage_format", None)
        facts["model_name"] = config.model.name
        # Which replica it is does not matter to the bytes; a slot has every rank's.
        facts["parallel"] = {name: value for name, value in vars(config.parallel).items() if name not in ("data_parallel_index", "rank")}
        return facts
    engine = getattr(spec, "vllm_config", None)
    parts = {"model_config": ("model", "revision", "dtype"),
             "cache_config": ("cache_dtype", "block_size", "prefix_caching_hash_algo"),
             "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size")}
    facts = {f"{part}.{name}": getattr(getattr(engine, part, None), name, None) for part, names in parts.items() for name in names}
    facts["model_name"] = facts["model_config.model"]
    return facts


class SecondaryTier:
    """All of KvferryTier but vLLM's base class."""

    _job_result: Any = None  # vLLM's JobResult, LookupResult (or None: bool | None), RequestOffloadingContext (or None)
    _lookup_result: Any = None
    _request_context: Any = None

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, **options: Any):
        known = {name: options.pop(name) for name in list(options) if name in settings.Settings._fields}
        options.pop("module_path", None)
        super().__init__(offloading_spec, primary_kv_view, tier_type, **options)  # type: ignore[call-arg]
        self._settings = settings.read(known)
        strides, shape = primary_kv_view.strides, primary_kv_view.shape
        if not strides or not shape:
            raise KvferryError("kvferry: the primary tier's memory has no slots")
        self._view = primary_kv_view
        self._slot_bytes, self._slots = strides[0], shape[0]
        try:
            self._base, _ = memory.of_buffer(primary_kv_view, writable=True)
        except BufferError as error:
            raise KvferryError("kvferry: the slots of the primary tier's memory do not lie one after the other, or are read-only") from error
        if self._slot_bytes > BLOCK_MAX_BYTES:
            raise KvferryError(f"kvferry: a slot has {self._slot_bytes} bytes, a block at most {BLOCK_MAX_BYTES}: lower blocks_per_chunk")
        geometry = self._geometry(offloading_spec)
        self._namespace = geometry.namespace(self._settings.tenant)
        self._engine = Engine(self._settings.socket_path, f"vllm {tier_type}", geometry)
        self._answers: Dict[_Question, _Answer] = {}
        self._queue: List[_Question] = []
        self._finished: List[Any] = []
        self._jobs = 0

    def _geometry(self, spec: Any) -> Geometry:
        """A slot holds every worker's part, in an order that is vLLM's: bytes that need not be understood."""
        facts = _facts(spec)
        model = self._settings.model or facts["model_name"]
        if not model:
            raise KvferryError("kvferry: this release of vLLM does not say its model's name where it is looked for: "
                               "set `model` (name, revision, dtype, block size and parallel sizes) in the tier's configuration")
        facts["slot_bytes"] = self._slot_bytes
        return Geometry(model=model, layout="vllm/slot", salt=self._settings.salted(facts))

    @property
    def engine(self) -> Engine:
        return self._engine

    # ---- lookups ----

    def lookup(self, key: bytes, req_context: Any) -> Any:
        self._collect()
        question = (self._settings.source_for(getattr(req_context, "kv_transfer_params", None)), bytes(key))
        answer = self._answers.get(question)
        now = time.monotonic()
        if answer is None or (answer.found is not None and now - answer.at > ANSWER_S):
            return self._verdict(self._ask(question, now))
        if answer.found is None and question in self._queue:
            self._flush()  # nobody told us of the step's end
        return self._verdict(answer.found)

    def _ask(self, question: _Question, now: float) -> Optional[bool]:
        if self._engine.is_silent():
            return False
        if len(self._answers) >= ANSWERS_MOST:
            self._answers = {asked: answer for asked, answer in self._answers.items()
                             if answer.found is None or now - answer.at <= ANSWER_S}
        self._answers[question] = _Answer(None, now)
        self._queue.append(question)
        if len(self._queue) >= LOOKUPS_MOST:
            self._flush()
        return None

    def _verdict(self, found: Optional[bool]) -> Any:
        result = self._lookup_result
        if result is None:
            return found
        return result.RETRY if found is None else result.HIT if found else result.MISS

    def _flush(self) -> None:
        """Ask for what is queued: one operation a source."""
        by_source: Dict[Optional[str], List[_Question]] = {}
        for question in self._queue:
            by_source.setdefault(question[0], []).append(question)
        self._queue = []
        for source, questions in by_source.items():
            keys = [memory.key_of_bytes(key) for _, key in questions]
            op = Op.lookup(self._namespace, keys, self._settings.lookup_timeout_ms, source, user=_Lookups(questions))
            if not self._engine.submit(op):
                self._end_lookups(op)

    def _end_lookups(self, op: Op) -> None:
        now = time.monotonic()
        for question, code in zip(op.user.questions, op.codes()):
            self._answers[question] = _Answer(code == Code.OK, now)

    # ---- jobs ----

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata, is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata, is_load=True)

    def _submit(self, metadata: Any, is_load: bool) -> None:
        keys = [bytes(key) for key in metadata.keys]
        source = self._settings.source_for(getattr(metadata.req_context, "kv_transfer_params", None))
        job = _Job(metadata.job_id, keys, is_load, len(keys) * self._slot_bytes, time.monotonic(),
                   [(source, key) for key in keys] if is_load else [])
        slots = [int(slot) for slot in _slots_of(metadata)]
        if len(slots) != len(keys) or not all(0 <= slot < self._slots for slot in slots):
            logger.error("kvferry: job %s has %d keys and slots that do not fit them", metadata.job_id, len(keys))
            self._end_job(job, [Code.INVALID] * len(keys))
            return
        blocks: List[Memory] = [(memory.key_of_bytes(key), self._base + slot * self._slot_bytes, self._slot_bytes)
                                for key, slot in zip(keys, slots)]
        if is_load:
            op = Op.get(self._namespace, blocks, self._settings.timeout_ms, source, self._settings.verify, prefix_only=True,
                        keep=self._view, user=job)
        else:
            op = Op.put(self._namespace, blocks, self._settings.timeout_ms, keep=self._view, user=job)
        if self._engine.is_silent():
            op.fail(Code.UNAVAILABLE)
            self._end_job(job, op.codes())
        elif self._engine.submit(op):
            self._jobs += 1
        else:
            self._end_job(job, op.codes())

    def _end_job(self, job: _Job, codes: List[int]) -> None:
        wanted = (Code.OK,) if job.is_load else STORED
        good = next((i for i, code in enumerate(codes) if code not in wanted), len(codes))
        if not job.is_load:
            good = sum(code in wanted for code in codes)
        now = time.monotonic()
        for question in job.questions[good:]:
            self._answers[question] = _Answer(False, now)
        fields = {"job_id": job.job_id, "success": good == len(codes), "transfer_time": now - job.started,
                  "transfer_size": good * self._slot_bytes}
        if job.is_load and 0 < good < len(codes):
            fields["successful_keys"] = tuple(job.keys[:good])
        has = self._job_result.__dataclass_fields__
        self._finished.append(self._job_result(**{name: value for name, value in fields.items() if name in has}))

    def _collect(self) -> None:
        for op in self._engine.take_ended():
            if isinstance(op.user, _Lookups):
                self._end_lookups(op)
            else:
                self._jobs -= 1
                self._end_job(op.user, op.codes())

    def get_finished_jobs(self) -> List[Any]:
        self._collect()
        finished, self._finished = self._finished, []
        return finished

    get_finished = get_finished_jobs  # as it was called before

    def has_pending_work(self) -> bool:
        return self._engine.running() > 0 or bool(self._queue) or bool(self._finished)

    def drain_jobs(self) -> None:
        """Wait until no job touches the primary tier's memory: each ends by its deadline."""
        self._collect()
        while self._jobs > 0:
            self._engine.wait_ended(0.1)
            self._collect()

    # ---- the life of requests, and ours ----

    def on_new_request(self, req_context: Any) -> Any:
        return self._request_context() if self._request_context is not None else None

    def on_request_finished(self, req_context: Any) -> None:
        """Answers are not kept by request."""

    def on_schedule_end(self, context: Any = None) -> None:
        self._flush()

    def touch(self, keys: Any, req_context: Any = None) -> None:
        """The daemon sees what is read."""

    def take_events(self) -> Tuple[Any, ...]:
        return ()

    def shutdown(self) -> None:
        self._engine.close()
        self._jobs = 0


def _slots_of(metadata: Any) -> Any:
    """Primary-tier slots: block_ids, and chunk_ids in later releases."""
    chunk_ids = getattr(metadata, "chunk_ids", None)
    return metadata.block_ids if chunk_ids is None else chunk_ids


@functools.lru_cache(maxsize=None)
def _make_class() -> type:
    base, types = importlib.import_module(BASE_MODULE), importlib.import_module(TYPES_MODULE)
    medium = getattr(types, "Medium", None)
    members = {"__module__": __name__, "__doc__": SecondaryTier.__doc__, "_job_result": base.JobResult,
               "_lookup_result": getattr(types, "LookupResult", None), "_request_context": getattr(types, "RequestOffloadingContext", None)}
    if medium is not None:
        members["medium"] = medium.STORAGE
    return type("KvferryTier", (SecondaryTier, base.SecondaryTierManager), members)


def __getattr__(name: str) -> Any:
    if name == "KvferryTier":
        return _make_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
