"""What scripts and dashboards see: stat, metrics, health, the sockets that are there."""

import os
import re
import stat as file_mode

from harness import GAUGES, SSD_GAUGES, expect, expect_equal

MIB = 1 << 20
NS = "tenant/model"
PLAIN = ["pull_reads_total", "pull_bytes_total", "serve_reads_total", "serve_bytes_total", "ssd_read_sets_total",
         "ssd_read_sqes_total", "ssd_registrations_total", "queries_waited_total", "coalesced_loads_total",
         "query_peak_bytes", "query_peak_instance_bytes"]
LABELLED = {"blocks_total": "tier", "misses_total": "reason", "ssd_payload_bytes_total": "op",
            "ssd_device_bytes_total": "op", "dropped_blocks_total": "reason"}
STAGES = ["admission", "load", "read", "verify", "h2d"]
SAMPLE = re.compile(r'^([a-z_]+)(\{[a-z_]+="(?:[^"\\]|\\.)*"(?:,[a-z_]+="(?:[^"\\]|\\.)*")*\})? (-?[0-9.e+-]+|\+Inf|NaN)$')


def metrics_are_all_there_from_the_start(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    values = a.metrics()
    nought = [name for name in PLAIN if name != "ssd_registrations_total"] + [f"drain_{name}" for name in GAUGES]
    for name in nought:
        expect_equal(values.get(f"kvferry_{name}"), 0, name)
    expect("kvferry_ssd_registrations_total" in values, "ssd_registrations_total is absent")
    for name, label in LABELLED.items():
        found = [value for key, value in values.items() if key.startswith(f'kvferry_{name}{{{label}="')]
        expect(found, f"{name} is absent")
        if name != "ssd_device_bytes_total":
            expect_equal(set(found), {0.0}, name)
    for tier in ("dram", "ssd", "remote_dram", "remote_ssd"):
        expect(f'kvferry_blocks_total{{tier="{tier}"}}' in values, f"blocks_total has no {tier}")
    for stage in STAGES:
        expect_equal(values.get(f'kvferry_stage_seconds_count{{stage="{stage}"}}'), 0, f"stage {stage}")
        expect(f'kvferry_stage_seconds_bucket{{stage="{stage}",le="+Inf"}}' in values, f"stage {stage} has no +Inf")


def metrics_are_absent_for_parts_that_do_not_run(case):
    b = case.start(case.daemon("b"))
    values, stat = b.metrics(), b.stat()
    for name in SSD_GAUGES:
        expect(f"kvferry_drain_{name}" not in values, f"drain_{name} is there without an SSD tier")
        expect(name not in stat["drain"], f"drain.{name} is there without an SSD tier")
    expect("ssd" not in stat, "ssd is there without an SSD tier")
    expect("kvferry_drain_query_bytes" in values, "drain_query_bytes is absent")


def metrics_are_valid_text_and_equal_stat(case):
    a, b = case.pair()
    engine = case.engine(a)
    engine.must("put", NS, 30000, MIB, 0, 40)
    a.settle()
    puller = case.engine(b)
    puller.must("check", NS, a.source, 10000, MIB, 0, 45)
    puller.must("check", NS, "-", 10000, MIB, 0, 40)
    for daemon in (a, b):
        daemon.gauges_return_to_zero()
        _status, text = daemon.http("/metrics")
        seen, families = set(), {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                expect(name not in families, f"two TYPE lines for {name}")
                families[name] = kind
            elif line and not line.startswith("#"):
                expect(SAMPLE.match(line), f"no valid sample: {line}")
                series = line.rsplit(" ", 1)[0]
                expect(series not in seen, f"twice: {series}")
                seen.add(series)
                family = re.sub(r"\{.*", "", series)
                base = re.sub(r"_(bucket|sum|count)$", "", family)
                expect(family in families or families.get(base) == "histogram", f"no TYPE for {family}")
        values, stat = daemon.metrics(), daemon.stat()
        same = {
            "pull_reads_total": stat["pull"]["reads"], "pull_bytes_total": stat["pull"]["bytes"],
            "serve_reads_total": stat["serve"]["reads"], "serve_bytes_total": stat["serve"]["bytes"],
            "coalesced_loads_total": stat["coalesced_loads"], "queries_waited_total": stat["query"]["waited"],
            "query_peak_bytes": stat["query"]["peak_bytes"],
            "query_peak_instance_bytes": stat["query"]["peak_instance_bytes"],
            "query_peak_identity_bytes": stat["query"]["peak_identity_bytes"],
        }
        for drive in stat.get("ssd", []):
            same.update({
                "ssd_read_sets_total": drive["read_sets"], "ssd_read_sqes_total": drive["read_sqes"],
                'ssd_payload_bytes_total{op="read"}': drive["read_payload_bytes"],
                'ssd_payload_bytes_total{op="write"}': drive["write_payload_bytes"],
                'ssd_device_bytes_total{op="read"}': drive["read_device_bytes"],
                'ssd_device_bytes_total{op="write"}': drive["write_device_bytes"],
                "ssd_registrations_total": drive["registrations"], "ssd_read_errors_total": drive["read_errors"],
                "ssd_evicted_blocks_total": stat["index"]["ssd_evicted_blocks"],
                "ssd_write_syncs_total": drive["write_syncs"], "ssd_carried_blocks_total": drive["carried_blocks"],
                "ssd_carried_bytes_total": drive["carried_bytes"], "ssd_carries_failed_total": drive["carries_failed"],
            })
        for name, value in same.items():
            expect_equal(values[f"kvferry_{name}"], value, f"{daemon.name}'s {name} against stat")
    values = b.metrics()
    expect_equal(values['kvferry_blocks_total{tier="remote_ssd"}'], 40, "blocks from the source's SSD")
    expect_equal(values['kvferry_blocks_total{tier="dram"}'], 40, "blocks from DRAM")
    expect_equal(values['kvferry_misses_total{reason="not_found"}'], 5, "misses")
    expect_equal(a.metric('ssd_payload_bytes_total{op="read"}'), 40 * MIB, "payload bytes read")
    expect_equal(a.metric('ssd_payload_bytes_total{op="write"}'), 40 * MIB, "payload bytes written")
    stat = b.stat()
    expect_equal((stat["pull"]["blocks"], stat["pull"]["bytes"], stat["pull"]["misses"]), (40, 40 * MIB, 5), "pull")


def stat_has_every_name(case):
    a = case.start(case.daemon("a", ssd_mib=768, listen=True))
    got = a.stat()
    wanted = {
        "pull": ["reads", "blocks", "bytes", "misses"], "serve": ["reads", "blocks", "bytes", "busy"],
        "puts": ["blocks", "exists", "busy"], "pool": ["bytes", "dirty", "pull", "serve", "clean"],
        "index": ["blocks", "bytes", "ssd_evicted_blocks"],
        "query": ["bytes", "peak_bytes", "peak_instance_bytes", "peak_identity_bytes", "waited"], "drain": GAUGES,
    }
    for name in ("node_id", "state", "boot_epoch", "transport", "read_batch_mib", "coalesced_loads"):
        expect(name in got, f"{name} is absent")
    for name, keys in wanted.items():
        for key in keys:
            expect(key in got[name], f"{name}.{key} is absent")
    for key in ("path", "capacity_bytes", "used_bytes", "read_sets", "read_sqes", "read_payload_bytes",
                "read_device_bytes", "read_errors", "write_payload_bytes", "write_device_bytes", "registrations", "dropped", "read_only",
                "write_syncs", "carried_blocks", "carried_bytes", "carries_failed"):
        expect(key in got["ssd"][0], f"ssd[0].{key} is absent")
    expect_equal((got["node_id"], got["state"], got["transport"]), ("a", "READY", "tcp"), "node_id, state, transport")
    expect_equal(got["pool"]["bytes"], 512 * MIB, "pool.bytes")


def health_follows_the_state(case):
    a = case.start(case.daemon("a"))
    expect_equal(a.http("/healthz")[0], 200, "/healthz")
    expect_equal(a.http("/readyz"), (200, "ok"), "/readyz")
    engine = case.engine(a)
    a.term()
    case.eventually(10, "the drain is on", lambda: engine.ask("poll")[0] == "DRAINING")
    expect_equal(a.http("/readyz")[0], 503, "/readyz while it drains")
    expect_equal(a.http("/healthz")[0], 200, "/healthz while it drains")
    expect_equal(a.stat()["state"], "DRAINING", "state")
    engine.must("close")
    a.must_exit(0)


def http_is_read_only(case):
    a = case.start(case.daemon("a"))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        expect_equal(a.http("/metrics", method)[0], 405, method)
    expect_equal(a.http("/../../etc/passwd")[0], 404, "a path that is not there")
    expect_equal(a.http("/")[0], 200, "the status page")


V4_IN_V6 = "0000000000000000FFFF0000"


def _listening(daemon):
    """Addresses of the TCP sockets on which this process listens."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{daemon.process.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{daemon.process.pid}/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for family in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/net/{family}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[9] in inodes and (family.startswith("udp") or fields[3] == "0A"):
                    address, port = fields[1].split(":")
                    found.add((family[:3], address.removeprefix(V4_IN_V6), int(port, 16)))
    return found


def sockets_are_only_those_of_the_flags(case):
    a = case.daemon("a", listen=True)
    b = case.daemon("b")
    case.start(a, b)
    loopback = "0100007F"
    expect_equal(_listening(a), {("tcp", loopback, port) for port in (a.port, a.data_port, a.http_port)}, "a listens on")
    expect_equal(_listening(b), {("tcp", loopback, b.http_port)}, "b, without --listen, listens on")
    for name, mode in (("engine.sock", 0o666), ("admin.sock", 0o600), ("", 0o755)):
        got = file_mode.S_IMODE(os.stat(f"{a.directory}/run/{name}").st_mode)
        expect_equal(oct(got), oct(mode), f"mode of run/{name}")
