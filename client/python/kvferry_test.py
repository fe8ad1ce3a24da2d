#!/usr/bin/python3
"""The package without a daemon: that the binding is the header's, that keys, hints and settings are what they should be."""

import ctypes
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from kvferry import binding, memory, settings  # noqa: E402
from kvferry.engine import KvferryError, Op  # noqa: E402

STRUCTS = {"geometry": binding.Geometry, "stats": binding.Stats, "key": binding.Key, "generation": binding.Generation, "item": binding.Item,
           "op": binding.Op, "status": binding.Status, "why": binding.Why, "engine_options": binding.EngineOptions}


class BindingTest(unittest.TestCase):
    def test_structs__as_the_compiler_has_them(self):
        lines = subprocess.run([os.path.join(HERE, "layout")], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        seen = set()
        for name, offset, size in (line.split() for line in lines):
            struct, _, field = name.partition(".")
            if struct == "code":
                self.assertEqual(binding.Code[field], int(offset))
            elif field:
                there = getattr(STRUCTS[struct], field)
                self.assertEqual((there.offset, there.size), (int(offset), int(size)), name)
            else:
                seen.add(struct)
                self.assertEqual(ctypes.sizeof(STRUCTS[struct]), int(size), name)
        self.assertEqual(seen, set(STRUCTS))

    def test_items__are_packed_where_the_struct_has_them(self):
        op = Op.get("t/f", [(b"k" * 64, 4096, 17), (b"l", 1, 2)], 5)
        item = op.c.items[0]
        self.assertEqual((item.key.length, bytes(item.key.bytes), item.length, item.memory), (64, b"k" * 64, 17, 4096))
        item = op.c.items[1]
        self.assertEqual((item.key.length, bytes(item.key.bytes)[:2], item.length, item.memory), (1, b"l\0", 2, 1))
        self.assertEqual((item.data, item.code, item.held), (None, 0, 0))

    def test_library__not_there__says_what_to_do(self):
        before = dict(os.environ)
        os.environ[binding.ENVIRONMENT] = "/nowhere/libkvferry.so.0"
        try:
            with self.assertRaisesRegex(ImportError, f"/nowhere/.*{binding.ENVIRONMENT}"):
                binding.loaded()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def test_import__brings_no_engine_and_no_library(self):
        program = ("import sys, kvferry, kvferry.sglang, kvferry.vllm, kvferry.lmcache\n"
                   "bad = {'sglang', 'vllm', 'lmcache', 'torch', 'numpy'} & set(sys.modules)\n"
                   "assert not bad, bad\n"
                   "assert kvferry.binding._loaded is None\n"
                   "assert not hasattr(kvferry.vllm, 'Other')\n")
        environment = {**os.environ, "PYTHONPATH": HERE, binding.ENVIRONMENT: "/nowhere"}
        subprocess.run([sys.executable, "-B", "-c", program], env=environment, check=True)


class MemoryTest(unittest.TestCase):
    def test_key_of_name__is_a_key_and_nobody_elses(self):
        digest = "0123456789abcdef" * 4
        names = ["", "a", "a\0", digest, digest.upper(), digest + "x", digest[:-1], "h" + digest, "é" * 40, "x" * 61, "x" * 62, "x" * 1000,
                 bytes.fromhex(digest).decode("latin-1"), "\udc80"]
        keys = {memory.key_of_name(name, part) for name in names for part in (0, 1, 255, 256, 0xFFFF)}
        self.assertEqual(len(keys), 5 * len(names))
        self.assertTrue(all(1 <= len(key) <= binding.KEY_MAX_BYTES for key in keys))

    def test_key_of_bytes__is_a_key_and_nobody_elses(self):
        names = [b"", b"k", b"k\0", b"x" * 36, b"x" * 63, b"x" * 64, b"x" * 65]
        keys = {memory.key_of_bytes(name) for name in names}
        self.assertEqual(len(keys), len(names))
        self.assertTrue(all(1 <= len(key) <= binding.KEY_MAX_BYTES for key in keys))
        self.assertEqual(memory.key_of_bytes(b"x" * 36), b"x" * 36)

    def test_of_target__what_can_be_used(self):
        owner = bytearray(100)
        address, length = memory.of_target(owner)
        self.assertEqual(length, 100)
        self.assertEqual(memory.of_target(memoryview(owner)[3:10]), (address + 3, 7))
        self.assertEqual(memory.of_target(address, 5), (address, 5))
        self.assertEqual(memory.of_target(b"abc", writable=False)[1], 3)
        for nothing in (None, b"read-only", memoryview(owner)[::2], "text", 3.5, object()):
            self.assertIsNone(memory.of_target(nothing), nothing)
        for address, size in ((0, 5), (-1, 5), (5, None), (5, 0)):
            self.assertIsNone(memory.of_target(address, size))
        owner.append(1)  # nobody holds the buffer


class SettingsTest(unittest.TestCase):
    def test_source_of__hints(self):
        here = {"remote_host": "10.0.0.7", "remote_port": 9470}
        for hints, port, wanted in (
            (here, 0, "10.0.0.7:9470"),
            ({**here, "remote_port": "9471"}, 0, "10.0.0.7:9471"),
            (here, 9999, "10.0.0.7:9999"),
            ({"remote_host": "fd00::1", "remote_port": 1}, 0, "[fd00::1]:1"),
            ({"remote_prefiller": here}, 0, "10.0.0.7:9470"),
            ({"remote_kv_source": {"remote_host": "a"}, "remote_prefiller": here}, 0, "10.0.0.7:9470"),
            ({"remote_host": "a"}, 0, None),
            ({"remote_host": "a"}, 7, "a:7"),
        ):
            self.assertEqual(settings.source_of(hints, port), wanted, hints)
        for nonsense in (None, 3, [], {}, {"remote_host": 3, "remote_port": 4}, {**here, "remote_port": 0}, {**here, "remote_port": 65536},
                         {**here, "remote_port": "x"}, {**here, "remote_port": True}, {**here, "remote_host": "a\0b"},
                         {**here, "remote_host": "a" * 251}, {**here, "remote_host": ""}, {"remote_prefiller": 3}):
            self.assertIsNone(settings.source_of(nonsense), nonsense)

    def test_read__names_what_is_wrong(self):
        self.assertEqual(settings.read({"module_path": "x", "tenant": "acme"}).tenant, "acme")
        for name, value in (("tenant", 3), ("timeout_ms", -1), ("timeout_ms", 0), ("timeout_ms", True), ("verify", 1), ("source_port", 70000)):
            with self.assertRaisesRegex(KvferryError, name):
                settings.read({name: value})

    def test_salted__same_facts_same_text(self):
        class Config:
            def __init__(self):
                self.size, self.nested = 3, [object()]

        one = settings.Settings()
        self.assertEqual(one.salted({"a": Config()}), one.salted({"a": Config()}))
        self.assertNotEqual(one.salted({"a": 1}), one.salted({"a": 2}))
        self.assertNotEqual(one.salted({"a": 1}), one._replace(salt="x").salted({"a": 1}))

    def test_socket_path__from_setting_or_environment(self):
        os.environ.pop(settings.RUN_DIR, None)
        self.assertEqual(settings.Settings().socket_path, "/run/kvferry/engine.sock")
        os.environ[settings.RUN_DIR] = "/run/b"
        self.assertEqual(settings.Settings().socket_path, "/run/b/engine.sock")
        self.assertEqual(settings.Settings(run_dir="/run/a").socket_path, "/run/a/engine.sock")


if __name__ == "__main__":
    unittest.main()
