"""The two hosts of a campaign, and how commands reach them: on loopback, in two network namespaces, or over ssh, to guests of
tests/qemu or wherever the campaign says.

A host runs words, starts processes that stay, takes files, and gives everything back at the end. Processes are started with
their pid in a file on the host, so that they can be ended there however the way to them broke."""

import ipaddress
import json
import os
import select
import shlex
import socket
import subprocess
import time

from leaving import held

PREPARE = 'd=$(mktemp -d "$1/kvfq.XXXXXX") && mkdir "$d/bin" && echo "$d"'
TAKE = 'umask 077 && cat >"$1.part" && chmod "$2" "$1.part" && mv "$1.part" "$1"'
START = 'echo $$ >"$1" && shift && exec "$@"'
# The pid file's process, if it still is the one that was started: a pid may have become somebody else's.
END = 'for f in "$1"/*.pid; do [ -e "$f" ] || continue; p=$(cat "$f"); case $(tr "\\0" " " <"/proc/$p/cmdline" 2>/dev/null) in ' \
      '*"$1"*) kill -KILL "$p" ;; esac; done; true'
SURVEY = """uname -srvm; cat /etc/os-release 2>/dev/null | head -n 1; echo "$(nproc) CPUs"
grep -m 1 'model name' /proc/cpuinfo; grep -E 'MemTotal|MemAvailable' /proc/meminfo
echo "memlock $(ulimit -l) KiB"; echo "load $(cat /proc/loadavg)"; df -kT "$1" | tail -n 1
cat /proc/sys/kernel/io_uring_disabled 2>/dev/null | sed 's/^/io_uring_disabled /'
ldd --version 2>/dev/null | head -n 1; "$1/bin/kvferryd" --version; "$1/bin/kvferry" --version"""


GUESTS = os.path.realpath(__file__ + "/../../../tests/qemu/hosts")


class Unreachable(Exception):
    """A host did not do what every host must."""


