"""quickstart's last step: join replay's JSON, exits and drain gauges; print the table; judge.

usage: quickstart-report.py WORK PREFILL_EXIT DECODE_EXIT JSON_FILE
"""
import json
import os
import re
import sys

GAUGES = ["query_bytes", "leases", "pinned_bytes", "ssd_reads", "ssd_writes", "dirty_bytes", "quarantine_bytes"]


def drain_gauges(log_path):
    """The gauges on the daemon's last log line; what is not there stays absent."""
    with open(log_path, encoding="utf-8", errors="replace") as log:
        lines = log.read().splitlines()
    last = lines[-1] if lines else ""
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", last) if name in GAUGES}


def main():
    work, prefill_exit, decode_exit, json_path = sys.argv[1:5]
    with open(os.path.join(work, "replay.json"), encoding="utf-8") as file:
        result = json.load(file)
    result["exit"] = {"prefill": int(prefill_exit), "decode": int(decode_exit)}
    result["drain"] = {name: drain_gauges(os.path.join(work, name, "log")) for name in ("prefill", "decode")}

    wrong = []
    for name in ("mismatches", "missing"):
        if result[name] != 0:
            wrong.append(f"{result[name]} {name}")
    if result["hits"]["remote_ssd"] == 0:
        wrong.append("no block came from the other node's SSD")
    for name in ("prefill", "decode"):
        if result["exit"][name] != 0:
            wrong.append(f"the {name} daemon ended with exit {result['exit'][name]}")
        for gauge in GAUGES:
            value = result["drain"][name].get(gauge)
            if value != 0:
                wrong.append(f"drain gauge {gauge} of {name} is {'absent' if value is None else value}")

    with open(json_path + ".part", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    os.replace(json_path + ".part", json_path)

    hits = result["hits"]
    rows = [
        ("requests", result["requests"]),
        ("blocks", result["blocks"]),
        ("bytes compared", result["bytes"]),
        ("mismatches", result["mismatches"]),
        ("missing", result["missing"]),
        ("found locally (DRAM, SSD)", f"{hits['dram']}, {hits['ssd']}"),
        ("found at the source (DRAM, SSD)", f"{hits['remote_dram']}, {hits['remote_ssd']}"),
        ("Reads", result["reads"]),
        ("GB/s, verified", f"{result['gb_per_s']:.2f}"),
        ("ms per request (p50, p90, p99)", ", ".join(f"{result['latency_ms'][p]:.1f}" for p in ("p50", "p90", "p99"))),
        ("exits (prefill, decode)", f"{prefill_exit}, {decode_exit}"),
    ]
    for name, value in rows:
        print(f"  {name:34} {value}")
    for line in wrong:
        print(f"quickstart: {line}", file=sys.stderr)
    print("  every byte arrived" if not wrong else "  NOT as it should be")
    return 1 if wrong else 0


sys.exit(main())
