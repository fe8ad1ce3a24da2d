"""`kvferry bench`: what an operator tunes with, and the engine that deploy/qualify drives."""

import json
import os

from harness import Command, expect, expect_equal

MIB = 1 << 20
NINE_MIB = 9437184
BATCHES = {0: (1, 1), 8: (8, 16), 32: (3, 6), 128: (1, 2)}  # MiB: Reads for 8 and 16 blocks of 9 MiB


def bench_pull_shows_as_many_reads_as_the_batch_says(case):
    a, b = case.pair(b_flags=["--read-batch-mib", "16"])
    got = json.loads(b.must("bench", "pull", "--source", a.source, "--sweep", "read-batch-mib=0,8,32,128", "--block-bytes", NINE_MIB,
                            "--prefill", a.run_dir, "--pairs", 1, "--restores", 2, "--warmups", 0, "--json").out)
    rows = {(row["read_batch_mib"], row["blocks"]): row for row in got["rows"]}
    wanted = {(mib, blocks): reads for mib, both in BATCHES.items() for blocks, reads in zip((8, 16), both)}
    expect_equal({name: row["reads_per_restore"] for name, row in rows.items()}, wanted, "Reads per restore")
    for row in rows.values():
        expect(row["source_tier"] == "ssd" and row["restores"] == 2, f"{row}")
        expect(0 < row["p50_ms"] <= row["p99_ms"] and row["gb_per_s"] > 0, f"{row}")
        expect(row["ratio_low"] <= row["ratio_high"], f"{row}")
    expect_equal(b.stat()["read_batch_mib"], 16, "read_batch_mib afterwards")


def bench_pull_without_prefill_takes_what_the_source_has(case):
    a, b = case.pair()
    words = ["bench", "pull", "--source", a.source, "--block-bytes", MIB, "--blocks", "5", "--sweep", "read-batch-mib=0,2"]
    b.must(*words, code=4).err.index("kvferry bench fill")
    a.must("bench", "fill", "--block-bytes", MIB, "--blocks", 5)
    table = b.must(*words, "--restores", 3).out.splitlines()
    expect_equal([line.split()[:3] for line in table[1:3]], [["0", "5", "1"], ["2", "5", "3"]], "rows")
    expect("baseline" in table[1] and "descriptive" in table[-1], f"{table}")
    expect_equal(b.stat()["pool"]["clean"], 0, "bytes that are left of the bench at the consumer")


def bench_fill_says_when_not_all_stay(case):
    """A pool of 16 MiB without a drive: what is put last pushes out what came first, and no bench could begin there."""
    b = case.start(case.daemon("b", pool_mib=16))
    b.must("bench", "fill", "--block-bytes", MIB, "--blocks", 4)
    b.must("bench", "fill", "--block-bytes", MIB, "--blocks", 32, code=1).err.index("--ssd-path")


def bench_pull_refuses_what_the_daemon_cannot(case):
    a, b = case.pair(b_flags=["--read-batch-mib", "3"])
    words = ["bench", "pull", "--source", a.source, "--block-bytes", MIB, "--prefill", a.run_dir]
    said = b.must(*words, "--sweep", "read-batch-mib=0,500", code=2)
    expect("per-instance limit" in said.err, f"{said}")
    b.must(*words, "--blocks", "200", code=2).must_name("--query-limit-per-instance-mib")
    b.must(*words, "--sweep", "pool-mib=1", code=2).must_name("--sweep", "read-batch-mib")
    expect_equal(b.stat()["read_batch_mib"], 3, "read_batch_mib afterwards")


def _begin_engine(case, b, a):
    words = [case.binary("kvferry"), "--run-dir", b.run_dir, "bench", "engine", "--source", a.source, "--blocks", "4", "--block-bytes", MIB]
    command = Command(["sh", "-c", 'fifo=$1; shift; exec "$@" <"$fifo"', "sh", case.path("fifo"), *words], case.directory, case.environment)
    case.commands.append(command)
    return command


def bench_engine_restores_when_told_and_unregisters(case):
    a, b = case.pair()
    a.must("bench", "fill", "--block-bytes", MIB, "--blocks", 4)
    os.mkfifo(case.path("fifo"))
    engine = _begin_engine(case, b, a)
    with open(case.path("fifo"), "w") as fifo:
        fifo.write("restore\nrestore\n")
    result = engine.end().must_end_with(0)
    lines = [json.loads(line) for line in result.out.splitlines()]
    expect_equal(lines[0], {"registered": True}, "the first line")
    for restore in lines[1:3]:
        expect_equal((restore["h2d_bytes"], restore["missing"], restore["mismatches"]), (4 * MIB, 0, 0), "a restore")
    expect_equal(lines[1]["hits"]["remote_ssd"], 4, "blocks of the first restore from the source's SSD")
    expect_equal(lines[-1], {"ended": "told", "restores": 2, "unregistered": True, "daemon_was_gone": False}, "the last line")


def bench_engine_unregisters_when_its_daemon_drains(case):
    a, b = case.pair()
    os.mkfifo(case.path("fifo"))
    engine = _begin_engine(case, b, a)
    with open(case.path("fifo"), "w"):
        case.eventually(10, "the engine has registered", lambda: b.lines("bench engine"), b.last_line)
        b.stop()
        last = json.loads(engine.end().must_end_with(0).out.splitlines()[-1])
    expect_equal((last["ended"], last["unregistered"]), ("draining", True), "the engine's last words")
