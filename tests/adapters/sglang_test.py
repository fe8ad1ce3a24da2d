#!/usr/bin/python3
"""SGLang's backend over a real daemon: every method, with everything that an engine may hand it, in every state of the daemon."""

import fixture
import hashlib
import random
import standins
import unittest.mock

PAGES = 129  # one more than SGLang asks for at a time


def name(number):
    return hashlib.sha256(f"page {number}".encode()).hexdigest()


def names(count, first=0):
    return [name(first + i) for i in range(count)]


class HiCacheTest(fixture.DaemonCase):
    def setUp(self):
        super().setUp()
        standins.install_sglang()

    def backend(self, daemon, pool=None, tp_rank=0, tp_size=1, mla=False, model="acme/model", interface_v1=1, up=True, **options):
        import kvferry.sglang
        kvferry.sglang._make_class.cache_clear()
        extra = {"backend_name": "kvferry", "module_path": "kvferry.sglang", "class_name": "KvferryHiCache", "interface_v1": interface_v1,
                 "run_dir": self.run_dir(daemon), "timeout_ms": 400, "lookup_timeout_ms": 200, **options}
        config = standins.HiCacheStorageConfig(tp_rank=tp_rank, tp_size=tp_size, is_mla_model=mla, model_name=model, extra_config=extra)
        made = kvferry.sglang.KvferryHiCache(config, {})
        self.assertIsInstance(made, standins.HiCacheStorage)
        self.addCleanup(made.close)
        if pool is not None:
            made.register_mem_pool_host(pool)
        if up:
            self.must_be_up(made.engine)
        return made

    @staticmethod
    def filled(pool, pages, seed):
        contents = [random.Random(f"{seed} {page}").randbytes(pool.planes * pool.part_bytes) for page in range(pages)]
        for page, content in enumerate(contents):
            pool.fill(page, content)
        return contents

    # ---- bytes ----

    def put_and_get(self, pool, pages, **options):
        daemon = self.daemon(pool_mib=options.pop("pool_mib", 256))
        backend = self.backend(daemon, pool, **options)
        contents = self.filled(pool, pages, "k")
        every = pool.of(*range(pages))
        self.assertEqual(backend.batch_exists(names(pages)), 0)
        self.assertEqual(backend.batch_set_v1(names(pages), every), [True] * pages)
        self.assertEqual(backend.batch_exists(names(pages) + [name(-1)]), pages)
        self.filled(pool, pages, "something else")
        self.assertEqual(backend.batch_get_v1(names(pages), every), [True] * pages)
        self.assertEqual([pool.page(page) for page in range(pages)], contents)
        total = pages * pool.planes * pool.part_bytes
        self.assertEqual(backend.engine.stats()["copied_bytes"], 2 * total, "one copy on the way in, one on the way out")
        backend.close()
        self.all_of_it_comes_back()

    def test_zero_copy__k_and_v__every_byte_comes_back(self):
        self.put_and_get(standins.HostPool(pages=PAGES), PAGES)

    def test_zero_copy__mla__every_byte_comes_back(self):
        self.put_and_get(standins.HostPool(pages=PAGES, mla=True), PAGES, mla=True)

    def test_zero_copy__qwen3_8b__every_byte_comes_back(self):
        pool = standins.HostPool(page_size=64, layers=36, heads=8, dim=128, pages=4)
        self.assertEqual(pool.planes * pool.part_bytes, 9 << 20)
        self.put_and_get(pool, 4, timeout_ms=5000)

    def test_zero_copy__deepseek_v3__every_byte_comes_back(self):
        pool = standins.HostPool(page_size=64, layers=61, heads=512, dim=64, pages=4, mla=True)
        self.assertEqual(pool.part_bytes, 4497408)
        self.put_and_get(pool, 4, mla=True, timeout_ms=5000)

    def test_zero_copy__more_than_the_daemon_lets_one_hold__is_cut(self):
        pool = standins.HostPool(page_size=64, layers=36, heads=8, dim=128, pages=16)
        self.put_and_get(pool, 16, timeout_ms=10000, pool_mib=320)

    def test_generic__whole_pages__every_byte_comes_back(self):
        pool = standins.HostPool()
        backend = self.backend(self.daemon(), pool, interface_v1=0)
        contents = self.filled(pool, 4, "g")
        values = [pool.get_data_page(page * pool.page_size) for page in range(4)]
        self.assertIs(backend.batch_set(names(4), values), True)
        self.assertEqual(backend.batch_exists(names(5)), 4)
        self.assertIs(backend.exists(name(3)), True)
        targets = [pool.get_dummy_flat_data_page() for _ in range(4)]
        found = backend.batch_get(names(4), targets)
        self.assertTrue(all(one is other for one, other in zip(found, targets)))
        self.assertEqual([standins.content(page) for page in found], contents)
        self.assertEqual(standins.content(backend.get(name(2))), contents[2], "without a target the pool makes one")

    def test_clear__blocks_of_others__stay_and_sglang_does_not_say_cleared(self):
        import kvferry.sglang
        daemon, pool = self.daemon(), standins.HostPool()
        backend = self.backend(daemon, pool)
        self.filled(pool, 2, "c")
        self.assertEqual(backend.batch_set_v1(names(2), pool.of(0, 1)), [True, True])
        with unittest.mock.patch.object(kvferry.sglang.logger, "warning") as warning:
            self.assertIs(standins.clear_storage_backend(backend), False)
        self.assertIn("salt", warning.call_args.args[0])
        self.assertEqual(backend.batch_exists(names(2)), 2)
        self.assertEqual(self.backend(daemon, pool, salt="another").batch_exists(names(2)), 0)

    # ---- who shares what ----

    def test_namespaces__other_bytes__are_other_blocks(self):
        daemon = self.daemon()
        first = self.backend(daemon, standins.HostPool())
        self.assertEqual(first.batch_set_v1(names(1), first.mem_pool_host.of(0)), [True])
        others = [
            dict(pool=standins.HostPool(), model="acme/other"),
            dict(pool=standins.HostPool(), tp_size=2),
            dict(pool=standins.HostPool(), tp_size=2, tp_rank=1),
            dict(pool=standins.HostPool(dtype="torch.float16")),
            dict(pool=standins.HostPool(page_size=32)),
            dict(pool=standins.HostPool(), salt="revision 2"),
            dict(pool=standins.HostPool(), tenant="somebody"),
        ]
        for other in others:
            backend = self.backend(daemon, **other)
            self.assertEqual(backend.batch_exists(names(1)), 0, other)
            self.assertEqual(backend.batch_get_v1(names(1), backend.mem_pool_host.of(0)), [False], other)
        again = self.backend(daemon, standins.HostPool())
        self.assertEqual(again.batch_exists(names(1)), 1)

    def test_mla__ranks__rank_0_writes_and_all_read(self):
        daemon = self.daemon()
        pools = [standins.HostPool(mla=True) for _ in range(3)]
        ranks = [self.backend(daemon, pool, rank, 3, mla=True) for rank, pool in enumerate(pools)]
        contents = self.filled(pools[0], 2, "rank 0")
        self.filled(pools[1], 2, "rank 1 differs, and is not asked")
        self.assertEqual(ranks[1].batch_set_v1(names(2), pools[1].of(0, 1)), [True, True])
        self.assertEqual(ranks[0].batch_exists(names(2)), 0, "only rank 0 writes")
        self.assertEqual(ranks[0].batch_set_v1(names(2), pools[0].of(0, 1)), [True, True])
        for rank, pool in zip(ranks, pools):
            self.assertEqual(rank.batch_get_v1(names(2), pool.of(0, 1)), [True, True])
            self.assertEqual([pool.page(0), pool.page(1)], contents)

    def test_page__one_part_is_gone__the_page_is_a_miss(self):
        from kvferry.engine import Op
        from kvferry.memory import key_of_name
        pool = standins.HostPool()
        backend = self.backend(self.daemon(), pool)
        self.filled(pool, 2, "k")
        self.assertEqual(backend.batch_set_v1(names(2), pool.of(0, 1)), [True, True])
        backend.engine.run(Op.forget(backend._namespaces["kv"], [key_of_name(name(1), 1)], 1000))
        self.assertEqual(backend.batch_exists(names(2)), 1)
        self.assertEqual(backend.batch_get_v1(names(2), pool.of(0, 1)), [True, False])

    def test_source__hinted__is_asked(self):
        a, b = self.daemon("a", listen=True), self.daemon("b")
        pool = standins.HostPool()
        contents = self.filled(pool, 3, "far")
        self.assertEqual(self.backend(a, pool).batch_set_v1(names(3), pool.of(0, 1, 2)), [True] * 3)
        here = standins.HostPool()
        backend = self.backend(b, here, timeout_ms=5000, lookup_timeout_ms=5000)
        hint = standins.HiCacheStorageExtraInfo(extra_info={"remote_host": "127.0.0.1", "remote_port": a.port})
        self.assertEqual(backend.batch_exists(names(3)), 0)
        self.assertEqual(backend.batch_exists(names(3), hint), 3)
        self.assertEqual(backend.batch_get_v1(names(3), here.of(0, 1, 2), hint), [True] * 3)
        self.assertEqual([here.page(page) for page in range(3)], contents)

    # ---- v2 ----

    def hybrid(self):
        backend = self.backend(self.daemon(), standins.HostPool())
        pools = {standins.PoolName.KV: backend.mem_pool_host, standins.PoolName.MAMBA: standins.HostPool(page_size=1, layers=2, mla=True),
                 standins.PoolName.INDEXER: standins.HostPool(layers=1, mla=True)}
        for pool_name, pool in pools.items():
            backend.register_mem_host_pool_v2(pool, pool_name)
            self.filled(pool, 8, pool_name)
        self.must_be_up(backend.engine)
        return backend, pools

    def test_v2__pools__hold_their_own_and_say_the_usable_prefix(self):
        backend, pools = self.hybrid()
        kv, mamba, indexer = pools

        def transfer(pool, keys, pages, **more):
            return standins.PoolTransfer(pool, pools[pool].of(*pages), keys=keys, **more)

        stored = backend.batch_set_v2([transfer(kv, names(6), range(6)), transfer(indexer, names(5), range(5)),
                                       transfer(mamba, [name(2), name(4)], [2, 4])])
        self.assertEqual(stored, {"kv": [True] * 6, "indexer": [True] * 5, "mamba": [True] * 2})
        trailing = standins.PoolHitPolicy.TRAILING_PAGES

        def prefix(*transfers):
            result = backend.batch_exists_v2(names(8), list(transfers))
            self.assertIsInstance(result, standins.PoolTransferResult)
            return result.kv_hit_pages

        self.assertEqual(prefix(), 6)
        self.assertEqual(prefix(transfer(indexer, None, [])), 5)
        self.assertEqual(prefix(transfer(mamba, [name(0)], [0], hit_policy=trailing)), 5)
        self.assertEqual(prefix(transfer(mamba, names(2), [0], hit_policy=trailing)), 0)
        self.assertEqual(prefix(transfer(indexer, None, []), transfer(mamba, [name(0)], [0], hit_policy=trailing)), 5)
        wanted = pools[mamba].page(4)
        self.filled(pools[mamba], 8, "something else")
        self.assertEqual(backend.batch_get_v2([transfer(mamba, [name(4), name(3)], [4, 3])]), {"mamba": [True, False]})
        self.assertEqual(pools[mamba].page(4), wanted)
        self.assertEqual(backend.batch_get_v2([standins.PoolTransfer("unknown", keys=names(2))]), {"unknown": [False, False]})
        self.assertEqual(backend.batch_set_v2([transfer(mamba, names(3), [0])]), {"mamba": [False] * 3}, "indices that do not fit")
        self.assertEqual(backend.batch_get_v2([]), {})

    def test_v2__mla__what_ranks_do_not_share__is_each_ones_own(self):
        daemon = self.daemon()
        ranks = [self.backend(daemon, standins.HostPool(mla=True), rank, 2, mla=True) for rank in range(2)]
        kinds = {standins.PoolName.MAMBA: False, standins.PoolName.INDEXER: True, standins.PoolName.DRAFT: False}
        for kind, shared in kinds.items():
            pools = [standins.HostPool(page_size=1, layers=2, mla=kind != standins.PoolName.DRAFT) for _ in ranks]
            contents = []
            for rank, (backend, pool) in enumerate(zip(ranks, pools)):
                backend.register_mem_host_pool_v2(pool, kind)
                contents.append(self.filled(pool, 1, f"{kind} {rank}")[0])
                moved = backend.batch_set_v2([standins.PoolTransfer(kind, pool.of(0), keys=names(1))])
                self.assertEqual(moved, {kind.value: [True]})
            for rank, (backend, pool) in enumerate(zip(ranks, pools)):
                self.filled(pool, 1, "something else")
                self.assertEqual(backend.batch_get_v2([standins.PoolTransfer(kind, pool.of(0), keys=names(1))]), {kind.value: [True]})
                self.assertEqual(pool.page(0), contents[0 if shared else rank], f"{kind}, rank {rank}")

    def test_v2__sglang_without_its_types__is_not_offered(self):
        standins.install_sglang(v2=False)
        backend = self.backend(self.daemon(), standins.HostPool())
        self.assertFalse(hasattr(backend, "batch_exists_v2"))
        self.assertEqual(backend.batch_set_v1(names(1), backend.mem_pool_host.of(0)), [True])

    # ---- conformance ----

    def all_are(self, results, kind, length, values=None):
        self.assertIs(type(results), list)
        self.assertEqual(len(results), length)
        for result in results:
            self.assertIs(type(result), kind)
        if values is not None:
            self.assertEqual(results, values)

    def check_zero_copy(self, backend, pool, alive, generation):
        """`generation` makes names that nobody stored yet."""
        mine = names(PAGES, generation * 1000)
        every = pool.of(*range(PAGES))
        contents = self.filled(pool, PAGES, generation)
        self.all_are(backend.batch_set_v1([], pool.of()), bool, 0)
        self.all_are(backend.batch_get_v1([], pool.of()), bool, 0)
        self.assertEqual(backend.batch_exists([]), 0)
        self.all_are(backend.batch_get_v1(mine, every), bool, PAGES, [False] * PAGES)
        self.all_are(backend.batch_set_v1(mine[1:], pool.of(*range(1, PAGES))), bool, PAGES - 1, [alive] * (PAGES - 1))
        self.assertEqual(backend.batch_exists(mine), 0, "the first page is missing")
        missing = backend.batch_get_v1(mine, every)
        self.all_are(missing, bool, PAGES)
        self.assertIs(missing[0], False)
        self.assertEqual(backend.batch_exists(mine[1:]), PAGES - 1 if alive else 0)
        self.filled(pool, PAGES, "overwritten")
        self.all_are(backend.batch_get_v1(mine[1:], pool.of(*range(1, PAGES))), bool, PAGES - 1, [alive] * (PAGES - 1))
        if alive:
            self.assertEqual([pool.page(page) for page in range(1, PAGES)], contents[1:])
        self.check_doubles(backend, pool, alive, name(generation * 1000 + 500))
        # What makes no sense is a miss as well.
        self.all_are(backend.batch_get_v1(mine[:2], pool.of(0)), bool, 2, [False, False] if not alive else None)
        self.all_are(backend.batch_set_v1(mine[:2], None), bool, 2, [False, False])
        self.all_are(backend.batch_get_v1(mine[:2], None), bool, 2, [False, False])

    def check_doubles(self, backend, pool, alive, key):
        content = self.filled(pool, 2, key)[0]
        self.all_are(backend.batch_set_v1([key, key], pool.of(0, 0)), bool, 2, [alive] * 2)
        self.all_are(backend.batch_get_v1([key, key], pool.of(2, 3)), bool, 2, [alive] * 2)
        self.assertEqual(backend.batch_exists([key, key]), 2 if alive else 0)
        if alive:
            self.assertEqual([pool.page(2), pool.page(3)], [content] * 2)

    def check_generic(self, backend, alive, generation):
        keys = names(PAGES, generation * 1000 + 700000)
        odd = fixture.HostMemory(PAGES * 1001, offset=3).fill(generation)
        values = [odd.view[i * 1001:(i + 1) * 1001] for i in range(PAGES)]
        self.assertIs(backend.batch_set([], []), True)
        self.all_are(backend.batch_get([], []), type(None), 0)
        self.assertIs(backend.batch_set(keys, values), alive)
        self.assertIs(backend.set(keys[0] + "x", target_location=odd.address + 1, target_sizes=77), alive)
        self.assertIs(backend.set(keys[0], None), False)
        self.assertIs(backend.batch_set(keys[:2], [values[0], None]), False)
        self.assertIs(backend.batch_set(keys[:3], values[:2]), False)
        self.assertIsNone(backend.get(keys[0] + "y", fixture.HostMemory(77).view))
        targets = [fixture.HostMemory(1001, offset=5).view for _ in keys]
        found = backend.batch_get(keys, targets)
        self.assertEqual((type(found), len(found)), (list, PAGES))
        if alive:
            self.assertEqual([bytes(one) for one in found], [bytes(one) for one in values])
        else:
            self.assertEqual(found, [None] * PAGES)
        self.assertEqual(backend.batch_get(keys[:2], None)[0] is not None, False, "no pool page has that length")
        self.assertEqual(backend.batch_get(keys[:2], [None, targets[1]])[1] is not None, alive)
        self.assertEqual([one is not None for one in backend.batch_get([keys[3]] * 2, targets[:2])], [alive] * 2)
        self.assertIsNone(backend.get(keys[0], fixture.HostMemory(1000).view), "another length is a miss")
        self.assertIs(backend.exists(keys[0]), False, "zero-copy pages only")

    def test_every_method__every_state__right_types_and_lengths(self):
        daemon = self.daemon()
        pool = standins.HostPool(pages=PAGES)
        backend = self.backend(daemon, pool)
        for generation, state in enumerate(fixture.STATES):
            with self.subTest(state), self.daemon_that_is(daemon, state, backend.engine):
                alive = state in fixture.ALIVE
                self.check_zero_copy(backend, pool, alive, generation)
                self.check_generic(backend, alive, generation)
            with self.subTest(state + ", and then healthy"):
                self.check_zero_copy(backend, pool, True, 10 + generation)
        backend.close()
        self.all_of_it_comes_back()

    def test_no_daemon_yet__misses_until_one_is_there(self):
        daemon = self.case.daemon("a", pool_mib=256)
        pool = standins.HostPool(pages=PAGES)
        backend = self.backend(daemon, pool, up=False)
        self.check_zero_copy(backend, pool, False, 0)
        self.case.start(daemon)
        self.must_be_up(backend.engine)
        self.check_zero_copy(backend, pool, True, 1)

    def test_closed__misses(self):
        pool = standins.HostPool(pages=PAGES)
        backend = self.backend(self.daemon(), pool)
        backend.close()
        self.check_zero_copy(backend, pool, False, 0)
        self.all_of_it_comes_back()

    def test_settings__that_cannot_be__are_named(self):
        from kvferry.engine import KvferryError
        daemon = self.daemon()
        for option, value in (("tenant", "a/b"), ("timeout_ms", 0), ("timeout_ms", "soon"), ("source_port", 70000), ("verify", 1)):
            with self.subTest(option), self.assertRaisesRegex(KvferryError, option if option != "tenant" else "a/b"):
                self.backend(daemon, **{option: value})


if __name__ == "__main__":
    fixture.main()
