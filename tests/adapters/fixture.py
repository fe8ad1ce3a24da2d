"""What the adapters' tests share: a real daemon in every state that an engine may meet, and host memory to move.

KVFERRY_BIN names a directory with kvferryd, kvferry, engine_probe and libkvferry.so.0; under Bazel they are found by themselves.
"""

import contextlib
import ctypes
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if "TEST_SRCDIR" in os.environ:
    TOP = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
sys.path[:0] = [os.path.join(TOP, "client", "python"), os.path.join(TOP, "tests", "daemons")]

import harness  # noqa: E402

BUILT = {"kvferryd": "server/kvferryd", "kvferry": "client/cli/kvferry", "engine_probe": "tests/daemons/engine_probe",
         "libkvferry.so.0": "client/libkvferry.so.0"}
STATES = ("healthy", "draining", "killed", "stopped", "restarted")
ALIVE = ("healthy", "restarted")


def built(name):
    ready = os.environ.get("KVFERRY_BIN")
    return os.path.realpath(os.path.join(ready, name) if ready else os.path.join(TOP, BUILT[name]))


def binaries(into):
    os.mkdir(into)
    for name in BUILT:
        os.symlink(built(name), os.path.join(into, name))
    return into


def under_sanitizer():
    """Python itself is not instrumented: it starts again with the runtime loaded first."""
    with open(built("libkvferry.so.0"), "rb") as file:
        image = file.read()
    needed = [name for name in (b"libasan.so", b"libtsan.so") if name in image]
    if not needed or "LD_PRELOAD" in os.environ:
        return
    runtime = subprocess.run(["gcc", f"-print-file-name={needed[0].decode()}"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    os.environ["LD_PRELOAD"] = os.path.realpath(runtime)
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0"  # Python leaks by design
    os.execv(sys.executable, [sys.executable] + sys.argv)


class DaemonCase(unittest.TestCase):
    """Each test has a directory and daemons of its own, which at its end must drain to zero as in tests/daemons."""

    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="kvf-", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.work, True)
        self.case = harness.Case(binaries(f"{self.work}/bin"), f"{self.work}/c",
                                 {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}, 4)
        self.addCleanup(self.case.abandon)
        os.environ["KVFERRY_LIBRARY"] = self.case.binary("libkvferry.so.0")

    def daemon(self, name="a", **options):
        options.setdefault("pool_mib", 256)
        return self.case.start(self.case.daemon(name, **options))

    def run_dir(self, daemon):
        return f"{daemon.directory}/run"

    def eventually(self, what, condition):
        self.case.eventually(10, what, condition)

    def must_be_up(self, engine):
        self.assertEqual(engine.wait_up(20000), "")

    @contextlib.contextmanager
    def daemon_that_is(self, daemon, state, engine):
        """Bring a READY daemon, whose engine is UP, into a state; afterwards a READY one is there again."""
        from kvferry.engine import State
        if state == "stopped":
            daemon.signal(signal.SIGSTOP)
            try:
                yield
            finally:
                daemon.signal(signal.SIGCONT)
        elif state == "draining":  # as long as another engine does not care
            stubborn = self.case.engine(daemon, name="stubborn")
            daemon.term()
            self.eventually("the engine hears of the drain", lambda: engine.state() != State.UP)
            yield
            stubborn.must("close")
            daemon.must_exit(0)
            daemon.start()
        elif state == "killed":
            daemon.kill()
            self.eventually("the engine hears of the end", lambda: engine.state() != State.UP)
            yield
            daemon.start()
        elif state == "restarted":
            daemon.kill()
            daemon.start()
            self.must_be_up_anew(engine, daemon)
            yield
        else:
            yield
        self.must_be_up_anew(engine, daemon)

    def must_be_up_anew(self, engine, daemon):
        self.must_be_up(engine)
        epoch = daemon.stat()["boot_epoch"]
        self.eventually("the engine is with this daemon", lambda: engine.boot_epoch() == epoch)
        self.eventually("the daemon is not taken for a silent one", lambda: not engine.is_silent())

    def all_of_it_comes_back(self):
        """Daemons drain to zero; call it after the engines are closed."""
        self.case.finish()


class HostMemory:
    """Bytes at any alignment: `offset` past a page."""

    def __init__(self, length, offset=0):
        self._owner = (ctypes.c_char * (length + 8192))()
        base = ctypes.addressof(self._owner)
        self.address = (base + 4095) // 4096 * 4096 + offset
        self.length = length
        self.view = memoryview((ctypes.c_char * length).from_buffer(self._owner, self.address - base)).cast("B")

    def fill(self, seed):
        self.view[:] = random.Random(seed).randbytes(self.length)
        return self

    def bytes(self):
        return bytes(self.view)


def main():
    logging.disable(logging.CRITICAL)  # what is taken for a miss is logged
    under_sanitizer()
    unittest.main(verbosity=2)
