#!/usr/bin/python3
"""client/examples: either prefill feeds either decode, on another node."""

import os
import subprocess
import sys

import fixture

PROGRAMS = {"c": [os.path.join(fixture.TOP, "client/examples/prefill_decode")],
            "python": [sys.executable, "-B", os.path.join(fixture.TOP, "client/examples/prefill_decode.py")]}


class ExamplesTest(fixture.DaemonCase):
    def example(self, language, role, daemon, *source):
        environment = dict(os.environ, PYTHONPATH=os.path.join(fixture.TOP, "client", "python"))
        said = subprocess.run([*PROGRAMS[language], role, f"{self.run_dir(daemon)}/engine.sock", *source], env=environment, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        return said.returncode, said.stdout, said.stderr

    def test_examples__prefill_here_and_decode_there__all_pages_arrive(self):
        a, b = self.daemon("a", listen=True, pool_mib=512), self.daemon("b", pool_mib=512)
        self.assertEqual(self.example("c", "decode", b, a.source), (4, "decode: OK, 0 of 12 pages\n", ""))
        self.assertEqual(self.example("c", "prefill", a), (0, "prefill: OK, 12 of 12 pages\n", ""))
        self.assertEqual(self.example("python", "decode", b, a.source), (0, "decode: 12 of 12 pages\n", ""))
        self.assertEqual(self.example("python", "prefill", b), (0, "prefill: 12 of 12 pages\n", ""))
        self.assertEqual(self.example("c", "decode", a, a.source), (0, "decode: OK, 12 of 12 pages\n", ""))
        self.assertEqual(b.stat()["pull"]["blocks"], 12)

    def test_examples__no_daemon__says_so(self):
        daemon = self.daemon()
        daemon.term()
        daemon.must_exit(0)
        for language in PROGRAMS:
            code, _, words = self.example(language, "prefill", daemon)
            self.assertEqual(code, 1)
            self.assertIn("engine.sock", words)


if __name__ == "__main__":
    fixture.main()
