"""What engines do all day, by fake ranks (tests/engines/rank.c) with a paged cache each: prefill, decode, restart; every byte compared in the cache."""

import signal
import time

from harness import Probe, expect, expect_equal

PAGE = 9437184  # a page of Qwen3-8B
RESTORE = 113246208  # 768 tokens of it
MLA_PAGE = 4497408  # a page of DeepSeek-V3
RESTARTS = 50


class _Rank(Probe):
    def __init__(self, case, daemon, model, name="rank", dtype="bf16", tp=(0, 1), layout="layer", pages=12, wait=True):
        super().__init__(case, "rank")
        case.probes.append(self)
        shape = self.must("open", daemon.run_dir, name, model, dtype, *tp, layout, pages)
        self.block_bytes, self.fingerprint = shape["block_bytes"], shape["fingerprint"]
        if wait:
            self.must("wait", 20000)

    def prefill(self, first, count, tenant="t", **codes):
        """`codes`: how many blocks end otherwise than OK."""
        said = self.must("prefill", tenant, 20000, first, count)
        expect_equal({name: said.get(name, 0) for name in codes}, codes, "ends of puts")
        expect_equal(said.get("OK", 0), count - sum(codes.values()), "blocks put")

    def start_decode(self, first, count, source=None, tenant="t", how="decode"):
        self.start(how, tenant, source.source if source else "-", 30000, first, count)

    def decoded(self, prefix, **counts):
        """The prefix that must be there, byte by byte, and where it must come from."""
        said = self.must_answer("decode")
        expect_equal(said["wrong"], 0, "wrong blocks in the cache")
        expect_equal(said["prefix"], prefix, "contiguous prefix")
        for name, wanted in counts.items():
            expect_equal(said[name], wanted, name)
        return said

    def decode(self, first, count, prefix, source=None, tenant="t", how="decode", **counts):
        self.start_decode(first, count, source, tenant, how)
        return self.decoded(prefix, **counts)

    def stats(self):
        return self.must("stats")


def ranks_cold_full_and_partial_hit(case):
    """Nothing is there; all is; a part is: the prefix says how far."""
    a, b = case.pair(ssd_mib=1040)
    prefill, decode = _Rank(case, a, "qwen3-8b"), _Rank(case, b, "qwen3-8b", layout="page")
    expect_equal((prefill.block_bytes, prefill.fingerprint), (PAGE, decode.fingerprint), "two layouts of the cache, one block")
    decode.decode(0, 12, prefix=0, source=a)
    prefill.prefill(0, 12)
    prefill.prefill(0, 12, EXISTS=12)
    decode.decode(0, 12, prefix=12, source=a, remote_dram=12, bytes=RESTORE, calls=12)
    decode.decode(0, 12, prefix=12, source=a, dram=12)
    decode.decode(6, 12, prefix=6, source=a, dram=6)
    prefill.decode(0, 12, prefix=12, dram=12, calls=12)
    expect_equal(prefill.stats()["held"], 0, "held by the prefill rank")
    expect_equal(decode.stats()["held"], 0, "held by the decode rank")
    expect_equal(b.stat()["pull"]["bytes"], RESTORE, "pulled bytes")


def ranks_restore_from_another_nodes_ssd(case):
    """113,246,208 bytes for one, and 226,492,416 for two at once, each byte read, sent and copied once."""
    a, b = case.pair(ssd_mib=1300)
    first = _Rank(case, a, "qwen3-8b", pages=24)
    first.prefill(0, 36)
    a.settle()
    one, two = _Rank(case, b, "qwen3-8b", name="one"), _Rank(case, b, "qwen3-8b", name="two", layout="page")
    said = one.decode(0, 12, prefix=12, source=a, remote_ssd=12, bytes=RESTORE)
    expect_equal(said["calls"], 12, "copies to a layer-first cache")
    before = a.stat()
    expect_equal(before["ssd"][0]["read_payload_bytes"], RESTORE, "bytes read from the SSD")
    expect_equal((b.stat()["pull"]["bytes"], before["serve"]["bytes"]), (RESTORE, RESTORE), "bytes pulled and served")
    one.start_decode(12, 12, source=a)
    two.start_decode(24, 12, source=a, how="restore")
    one.decoded(12, remote_ssd=12, bytes=RESTORE)
    two.decoded(12, remote_ssd=12, bytes=RESTORE)
    expect_equal(a.stat()["ssd"][0]["read_payload_bytes"], 3 * RESTORE, "bytes read from the SSD")
    expect_equal(b.stat()["pull"]["bytes"], 3 * RESTORE, "bytes pulled")
    expect_equal(one.stats()["copied_bytes"], 0, "bytes that libkvferry copied for a rank in place")
    expect_equal(two.stats()["copied_bytes"], RESTORE, "bytes that it copied to a host pool")


