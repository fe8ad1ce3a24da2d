#!/usr/bin/python3
"""vLLM's tier over a real daemon, driven like the tiering manager does: nothing waits, results come from get_finished_jobs."""

import fixture
import hashlib
import itertools
import random
import signal
import standins
import time
import types

KEYS = 129
SLOT = 4097  # no slot begins on a page


def key(number, group=0):
    """OffloadKey: the block's hash and its group."""
    return hashlib.sha256(f"block {number}".encode()).digest() + group.to_bytes(4, "big")


def keys(count, first=0):
    return [key(first + i) for i in range(count)]


class Primary:
    """The primary tier's memory: slots of one length, one after the other."""

    def __init__(self, slots, slot_bytes=SLOT, offset=7):
        self.slot_bytes, self.slots = slot_bytes, slots
        self.memory = fixture.HostMemory(slots * slot_bytes, offset)
        self.view = self.memory.view.cast("B", (slots, slot_bytes))

    def fill(self, slot, seed):
        content = random.Random(f"{seed} {slot}").randbytes(self.slot_bytes)
        self.memory.view[slot * self.slot_bytes:(slot + 1) * self.slot_bytes] = content
        return content

    def content(self, slot):
        return bytes(self.memory.view[slot * self.slot_bytes:(slot + 1) * self.slot_bytes])


class Scheduler:
    """What of vLLM's scheduler a tier sees."""

    def __init__(self, test, tier, hooks=True):
        self.test, self.tier, self.hooks, self.numbers = test, tier, hooks, itertools.count(1)
        self.finished = {}

    def step(self):
        if self.hooks:
            self.tier.on_schedule_end(types.SimpleNamespace(new_req_ids=(), preempted_req_ids=()))
        results = (self.tier.get_finished_jobs if self.hooks else self.tier.get_finished)()
        self.test.assertIs(type(results), list)
        for result in results:
            self.test.assertNotIn(result.job_id, self.finished, "a job ends once")
            self.finished[result.job_id] = result
        time.sleep(0.002)

    def lookups(self, wanted, context=None):
        """Like a prefix lookup that is repeated until nothing is RETRY; "hit" or "miss" each."""
        context = context or standins.ReqContext("r")
        retry = standins.LookupResult.RETRY if self.hooks else None
        while True:
            found = [self.tier.lookup(each, context) for each in wanted]
            for verdict in found:
                self.test.assertIn(type(verdict), (standins.LookupResult,) if self.hooks else (bool, type(None)))
            if retry not in found:
                return [verdict in (True, standins.LookupResult.HIT) for verdict in found]
            self.step()

    def submit(self, is_load, wanted, slots, context=None):
        number = next(self.numbers)
        job = standins.JobMetadata(number, wanted, slots, is_load, context or standins.ReqContext("r"))
        (self.tier.submit_load if is_load else self.tier.submit_store)(job)
        return number

    def wait(self, number):
        while number not in self.finished:
            self.step()
        result = self.finished[number]
        self.test.assertIs(type(result.success), bool)
        return result

    def store(self, wanted, slots):
        return self.wait(self.submit(False, wanted, slots))

    def load(self, wanted, slots, context=None):
        return self.wait(self.submit(True, wanted, slots, context))


