"""Engines that come, hold, die, and leave in every order."""

import os
import signal
import time

from harness import expect, expect_equal
from wire import EngineSocket

MIB = 1 << 20
NS = "tenant/model"
UNSUPPORTED = 18


def engine_killed_while_it_holds_blocks_loses_its_pins(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    engine = case.engine(a)
    engine.must("put", NS, 10000, MIB, 0, 32)
    a.settle()
    found = engine.must("get", NS, "-", 10000, MIB, 0, 32)
    expect_equal((found["ssd"], found["wrong"]), (32, 0), "blocks held")
    expect_equal(a.stat()["drain"]["pinned_bytes"], 32 * MIB, "pinned_bytes")
    expect_equal(a.stat()["drain"]["query_bytes"], 32 * MIB, "query_bytes")
    a.must("evict", "--dram")
    expect_equal(engine.must("held")["wrong"], 0, "held blocks that changed")
    engine.kill()
    case.eventually(1, "the pins are gone within a second", lambda: a.metric("drain_pinned_bytes") == 0)
    expect_equal(a.gauges(), {}, "gauges that are not 0")
    again = case.engine(a)
    expect_equal(again.must("check", NS, "-", 10000, MIB, 0, 32)["wrong"], 0, "wrong blocks")


def engine_killed_between_begin_and_commit_leaves_the_key_free(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    path = case.file("in", 3 * MIB)
    engine = case.engine(a)
    engine.must("begin", NS, 10000, 3 * MIB, 0, 4)
    expect_equal(a.stat()["drain"]["dirty_bytes"], 12 * MIB, "dirty_bytes")
    a.must("put", NS, "b0", path, "--timeout-s", 3, code=1).must_name("PENDING")
    engine.kill()
    case.eventually(2, "its places are given back", lambda: not a.gauges(), a.gauges)
    a.put(NS, "b0", path)
    a.settle()
    a.get(NS, "b0")
    case.same(path, a.output("b0"), "the second put")
    a.get(NS, "b1", code=4).must_name("b1")


def engine_that_loses_its_connection_keeps_its_places_quarantined(case):
    """Its GPU may still write: the places come back when the process is gone, the keys at once."""
    a = case.start(case.daemon("a", ssd_mib=768))
    path = case.file("in", MIB)
    engine = case.engine(a)
    engine.must("begin", NS, 10000, MIB, 0, 4)
    engine.must("break")
    case.eventually(5, "the places are quarantined", lambda: a.stat()["drain"]["quarantine_bytes"] == 4 * MIB, a.gauges)
    a.put(NS, "b0", path)
    time.sleep(0.5)
    expect_equal(a.stat()["drain"]["quarantine_bytes"], 4 * MIB, "quarantine_bytes while the process lives")
    engine.kill()
    a.gauges_return_to_zero(2)
    a.get(NS, "b0")
    case.same(path, a.output("b0"), "the second put")


def gets_wait_for_a_pending_put(case):
    """Here and at another node; it ends with the bytes, or, when the put is given up, with a miss."""
    a, b = case.pair()
    engine = case.engine(a)
    engine.must("begin", NS, 10000, MIB, 0, 3)
    here = a.begin_get(NS, "b0", "b1", timeout_s=20)
    there = b.begin_get(NS, "b0", "b2", source=a, timeout_s=20)
    time.sleep(1)
    expect(here.is_running() and there.is_running(), "a get did not wait for the pending put")
    engine.must("commit")
    here.end().must_end_with(0)
    there.end().must_end_with(0)
    other = case.engine(b)
    expect_equal(other.must("check", NS, "-", 1000, MIB, 0, 1)["wrong"], 0, "wrong blocks")

    engine.must("begin", NS, 10000, MIB, 10, 2)
    here = a.begin_get(NS, "b10", timeout_s=20)
    there = b.begin_get(NS, "b11", source=a, timeout_s=20)
    time.sleep(1)
    expect(here.is_running() and there.is_running(), "a get did not wait for the pending put")
    engine.kill()
    for get, key in ((here, "b10"), (there, "b11")):
        result = get.end().must_end_with(4)
        result.must_name(key)
        expect(result.seconds < 15, f"{key}: the miss came after {result.seconds:.0f} s only")
    a.get(NS, "b10", code=4, timeout_s=2)


def get_of_a_pending_put_ends_by_its_deadline(case):
    a, b = case.pair()
    engine = case.engine(a)
    engine.must("begin", NS, 10000, MIB, 0, 1)
    for get in (a.begin_get(NS, "b0", timeout_s=3), b.begin_get(NS, "b0", source=a, timeout_s=3)):
        result = get.end().must_end_with(4)
        result.must_name("b0")
        expect(result.seconds < 3 + 5 * case.slowness, f"a deadline of 3 s took {result.seconds:.1f}")
    engine.must("abort")
    a.get(NS, "b0", code=4)


def stop_engine_first_then_daemon(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    engine = case.engine(a)
    engine.must("put", NS, 10000, MIB, 0, 8)
    expect_equal(engine.must("close")["detail"], 0, "detail of close")
    a.stop()
    expect("left without unregistering" not in a.log(), "an engine that unregistered was called dead")


def stop_daemon_first_waits_for_the_engine(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    engine = case.engine(a)
    engine.must("put", NS, 10000, MIB, 0, 8)
    engine.must("get", NS, "-", 10000, MIB, 0, 8)
    expect_equal(engine.ask("poll")[0], "OK", "poll before the drain")
    a.term()
    case.eventually(10, "the engine hears of the drain", lambda: engine.ask("poll")[0] == "DRAINING")
    time.sleep(1)
    expect(a.lives(), "the daemon did not wait for its engine")
    expect_equal(engine.must("held")["wrong"], 0, "held blocks that changed")
    expect_equal(engine.ask("put", NS, 5000, MIB, 100, 1)[0], "DRAINING", "a put while it drains")
    code, _ = case.probe().ask("open", a.run_dir, "late")
    expect_equal(code, "DRAINING", "a new engine while it drains")
    expect_equal(engine.must("close")["detail"], 0, "detail of close")
    a.must_exit(0)


def stop_daemon_by_kill_lets_the_engine_close(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    engine = case.engine(a)
    engine.must("put", NS, 10000, MIB, 0, 8)
    engine.must("get", NS, "-", 10000, MIB, 0, 8)
    a.kill()
    case.eventually(5, "the engine hears of it", lambda: engine.ask("poll")[0] == "UNAVAILABLE")
    expect_equal(engine.must("held")["wrong"], 0, "held blocks that changed")
    expect_equal(engine.ask("put", NS, 1000, MIB, 50, 1)[0], "UNAVAILABLE", "a put without a daemon")
    expect_equal(engine.must("close")["detail"], 1, "detail of close")
    code, _ = engine.ask("open", a.run_dir, "again")
    expect_equal(code, "UNAVAILABLE", "open without a daemon")
    a.start()
    engine.must("open", a.run_dir, "again")
    engine.must("close")


def stop_forces_an_engine_that_stays(case):
    a = case.daemon("a", ssd_mib=768, flags=["--drain-timeout-s", "2"])
    case.start(a)
    engine = case.engine(a, name="stubborn")
    engine.must("put", NS, 10000, MIB, 0, 2)
    engine.must("get", NS, "-", 10000, MIB, 0, 2)
    a.term()
    a.must_exit(3, seconds=20 * case.slowness)
    named = [line for line in a.log().splitlines() if "stubborn" in line and "unregister in time" in line]
    expect_equal(len(named), 1, "lines that name the engine")
    for gauge in ("query_bytes", "pinned_bytes", "quarantine_bytes"):
        expect(f"{gauge}=" in a.last_line(), f"the last line has no {gauge}: {a.last_line()}")
    expect_equal(engine.must("close")["detail"], 1, "detail of close")


def stop_forces_an_engine_that_still_writes(case):
    """Its places are never given out again, so nothing has to wait for its process."""
    a = case.daemon("a", ssd_mib=768, flags=["--drain-timeout-s", "1"])
    case.start(a)
    engine = case.engine(a, name="writer")
    engine.must("begin", NS, 10000, MIB, 0, 4)
    a.term()
    a.must_exit(3, seconds=6 * case.slowness)
    a.judge_gauges()


def sync_durable_without_a_drive_is_refused(case):
    a = case.start(case.daemon("a"))
    a.put(NS, "k", case.file("in", MIB))
    a.run("sync", "--durable").must_end_with(1).must_name("sync", "--ssd-path")
    a.must("sync")


def stop_by_drain_wait(case):
    a = case.start(case.daemon("a", ssd_mib=768))
    a.put(NS, "k", case.file("in", 9 * MIB))
    expect_equal(a.must("drain", "--wait").out, "drained\n", "drain says")
    a.must_exit(0)
    a.start()
    a.get(NS, "k")
    case.same(case.path("in"), a.output("k"), "after a drain and a start")


def stop_writes_what_is_dirty(case):
    """SIGTERM right behind the puts: nothing that was committed is lost."""
    a = case.start(case.daemon("a", ssd_mib=768))
    engine = case.engine(a)
    engine.must("put", NS, 10000, MIB, 0, 120)
    engine.must("close")
    a.stop()
    a.start()
    engine.must("open", a.run_dir, "probe")
    found = engine.must("check", NS, "-", 10000, MIB, 0, 120)
    expect_equal((found["ssd"], found["wrong"]), (120, 0), "blocks after the restart")


def old_engines_are_refused_in_words(case):
    a = case.start(case.daemon("a"))
    engine = EngineSocket(a)
    engine.send(engine.register(version=99))
    answer = engine.reply()
    expect_equal(answer["code"], UNSUPPORTED, "code for a foreign version")
    expect("version 1" in answer["message"], f"the answer does not name the version: {answer['message']!r}")
    engine.send(engine.register(version=1))
    expect_equal(engine.reply()["code"], 0, "code for our version")
    engine.close()


def start_and_stop_leave_no_socket(case):
    a = case.daemon("a")
    for _ in range(5):
        a.start()
        engine = case.engine(a)
        engine.must("close")
        engine.end()
        a.stop()
        expect_equal(os.listdir(f"{a.directory}/run"), [], "files left in the run directory")
    a.start()
    a.signal(signal.SIGINT)
    a.must_exit(0)


def drain_says_what_it_waits_for(case):
    """On stderr, each second; who asks a second time hears that it is draining already."""
    a = case.start(case.daemon("a", ssd_mib=768))
    engine = case.engine(a)
    waiting = a.begin("drain", "--wait")
    case.eventually(10, "the engine hears of the drain", lambda: engine.ask("poll")[0] == "DRAINING")
    expect_equal(a.must("drain").out, "draining already\n", "a second drain says")
    second = a.begin("drain", "--wait")
    time.sleep(2.2)
    engine.must("close")
    first, second = waiting.end(), second.end()
    expect("drain: draining already" in second.err, f"the second drain does not say so: {second.err}")
    for result, least in ((first, 2), (second, 1)):
        result.must_end_with(0)
        expect_equal(result.out, "drained\n", "drain --wait says")
        lines = [line for line in result.err.splitlines() if "waits for 1 engine that has not unregistered" in line]
        expect(len(lines) >= least, f"{least} lines or more were expected: {result.err}")
    a.must_exit(0)