def ranks_restart_and_find_their_blocks(case):
    """An engine that dies or leaves, and comes again: a full hit, in DRAM and from SSD."""
    a = case.start(case.daemon("a", ssd_mib=768))
    rank = _Rank(case, a, "qwen3-8b")
    rank.prefill(0, 12)
    rank.start("die")
    expect_equal(rank.process.wait(30), -signal.SIGKILL, "how it died")
    case.eventually(5, "what it held is given back", lambda: a.gauges().keys() <= {"dirty_bytes", "ssd_writes"}, a.gauges)
    again = _Rank(case, a, "qwen3-8b")
    again.decode(0, 12, prefix=12, dram=12)
    again.must("close")
    a.settle()
    third = _Rank(case, a, "qwen3-8b", layout="page")
    third.decode(0, 12, prefix=12, ssd=12, bytes=RESTORE)


def ranks_outlive_a_drained_manager(case):
    """It finishes, unregisters, sees misses, and is there again with the next daemon, whose tier is cold: it is rebuilt."""
    a = case.start(case.daemon("a"))
    rank = _Rank(case, a, "qwen3-8b")
    rank.prefill(0, 8)
    a.stop()
    case.eventually(5, "the rank knows", lambda: rank.must("state")["state"] == "DOWN")
    rank.start_decode(0, 8)
    code, said = rank.answer()
    expect_equal((code, said["prefix"], said["UNAVAILABLE"]), ("UNAVAILABLE", 0, 8), "a decode without a daemon")
    a.start()
    rank.must("wait", 20000)
    rank.decode(0, 8, prefix=0)
    rank.prefill(0, 8)
    rank.decode(0, 8, prefix=8, dram=8)
    stats = rank.stats()
    expect_equal((stats["registrations"], stats["drain_notices"], stats["held"]), (2, 1, 0), "registrations, notices, held")


