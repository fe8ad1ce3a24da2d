"""kvferry: an engine's KV-cache blocks, by way of the local kvferryd.

    engine.py    Engine: libkvferry's kvf_engine, with Python's types
    binding.py   client/kvferry.h, function by function, over ctypes
    sglang.py    SGLang HiCache: a dynamic storage backend
    vllm.py      vLLM: a secondary tier of the tiering offload
    lmcache.py   LMCache: a native plugin of the MP server's L2

Importing any of them imports no engine, and loads libkvferry only when an Engine is made.
"""

from .engine import Code, Dtype, Engine, Geometry, KvferryError, Op

__all__ = ["Code", "Dtype", "Engine", "Geometry", "KvferryError", "Op"]
__version__ = "0.1.0"