class Lines:
    """A process that is told things on its stdin and answers in lines; whatever it says is kept in a file, too."""

    def __init__(self, process, kept):
        self.process, self.buffer = process, b""
        self.kept = open(kept, "wb")

    def tell(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def line(self, seconds):
        """The next line, without its end; None when it has ended. TimeoutError after `seconds`."""
        until = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                return None
            self.kept.write(piece)
            self.kept.flush()
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode(errors="replace")

    def end(self, seconds):
        """Close its stdin, read the rest, wait. The exit status; None: it did not end in time."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        until = time.monotonic() + seconds
        try:
            while self.line(until - time.monotonic()) is not None:
                pass
            return self.process.wait(max(0.1, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            return None


class Host:
    """One host; `role` is source or consumer."""

    def __init__(self, role, spec):
        self.role, self.spec = role, spec
        self.address, self.port = spec.get("address", "127.0.0.1"), spec.get("port", 9470)
        self.before = []  # words before each command, on this machine
        self.ssh = spec.get("ssh")  # words that hand the command, as one word, to a shell on the host
        self.place = spec.get("work", "/var/tmp")
        self.work = None
        self.processes = []

    # ---- commands ----

    def words(self, words):
        words = [str(word) for word in words]
        if self.ssh:
            return [*self.ssh, shlex.join(words)]
        return [*self.before, *words]

    def run(self, words, data=b"", seconds=120):
        """(exit status, stdout, stderr)"""
        try:
            done = subprocess.run(self.words(words), input=data, capture_output=True, timeout=seconds, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unreachable(f"{self.role}: {words[0]}: {error}") from None
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def must(self, words, data=b""):
        code, out, err = self.run(words, data)
        if code != 0:
            raise Unreachable(f"{self.role}: {words[0]} ended with {code}: {err.strip() or out.strip()}")
        return out.strip()

    def start(self, name, words, stdin, stdout, stderr):
        """A process that stays. It is pinned where the campaign says so."""
        pin = ["taskset", "-c", self.spec["pin"]] if self.spec.get("pin") else []
        with held():
            process = subprocess.Popen(
                self.words(["sh", "-c", START, "sh", f"{self.work}/{name}.pid", *pin, *words]),
                stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
            self.processes.append(process)
        return process

    # ---- life ----

    def open(self):
        with held():
            self.work = self.must(["sh", "-c", PREPARE, "sh", self.place])

    def take(self, path, name, mode="0600"):
        """Copy a file of this machine to work/NAME there."""
        with open(path, "rb") as file:
            self.must(["sh", "-c", TAKE, "sh", f"{self.work}/{name}", mode], file.read())

    def hashes(self):
        """{program: sha256}, as they lie on the host."""
        out = self.must(["sha256sum", f"{self.work}/bin/kvferryd", f"{self.work}/bin/kvferry"])
        return {line.split()[1].rsplit("/", 1)[1]: line.split()[0] for line in out.splitlines()}

    def survey(self):
        return self.must(["sh", "-c", SURVEY, "sh", self.work]).splitlines()

    def end_processes(self):
        """Nothing that was started stays, whatever happened."""
        if self.work:
            self.run(["sh", "-c", END, "sh", self.work])
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []

    def close(self):
        self.end_processes()
        if self.work:
            self.run(["rm", "-rf", self.work])

    def subject_name(self):
        """As make-certs writes what others dial."""
        try:
            ipaddress.ip_address(self.address)
            return f"IP:{self.address}"
        except ValueError:
            return f"DNS:{self.address}"


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Pair:
    """Both hosts and what joins them."""

    def __init__(self, campaign):
        self.hosts = {role: Host(role, spec) for role, spec in campaign["hosts"].items()}
        self.kind = campaign["hosts"]["source"]["kind"]
        self.namespaces = []
        self.guests = None

    def __getitem__(self, role):
        return self.hosts[role]

    def _ip(self, *words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unreachable(f"ip {' '.join(words)}: {done.stderr.strip()} (network namespaces need root and iproute2)")

    def _make_namespaces(self):
        """Two, joined by a veth pair."""
        names = [f"kvfq{os.getpid()}{letter}" for letter in "sc"]
        for name in names:
            with held():
                self._ip("netns", "add", name)
                self.namespaces.append(name)
        self._ip("link", "add", "kvf0", "netns", names[0], "type", "veth", "peer", "name", "kvf0", "netns", names[1])
        for number, (name, role) in enumerate(zip(names, ("source", "consumer")), 1):
            host = self.hosts[role]
            host.address, host.before = f"10.77.0.{number}", ["ip", "netns", "exec", name]
            self._ip("-n", name, "address", "add", f"{host.address}/24", "dev", "kvf0")
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "link", "set", "kvf0", "up")

    def _boot_guests(self, programs):
        """Two, with soft-RoCE; they stay while the stdin of their command is open."""
        with held():
            self.guests = subprocess.Popen([GUESTS, *programs.values()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            there = json.loads(self.guests.stdout.readline())
        except ValueError:
            raise Unreachable(f"{GUESTS} ended with {self.guests.wait()}: the line above says why") from None
        for role, guest in zip(("source", "consumer"), "ab"):
            host = self.hosts[role]
            host.ssh, host.address, host.place = (there[guest][name] for name in ("ssh", "address", "work"))

    def open(self, programs, make_certs, scratch):
        """programs: {name: path}. `scratch`: a directory of ours for keys; they are no part of the results."""
        if self.kind == "netns":
            self._make_namespaces()
        if self.kind == "guests":
            self._boot_guests(programs)
        if self.kind == "loopback":
            self.hosts["source"].port = _free_port()
        for host in self.hosts.values():
            host.open()
            for name, path in programs.items():
                host.take(path, f"bin/{name}", "0755")
        if self.kind != "loopback":
            self._secure(make_certs, scratch)

    def _secure(self, make_certs, scratch):
        names = [f"{role},{host.subject_name()}" for role, host in self.hosts.items()]
        done = subprocess.run([make_certs, "--days", "7", scratch, *names], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unreachable(f"{make_certs}: {done.stderr.strip()}")
        for role, host in self.hosts.items():
            acl = f"{scratch}/{role}.acl"
            rights = '{"identities": {"spiffe://kvferry/source": {"bench": ["read", "serve"]}, ' \
                     '"spiffe://kvferry/consumer": {"bench": ["read", "serve"]}, ' \
                     f'"uid:{host.must(["id", "-u"])}": {{"bench": ["read", "write"]}}}}}}\n'
            with open(acl, "w", encoding="utf-8") as file:
                file.write(rights)
            for path, name in ((acl, "acl.json"), (f"{scratch}/{role}.crt", "crt"), (f"{scratch}/{role}.key", "key"),
                               (f"{scratch}/ca.crt", "ca")):
                host.take(path, name)

    def trust_flags(self, role):
        if self.kind == "loopback":
            return ["--insecure-loopback"] if role == "source" else []
        work = self.hosts[role].work
        return ["--tls-cert", f"{work}/crt", "--tls-key", f"{work}/key", "--tls-ca", f"{work}/ca", "--acl", f"{work}/acl.json"]

    def close(self):
        for host in self.hosts.values():
            try:
                host.close()
            except Unreachable:
                pass
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        if self.guests:
            self.guests.communicate()
