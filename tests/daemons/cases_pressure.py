"""Who may take how much: more is wanted than fits, by many and for long, and everybody gets a share."""

import json
import os
import signal
import threading
import time

from harness import expect, expect_equal

MIB = 1 << 20
NINE_MIB = 9437184
NS = "tenant/model"
OVERHEAD = 50 * MIB  # of a daemon beside pool and index, as the README says


def _seconds(short):
    """Of load; tests/soak says how many."""
    return int(os.environ.get("KVFERRY_TEST_SECONDS", short))


def _peaks_stay_within(daemon, **limits_mib):
    query = daemon.stat()["query"]
    for name, limit in limits_mib.items():
        expect(0 < query[name] <= limit * MIB, f"{daemon.name}: query.{name} is {query[name]}, the limit {limit} MiB")


def _memory_stays_within(case, daemon):
    """The pool, the index and the stated overhead; the most it ever was."""
    if case.slowness > 1:
        return  # a sanitizer's own memory is not ours
    with open(f"/proc/{daemon.process.pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    most = int(fields["VmHWM"].split()[0]) << 10
    bound = daemon.pool_mib * MIB + daemon.stat()["index"]["bytes"] + OVERHEAD
    expect(most <= bound, f"{daemon.name} took {most} bytes of memory, {bound} is the most that is promised")


class _Sampler:
    """stat, once a second, beside whatever else goes on; one JSON line each."""

    def __init__(self, daemon, path):
        self.daemon, self.path, self.samples = daemon, path, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with open(self.path, "a") as file:
            while not self.over.wait(1):
                result = self.daemon.run("stat", "--json")
                if result.code != 0:
                    continue
                sample = json.loads(result.out)
                self.samples.append(sample)
                file.write(json.dumps({"at": time.time(), **sample}) + "\n")

    def end(self):
        self.over.set()
        self.thread.join()
        return self.samples


def pressure_of_two_engines_on_one_manager(case):
    """Twice the DRAM and more is asked for again and again, through one pool, with one SSD below it."""
    seconds = _seconds(60)
    long = seconds > 100
    began = time.monotonic()
    a = case.daemon("a", ssd_mib=8192 if long else 2048, pool_mib=512,
                    flags=["--query-limit-mib", 384, "--query-limit-per-instance-mib", 192])
    case.start(a)
    record = case.path("record")
    with open(record, "w") as file:
        file.write(json.dumps({"startup_s": round(time.monotonic() - began, 3), "state": a.stat()["state"]}) + "\n")
    sampler = _Sampler(a, record)
    try:
        engines = [case.load(a, f"e{i}", f"tenant/m{i}", seed=i + 1, prefixes=16, blocks=12, block_bytes=NINE_MIB,
                             seconds=seconds) for i in range(2)]
        results = [engine.must_leave(None, seconds=seconds + 90) for engine in engines]
    finally:
        samples = sampler.end()
    a.gauges_return_to_zero(30)
    for result in results:
        expect_equal(result["ended"], "time", "why an engine ended")
        expect(result["requests"] > 3, f"an engine came to {result['requests']} requests only")
        expect(result["longest_gap_s"] < 30, f"an engine waited {result['longest_gap_s']} s between two completions")
    expect(len(samples) >= seconds // 3, f"{len(samples)} samples in {seconds} s")
    for sample in samples:
        expect(sample["query"]["bytes"] <= 384 * MIB, f"query.bytes was {sample['query']['bytes']}")
    _peaks_stay_within(a, peak_bytes=384, peak_instance_bytes=192)
    drive = a.stat()["ssd"][0]
    expect(drive["read_payload_bytes"] > 0 and drive["write_payload_bytes"] > 0, f"the SSD was not used: {drive}")
    _memory_stays_within(case, a)


def overload_starves_nobody_and_exceeds_nothing(case):
    """48 engines of one consumer want 40 MiB each, ten times the 192 that it may hold; a modest one on another consumer has its own share."""
    seconds = _seconds(30)
    a = case.daemon("a", pool_mib=512, listen=True)
    b, c = case.daemon("b", pool_mib=256), case.daemon("c", pool_mib=256)
    case.start(a, b, c)
    filler = case.load(a, "filler", NS, prefixes=3, blocks=40, seconds=1)
    filler.must_leave(None)
    greedy = [case.load(b, f"greedy{i}", NS, prefixes=3, blocks=40, seconds=seconds, source=a) for i in range(48)]
    modest = case.load(c, "modest", NS, prefixes=1, blocks=1, seconds=seconds, source=a)
    results = [engine.must_leave(None, seconds=seconds + 60) for engine in greedy]
    least = modest.must_leave(None, seconds=seconds + 60)
    for daemon in (a, b, c):
        daemon.gauges_return_to_zero(30)
    bound = 12 * case.slowness
    for number, result in enumerate([*results, least]):
        expect(result["requests"] > 0 and result["longest_gap_s"] < bound,
               f"engine {number}: {result['requests']} requests, {result['longest_gap_s']} s between two of them")
    expect(least["missing"] == 0, f"the modest one missed {least['missing']} blocks")
    mean = sum(result["requests"] for result in results) / len(results)
    expect(least["requests"] > mean, f"the modest one came to {least['requests']} requests, a greedy one to {mean}")
    _peaks_stay_within(b, peak_bytes=192, peak_instance_bytes=72)
    _peaks_stay_within(a, peak_bytes=384, peak_identity_bytes=144)
    for daemon in (a, b, c):
        _memory_stays_within(case, daemon)


def two_daemons_that_pull_from_each_other_make_progress(case):
    """Both pools are full of what the other one wants; neither waits for the other's memory."""
    a = case.daemon("a", ssd_mib=512, pool_mib=64, listen=True)
    b = case.daemon("b", ssd_mib=512, pool_mib=64, listen=True)
    case.start(a, b)
    for number, daemon in enumerate((a, b)):
        filler = case.load(daemon, "filler", f"tenant/of{number}", prefixes=7, blocks=10, seconds=2)
        filler.must_leave(None)
        daemon.must("sync", "--durable")
    loads = []
    for number, (daemon, source) in enumerate(((a, b), (b, a))):
        for i in range(2):
            loads.append(case.load(daemon, f"puller{i}", f"tenant/of{1 - number}", prefixes=7, blocks=10, seconds=5,
                                   source=source))
    for load in loads:
        result = load.must_leave(None)
        expect(result["remote"] > 0, f"nothing was pulled: {result}")
        expect(result["longest_gap_s"] < 15, f"{result['longest_gap_s']} s between two completions")


def dead_peers_cost_the_others_nothing(case):
    """Three sources: one lives, one is stopped, at one's address nobody is."""
    lives = case.daemon("lives", pool_mib=64, listen=True)
    stopped = case.daemon("stopped", pool_mib=64, listen=True)
    absent = case.daemon("absent", pool_mib=64, listen=True)  # never started
    case.start(lives, stopped)
    b = case.start(case.daemon("b", pool_mib=128, flags=[
        "--insecure-loopback", *(word for source in (stopped, absent, lives) for word in ("--peer", source.source))]))
    case.load(lives, "filler", NS, blocks=8, seconds=1).must_leave(None)
    lives.put(NS, "k", case.file("in", 4097))
    stopped.signal(signal.SIGSTOP)
    puller = case.load(b, "puller", NS, blocks=8, seconds=8, source=lives)
    time.sleep(1)
    for _ in range(3):
        for source in (stopped, absent):
            missed = b.get(NS, "nothing", source=source, code=4, timeout_s=4)
            expect(missed.seconds < 4 + 2 * case.slowness, f"a miss at {source.name} took {missed.seconds:.1f} s")
    found = b.get(NS, "k", timeout_s=10)  # no hint: past the two dead peers to the one that has it
    expect(found.seconds < 6 * case.slowness, f"two dead peers cost {found.seconds:.1f} s")
    case.same(case.path("in"), b.output("k"), "pulled past dead peers")
    result = puller.must_leave(None)
    expect(result["missing"] == 0, f"{result['missing']} blocks of the living source were missed")
    expect(result["longest_gap_s"] < 2 * case.slowness, f"{result['longest_gap_s']} s between two of its completions")
    stopped.signal(signal.SIGCONT)
    stopped.gauges_return_to_zero(15)


def restarted_peer_is_a_new_peer(case):
    """The same address, another boot: what the old one had is a miss, what the new one has comes."""
    a = case.daemon("a", pool_mib=64, listen=True)
    b = case.daemon("b", pool_mib=64)
    case.start(a, b)
    for key in ("old", "older"):
        a.put(NS, key, case.file(key, MIB))
    b.get(NS, "old", source=a)
    a.kill()
    a.start()
    a.put(NS, "new", case.file("new", MIB))
    case.eventually(10, "the new boot serves", lambda: b.run(
        "get", NS, "new", "-o", "b/out", "--source", a.source).code == 0)
    case.same(case.path("new"), b.output("new"), "from the new boot")
    b.get(NS, "older", source=a, code=4, timeout_s=5)
