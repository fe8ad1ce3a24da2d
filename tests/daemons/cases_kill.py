"""One side of a pull is killed, stopped, or told to go: the other one lives, and nothing stays held."""

import json
import os
import signal
import time

from harness import expect, expect_equal

MIB = 1 << 20
NINE_MIB = 9437184
NS = "tenant/model"
MANY = 36  # blocks of 9 MiB: more than two Gets of one engine, so that something is left whenever it is cut off


def _filled_pair(case, **options):
    a, b = case.pair(**options)
    keys, paths = case.files(MANY, NINE_MIB)
    case.put_files(a, NS, keys, paths)
    a.settle()
    return a, b, keys, paths


def _cut_off(case, b, get, keys, paths, timeout_s):
    """A get whose source went away: it ends by its deadline, what came is right, what did not is named."""
    result = get.end(timeout_s + 30 * case.slowness)
    came = 0
    for key, path in zip(keys, paths):
        if os.path.exists(b.output(key)):
            case.same(path, b.output(key), "what came before the source went away")
            os.unlink(b.output(key))
            came += 1
        else:
            expect(f" {key}: " in result.err, f"{key} neither came nor was named: {result}")
    result.must_end_with(4)
    expect(result.seconds < timeout_s + 3 * case.slowness, f"a deadline of {timeout_s} s took {result.seconds:.1f} s")
    return came


def _is_pulling(case, b):
    case.eventually(30, "the pull begins", lambda: b.metric("pull_reads_total") > 0 or b.metric("drain_query_bytes") > 0)


def _reads_have_grants(case, b):
    case.eventually(30, "the pull is granted", lambda: b.metric("pull_reads_total") > 0)


def _works_again(case, a, b, keys, paths):
    """After an outage a get may meet the rest of a back-off (2 s at most), but no more than that."""
    code = []
    case.eventually(10, "pulls work again", lambda: code.append(b.run(
        "get", NS, *keys, "-o", f"{b.name}/out", "--source", a.source).code) or code[-1] == 0, lambda: code[-1])
    for key, path in zip(keys, paths):
        case.same(path, b.output(key), "pulled after the outage")
        os.unlink(b.output(key))


def kill_source_after_sync_loses_nothing(case):
    a, b = case.pair()
    sizes = {"tiny": 1, "odd": 4097, "mla": 4497408, "large": 50 * MIB}
    paths = {key: case.file(key, size) for key, size in sizes.items()}
    for key, path in paths.items():
        a.put(NS, key, path)
    engine = case.engine(a)
    engine.must("put", NS, 10000, MIB, 0, 100)
    a.must("sync", "--durable")
    b.get(NS, "tiny", source=a)
    b.must("evict", "--dram")
    epoch = a.stat()["boot_epoch"]
    a.kill()
    a.start()
    expect(a.stat()["boot_epoch"] > epoch, "the boot epoch did not rise")
    b.get(NS, *paths, source=a)
    for key, path in paths.items():
        case.same(path, b.output(key), "after kill -9")
    puller = case.engine(b)
    found = puller.must("check", NS, a.source, 10000, MIB, 0, 100)
    expect_equal((found["remote_ssd"], found["wrong"]), (100, 0), "blocks after kill -9")
    expect_equal(a.must("put", NS, "tiny", paths["odd"]).out, "exists\n", "a put of what was recovered")
    expect_equal(engine.must("close")["detail"], 1, "detail of close")


def kill_source_while_it_is_written_serves_nothing_torn(case):
    """No sync: what is there after the restart is whole."""
    a, b = case.pair()
    engine = case.engine(a)
    for round_number in range(2):
        engine.start("put", NS, 10000, MIB, 1000 * round_number, 300)
        written = a.metric('ssd_payload_bytes_total{op="write"}')
        case.eventually(20, "the drive is being written",
                        lambda: a.metric('ssd_payload_bytes_total{op="write"}') > written + 20 * MIB)
        a.kill()
        engine.answer()
        engine.must("close")
        a.start()
        engine.must("open", a.run_dir, "probe")
        found = engine.must("check", NS, "-", 10000, MIB, 1000 * round_number, 300)
        expect_equal(found["wrong"], 0, "torn blocks")
        expect(found["ssd"] > 0, "no block survived, although 20 MiB had been written")
    puller = case.engine(b)
    expect_equal(puller.must("check", NS, a.source, 10000, MIB, 1000, 300)["wrong"], 0, "torn blocks, pulled")


def kill_source_that_is_stopped_during_a_get(case):
    a, b, keys, paths = _filled_pair(case)
    a.signal(signal.SIGSTOP)
    get = b.begin_get(NS, *keys, source=a, timeout_s=5)
    time.sleep(1)
    a.kill()
    expect_equal(_cut_off(case, b, get, keys, paths, 5), 0, "blocks from a source that never answered")
    b.gauges_return_to_zero()
    expect_equal(b.stat()["state"], "READY", "state")
    a.start()
    _works_again(case, a, b, keys, paths)