def ranks_outlive_a_killed_manager(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    rank = _Rank(case, a, "qwen3-8b")
    rank.prefill(0, 8)
    a.must("sync", "--durable")
    a.kill()
    case.eventually(5, "the rank knows", lambda: rank.must("state")["state"] == "DOWN")
    a.start()
    rank.must("wait", 20000)
    rank.decode(0, 8, prefix=8, ssd=8)
    expect_equal(rank.stats()["registrations"], 2, "registrations")


def ranks_beside_a_stopped_manager_get_misses_in_time(case):
    """It says nothing by itself: the deadline does. What it answers later goes back."""
    a = case.start(case.daemon("a"))
    rank = _Rank(case, a, "tiny", pages=32)
    rank.prefill(0, 32)
    a.signal(signal.SIGSTOP)
    for how in ("decode", "restore"):
        started = time.monotonic()
        rank.start(how, "t", "-", 500, 0, 32)
        code, said = rank.answer()
        took = time.monotonic() - started
        a_miss = (code, said["prefix"], said["DEADLINE"])
        expect_equal(a_miss, ("DEADLINE", 0, 32), "a get from a stopped daemon")
        expect(took < 0.5 + 2 * case.slowness, f"a deadline of half a second took {took:.1f} s")
    a.signal(signal.SIGCONT)
    rank.decode(0, 32, prefix=32, dram=32)
    expect_equal(rank.stats()["registrations"], 1, "registrations")
    a.gauges_return_to_zero()


def ranks_never_get_each_others_blocks(case):
    """Two ranks of one model, two models, two dtypes, two tenants: equal hashes, and each its own bytes or a miss."""
    a, b = case.pair()
    kinds = [dict(model="tiny", tp=(0, 2)), dict(model="tiny", tp=(1, 2)), dict(model="tiny-2", tp=(0, 2)),
             dict(model="tiny", dtype="f16", tp=(0, 2)), dict(model="tiny", tp=(0, 1))]
    sources = [_Rank(case, a, name=f"source-{i}", **kind) for i, kind in enumerate(kinds)]
    expect_equal(len({rank.fingerprint for rank in sources}), len(kinds), "fingerprints")
    ranks = [_Rank(case, b, name=f"rank-{i}", **kind) for i, kind in enumerate(kinds)]
    sources[0].prefill(0, 20)
    for rank in sources[1:] + ranks[1:]:
        rank.decode(0, 20, prefix=0, source=a)
    ranks[0].decode(0, 20, prefix=0, source=a, tenant="other")
    for rank in sources[1:]:
        rank.prefill(0, 20)
    sources[0].prefill(0, 20, tenant="other")
    for rank in ranks:
        rank.decode(0, 20, prefix=20, source=a, remote_dram=20)
    ranks[0].decode(0, 20, prefix=20, source=a, tenant="other", remote_dram=20)
    for rank in ranks:
        rank.decode(0, 20, prefix=20, source=a, dram=20)


def ranks_with_replicated_kv_read_each_block_once(case):
    """Eight MLA ranks ask for the same 100 blocks on another node's SSD: each is read once and sent once."""
    a, b = case.pair(ssd_mib=1300, pool_mib=1024)
    source = _Rank(case, a, "deepseek-v3", tp=(0, 8), pages=8)
    expect_equal(source.block_bytes, MLA_PAGE, "bytes of a block")
    source.prefill(0, 100)
    a.settle()
    ranks = [_Rank(case, b, "deepseek-v3", name=f"rank-{i}", tp=(i, 8), pages=8) for i in range(8)]
    for rank in ranks:
        rank.start_decode(0, 100, source=a)
    for rank in ranks:
        rank.decoded(100, bytes=100 * MLA_PAGE)
    there, here = a.stat(), b.stat()
    expect_equal(there["ssd"][0]["read_payload_bytes"], 100 * MLA_PAGE, "bytes read from the drive")
    expect_equal((there["serve"]["blocks"], there["serve"]["bytes"]), (100, 100 * MLA_PAGE), "blocks and bytes served")
    expect_equal((here["pull"]["blocks"], here["pull"]["bytes"]), (100, 100 * MLA_PAGE), "blocks and bytes pulled")


def ranks_that_restart_under_load_leave_nothing(case):
    """50 restarts, half of them by SIGKILL, beside an engine that works on: no gauge, descriptor or memory stays."""
    a = case.start(case.daemon("a", ssd_mib=1040))
    load = case.load(a, "load", "t/load", prefixes=4, blocks=8)
    memory, descriptors = [], None
    for number in range(10 + RESTARTS):
        if number == 10:
            descriptors = a.descriptors()
        if number >= 10 and (number - 10) % (RESTARTS // 2) == 0:
            memory.append(a.memory_mib("RssAnon"))
        rank = _Rank(case, a, "tiny", name=f"restart-{number}", pages=32)
        said = rank.must("prefill", "t", 20000, 8 * number, 32)
        expect_equal(said.get("OK", 0) + said.get("EXISTS", 0), 32, "blocks put")
        rank.decode(8 * number, 32, prefix=32)
        if number % 2:
            rank.start_decode(0, 32)
            rank.kill()
        else:
            rank.must("close")
            rank.end()
    memory.append(a.memory_mib("RssAnon"))
    load.must_leave()
    a.gauges_return_to_zero()
    case.eventually(5, "descriptors are as before", lambda: a.descriptors() <= descriptors, a.descriptors)
    # What is made once may be made in one half; what leaks grows in both.
    grown = min(memory[1] - memory[0], memory[2] - memory[1])
    expect(grown < 2 or case.slowness > 1, f"the daemon's memory over {RESTARTS} restarts, MiB: {memory}")
