"""Real daemons for the cases: start, talk to, kill, stop, and judge what they leave behind.

A Case owns a directory on a real disk, its daemons and its helpers. Whatever a case does, at its end every daemon that
still lives must drain to exit 0 with every gauge there and 0, and no log may show an assert or a sanitizer's finding.
"""

import ctypes
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

GAUGES = ["query_bytes", "leases", "pinned_bytes", "ssd_reads", "ssd_writes", "dirty_bytes", "quarantine_bytes"]
SSD_GAUGES = ["ssd_reads", "ssd_writes"]
FINDINGS = re.compile(r"assert|Sanitizer|runtime error")
LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error) ")
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


class Failed(Exception):
    """The product did not do what the case says it must."""


class Skipped(Exception):
    """This host cannot do what the case needs; says why."""


def expect(condition, message):
    if not condition:
        raise Failed(message)


def expect_equal(got, wanted, what):
    if got != wanted:
        raise Failed(f"{what}: {got!r}, wanted {wanted!r}")


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


given_ports = set()


def free_port():
    """Below the range of ports that the kernel hands out, so that no connection of ours takes it meanwhile; no port twice,
    for cases may run side by side."""
    for _ in range(1000):
        port = random.randint(15000, 30000)
        if port in given_ports:
            continue
        given_ports.add(port)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Failed("no free port on loopback")


class Result:
    """What a command did."""

    def __init__(self, arguments, code, out, err, seconds):
        self.arguments, self.code, self.out, self.err, self.seconds = arguments, code, out, err, seconds

    def __str__(self):
        return f"`{' '.join(self.arguments)}` ended with {self.code} after {self.seconds:.1f} s: {self.err.strip() or self.out.strip()}"

    def must_end_with(self, code):
        expect(self.code == code, f"{self}\n(exit {code} was expected)")
        return self

    def must_name(self, *words):
        """Exactly one line on stderr, log lines aside, with all these words in it."""
        lines = [line for line in self.err.splitlines() if not LOG_LINE.match(line)]
        expect(len(lines) == 1, f"{self}\n(one line on stderr was expected, {len(lines)} came)")
        for word in words:
            expect(word in lines[0], f"{self}\n(the line does not name {word!r})")
        return self


