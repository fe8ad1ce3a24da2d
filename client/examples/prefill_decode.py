#!/usr/bin/env python3
"""A prefill engine puts the KV of a prompt into its kvferryd; a decode engine on another node gets it from its own, which pulls it.

    prefill_decode.py prefill /run/kvferry/engine.sock
    prefill_decode.py decode  /run/kvferry/engine.sock 10.0.0.7:9470     the prefill node's --listen
"""

import ctypes
import sys

from kvferry import Code, Dtype, Engine, Geometry, Op

PAGES = 12  # a prompt of 768 tokens
QWEN3_8B = Geometry("Qwen/Qwen3-8B", Dtype.BF16, layers=36, planes=2, page_tokens=64, token_elements=1024)
PAGE_BYTES = 36 * 2 * 64 * 1024 * 2


def key_of(page):
    """An engine hashes a page's tokens and all before them; here the page's number will do."""
    return page.to_bytes(4, "little")


def main(role, socket, source=None):
    namespace = QWEN3_8B.namespace("acme")
    engine = Engine(socket, role, QWEN3_8B)
    why = engine.wait_up(3000)
    if why:
        sys.exit(why)
    cache = ctypes.create_string_buffer(PAGES * PAGE_BYTES)  # the engine's own KV cache, in host memory
    start = ctypes.addressof(cache)
    blocks = [(key_of(page), start + page * PAGE_BYTES, PAGE_BYTES) for page in range(PAGES)]
    if role == "prefill":
        for page, (_, address, length) in enumerate(blocks):
            ctypes.memset(address, page + 1, length)  # the prefill computes
        op = Op.put(namespace, blocks, 10000, keep=cache)
    else:
        op = Op.get(namespace, blocks, 10000, source, verify=True, prefix_only=True, keep=cache)
    codes = engine.run(op)
    good = (Code.OK, Code.EXISTS) if role == "prefill" else (Code.OK,)
    prefix = next((page for page, code in enumerate(codes) if code not in good), PAGES)
    if role == "decode":
        for page, (_, address, length) in enumerate(blocks[:prefix]):
            assert ctypes.string_at(address, length) == bytes([page + 1]) * length
    # What is not in the prefix is computed, as if there were no kvferry.
    print(f"{role}: {prefix} of {PAGES} pages")
    engine.close()
    return 0 if prefix == PAGES else 4


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or (sys.argv[1] == "decode") != (len(sys.argv) == 4):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
