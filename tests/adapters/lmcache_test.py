#!/usr/bin/python3
"""LMCache's native plugin over a real daemon, driven by its eventfd alone."""

import fixture
import random
import select
import signal

KEYS = 129
BYTES = 5001


def name(number, rank=0):
    return f"acme/model@{rank:08x}@0@{random.Random(number).randbytes(32).hex()}"


def names(count, first=0):
    return [name(first + i) for i in range(count)]


class NativePluginTest(fixture.DaemonCase):
    def client(self, daemon, up=True, fingerprint="bf16, chunks of 256", **options):
        from kvferry.lmcache import KvferryClient
        options = {"run_dir": self.run_dir(daemon), "timeout_ms": 400, "lookup_timeout_ms": 200, **options}
        made = KvferryClient(fingerprint=fingerprint, **options)
        self.addCleanup(made.close)
        self.completions = {}
        if up:
            self.must_be_up(made.engine)
        return made

    def end_of(self, client, number):
        """(ok, error, results) of a request, when the eventfd says that there is something."""
        self.assertIs(type(number), int)
        while number not in self.completions:
            readable, _, _ = select.select([client.event_fd()], [], [], 20)
            self.assertTrue(readable, "no completion came")
            for completion in client.drain_completions():
                self.assertIs(type(completion), tuple)
                self.assertEqual([type(part) for part in completion], [int, bool, str, list])
                self.assertNotIn(completion[0], self.completions, "a request ends once")
                self.completions[completion[0]] = completion[1:]
        ok, error, results = self.completions[number]
        self.assertTrue(all(type(result) is bool for result in results))
        self.assertEqual(error == "", ok)
        return ok, results

    def views(self, count, seed=None, offset=1):
        owner = fixture.HostMemory(count * BYTES, offset)
        if seed is not None:
            owner.fill(seed)
        return [owner.view[i * BYTES:(i + 1) * BYTES] for i in range(count)]

    def set(self, client, keys, views):
        return self.end_of(client, client.submit_batch_set(keys, views))

    def get(self, client, keys, views):
        return self.end_of(client, client.submit_batch_get(keys, views))

    def exists(self, client, keys):
        return self.end_of(client, client.submit_batch_exists(keys))[1]

    def check(self, client, alive, generation):
        mine = names(KEYS, generation * 1000)
        for submit in (client.submit_batch_exists, client.submit_batch_delete):
            self.assertEqual(self.end_of(client, submit([]))[1], [])
        self.assertEqual(self.set(client, [], [])[1], [])
        self.assertEqual(self.get(client, [], [])[1], [])
        self.assertEqual(self.exists(client, mine), [False] * KEYS)
        values, targets = self.views(KEYS, generation), self.views(KEYS)
        self.assertEqual(self.set(client, mine[1:], values[1:]), (alive, [alive] * (KEYS - 1)))
        self.assertEqual(self.exists(client, mine), [False] + [alive] * (KEYS - 1))
        self.assertEqual(self.get(client, mine, targets)[1], [False] + [alive] * (KEYS - 1), "no gap hides what is behind it")
        if alive:
            self.assertEqual([bytes(view) for view in targets[1:]], [bytes(view) for view in values[1:]])
        double, two = name(generation * 1000 + 500), self.views(2)
        self.assertEqual(self.set(client, [double] * 2, [values[0]] * 2), (alive, [alive] * 2))
        self.assertEqual(self.get(client, [double] * 2, two)[1], [alive] * 2)
        if alive:
            self.assertEqual([bytes(view) for view in two], [bytes(values[0])] * 2)
        self.assertEqual(self.set(client, mine[:2], [values[0], None]), (False, [alive, False]))
        self.assertEqual(self.get(client, mine[1:3], [b"read-only", targets[1]])[1], [False, alive])
        self.assertEqual(self.get(client, mine[1:2], [self.views(1)[0][1:]])[1], [False], "another length is a miss")
        self.assertEqual(self.get(client, mine[1:3], targets[:1])[1], [alive, False])
        self.assertEqual(self.end_of(client, client.submit_batch_delete(mine[1:3]))[1], [alive] * 2)
        self.assertEqual(self.exists(client, mine[1:4]), [False, False, alive])
        self.assertEqual(client.drain_completions(), [])

    def test_every_method__every_state__right_types_and_lengths(self):
        daemon = self.daemon()
        client = self.client(daemon)
        for generation, state in enumerate(fixture.STATES):
            with self.subTest(state), self.daemon_that_is(daemon, state, client.engine):
                self.check(client, state in fixture.ALIVE, generation)
            with self.subTest(state + ", and then healthy"):
                self.check(client, True, 10 + generation)
        client.close()
        self.all_of_it_comes_back()

    def test_no_daemon_yet__misses_until_one_is_there(self):
        daemon = self.case.daemon("a", pool_mib=256)
        client = self.client(daemon, up=False)
        self.check(client, False, 0)
        self.case.start(daemon)
        self.must_be_up(client.engine)
        self.check(client, True, 1)

    def test_many_at_once__each_ends_once_and_copies_once(self):
        client = self.client(self.daemon(), timeout_ms=10000)
        values = self.views(64, "many")
        sets = [client.submit_batch_set([name(i)], [values[i]]) for i in range(64)]
        self.assertEqual([self.end_of(client, number) for number in sets], [(True, [True])] * 64)
        targets = self.views(64)
        gets = [client.submit_batch_get([name(i)], [targets[i]]) for i in range(64)]
        self.assertEqual([self.end_of(client, number) for number in gets], [(True, [True])] * 64)
        self.assertEqual([bytes(view) for view in targets], [bytes(view) for view in values])
        self.assertEqual(client.engine.stats()["copied_bytes"], 2 * 64 * BYTES)

    def test_submit__daemon_is_stopped__returns_while_it_is(self):
        daemon = self.daemon()
        client = self.client(daemon, timeout_ms=20000, lookup_timeout_ms=20000)
        values, targets = self.views(2, "k"), self.views(2)
        self.assertTrue(self.set(client, names(2), values)[0])
        daemon.signal(signal.SIGSTOP)
        try:
            numbers = [client.submit_batch_get(names(2), targets), client.submit_batch_exists(names(3)),
                       client.submit_batch_set([name(7)], values[:1])]
            self.assertEqual(client.drain_completions(), [])
        finally:
            daemon.signal(signal.SIGCONT)
        results = [self.end_of(client, number)[1] for number in numbers]
        self.assertEqual(results, [[True] * 2, [True, True, False], [True]])

    def test_fingerprint__other__is_other_blocks(self):
        daemon = self.daemon()
        client = self.client(daemon)
        self.assertTrue(self.set(client, names(1), self.views(1, "k"))[0])
        self.assertEqual(self.exists(self.client(daemon, fingerprint="fp8, chunks of 256"), names(1)), [False])
        self.assertEqual(self.exists(self.client(daemon, tenant="somebody"), names(1)), [False])
        self.assertEqual(self.exists(self.client(daemon), [name(0), name(0, rank=1)]), [True, False])

    def test_close__requests_run__ends(self):
        daemon = self.daemon()
        client = self.client(daemon, timeout_ms=20000)
        daemon.signal(signal.SIGSTOP)
        try:
            client.submit_batch_set(names(2), self.views(2, "k"))
            client.close()
        finally:
            daemon.signal(signal.SIGCONT)
        self.assertEqual((client.drain_completions(), client.event_fd()), ([], -1))
        self.assertIs(type(client.submit_batch_exists(names(1))), int)
        client.close()
        self.all_of_it_comes_back()

    def test_settings__that_cannot_be__are_named(self):
        from kvferry.engine import KvferryError
        daemon = self.daemon()
        for options, word in ((dict(fingerprint=""), "fingerprint"), (dict(colour="red"), "colour"), (dict(tenant=""), "tenant"),
                              (dict(timeout_ms=True), "timeout_ms"), (dict(run_dir="/x" * 80), "107")):
            with self.subTest(options), self.assertRaisesRegex(KvferryError, word):
                self.client(daemon, **options)


if __name__ == "__main__":
    fixture.main()
