#!/usr/bin/python3
"""kvferry.Engine itself, where the adapters have no say: descriptors without end, Gets cut off half-way, the end of the process."""

import fixture
import ctypes
import os
import resource
import subprocess
import sys

# Daemon threads, such as SGLang's, are in the engine while the interpreter ends; freed memory is filled to show.
AT_EXIT = """
import atexit, sys, threading, time
atexit.register(time.sleep, 0.3)  # runs after the engine's own
import kvferry
engine = kvferry.Engine(sys.argv[1], "at exit")
assert engine.wait_up(20000) == ""
def work():
    while True:
        engine.state()
        engine.run(kvferry.Op.lookup("t/f", [b"k"], 100))
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


class EngineTest(fixture.DaemonCase):
    def engine(self, daemon):
        import kvferry
        engine = kvferry.Engine(f"{self.run_dir(daemon)}/engine.sock", "test")
        self.addCleanup(engine.close)
        self.must_be_up(engine)
        return engine

    def test_wait_ended__with_more_descriptors_than_select_knows__waits(self):
        from kvferry import Op
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]:
            self.addCleanup(os.close, descriptor)
        engine = self.engine(self.daemon())
        self.assertGreater(engine.event_fd(), 1023)
        self.assertFalse(engine.wait_ended(0.01))
        self.assertTrue(engine.submit(Op.lookup("t/f", [b"k"], 1000)))
        self.assertTrue(engine.wait_ended(10))

    def test_silent__only_when_nothing_at_all_came_in_time(self):
        from kvferry import Code, Op
        engine = self.engine(self.daemon())
        memory = ctypes.create_string_buffer(4096)
        block = (b"k", ctypes.addressof(memory), 4096)
        op = Op.get("t/f", [block, (b"l", *block[1:])], 1000)
        op.c.status.code = Code.DEADLINE
        for codes, silent in (((Code.OK, Code.DEADLINE), False), ((Code.NOT_FOUND, Code.DEADLINE), False), ((Code.DEADLINE,) * 2, True)):
            for item, code in zip(op._items, codes):
                item.code = code
            engine._note(op)
            self.assertEqual(engine.is_silent(), silent, codes)

    def test_exit__while_daemon_threads_are_in_the_engine__is_quiet(self):
        daemon = self.daemon()
        environment = dict(os.environ, PYTHONPATH=os.path.join(fixture.TOP, "client", "python"), MALLOC_PERTURB_="165")
        for _ in range(5):
            ended = subprocess.run([sys.executable, "-B", "-c", AT_EXIT, f"{self.run_dir(daemon)}/engine.sock"], env=environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
            self.assertEqual((ended.returncode, ended.stdout), (0, ""))
        self.all_of_it_comes_back()


if __name__ == "__main__":
    fixture.main()