def kill_source_in_the_middle_of_a_get(case):
    a, b, keys, paths = _filled_pair(case)
    for _ in range(2):
        b.must("evict", "--dram")
        reads = b.metric("pull_reads_total")
        get = b.begin_get(NS, *keys, source=a, timeout_s=5)
        case.eventually(30, "the pull is granted", lambda: b.metric("pull_reads_total") > reads)
        a.kill()
        came = _cut_off(case, b, get, keys, paths, 5)
        expect(came < MANY, "every block came from a source that was killed")
        b.gauges_return_to_zero()
        expect_equal(b.stat()["state"], "READY", "state")
        a.start()
        _works_again(case, a, b, keys, paths)


def stopped_source_costs_its_own_pulls_their_deadline_only(case):
    a, b, keys, paths = _filled_pair(case)
    b.put(NS, "here", paths[0])
    get = b.begin_get(NS, *keys, source=a, timeout_s=5)
    _reads_have_grants(case, b)
    a.signal(signal.SIGSTOP)
    local = b.get(NS, "here", timeout_s=10)
    expect(local.seconds < 3 * case.slowness, f"a local get took {local.seconds:.1f} s beside a stopped source")
    _cut_off(case, b, get, keys, paths, 5)
    b.gauges_return_to_zero(15)
    b.must("evict", "--dram")
    a.signal(signal.SIGCONT)
    a.gauges_return_to_zero(15)
    _works_again(case, a, b, keys, paths)


def stopped_source_is_given_up_by_a_second_get_as_well(case):
    """It is still stopped, and the session is known to be broken or is found so again: every get ends by its deadline."""
    a, b, keys, paths = _filled_pair(case)
    b.get(NS, keys[0], source=a)
    a.signal(signal.SIGSTOP)
    for _ in range(3):
        get = b.begin_get(NS, *keys[1:], source=a, timeout_s=3)
        expect_equal(_cut_off(case, b, get, keys[1:], paths[1:], 3), 0, "blocks from a stopped source")
    b.gauges_return_to_zero(15)
    a.signal(signal.SIGCONT)
    a.gauges_return_to_zero(15)
    _works_again(case, a, b, keys, paths)


def stopped_source_is_left_by_a_consumer_that_drains(case):
    """Our own drain never waits for the other side."""
    a, b, keys, _ = _filled_pair(case, b_flags=["--drain-timeout-s", "20"])
    b.get(NS, keys[0], source=a)
    a.signal(signal.SIGSTOP)
    b.term()
    b.must_exit(0, seconds=20 * case.slowness)
    a.signal(signal.SIGCONT)
    a.gauges_return_to_zero(15)


def kill_consumer_while_it_pulls(case):
    a, b, keys, _ = _filled_pair(case)
    for _ in range(3):
        get = b.begin_get(NS, *keys, source=a, timeout_s=20)
        _is_pulling(case, b)
        b.kill()
        get.end()
        a.gauges_return_to_zero(15)
        expect_equal(a.stat()["state"], "READY", "state")
        b.start()
    b.get(NS, *keys[:4], source=a)


def stopped_consumer_costs_the_source_nothing_for_ever(case):
    """A consumer that stops in the middle of a Read holds leases until its deadline and the grace, then no more."""
    a, b, keys, paths = _filled_pair(case)
    c = case.start(case.daemon("c"))
    get = b.begin_get(NS, *keys, source=a, timeout_s=4)
    _reads_have_grants(case, b)
    b.signal(signal.SIGSTOP)
    c.get(NS, *keys[:4], source=a)
    for key, path in zip(keys[:4], paths):
        case.same(path, c.output(key), "pulled by another consumer")
    a.gauges_return_to_zero(30)
    b.signal(signal.SIGCONT)
    get.end()
    b.gauges_return_to_zero(15)
    _works_again(case, a, b, keys, paths)


