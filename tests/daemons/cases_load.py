"""More than fits: SSDs that are full, puts faster than the drive, several who want the same."""

import os
import time

from harness import Failed, expect, expect_equal

MIB = 1 << 20
NINE_MIB = 9437184
NS = "tenant/model"


def _ssd_bytes(daemon):
    directory = f"{daemon.directory}/ssd"
    return sum(os.stat(f"{directory}/{name}").st_blocks * 512 for name in os.listdir(directory))


def full_ssd_keeps_the_newest_blocks(case):
    """512 MiB of SSD, three times as much is put, over two starts: the newest are whole, the oldest are misses."""
    a, b = case.pair(ssd_mib=512)
    engine = case.engine(a)
    for first in (0, 512, 1024):
        stored = engine.must("put", NS, 30000, MIB, first, 512)
        expect_equal(stored, {"OK": 512}, "puts")
    a.settle()
    drive = a.stat()["ssd"][0]
    expect(500 * MIB <= drive["capacity_bytes"] <= 512 * MIB, f"capacity {drive['capacity_bytes']}")
    expect(drive["used_bytes"] <= 512 * MIB, f"{drive['used_bytes']} bytes are used of 512 MiB")
    expect(_ssd_bytes(a) <= 514 * MIB, f"the directory holds {_ssd_bytes(a)} bytes")
    expect_equal(drive["dropped"], 0, "dropped")
    newest = engine.must("check", NS, "-", 10000, MIB, 1386, 150)
    expect_equal((newest["ssd"], newest["wrong"]), (150, 0), "the newest 150 blocks")
    oldest = engine.must("check", NS, "-", 10000, MIB, 0, 900)
    expect_equal((oldest.get("NOT_FOUND"), oldest["wrong"]), (900, 0), "the oldest 900 blocks")
    puller = case.engine(b)
    everything = puller.must("check", NS, a.source, 10000, MIB, 0, 1536)
    expect_equal(everything["wrong"], 0, "wrong blocks, pulled")
    expect(everything["OK"] >= 150, f"blocks pulled: {everything}")
    expect_equal(everything["OK"] + everything["NOT_FOUND"], 1536, "blocks that came or were misses")

    engine.must("close")
    a.stop()
    a.start()
    engine.must("open", a.run_dir, "probe")
    newest = engine.must("check", NS, "-", 10000, MIB, 1386, 150)
    expect_equal((newest["ssd"], newest["wrong"]), (150, 0), "the newest 150 blocks after a restart")
    engine.must("put", NS, 30000, MIB, 2000, 400)
    a.settle()
    expect(_ssd_bytes(a) <= 514 * MIB, f"after a restart the directory holds {_ssd_bytes(a)} bytes")
    newest = engine.must("check", NS, "-", 10000, MIB, 2250, 150)
    expect_equal((newest["ssd"], newest["wrong"]), (150, 0), "blocks put after the restart")


