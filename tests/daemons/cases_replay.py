"""`kvferry replay`: a trace of requests through two daemons, every byte compared. These run under sanitizers as well."""

import json

from harness import expect, expect_equal

MIB = 1 << 20
REQUESTS = 12


def _replay(case, a, b, *options):
    case.run("kvferry", "trace", "--requests", REQUESTS, "--seed", 1, "-o", "trace.jsonl").must_end_with(0)
    with open(case.path("trace.jsonl")) as file:
        blocks = sum(len(json.loads(line)["hash_ids"]) for line in file)
    case.run("kvferry", "replay", "--trace", "trace.jsonl", "--prefill", a.run_dir, "--decode", b.run_dir, "--source",
             a.source, "--block-bytes", MIB, "--json", "replay.json", *options, seconds=240).must_end_with(0)
    with open(case.path("replay.json")) as file:
        got = json.load(file)
    hits = got["hits"]
    expect_equal(sorted(hits), ["dram", "miss", "remote_dram", "remote_ssd", "ssd"], "names of hits")
    expect_equal((got["requests"], got["blocks"], got["bytes"]), (REQUESTS, blocks, blocks * MIB), "requests, blocks, bytes")
    expect_equal((got["mismatches"], got["missing"], hits["miss"]), (0, 0, 0), "mismatches, missing, hits.miss")
    expect_equal(sum(hits.values()), blocks, "the sum of the hits")
    expect(got["reads"] > 0 and got["gb_per_s"] > 0, f"reads {got['reads']}, gb_per_s {got['gb_per_s']}")
    latency = got["latency_ms"]
    expect(0 < latency["p50"] <= latency["p90"] <= latency["p99"], f"latency_ms {latency}")
    expect_equal(b.stat()["pull"]["blocks"], hits["remote_ssd"] + hits["remote_dram"], "pull.blocks")
    return got


def replay_phased(case):
    a, b = case.pair()
    got = _replay(case, a, b)
    expect(got["hits"]["remote_ssd"] > 0, f"no block came from the source's SSD: {got['hits']}")
    expect_equal(got["reads"], b.stat()["pull"]["reads"], "reads")


def replay_interleaved(case):
    a, b = case.pair()
    _replay(case, a, b, "--order", "interleaved", "--seed", 7)


def replay_through_a_small_batch(case):
    a, b = case.pair(b_flags=["--read-batch-mib", "3", "--read-batches-in-flight", "4"])
    got = _replay(case, a, b)
    expect(got["reads"] >= got["hits"]["remote_ssd"] / 3, f"{got['reads']} Reads at 3 MiB")


def replay_with_both_ssds_and_plain_reads(case):
    """The pread twin at the source, an SSD at the consumer."""
    a, b = case.pair(a_flags=["--ssd-io", "pread"], ssd_mib=768)
    _replay(case, a, b)