class TierTest(fixture.DaemonCase):
    def tier(self, daemon, primary, spec=None, up=True, old=False, **options):
        import kvferry.vllm
        standins.install_vllm(old)
        kvferry.vllm._make_class.cache_clear()
        options = {"run_dir": self.run_dir(daemon), "timeout_ms": 400, "lookup_timeout_ms": 200, **options}
        made = kvferry.vllm.KvferryTier(offloading_spec=spec or standins.offloading_spec(), primary_kv_view=primary.view,
                                        tier_type="KvferryTier", **options)
        self.addCleanup(made.shutdown)
        if up:
            self.must_be_up(made.engine)
        return made, Scheduler(self, made, not old)

    # ---- bytes ----

    def stores_and_loads(self, slot_bytes, count, pool_mib=256, **options):
        primary = Primary(count, slot_bytes)
        daemon = self.daemon(pool_mib=pool_mib)
        tier, scheduler = self.tier(daemon, primary, **options)
        contents = [primary.fill(slot, "k") for slot in range(count)]
        self.assertEqual(scheduler.lookups(keys(count)), [False] * count)
        self.assertTrue(scheduler.store(keys(count), range(count)).success)
        self.eventually("the misses are old enough to be asked again", lambda: all(scheduler.lookups(keys(count))))
        for slot in range(count):
            primary.fill(slot, "something else")
        backwards = list(reversed(range(count)))
        result = scheduler.load(keys(count), backwards)
        self.assertTrue(result.success)
        self.assertEqual(result.transfer_size, count * slot_bytes)
        self.assertEqual([primary.content(slot) for slot in backwards], contents)
        self.assertEqual(tier.engine.stats()["copied_bytes"], 2 * count * slot_bytes, "one copy on the way in, one on the way out")
        self.assertFalse(tier.has_pending_work())
        tier.shutdown()
        self.all_of_it_comes_back()

    def test_jobs__small_odd_slots__every_byte_comes_back(self):
        self.stores_and_loads(SLOT, KEYS)

    def test_jobs__qwen3_8b__every_byte_comes_back(self):
        self.stores_and_loads(9 << 18, 20, timeout_ms=5000)

    def test_jobs__a_release_that_says_less__works(self):
        daemon, primary = self.daemon(), Primary(4)
        tier, scheduler = self.tier(daemon, primary, old=True)
        content = primary.fill(0, "k")
        self.assertEqual(scheduler.lookups(keys(1)), [False])
        self.assertTrue(scheduler.store(keys(1), [0]).success)
        self.eventually("it is found", lambda: scheduler.lookups(keys(1)) == [True])
        self.assertTrue(scheduler.load(keys(1), [3]).success)
        self.assertEqual(primary.content(3), content)
        self.assertIsNone(tier.on_new_request(standins.ReqContext("r")))

    def test_jobs__chunk_ids__are_slots_too(self):
        primary = Primary(4)
        tier, scheduler = self.tier(self.daemon(), primary)
        tier.submit_store(types.SimpleNamespace(job_id=77, keys=keys(2), chunk_ids=[1, 2], is_promotion=False,
                                                req_context=standins.ReqContext("r")))
        self.assertTrue(scheduler.wait(77).success)

    def test_load__the_middle_is_missing__keeps_what_leads(self):
        primary = Primary(8)
        tier, scheduler = self.tier(self.daemon(), primary)
        contents = [primary.fill(slot, "k") for slot in range(4)]
        self.assertTrue(scheduler.store([key(0), key(1), key(3)], [0, 1, 3]).success)
        self.assertTrue(all(scheduler.lookups([key(0), key(3)])))
        result = scheduler.load(keys(4), [4, 5, 6, 7])
        self.assertFalse(result.success)
        self.assertEqual(list(result.successful_keys), keys(2))
        self.assertEqual([primary.content(4), primary.content(5)], contents[:2])
        self.assertEqual(scheduler.lookups(keys(4)), [True, True, False, False], "what failed is not offered again at once")

    # ---- who shares what ----

    def test_namespaces__other_bytes__are_other_blocks(self):
        daemon, primary = self.daemon(), Primary(2)
        _, scheduler = self.tier(daemon, primary)
        self.assertTrue(scheduler.store(keys(1), [0]).success)
        for other in (dict(spec=standins.offloading_spec(model="acme/other")), dict(spec=standins.offloading_spec(dtype="float16")),
                      dict(spec=standins.offloading_spec(tp_size=2)), dict(salt="revision 2"), dict(tenant="somebody")):
            self.assertEqual(self.tier(daemon, primary, **other)[1].lookups(keys(1)), [False], other)
        self.assertEqual(self.tier(daemon, Primary(2, SLOT + 1))[1].lookups(keys(1)), [False])
        self.assertEqual(self.tier(daemon, primary, spec=standins.offloading_spec(replica=3))[1].lookups(keys(1)), [True])
        self.assertEqual(scheduler.lookups([key(0, group=1)]), [False])

    def test_source__from_kv_transfer_params__is_asked(self):
        a, b = self.daemon("a", listen=True), self.daemon("b")
        primary = Primary(4)
        content = primary.fill(0, "far")
        self.assertTrue(self.tier(a, primary)[1].store(keys(1), [0]).success)
        for params, options in (
            ({"remote_host": "127.0.0.1", "remote_port": a.port}, {}),
            ({"remote_prefiller": {"remote_host": "127.0.0.1", "remote_port": a.port, "kv_request_id": "x"}}, {}),
            ({"remote_host": "127.0.0.1", "remote_port": 5600}, {"source_port": a.port}),
        ):
            with self.subTest(params):
                _, scheduler = self.tier(b, primary, timeout_ms=5000, lookup_timeout_ms=5000, **options)
                context = standins.ReqContext("r", params)
                self.assertEqual(scheduler.lookups(keys(2), context), [True, False])
                primary.fill(1, "something else")
                self.assertTrue(scheduler.load(keys(1), [1], context).success)
                self.assertEqual(primary.content(1), content)
                b.must("evict", "--dram")
        _, scheduler = self.tier(b, primary)
        for params in (None, {}, {"remote_host": "127.0.0.1"}, {"remote_host": 3, "remote_port": "x"}):
            self.assertEqual(scheduler.lookups(keys(1), standins.ReqContext("r", params)), [False], params)

    # ---- nothing waits ----

    def test_every_method__daemon_is_stopped__returns_while_it_is(self):
        """Only what comes after lets the daemon go on: had a call waited for it, its operation would have failed."""
        daemon, primary = self.daemon(), Primary(8)
        tier, scheduler = self.tier(daemon, primary, timeout_ms=20000, lookup_timeout_ms=20000)
        contents = [primary.fill(slot, "k") for slot in range(4)]
        self.assertTrue(scheduler.store(keys(2), [0, 1]).success)
        daemon.signal(signal.SIGSTOP)
        try:
            context = standins.ReqContext("r")
            self.assertEqual(tier.lookup(key(0), context), standins.LookupResult.RETRY)
            tier.on_new_request(context)
            tier.on_schedule_end(None)
            load = scheduler.submit(True, keys(2), [4, 5])
            store = scheduler.submit(False, keys(2, 2), [2, 3])
            self.assertEqual(tier.get_finished_jobs(), [])
            self.assertEqual(tier.lookup(key(0), context), standins.LookupResult.RETRY)
            self.assertTrue(tier.has_pending_work())
            tier.touch(keys(2), context)
            tier.on_request_finished(context)
            self.assertEqual(list(tier.take_events()), [])
        finally:
            daemon.signal(signal.SIGCONT)
        tier.drain_jobs()
        self.assertTrue(scheduler.wait(load).success and scheduler.wait(store).success)
        self.assertEqual([primary.content(4), primary.content(5)], contents[:2])
        self.assertEqual(scheduler.lookups(keys(4)), [True] * 4)

    def test_lookup__no_hook_at_the_steps_end__is_answered(self):
        _, scheduler = self.tier(self.daemon(), Primary(2))
        scheduler.tier.on_schedule_end = lambda context: None
        self.assertEqual(scheduler.lookups(keys(3)), [False] * 3)

    # ---- conformance ----

    def check(self, tier, scheduler, primary, alive, generation):
        mine = keys(KEYS, generation * 1000)
        contents = [primary.fill(slot, generation) for slot in range(KEYS)]
        self.assertTrue(scheduler.store([], []).success)
        self.assertTrue(scheduler.load([], []).success)
        self.assertEqual(scheduler.lookups(mine), [False] * KEYS)
        self.assertEqual(scheduler.store(mine[1:], range(1, KEYS)).success, alive)
        missing = scheduler.load(mine, range(KEYS))
        self.assertFalse(missing.success)
        self.assertIsNone(missing.successful_keys)
        for slot in range(KEYS):
            primary.fill(slot, "overwritten")
        loaded = scheduler.load(mine[1:], range(1, KEYS))
        self.assertEqual(loaded.success, alive)
        if alive:
            self.assertEqual([primary.content(slot) for slot in range(1, KEYS)], contents[1:])
            self.eventually("stored blocks are found", lambda: all(scheduler.lookups(mine[1:])))
        double = key(generation * 1000 + 500)
        content = primary.fill(0, "double")
        self.assertEqual(scheduler.store([double, double], [0, 0]).success, alive)
        self.assertEqual(scheduler.load([double, double], [2, 3]).success, alive)
        if alive:
            self.assertEqual([primary.content(2), primary.content(3)], [content] * 2)
        for wanted, slots in ((keys(2), [0]), (keys(1), [KEYS]), (keys(1), [-1])):
            self.assertFalse(scheduler.store(wanted, slots).success, "slots that do not fit")
            self.assertFalse(scheduler.load(wanted, slots).success, "slots that do not fit")
        self.assertFalse(scheduler.load([b"", b"x" * 100], [0, 1]).success, "keys of other lengths are keys as well")
        self.assertEqual(list(tier.get_finished_jobs()), [])

    def test_every_method__every_state__right_types_and_lengths(self):
        daemon, primary = self.daemon(), Primary(KEYS)
        tier, scheduler = self.tier(daemon, primary)
        for generation, state in enumerate(fixture.STATES):
            with self.subTest(state), self.daemon_that_is(daemon, state, tier.engine):
                self.check(tier, scheduler, primary, state in fixture.ALIVE, generation)
            with self.subTest(state + ", and then healthy"):
                self.check(tier, scheduler, primary, True, 10 + generation)
        tier.drain_jobs()
        tier.shutdown()
        self.all_of_it_comes_back()

    def test_no_daemon_yet__misses_until_one_is_there(self):
        daemon, primary = self.case.daemon("a", pool_mib=256), Primary(KEYS)
        tier, scheduler = self.tier(daemon, primary, up=False)
        self.check(tier, scheduler, primary, False, 0)
        self.case.start(daemon)
        self.must_be_up(tier.engine)
        self.check(tier, scheduler, primary, True, 1)

    def test_shutdown__jobs_run__ends(self):
        daemon, primary = self.daemon(), Primary(8)
        tier, scheduler = self.tier(daemon, primary, timeout_ms=20000)
        daemon.signal(signal.SIGSTOP)
        try:
            scheduler.submit(False, keys(8), range(8))
            tier.shutdown()
        finally:
            daemon.signal(signal.SIGCONT)
        self.assertEqual(list(tier.get_finished_jobs()), [])
        tier.drain_jobs()
        self.all_of_it_comes_back()

    def test_settings__that_cannot_be__are_named(self):
        from kvferry.engine import KvferryError
        daemon = self.daemon()
        with self.assertRaisesRegex(KvferryError, "timeout_ms"):
            self.tier(daemon, Primary(2), timeout_ms=-1)
        with self.assertRaisesRegex(KvferryError, "blocks_per_chunk"):
            self.tier(daemon, Primary(1, (128 << 20) + 1))
        with self.assertRaisesRegex(KvferryError, "model"):
            self.tier(daemon, Primary(2), spec=types.SimpleNamespace())
        with self.assertRaises(TypeError):
            self.tier(daemon, Primary(2), colour="red")


if __name__ == "__main__":
    fixture.main()