def full_ssd_keeps_what_is_asked_for(case):
    """The drive is filled three times over; twenty blocks that are asked for meanwhile outlive that, and a restart."""
    a = case.start(case.daemon("a", ssd_mib=512))
    engine = case.engine(a)
    engine.must("put", NS, 30000, MIB, 0, 20)
    for first in range(100, 1600, 100):
        hot = engine.must("check", NS, "-", 10000, MIB, 0, 20)
        expect_equal((hot["OK"], hot["wrong"]), (20, 0), f"hot blocks before {first}")
        engine.must("put", NS, 30000, MIB, first, 100)
        a.settle()
    drive = a.stat()["ssd"][0]
    expect(20 <= drive["carried_blocks"] <= 1500 // 3, f"carried: {drive['carried_blocks']}")
    expect_equal(drive["carried_bytes"], drive["carried_blocks"] * MIB, "carried bytes")
    expect_equal((drive["carries_failed"], drive["dropped"]), (0, 0), "carries failed, puts dropped")
    expect(drive["write_device_bytes"] <= 1.34 * drive["write_payload_bytes"], f"too much was written: {drive}")

    engine.must("close")
    a.stop()
    a.start()
    engine.must("open", a.run_dir, "probe")
    hot = engine.must("check", NS, "-", 10000, MIB, 0, 20)
    expect_equal((hot["ssd"], hot["wrong"]), (20, 0), "hot blocks after a restart")


def full_ssd_under_readers_never_gives_other_bytes(case):
    """One engine fills the drive round and round while others read what is about to be overwritten."""
    a, b = case.pair(ssd_mib=512)
    writer, reader, puller = case.engine(a), case.engine(a), case.engine(b)
    for start in range(0, 1600, 400):
        writer.start("put", NS, 60000, MIB, start, 400)
        for _ in range(2):
            reader.start("check", NS, "-", 5000, MIB, max(0, start - 400), 400)
            puller.start("check", NS, a.source, 5000, MIB, max(0, start - 400), 400)
            for engine in (reader, puller):
                expect_equal(engine.must_answer("check")["wrong"], 0, "wrong blocks")
            b.must("evict", "--dram")
        expect_equal(writer.must_answer("put"), {"OK": 400}, "puts")


def put_storm_slows_down_and_loses_nothing(case):
    """Three engines put 450 MiB where 16 may be dirty."""
    a = case.start(case.daemon("a", ssd_mib=768, flags=["--dirty-limit-mib", "16"]))
    engines = [case.engine(a, name=f"e{i}") for i in range(3)]
    for number, engine in enumerate(engines):
        engine.start("put", NS, 60000, MIB, 150 * number, 150)
    most = 0
    while a.metric("puts_total{outcome=\"stored\"}") < 450:
        most = max(most, a.stat()["pool"]["dirty"])
        if a.metric("puts_total{outcome=\"busy\"}"):
            raise Failed("a put was refused")
        time.sleep(0.01)
    for engine in engines:
        expect_equal(engine.must_answer("put"), {"OK": 150}, "puts")
    expect(0 < most <= 16 * MIB, f"at most 16 MiB may be dirty, {most} bytes were")
    a.settle()
    found = engines[0].must("check", NS, "-", 10000, MIB, 0, 450)
    expect_equal((found["ssd"], found["wrong"]), (450, 0), "blocks after the storm")


def put_beyond_the_deadline_is_busy(case):
    """Places are held open up to the dirty limit: the next put waits, and is told BUSY at its deadline."""
    a = case.start(case.daemon("a", ssd_mib=768, flags=["--dirty-limit-mib", "16"]))
    holder = case.engine(a)
    holder.must("begin", NS, 5000, 16 * MIB, 0, 1)
    refused = a.must("put", NS, "k", case.file("in", MIB), "--timeout-s", 2, code=1)
    refused.must_name("BUSY")
    expect(refused.seconds < 2 + 4 * case.slowness, f"a deadline of 2 s took {refused.seconds:.1f} s")
    expect_equal(a.stat()["puts"]["busy"], 1, "puts.busy")
    waiting = a.begin("put", NS, "k", case.path("in"), "--timeout-s", 20)
    time.sleep(0.5)
    expect(waiting.is_running(), "a put did not wait for room")
    holder.must("abort")
    waiting.end().must_end_with(0)
    a.settle()
    a.get(NS, "k")
    case.same(case.path("in"), a.output("k"), "put that waited")


def get_beyond_the_deadline_is_busy(case):
    """Two engines hold all that Gets may hold: the third one waits, and is told BUSY at its deadline."""
    a = case.start(case.daemon("a", ssd_mib=768))
    first, second = case.engine(a), case.engine(a)
    first.must("put", NS, 30000, MIB, 0, 300)
    a.settle()
    first.must("get", NS, "-", 5000, MIB, 0, 144)
    second.must("get", NS, "-", 5000, MIB, 144, 48)
    refused = a.run("get", NS, "b250", "-o", "a/out", "--timeout-s", 2).must_end_with(1)
    refused.must_name("BUSY")
    expect(refused.seconds < 2 + 4 * case.slowness, f"a deadline of 2 s took {refused.seconds:.1f} s")
    waiting = a.begin_get(NS, "b250", timeout_s=20)
    time.sleep(0.5)
    expect(waiting.is_running(), "a get did not wait for room")
    first.must("release")
    waiting.end().must_end_with(0)
    expect_equal(second.must("held")["wrong"], 0, "held blocks that changed")
    expect(a.stat()["query"]["waited"] >= 1, "query.waited")


def two_consumers_share_the_sources_reads(case):
    a, b = case.pair()
    c = case.start(case.daemon("c"))
    engine = case.engine(a)
    engine.must("put", NS, 30000, NINE_MIB, 0, 8)
    a.settle()
    before = a.stat()["ssd"][0]["read_payload_bytes"]
    pullers = [case.engine(b), case.engine(c)]
    for puller in pullers:
        puller.start("check", NS, a.source, 20000, NINE_MIB, 0, 8)
    for puller in pullers:
        found = puller.must_answer("check")
        expect_equal((found["OK"], found["wrong"]), (8, 0), "blocks")
    expect_equal(a.stat()["ssd"][0]["read_payload_bytes"] - before, 8 * NINE_MIB, "bytes read from the source's SSD")
    expect_equal(a.stat()["serve"]["blocks"], 16, "serve.blocks")


def two_gets_on_one_consumer_share_the_pull(case):
    a, b = case.pair()
    engine = case.engine(a)
    engine.must("put", NS, 30000, NINE_MIB, 0, 8)
    a.settle()
    pullers = [case.engine(b), case.engine(b)]
    for puller in pullers:
        puller.start("check", NS, a.source, 20000, NINE_MIB, 0, 8)
    hits = 0
    for puller in pullers:
        found = puller.must_answer("check")
        expect_equal((found["OK"], found["wrong"]), (8, 0), "blocks")
        hits += found["dram"]
    stat = b.stat()
    expect_equal(stat["pull"]["blocks"], 8, "pull.blocks")
    expect(stat["coalesced_loads"] + hits >= 8, f"coalesced {stat['coalesced_loads']}, hits {hits}: 8 were shared")
    expect_equal(a.stat()["serve"]["blocks"], 8, "serve.blocks")


def two_local_gets_share_the_read(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    engines = [case.engine(a) for _ in range(3)]
    engines[0].must("put", NS, 30000, NINE_MIB, 0, 5)
    a.settle()
    for engine in engines:
        engine.start("get", NS, "-", 20000, NINE_MIB, 0, 5)
    for engine in engines:
        found = engine.must_answer("get")
        expect_equal((found["OK"], found["wrong"]), (5, 0), "blocks")
    expect_equal(a.stat()["ssd"][0]["read_payload_bytes"], 5 * NINE_MIB, "bytes read from SSD")
    expect_equal(a.stat()["drain"]["pinned_bytes"], 5 * NINE_MIB, "pinned_bytes: each block once")
    expect_equal(a.stat()["drain"]["query_bytes"], 15 * NINE_MIB, "query_bytes: each waiter in full")


def many_small_blocks_move_in_one_get(case):
    """4096 blocks of 4 KiB: longer than one message, longer than one call of the command."""
    a, b = case.pair()
    engine = case.engine(a)
    engine.must("put", NS, 30000, 4096, 0, 4096)
    a.settle()
    puller = case.engine(b)
    found = puller.must("get", NS, a.source, 20000, 4096, 0, 4096)
    expect_equal((found["remote_ssd"], found["wrong"]), (4096, 0), "blocks")
    expect_equal(b.stat()["drain"]["pinned_bytes"], 4096 * 4096, "pinned_bytes")
    puller.must("release")
    expect_equal(b.stat()["pull"]["blocks"], 4096, "pull.blocks")