class Command:
    """A command that runs while the case goes on."""

    def __init__(self, arguments, directory, environment=None):
        self.arguments = [str(word) for word in arguments]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.arguments, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=die_with_parent)

    def is_running(self):
        return self.process.poll() is None

    def end(self, seconds=60):
        """Wait for its end; a command that outlives `seconds` is a failure."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise Failed(f"`{' '.join(self.arguments)}` still ran after {seconds} s") from None
        shown = [os.path.basename(self.arguments[0])] + self.arguments[1:]
        result = Result(shown, self.process.returncode, out, err, time.monotonic() - self.started)
        expect(not FINDINGS.search(err), f"{result}")
        expect(result.code >= 0, f"{result}")
        return result

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Load(Command):
    """An engine under load: it says when it has registered, and at its end what it did."""

    def __init__(self, case, words):
        super().__init__([case.binary("engine_load"), *words], case.directory, case.environment)
        self.code = None
        expect("registered" in self.process.stdout.readline(), "an engine under load did not register")

    def leave(self, how, seconds=40):
        """`term`, `kill` or None (it goes by itself); the exit status, in self.code, and what it says."""
        if how and self.is_running():
            self.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise Failed(f"an engine under load still ran {seconds} s after its end was due") from None
        expect(not FINDINGS.search(err), f"an engine under load said: {err}")
        self.code = self.process.returncode
        return json.loads(out.splitlines()[-1]) if self.code == 0 else {"err": err}

    def must_leave(self, how="term", seconds=40):
        said = self.leave(how, seconds)
        expect(self.code == 0, f"an engine under load ended with {self.code}: {said}")
        expect_equal(said["wrong"], 0, "wrong blocks")
        return said


class Probe:
    """An engine that does what we say (engine_probe.c, or another program of its kind)."""

    def __init__(self, case, program="engine_probe"):
        self.process = subprocess.Popen(
            [case.binary(program)], cwd=case.directory, env=case.environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=open(case.path("probes.log"), "ab"), text=True, preexec_fn=die_with_parent)

    def start(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def answer(self):
        """(code, {name: number or text})"""
        line = self.process.stdout.readline()
        expect(line != "", "an engine died")
        code, *words = line.split()
        values = {}
        for word in words:
            name, _, value = word.partition("=")
            values[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
        return code, values

    def ask(self, *words):
        self.start(*words)
        return self.answer()

    def must(self, *words, code="OK"):
        self.start(*words)
        return self.must_answer(*words, code=code)

    def must_answer(self, *words, code="OK"):
        got, values = self.answer()
        expect(got == code, f"engine's `{' '.join(str(word) for word in words)}` answered {got} {values}, not {code}")
        return values

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        expect_equal(self.process.wait(30), 0, "exit of an engine")


class Daemon:
    """One kvferryd. Without `ssd_mib` it has no SSD tier; with `listen` it serves peers, in plaintext unless `tls` names
    a certificate in the case's folder tls/ (cases_identity.py makes them); `acl` is the path of its ACL."""

    def __init__(self, case, name, ssd_mib=None, pool_mib=512, listen=False, tls=None, acl=None, flags=()):
        self.case, self.name, self.pool_mib, self.ssd_mib = case, name, pool_mib, ssd_mib
        self.tls, self.acl, self.listen_host = tls, acl, "127.0.0.1"
        self.directory = case.path(name)
        self.run_dir = f"{name}/run"
        self.flags = [str(flag) for flag in flags]
        self.host = ()  # words of tests/hosts/as: what its host lacks
        self.port = free_port() if listen else None
        self.process = None
        self.launches = 0
        self.drain_timeout_s = 30
        os.makedirs(f"{self.directory}/ssd", exist_ok=True)

    # ---- life ----

    def arguments(self):
        words = ["--node-id", self.name, "--run-dir", self.run_dir, "--http", "127.0.0.1:0", "--pool-mib", self.pool_mib]
        if self.ssd_mib:
            words += ["--ssd-path", f"{self.name}/ssd", "--ssd-capacity-mib", self.ssd_mib]
        if self.port:
            words += ["--listen", f"{self.listen_host}:{self.port}"]
        if self.tls:
            words += ["--tls-cert", f"tls/{self.tls}.crt", "--tls-key", f"tls/{self.tls}.key", "--tls-ca", "tls/ca.crt"]
        elif self.port:
            words += ["--insecure-loopback"]
        if self.acl:
            words += ["--acl", self.acl]
        return [str(word) for word in words] + self.flags

    def words_before(self):
        return [self.case.binary("as"), *self.host] if self.host else []

    @property
    def source(self):
        return f"127.0.0.1:{self.port}"

    def log_path(self):
        return f"{self.directory}/log{self.launches}"

    def launch(self):
        self.launches += 1
        with open(self.log_path(), "wb") as log:
            self.process = subprocess.Popen(
                self.words_before() + [self.case.binary("kvferryd")] + self.arguments(), cwd=self.case.directory, env=self.case.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        return self

    def wait_ready(self, seconds=120):
        self.case.eventually(seconds, f"daemon {self.name} is READY", lambda: "READY:" in self.log() or not self.lives())
        expect(self.lives(), f"daemon {self.name} did not start: {self.last_line()}")
        self.must("stat")
        self.http_port = int(re.search(r"http port (\d+)", self.log())[1])
        self.data_port = int(re.search(r"data port (\d+)", self.log())[1])
        return self

    def start(self):
        return self.launch().wait_ready()

    def lives(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        with open(self.log_path(), errors="replace") as file:
            return file.read()

    def lines(self, *words):
        """The log's lines with all these words in them."""
        return [line for line in self.log().splitlines() if all(word in line for word in words)]

    def must_log(self, *words, seconds=10):
        self.case.eventually(seconds, f"daemon {self.name} logs a line with {words}", lambda: self.lines(*words), self.last_line)

    def last_line(self):
        lines = self.log().splitlines()
        return lines[-1] if lines else "(an empty log)"

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.judge_log()
        self.process = None

    def term(self):
        self.signal(signal.SIGTERM)

    def must_exit(self, code=0, seconds=None):
        """Wait for the end of a drain and judge what it says."""
        seconds = seconds or self.drain_timeout_s + 15 * self.case.slowness
        try:
            got = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"daemon {self.name} did not end within {seconds} s of SIGTERM") from None
        self.process = None
        self.judge_log()
        expect(got == code, f"daemon {self.name} ended with {got}, not {code}: {self.last_line()}")
        if code == 0:
            self.judge_gauges()

    def stop(self):
        self.term()
        self.must_exit()

    def judge_log(self):
        for line in self.log().splitlines():
            expect(not FINDINGS.search(line), f"daemon {self.name} logged: {line}")

    def judge_gauges(self):
        """The last log line carries every gauge, and each is 0."""
        last = self.last_line()
        found = dict(re.findall(r"(\w+)=(\d+)", last))
        wanted = {name: "0" for name in GAUGES if self.ssd_mib or name not in SSD_GAUGES}
        expect(found == wanted, f"daemon {self.name}'s last log line does not say every gauge, and 0: {last}")

    # ---- talking to it ----

    def begin(self, *arguments):
        """Run `kvferry --run-dir ... ARGUMENTS` while the case goes on."""
        return self.case.begin("kvferry", "--run-dir", self.run_dir, *arguments)

    def run(self, *arguments, seconds=120):
        return self.begin(*arguments).end(seconds)

    def must(self, *arguments, code=0):
        return self.run(*arguments).must_end_with(code)

    def stat(self):
        return json.loads(self.must("stat", "--json").out)

    def put(self, ns, key, path):
        return self.must("put", ns, key, path)

    def settle(self):
        """Everything durable, nothing in DRAM: whoever asks now asks the SSD."""
        self.must("sync", "--durable")
        self.must("evict", "--dram")

    def get(self, ns, *keys, source=None, code=0, timeout_s=None):
        return self.begin_get(ns, *keys, source=source, timeout_s=timeout_s).end().must_end_with(code)

    def begin_get(self, ns, *keys, source=None, timeout_s=None):
        words = ["get", ns, *keys, "-o", f"{self.name}/out"]
        words += ["--source", source.source if isinstance(source, Daemon) else source] if source else []
        words += ["--timeout-s", timeout_s] if timeout_s else []
        return self.begin(*words)

    def output(self, key):
        return f"{self.directory}/out/{key}"

    def http(self, path, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=20)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """{'kvferry_pull_reads_total': 0.0, 'kvferry_blocks_total{tier="dram"}': 0.0, ...}"""
        status, text = self.http("/metrics")
        expect_equal(status, 200, "/metrics")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def metric(self, name):
        return self.metrics()[f"kvferry_{name}"]

    def gauges(self):
        return {name: value for name, value in self.stat()["drain"].items() if value != 0}

    def gauges_return_to_zero(self, seconds=10):
        self.case.eventually(seconds, f"the gauges of {self.name} are 0", lambda: not self.gauges(), self.gauges)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def ports(self):
        """The TCP ports on which it listens."""
        inodes = set()
        for descriptor in os.listdir(f"/proc/{self.process.pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{self.process.pid}/fd/{descriptor}"))
            except FileNotFoundError:
                pass  # closed meanwhile
        found = set()
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.process.pid}/net/{table}", encoding="ascii") as lines:
                for line in list(lines)[1:]:
                    _, local, _, state, *rest = line.split()
                    if state == "0A" and f"socket:[{rest[5]}]" in inodes:
                        found.add(int(local.rsplit(":", 1)[1], 16))
        return found

    def memory_mib(self, name):
        """VmRSS, or VmHWM for the most since the start or since forget_peak()."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(rf"^{name}:\s+(\d+) kB", file.read(), re.M)[1]) / 1024

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")

    def cpu_ticks(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])


class Case:
    """What one case has: a directory, its daemons, its commands."""

    def __init__(self, binaries, directory, environment, slowness):
        self.binaries, self.directory = binaries, directory
        self.environment, self.slowness = environment, slowness
        self.daemons, self.commands, self.probes = [], [], []
        os.makedirs(directory)

    def binary(self, name):
        return f"{self.binaries}/{name}"

    def path(self, name):
        return f"{self.directory}/{name}"

    def daemon(self, name, **options):
        daemon = Daemon(self, name, **options)
        self.daemons.append(daemon)
        return daemon

    def start(self, *daemons):
        for daemon in daemons:
            daemon.launch()
        for daemon in daemons:
            daemon.wait_ready()
        return daemons if len(daemons) > 1 else daemons[0]

    def pair(self, ssd_mib=768, a_flags=(), b_flags=(), **b_options):
        """The usual two: a has an SSD and is the source, b pulls."""
        a = self.daemon("a", ssd_mib=ssd_mib, listen=True, flags=a_flags)
        b = self.daemon("b", flags=[*b_flags], **b_options)
        return self.start(a, b)

    def begin(self, name, *arguments):
        command = Command([self.binary(name), *arguments], self.directory, self.environment)
        self.commands.append(command)
        return command

    def run(self, name, *arguments, seconds=120):
        return self.begin(name, *arguments).end(seconds)

    def engine(self, daemon, name="probe"):
        """An engine that is registered with this daemon."""
        probe = self.probe()
        probe.must("open", daemon.run_dir, name)
        return probe

    def load(self, daemon, name, ns, seed=1, prefixes=1, blocks=12, block_bytes=1 << 20, seconds=0, source=None):
        """An engine under load (engine_load.c) that is registered with this daemon."""
        load = Load(self, [daemon.run_dir, name, ns, seed, prefixes, blocks, block_bytes, seconds] +
                    ([source.source] if source else []))
        self.commands.append(load)
        return load

    def probe(self):
        probe = Probe(self)
        self.probes.append(probe)
        return probe

    @staticmethod
    def chance():
        """Always the same course, unless KVFERRY_TEST_SEED gives another one."""
        return random.Random(int(os.environ.get("KVFERRY_TEST_SEED", "1")))

    def file(self, name, size, seed=None):
        """A file of `size` bytes that no other file of this case equals."""
        generator = random.Random(f"{name} {size} {seed}")
        with open(self.path(name), "wb") as file:
            for at in range(0, size, 1 << 24):
                file.write(generator.randbytes(min(1 << 24, size - at)))
        return self.path(name)

    def files(self, count, size):
        """(keys, paths) of `count` files."""
        keys = [f"k{i}" for i in range(count)]
        return keys, [self.file(f"{key}.in", size) for key in keys]

    def put_files(self, daemon, ns, keys, paths):
        """Several at a time: a put is mostly the start of a process."""
        for at in range(0, len(keys), 4):
            begun = [daemon.begin("put", ns, key, path) for key, path in zip(keys[at:at + 4], paths[at:at + 4])]
            for command in begun:
                command.end().must_end_with(0)

    def same(self, one, other, what):
        with open(one, "rb") as left, open(other, "rb") as right:
            while True:
                piece = left.read(1 << 22)
                expect(piece == right.read(1 << 22), f"{what}: {one} and {other} differ")
                if not piece:
                    return

    def eventually(self, seconds, what, condition, show=None):
        """Wait for a condition. The bound is generous; it is there so that nothing waits for ever."""
        until = time.monotonic() + seconds * self.slowness
        while True:
            if condition():
                return
            if time.monotonic() > until:
                raise Failed(f"not within {seconds} s: {what}" + (f", but {show()}" if show else ""))
            time.sleep(0.02)

    # ---- the end ----

    def finish(self):
        """What every case must leave behind: daemons that drain to 0."""
        for probe in self.probes:
            if probe.process.poll() is None:
                probe.end()
        living = [daemon for daemon in self.daemons if daemon.process is not None]
        for daemon in living:
            expect(daemon.lives(), f"daemon {daemon.name} died: {daemon.last_line()}")
            daemon.gauges_return_to_zero()
        for daemon in living:
            daemon.term()
        for daemon in living:
            daemon.must_exit(0)

    def abandon(self):
        """Nothing that we started stays, whatever happened."""
        for daemon in self.daemons:
            if daemon.lives():
                daemon.process.kill()
                daemon.process.wait()
        for command in self.commands:
            if command.is_running():
                command.kill()
        for probe in self.probes:
            if probe.process.poll() is None:
                probe.kill()

    def log_tails(self, lines=12):
        text = []
        for daemon in self.daemons:
            for number in range(1, daemon.launches + 1):
                path = f"{daemon.directory}/log{number}"
                with open(path, errors="replace") as file:
                    tail = [line for line in file.read().splitlines() if " info config: " not in line][-lines:]
                text.append(f"-- {path}")
                text += [line[:300] for line in tail]
        return "\n".join(text)

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)