def stopped_peers_lose_their_idle_sessions(case):
    """Nothing is under way, so no deadline finds it: the keepalive does, at either end, after 5 s and 5 s."""
    a, b = case.pair()

    def sessions():
        return json.loads(a.http("/status.json")[1])["consumers"]["count"]

    for key in ("k0", "k1"):
        a.put(NS, key, case.file(key, MIB))
    b.get(NS, "k0", source=a)
    expect_equal(sessions(), 1, "sessions with the consumer")
    b.signal(signal.SIGSTOP)
    case.eventually(20, "the stopped consumer's session is ended", lambda: sessions() == 0, sessions)
    b.signal(signal.SIGCONT)
    case.eventually(10, "pulls work again", lambda: b.run("get", NS, "k1", "-o", "b/out", "--source", a.source).code == 0)
    before = len(b.lines("session with", "ended"))
    a.signal(signal.SIGSTOP)
    case.eventually(20, "the stopped source's session is ended", lambda: len(b.lines("session with", "ended")) > before, b.last_line)
    a.signal(signal.SIGCONT)
    a.put(NS, "k2", case.file("k2", MIB))
    case.eventually(10, "pulls work again", lambda: b.run("get", NS, "k2", "-o", "b/out", "--source", a.source).code == 0)
    case.same(case.path("k2"), b.output("k2"), "pulled after the outage")


def drain_of_a_consumer_while_it_pulls(case):
    a, b, keys, paths = _filled_pair(case)
    get = b.begin_get(NS, *keys, source=a, timeout_s=20)
    _is_pulling(case, b)
    b.term()
    result = get.end()
    expect(result.code in (0, 1, 4), f"{result}")
    for key, path in zip(keys, paths):
        if os.path.exists(b.output(key)):
            case.same(path, b.output(key), "what an ending consumer gave")
    b.must_exit(0)
    a.gauges_return_to_zero(15)
    expect_equal(a.stat()["state"], "READY", "state")


def drain_of_a_source_while_it_serves(case):
    """What was admitted is finished; what comes later is a miss, until it is back."""
    a, b, keys, paths = _filled_pair(case)
    get = b.begin_get(NS, *keys, source=a, timeout_s=20)
    _reads_have_grants(case, b)
    a.term()
    result = get.end()
    expect(result.code in (0, 4), f"{result}")
    for key, path in zip(keys, paths):
        if os.path.exists(b.output(key)):
            case.same(path, b.output(key), "what an ending source gave")
        else:
            expect(f" {key}: " in result.err, f"{key} neither came nor was named: {result}")
    a.must_exit(0)
    b.gauges_return_to_zero()
    a.start()
    _works_again(case, a, b, keys, paths)


def kill_get_command_in_the_middle(case):
    """The engine dies, its daemon's pull goes on or is taken back; nothing stays held on either node."""
    a, b, keys, paths = _filled_pair(case)
    for _ in range(3):
        get = b.begin_get(NS, *keys, source=a, timeout_s=20)
        _is_pulling(case, b)
        get.kill()
        for daemon in (a, b):
            daemon.gauges_return_to_zero(15)
        b.must("evict", "--dram")
    b.get(NS, *keys, source=a)
    for key, path in zip(keys, paths):
        case.same(path, b.output(key), "pulled")


def kill_engines_at_random_moments(case):
    """Engines of both nodes put, get, pull and hold, and are killed in the middle of it, 25 times: nothing stays held."""
    chance = case.chance()
    a, b = case.pair(a_flags=["--dirty-limit-mib", "64"])
    filler = case.engine(a)
    filler.must("put", NS, 30000, MIB, 0, 200)
    filler.must("close")
    engines = [case.engine(daemon) for daemon in (a, a, b, b, b)]
    homes = [a, a, b, b, b]
    next_key = 1000
    for turn in range(25):
        for engine, home in zip(engines, homes):
            first, count = chance.randrange(0, 190), chance.randrange(1, 60)
            if home is a and chance.random() < 0.5:
                engine.start(chance.choice(("put", "begin")), NS, 500, MIB, next_key, chance.randrange(1, 12))
                next_key += 12
            else:
                engine.start(chance.choice(("get", "check")), NS, a.source, 500, MIB, first, count)
        time.sleep(chance.choice((0, 0, 0.002, 0.01, 0.05, 0.2)))
        if chance.random() < 0.2:
            chance.choice((a, b)).must("evict", "--dram")
        victim = chance.randrange(len(engines))
        engines[victim].kill()
        for number, engine in enumerate(engines):
            if number != victim:
                _, values = engine.answer()
                expect(values.get("wrong", 0) == 0, f"turn {turn}: wrong blocks")
                if chance.random() < 0.5:
                    engine.ask(chance.choice(("release", "abort")))
        engines[victim] = case.engine(homes[victim])
    for engine in engines:
        engine.must("close")
    for daemon in (a, b):
        daemon.gauges_return_to_zero(15)
    checker = case.engine(b)
    found = checker.must("check", NS, a.source, 20000, MIB, 0, 200)
    expect_equal((found["OK"], found["wrong"]), (200, 0), "blocks after all that")


