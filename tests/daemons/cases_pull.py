"""Put here, get there: every byte, every name, and as many Reads as the batch says."""

import os

from harness import expect, expect_equal, free_port

MIB = 1 << 20
NINE_MIB = 9437184  # 64 tokens of Qwen3-8B
SIZES = [1, 4095, 4096, 4097, 1124352, 4497408, 64 * MIB, 128 * MIB]
NS = "tenant/model"


def pull_brings_every_byte_of_every_size(case):
    a, b = case.pair()
    paths = {f"s{size}": case.file(f"in{size}", size) for size in SIZES}
    for key, path in paths.items():
        a.put(NS, key, path)
    a.settle()
    for key, path in paths.items():
        got = b.get(NS, key, source=a)
        expect_equal(got.out, f"{key} {os.path.getsize(path)} bytes ssd remote\n", "what get says")
        case.same(path, b.output(key), "pulled")
    stat = b.stat()
    expect_equal(stat["pull"]["blocks"], len(SIZES), "pull.blocks")
    expect_equal(stat["pull"]["bytes"], sum(SIZES), "pull.bytes")
    expect_equal(a.stat()["serve"]["bytes"], sum(SIZES), "serve.bytes")
    got = b.get(NS, "s4097")
    expect_equal(got.out, "s4097 4097 bytes dram local\n", "a pulled block stays in the consumer's DRAM")


def pull_from_dram_and_local_gets_name_their_tier(case):
    a, b = case.pair()
    path = case.file("in", 3000001)
    a.put(NS, "k", path)
    a.must("sync", "--durable")
    expect_equal(a.get(NS, "k").out, "k 3000001 bytes dram local\n", "local")
    expect_equal(b.get(NS, "k", source=a).out, "k 3000001 bytes dram remote\n", "remote")
    a.must("evict", "--dram")
    expect_equal(a.get(NS, "k").out, "k 3000001 bytes ssd local\n", "local, evicted")
    for daemon in (a, b):
        case.same(path, daemon.output("k"), "got")


