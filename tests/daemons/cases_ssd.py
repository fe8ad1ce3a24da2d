"""What goes to the SSD, what comes back from it, and what becomes of bytes that rot there."""

import os

from harness import Failed, expect, expect_equal

MIB = 1 << 20
NS = "tenant/model"


def _damage(daemon, content):
    """Change one byte in the middle of the record that holds this content."""
    directory = f"{daemon.directory}/ssd"
    for name in sorted(os.listdir(directory)):
        with open(f"{directory}/{name}", "r+b") as file:
            before = b""
            while piece := file.read(16 * MIB):
                at = (before + piece).find(content[:4096])
                if at >= 0:
                    file.seek(file.tell() - len(piece) - len(before) + at + len(content) // 2)
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 1]))
                    return
                before = piece[-4096:]
    raise Failed("the block is not on the SSD")


def ssd_records_that_rot_are_misses(case):
    """Here and at a consumer; the blocks beside them are as before, and a new put heals."""
    a, b = case.pair()
    keys, paths = case.files(4, 3 * MIB + 5)
    case.put_files(a, NS, keys, paths)
    a.settle()
    for key in (0, 2):
        with open(paths[key], "rb") as file:
            _damage(a, file.read())
    b.get(NS, "k0", source=a, code=4).must_name("k0", "CORRUPT")
    a.get(NS, "k2", code=4).must_name("k2", "CORRUPT")
    b.get(NS, "k1", "k3", source=a)
    a.get(NS, "k1", "k3")
    for key in (1, 3):
        for daemon in (a, b):
            case.same(paths[key], daemon.output(f"k{key}"), "a block beside a rotten one")
    case.eventually(5, "the source has dropped what it found bad",
                    lambda: "exists" not in a.must("put", NS, "k0", paths[0]).out)
    a.put(NS, "k2", paths[2])
    a.settle()
    b.get(NS, "k0", "k2", source=a)
    for key in (0, 2):
        case.same(paths[key], b.output(f"k{key}"), "a block that was put again")


def ssd_verify_finds_what_rots(case):
    a = case.start(case.daemon("a", ssd_mib=512))
    keys, paths = case.files(3, MIB)
    case.put_files(a, NS, keys, paths)
    case.run("kvferryd", "--verify", "--ssd-path", "a/ssd").must_end_with(1).must_name("a/ssd")
    a.stop()
    case.run("kvferryd", "--verify", "--ssd-path", "a/ssd").must_end_with(0)
    with open(paths[1], "rb") as file:
        _damage(a, file.read())
    case.run("kvferryd", "--verify", "--ssd-path", "a/ssd").must_end_with(5)
    a.start()
    a.get(NS, *keys, code=4).must_name("k1")
    for key in (0, 2):
        case.same(paths[key], a.output(f"k{key}"), "a block beside a rotten one")


def ssd_write_policy_reuse_writes_at_the_second_time(case):
    a = case.start(case.daemon("a", ssd_mib=512, flags=["--ssd-write-policy", "reuse"]))
    keys, paths = case.files(3, MIB)
    case.put_files(a, NS, keys, paths)
    expect_equal(a.stat()["ssd"][0]["write_payload_bytes"], 0, "bytes written after the first put")
    a.get(NS, "k0")
    case.eventually(5, "the block that was asked for is written", lambda: a.stat()["ssd"][0]["write_payload_bytes"] == MIB)
    a.settle()
    expect_equal(a.stat()["ssd"][0]["write_payload_bytes"], 3 * MIB, "bytes written by sync --durable")
    a.get(NS, *keys)
    for key, path in zip(keys, paths):
        case.same(path, a.output(key), "from SSD")


def ssd_of_a_consumer_keeps_pulled_blocks_when_asked_to(case):
    a, b = case.pair(b_flags=["--cache-pulled", "ssd", "--ssd-path", "b/ssd", "--ssd-capacity-mib", "512"])
    b.ssd_mib = 512
    engine, puller = case.engine(a), case.engine(b)
    engine.must("put", NS, 10000, MIB, 0, 20)
    expect_equal(puller.must("check", NS, a.source, 10000, MIB, 0, 20)["wrong"], 0, "wrong blocks")
    b.settle()
    a.kill()
    found = puller.must("check", NS, "-", 10000, MIB, 0, 20)
    expect_equal((found["ssd"], found["wrong"]), (20, 0), "blocks from the consumer's own SSD")
    engine.must("close")


def ssd_drives_share_the_blocks(case):
    """Two paths: both are written, both are read, and both come back after kill -9."""
    os.makedirs(case.path("second"))
    a = case.daemon("a", ssd_mib=512, flags=["--ssd-path", "second"])
    case.start(a)
    engine = case.engine(a)
    engine.must("put", NS, 30000, MIB, 0, 100)
    a.settle()
    for drive in a.stat()["ssd"]:
        expect(drive["write_payload_bytes"] > 0, f"nothing was written to {drive['path']}")
    a.kill()
    engine.must("close")
    a.start()
    engine.must("open", a.run_dir, "probe")
    found = engine.must("check", NS, "-", 10000, MIB, 0, 100)
    expect_equal((found["ssd"], found["wrong"]), (100, 0), "blocks of both drives")
    for drive in a.stat()["ssd"]:
        expect(drive["read_payload_bytes"] > 0, f"nothing was read from {drive['path']}")


def no_ssd_tier_counts_what_it_drops(case):
    b = case.start(case.daemon("b"))
    keys, paths = case.files(3, MIB)
    case.put_files(b, NS, keys, paths)
    expect_equal(b.metric('dropped_blocks_total{reason="no_ssd"}'), 3, "dropped_blocks_total")
    b.must("sync")
    b.get(NS, *keys)
    b.must("evict", "--dram")
    b.get(NS, "k0", code=4).must_name("k0")
