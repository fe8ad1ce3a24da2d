"""Who leaves first: every order of two engines and their two daemons, told or killed, idle or in the middle of a pull.

The rows are data. A row says when, in which order and how each one leaves; the next one leaves when the one before is gone.
"""

import concurrent.futures
import itertools
import os
import signal

import harness
from harness import expect, expect_equal

MIB = 1 << 20
NS = "tenant/model"

# Who there is: a source and a consumer daemon, an engine on each.
EVERYBODY = ("source", "consumer", "producer", "decoder")
DAEMON_OF = {"producer": "source", "decoder": "consumer"}
TOLD = dict.fromkeys(EVERYBODY, "term")
KILLED = dict.fromkeys(EVERYBODY, "kill")
ENGINES_KILLED = {"source": "term", "consumer": "term", "producer": "kill", "decoder": "kill"}
DAEMONS_KILLED = {"source": "kill", "consumer": "kill", "producer": "term", "decoder": "term"}

# How somebody left -> its exit status. An engine whose daemon is gone, or drains, leaves by itself and in good order.
EXITS = {"term": 0, "kill": -signal.SIGKILL, "by itself": 0}

# (when, how, one after the other?) for each order of the four.
KINDS = [
    ("idle", TOLD, True),
    ("idle", KILLED, True),
    ("pulling", TOLD, True),
    ("pulling", KILLED, True),
    ("pulling", ENGINES_KILLED, True),
    ("pulling", DAEMONS_KILLED, True),
    ("pulling", TOLD, False),
]
ROWS = [(when, order, how, one_by_one) for when, how, one_by_one in KINDS for order in itertools.permutations(EVERYBODY)]


def _begin(case, when, with_ssd):
    a = case.daemon("a", ssd_mib=512 if with_ssd else None, pool_mib=64, listen=True)
    b = case.daemon("b", pool_mib=64)
    case.start(a, b)
    filler = case.engine(a)
    filler.must("put", NS, 20000, MIB, 0, 1)
    filler.end()
    busy = 1 if when == "pulling" else 0
    producer = case.load(a, "producer", NS, prefixes=1, blocks=12)
    if busy:
        case.eventually(20, "the producer has put", lambda: a.metric('puts_total{outcome="stored"}') >= 13)
    if not busy:
        producer.must_leave()
        producer = case.load(a, "producer", NS, prefixes=0)
    decoder = case.load(b, "decoder", NS, prefixes=busy, blocks=12, source=a)
    if busy:
        case.eventually(20, "the pull is on", lambda: b.metric("pull_blocks_total") > 0)
    return {"source": a, "consumer": b, "producer": producer, "decoder": decoder}


def _send(somebody, how):
    process = somebody.process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)


def _must_have_left(name, somebody, how):
    if isinstance(somebody, harness.Load):
        said = somebody.leave(None)
        expect(somebody.code == EXITS[how], f"{name} ({how}) ended with {somebody.code}, not {EXITS[how]}: {said}")
        if somebody.code == 0:
            expect_equal(said["wrong"], 0, f"wrong blocks at {name}")
    else:
        somebody.must_exit(EXITS[how])


def _run_row(case, number):
    when, order, how, one_by_one = ROWS[number]
    everybody = _begin(case, when, with_ssd=number % 2 == 0)
    gone = set()
    for name in order:
        how_it_leaves = how[name]
        if DAEMON_OF.get(name) in gone:
            how_it_leaves = "by itself"
        else:
            _send(everybody[name], how_it_leaves)
        if one_by_one:
            _must_have_left(name, everybody[name], how_it_leaves)
        gone.add(name)
    if not one_by_one:  # all have been told, one right behind the other
        for name in order:
            _must_have_left(name, everybody[name], "term")
    case.finish()


def _try_row(case, number):
    when, order, how, one_by_one = ROWS[number]
    row = harness.Case(case.binaries, f"{case.directory}/{number}", case.environment, case.slowness)
    try:
        _run_row(row, number)
        return None
    except Exception as error:  # every row is tried, whatever the others did
        ways = ", ".join(f"{name} {how[name]}" for name in order)
        return f"row {number} ({when}; {ways}; {'one by one' if one_by_one else 'at once'}): {error}\n{row.log_tails()}"
    finally:
        row.abandon()


def _run_rows(case, numbers):
    with concurrent.futures.ThreadPoolExecutor(6) as several:
        wrong = [text for text in several.map(lambda number: _try_row(case, number), numbers) if text]
    for text in wrong:
        print(text)
    expect(not wrong, f"{len(wrong)} of {len(numbers)} orders went wrong; the first: {wrong[0] if wrong else ''}")


def orders_of_leaving(case):
    """Each row once; KVFERRY_TEST_ORDERS=FIRST:COUNT runs that part of the table, round and round (tests/soak orders)."""
    first, _, count = os.environ.get("KVFERRY_TEST_ORDERS", f"0:{len(ROWS)}").partition(":")
    _run_rows(case, [(int(first) + i) % len(ROWS) for i in range(int(count))])