def puts_beyond_the_limits_are_refused(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    for size, word in ((128 * MIB + 1, "128 MiB"), (0, "empty")):
        path = case.file(f"in{size}", size)
        a.must("put", NS, "k", path, code=2).must_name(path, word)
    a.get(NS, "k", code=4)
    expect_equal(a.stat()["puts"]["blocks"], 0, "puts.blocks")


def blocks_too_large_for_a_small_daemon_are_refused_alone(case):
    """A pool of 128 MiB lets one engine hold 36; the other keys arrive."""
    a = case.daemon("a", ssd_mib=768, listen=True)
    b = case.daemon("b", pool_mib=128)
    case.start(a, b)
    small, large = case.file("small", MIB), case.file("large", 64 * MIB)
    a.put(NS, "small", small)
    a.put(NS, "large", large)
    a.settle()
    b.must("put", NS, "large", large, code=2).must_name("--dirty-limit-mib 32", "TOO_LARGE")
    b.get(NS, "small", "large", source=a, code=2).must_name("large", "--query-limit-per-instance-mib 36", "TOO_LARGE")
    case.same(small, b.output("small"), "pulled")


def put_of_an_existing_key_keeps_the_first_content(case):
    a, b = case.pair()
    first, second = case.file("first", 5 * MIB), case.file("second", 3 * MIB)
    a.put(NS, "k", first)
    again = a.put(NS, "k", second).must_name("k", "first content stays", second, "not written")
    expect_equal(again.out, "exists\n", "the second put says")
    a.settle()
    expect_equal(a.put(NS, "k", second).out, "exists\n", "the third put, when it is on SSD only, says")
    b.get(NS, "k", source=a)
    case.same(first, b.output("k"), "pulled")
    expect_equal(a.stat()["puts"], {"blocks": 1, "exists": 2, "busy": 0}, "puts")


def one_block_goes_to_stdout(case):
    """Its bytes and nothing else; not a directory called `-`."""
    a, b = case.pair()
    text = bytes(range(32, 127)) * 1000
    with open(case.path("in"), "wb") as file:
        file.write(text)
    a.put(NS, "k", case.path("in"))
    a.settle()
    for words in (("get", "--run-dir", b.run_dir), ("pull",)):
        got = case.run("kvferry", *words, NS, "k", "-o", "-", "--source", a.source).must_end_with(0)
        expect(got.out.encode() == text, f"{words[0]} -o -: other bytes on stdout")
        missing = case.run("kvferry", *words, NS, "no", "-o", "-", "--source", a.source).must_end_with(4)
        expect_equal(missing.out, "", f"{words[0]} -o - of a missing block, on stdout")
    expect(not os.path.exists(case.path("-")), "a directory was made")


def missing_keys_are_named_and_the_others_come(case):
    a, b = case.pair()
    keys, paths = case.files(3, MIB + 1)
    case.put_files(a, NS, keys, paths)
    a.settle()
    got = b.get(NS, "no1", "k0", "no2", "k1", "k2", source=a, code=4)
    lines = got.err.splitlines()
    expect_equal(len(lines), 2, "lines on stderr")
    for key, line in zip(("no1", "no2"), lines):
        expect(f" {key}: " in line, f"{key} is not named in: {line}")
    for key, path in zip(keys, paths):
        case.same(path, b.output(key), "pulled")
    expect_equal(sorted(os.listdir(f"{b.directory}/out")), keys, "files")
    b.get(NS, "no1", code=4).must_name("no1")
    b.get(NS, "k0", "no1", "k1", source=a, code=4).must_name("no1")


def keys_and_namespaces_are_told_apart(case):
    a, b = case.pair()
    odd = {"..": "%2E.", ".hidden": "%2Ehidden", "a/b c%": "a%2Fb%20c%25", "hex:00ff7f": "%00%FF%7F", "x" * 64: "x" * 64}
    for number, (key, name) in enumerate(odd.items()):
        path = case.file(f"odd{number}", 5000 + number)
        a.put(NS, key, path)
        a.settle()
        b.get(NS, key, source=a)
        case.same(path, b.output(name), f"key {key!r}")
    a.must("put", NS, "hex:6b", case.file("k", 77))
    a.get(NS, "k")
    case.same(case.path("k"), a.output("k"), "hex:6b is k")

    spaces = ["t1/f1", "t1/f2", "t2/f1"]
    paths = [case.file(f"space{i}", 20000) for i in range(3)]
    for ns, path in zip(spaces, paths):
        a.put(ns, "same", path)
    a.settle()
    for ns, path in zip(spaces, paths):
        b.get(ns, "same", source=a)
        case.same(path, b.output("same"), f"namespace {ns}")
        b.get(ns, "same")
        case.same(path, b.output("same"), f"namespace {ns}, here")
    for ns in ("t2/f2", "t3/f1", "t1/f"):
        b.get(ns, "same", source=a, code=4).must_name("same")


def pull_needs_no_daemon_here(case):
    """kvferry pull: the bytes, the tiers, what is missing, more than its pool holds, and a source that is not there."""
    a = case.start(case.daemon("a", ssd_mib=1024, listen=True))
    sizes = {"one": 1, "odd": 4097, "mla": 1124352, "big": 128 * MIB, "big2": 128 * MIB, "mid": 64 * MIB}
    for key, size in sizes.items():
        a.put(NS, key, case.file(key, size))
    a.settle()
    out = case.path("pulled")

    def pull(*words, source=None):
        return case.run("kvferry", "pull", NS, *words, "-o", out, "--source", source or a.source)

    got = pull(*sizes)
    got.must_end_with(0)
    for key, size in sizes.items():
        expect(f"{key} {size} bytes ssd remote\n" in got.out, f"{key} is not in: {got.out}")
        case.same(case.path(key), f"{out}/{key}", "pulled")
    got = pull("one", "no1", "one", "mla")
    got.must_end_with(4)
    got.must_name("no1", "NOT_FOUND")
    expect_equal(a.stat()["serve"]["blocks"], len(sizes) + 2, "serve.blocks")
    a.gauges_return_to_zero()
    got = pull("one", source=f"127.0.0.1:{free_port()}")
    got.must_end_with(1)
    got.must_name("no kvferryd answers")


def reads_follow_the_batch(case):
    """9 MiB blocks from SSD: 8 make 3 Reads at 32 MiB, 1 at 128, 1 at 0; 16 make 6, 2, 1."""
    a, b = case.pair()
    keys, paths = case.files(16, NINE_MIB)
    case.put_files(a, NS, keys, paths)
    a.settle()
    reads = 0
    for count, batch, wanted in ((8, 32, 3), (8, 128, 1), (8, 0, 1), (16, 32, 6), (16, 128, 2), (16, 0, 1)):
        b.must("set", "read-batch-mib", batch)
        b.must("evict", "--dram")
        a.must("evict", "--dram")
        got = b.get(NS, *keys[:count], source=a)
        expect_equal(got.out.count(f"{NINE_MIB} bytes ssd remote"), count, "blocks from the source's SSD")
        reads += wanted
        what = f"Reads after {count} blocks at {batch} MiB"
        stat = b.stat()
        expect_equal(stat["read_batch_mib"], batch, "read_batch_mib")
        expect_equal(stat["pull"]["reads"], reads, f"the consumer's {what}")
        expect_equal(a.stat()["serve"]["reads"], reads, f"the source's {what}")
        expect_equal(b.metric("pull_reads_total"), reads, f"kvferry_pull_reads_total: {what}")
        expect_equal(a.metric("serve_reads_total"), reads, f"kvferry_serve_reads_total: {what}")
        for key, path in zip(keys[:count], paths):
            case.same(path, b.output(key), "pulled")
            os.unlink(b.output(key))


def impossible_batches_are_refused(case):
    b = case.start(case.daemon("b"))
    b.must("set", "read-batch-mib", 145, code=2).must_name("read-batch-mib", "query-limit-per-instance-mib")
    b.must("set", "read-batch-mib", "many", code=2).must_name("read-batch-mib", "many")
    b.must("set", "pool-mib", 1, code=2).must_name("pool-mib")
    expect_equal(b.stat()["read_batch_mib"], 0, "read_batch_mib")
    said = b.must("set", "read-batch-mib", 144)
    expect("1 in flight" in said.out, f"fewer in flight must be told: {said.out}")
    expect_equal(b.stat()["read_batch_mib"], 144, "read_batch_mib")


def idle_daemons_sleep(case):
    """With a session open between them, two seconds cost next to no CPU."""
    import time

    a, b = case.pair()
    a.put(NS, "k", case.file("in", MIB))
    b.get(NS, "k", source=a)
    engine = case.engine(b)
    case.eventually(10, "the daemons come to rest", lambda: not a.gauges() and not b.gauges())
    before = a.cpu_ticks() + b.cpu_ticks()
    time.sleep(2)
    used = a.cpu_ticks() + b.cpu_ticks() - before
    expect(used <= 20, f"two idle daemons used {used * 10} ms of CPU in 2 s")
    engine.must("close")