def kill_either_daemon_again_and_again(case):
    """Both nodes pull and put while one of them is killed, stopped or told to go, 8 times."""
    chance = case.chance()
    a, b = case.pair(ssd_mib=4096)  # each start begins a segment
    engine = case.engine(a)
    engine.must("put", NS, 30000, MIB, 0, 300)
    engine.must("close")
    a.must("sync", "--durable")
    for turn in range(8):
        puller = case.engine(b)
        putter = case.engine(a)
        puller.start("check", NS, a.source, 3000, MIB, 0, 300)
        putter.start("put", NS, 3000, MIB, 1000 + 50 * turn, 50)
        time.sleep(chance.uniform(0, 0.3))
        victim = chance.choice((a, a, b))
        how = chance.choice(("kill", "term", "pause"))
        if how == "kill":
            victim.kill()
        elif how == "term":
            victim.term()
        else:
            victim.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0, 2))
            victim.signal(signal.SIGCONT)
        for probe in (puller, putter):
            _, values = probe.answer()
            expect(values.get("wrong", 0) == 0, f"turn {turn}: wrong blocks")
            probe.must("close")
        if how == "term":
            victim.must_exit(0)
        if how != "pause":
            victim.start()
        for daemon in (a, b):
            daemon.gauges_return_to_zero(15)
    puller = case.engine(b)
    case.eventually(10, "every block comes", lambda: puller.must(
        "check", NS, a.source, 20000, MIB, 0, 300).get("OK") == 300)


def _reused_extents(case, daemon, ns):
    """An engine fills every extent that is free here and holds the blocks: nothing else may write there."""
    keeper = case.engine(daemon, name="keeper")
    keeper.must("put", ns, 30000, MIB, 5000, 60)
    found = keeper.must("get", ns, "-", 10000, MIB, 5000, 60)
    expect_equal((found["OK"], found["wrong"]), (60, 0), "blocks in the reused extents")
    return keeper


def stopped_source_that_goes_on_writes_nowhere(case):
    """Stopped in the middle of a pull, it wakes up when its consumer has given the destinations to others."""
    a = case.daemon("a", ssd_mib=768, listen=True)
    b = case.daemon("b", pool_mib=256)
    case.start(a, b)
    engine = case.engine(a)
    engine.must("put", NS, 30000, NINE_MIB, 0, 7)
    a.settle()
    puller = case.engine(b)
    for _ in range(20):  # until it is caught in the middle
        b.must("evict", "--dram")
        a.must("evict", "--dram")
        reads = b.metric("pull_reads_total")
        began = time.monotonic()
        puller.start("get", NS, a.source, 4000, NINE_MIB, 0, 7)
        case.eventually(30, "the pull is granted", lambda: b.metric("pull_reads_total") > reads)
        a.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        _, found = puller.answer()
        seconds = time.monotonic() - began
        if found.get("OK", 0) < 7:
            break
        a.signal(signal.SIGCONT)
        puller.must("release")
    expect(found.get("OK", 0) < 7, "never stopped in the middle of a pull")
    expect_equal(found["wrong"], 0, "wrong blocks")
    expect(3.6 <= seconds <= 4.4 * case.slowness, f"a deadline of 4 s was heard after {seconds:.2f} s")
    puller.must("release")
    keeper = _reused_extents(case, b, NS)
    time.sleep(max(0, stopped + 5 - time.monotonic()))
    a.signal(signal.SIGCONT)
    time.sleep(1)
    expect_equal(keeper.must("held")["wrong"], 0, "blocks that late bytes have changed")
    for daemon in (a, b):
        case.eventually(15, "the quarantine is empty", lambda: daemon.stat()["drain"]["quarantine_bytes"] == 0)
    keeper.must("release")
    a.gauges_return_to_zero(15)


def stopped_consumer_that_goes_on_harms_nobody(case):
    """It wakes up when its source has ended the session; what it sends and what the source reads is nobody's any more."""
    a = case.daemon("a", ssd_mib=768, pool_mib=256, listen=True)
    b = case.daemon("b", pool_mib=256)
    case.start(a, b)
    engine = case.engine(a)
    engine.must("put", NS, 30000, NINE_MIB, 0, 7)
    a.settle()
    puller = case.engine(b)
    reads = b.metric("pull_reads_total")
    puller.start("get", NS, a.source, 2000, NINE_MIB, 0, 7)
    case.eventually(30, "the pull is granted", lambda: b.metric("pull_reads_total") > reads)
    b.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    a.gauges_return_to_zero(15)  # at the deadline and the grace at the latest, without a word of the consumer
    keeper = _reused_extents(case, a, NS)
    time.sleep(max(0, stopped + 5 - time.monotonic()))
    b.signal(signal.SIGCONT)
    _, found = puller.answer()
    expect_equal(found["wrong"], 0, "wrong blocks")
    puller.must("release")
    expect_equal(keeper.must("held")["wrong"], 0, "blocks that changed")
    keeper.must("release")
    for daemon in (a, b):
        daemon.gauges_return_to_zero(15)
