"""The bench: one or two guests, the wire between them, and what they share with this host.

A Bench owns a fresh directory with everything of one run:

    host/       what guests see read-only as /host: lib.sh, the script, its arguments, bin/ with the programs
    sync/       what guests see read-write as /sync: barriers between them, asks to us (_serve), files they leave
    a.img ...   the drives; they outlive a power cut
    log         what both guests said, each line with its time and role

One thread and one selector do everything. QEMU processes die with this one, however it ends (PR_SET_PDEATHSIG).
"""

import ctypes
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import initramfs

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
PR_SET_PDEATHSIG = 1
LOOK_S = 0.05  # how often we look for asks in sync/
LAST_WORDS_S = 2  # how long the other guest may go on speaking when one has failed

# Plain emulation, the same on every host. Without erms and fsrm the kernel and libc do not copy byte by byte, which
# emulation does slowly; without smap a system call is cheaper.
MACHINE = "-M pc -accel tcg -cpu max,-erms,-fsrm,-smap -nodefaults -no-user-config -display none -no-reboot".split()
# The emulated TSC is the host's, which may jump when a thread changes its CPU: time is the HPET's.
BOOT = "quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on clocksource=hpet no_timer_check tsc=unstable"

libc = ctypes.CDLL(None)


def _die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Guest:
    """One machine, on or off. `verdict`: None while it has none; 0 passed; else what its script ended with, or words."""

    def __init__(self, bench, role, wires):
        self.bench, self.role, self.wires = bench, role, wires
        self.process = None
        self.verdict = None
        self.boots = 0
        self.partial = b""  # of a line on the console
        self.ssh_port = _free_port() if bench.script.ssh else None

    @property
    def image(self):
        return f"{self.bench.work}/{self.role}.img"

    def arguments(self):
        script, work = self.bench.script, self.bench.work
        number = "ab".index(self.role) + 1
        words = ["qemu-system-x86_64", *MACHINE, "-m", str(script.memory_mib), "-smp", str(max(script.cpus, script.nodes))]
        words += ["-kernel", self.bench.kernel.vmlinux, "-initrd", f"{work}/initramfs", "-append",
                  f"console=ttyS0 {BOOT} role={self.role} boot={self.boots} hosts={script.hosts}"]
        words += self.console() + ["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]
        for at, wire in enumerate(self.wires):
            words += ["-netdev", f"socket,id=wire{at},fd={wire.fileno()}", "-device",
                      f"virtio-net-pci,netdev=wire{at},mac=52:54:00:00:0{at}:0{number},host_mtu=9000,romfile="]
        if self.ssh_port:
            words += ["-netdev", f"user,id=way,restrict=on,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22", "-device",
                      f"virtio-net-pci,netdev=way,mac=52:54:00:00:0f:0{number},romfile="]
        for name, more in (("host", ",readonly=on"), ("sync", "")):
            words += ["-virtfs", f"local,path={work}/{name},mount_tag={name},security_model=none{more}"]
        if os.path.exists(self.image):
            words += ["-drive", f"if=none,id=drive,file={self.image},format=raw,cache=none,aio=threads",
                      "-device", "nvme,serial=drive,drive=drive"]
        if script.nodes > 1:
            for node in range(script.nodes):
                words += ["-object", f"memory-backend-ram,id=m{node},size={script.memory_mib // script.nodes}M",
                          "-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"]
        return words

    def console(self):
        return ["-serial", f"unix:{self.console_path},server=on,wait=off" if self.bench.manned else "stdio"]

    def ssh_words(self):
        """What stands before a command that is to run there. One connection serves all of them."""
        work = self.bench.work
        options = ["BatchMode=yes", "LogLevel=ERROR", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null",
                   "ControlMaster=auto", "ControlPersist=10", f"ControlPath={work}/way.{self.role}", "ConnectTimeout=60"]
        return ["ssh", "-F", "none", "-i", f"{work}/key", "-p", str(self.ssh_port), *[f"-o{option}" for option in options], "root@127.0.0.1"]

    @property
    def console_path(self):
        return f"{self.bench.work}/console.{self.role}"

    def power_on(self):
        self.boots += 1
        self.process = subprocess.Popen(
            self.arguments(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[wire.fileno() for wire in self.wires], preexec_fn=_die_with_parent)
        os.set_blocking(self.process.stdout.fileno(), False)

    def power_cut(self):
        self.process.kill()
        self.process.wait()
        self.read()
        self.process.stdout.close()
        self.process = None

    def read(self):
        """Move what the console has said into the log; False at its end."""
        said = self.process.stdout.read()
        *lines, self.partial = (self.partial + (said or b"")).split(b"\n")
        for line in lines:
            self.bench.log(self.role, line.decode(errors="replace").rstrip())
        return said != b""

    def judge(self):
        """It has ended by itself: with 2N + 1 when its script ended with N, with anything else when it did not get there."""
        code = self.process.wait()
        self.process.stdout.close()
        self.process = None
        self.verdict = code // 2 if code % 2 == 1 else f"it stopped before its script had ended (QEMU's exit {code})"


class Bench:
    def __init__(self, script, kernel, programs, arguments=(), verbose=False, manned=False):
        """`programs` are paths on this host; `arguments` are the script's. When it is `manned`, each guest's console is a
        socket for somebody to sit down at (shell), not a source of the log."""
        self.script, self.kernel, self.verbose, self.manned = script, kernel, verbose, manned
        self.work = tempfile.mkdtemp(prefix="kvf-qemu-", dir=os.environ.get("TMPDIR") or "/var/tmp")
        self.selector = selectors.DefaultSelector()
        self.guests = {}
        self.start = time.monotonic()
        self.log_file = open(f"{self.work}/log", "w")
        try:
            self._prepare(programs, arguments)
        except BaseException:
            self.close(keep=False)
            raise

    def _prepare(self, programs, arguments):
        os.makedirs(f"{self.work}/host/bin")
        os.makedirs(f"{self.work}/sync")
        for name in ("lib.sh", "main_job.sh", "acl.json"):
            shutil.copy2(f"{HERE}/guest/{name}", f"{self.work}/host/")
        if self.script.path:
            shutil.copy2(self.script.path, f"{self.work}/host/script")
        for program in programs:
            shutil.copy2(program, f"{self.work}/host/bin/")
        with open(f"{self.work}/host/arguments", "w") as file:
            file.write(shlex.join(arguments) + "\n")
        if self.script.certificates:
            names = [f"{role},IP:10.77.0.{number}" for number, role in enumerate("ab", 1)]
            subprocess.run([f"{TOP}/deploy/make-certs", f"{self.work}/host/tls", *names], check=True, stdout=subprocess.DEVNULL)
        if self.script.ssh:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", f"{self.work}/key"], check=True)
            shutil.copy2(f"{self.work}/key.pub", f"{self.work}/host/")
        tools = ["dropbear", "dropbearkey"] if self.script.ssh else []
        initramfs.build(f"{self.work}/initramfs", self.kernel, f"{HERE}/guest/init", programs, tools)
        wires = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(self.script.wires)]
        for role, ends in zip(self.script.roles, zip(*wires)):
            for end in ends:
                end.setblocking(False)
            self.guests[role] = Guest(self, role, ends)
            if self.script.drives.get(role):
                with open(self.guests[role].image, "wb") as image:
                    image.truncate(self.script.drives[role] << 20)

    # ---- the log ----

    def log(self, who, text):
        line = f"{time.monotonic() - self.start:7.2f} {who} | {text}"
        print(line, file=self.log_file, flush=True)
        if self.verbose:
            print(line, flush=True)
        elif text.startswith(("ok      ", "FAILED  ", "skipped ")):
            print(f"        {who}: {text}", flush=True)

    def log_tail(self, lines=30):
        with open(f"{self.work}/log") as file:
            return "".join(file.readlines()[-lines:])

    # ---- power ----

    def power_on(self, guest):
        if guest.boots > 0:
            for wire in guest.wires:
                self.selector.unregister(wire)
        guest.power_on()
        self.log(guest.role, f"-- power on, boot {guest.boots}")
        self.selector.register(guest.process.stdout, selectors.EVENT_READ, lambda: self._hear(guest))

    def power_cut(self, guest):
        self.selector.unregister(guest.process.stdout)
        guest.power_cut()
        self.log(guest.role, "-- power cut")
        self._lose_what_comes(guest)

    def _hear(self, guest):
        if not guest.read():
            self.selector.unregister(guest.process.stdout)
            guest.judge()
            self._lose_what_comes(guest)

    def _lose_what_comes(self, guest):
        """While a guest is off, what is sent to it is lost: we read it and throw it away."""
        for wire in guest.wires:
            self.selector.register(wire, selectors.EVENT_READ, lambda wire=wire: wire.recv(1 << 17))

    # ---- asks ----

    def _serve(self):
        """A guest asks by a file sync/ask.*: `cut ROLE`, `on ROLE`, `cycle ROLE`. It is answered when the file is gone."""
        for name in sorted(os.listdir(f"{self.work}/sync")):
            if name.startswith("ask."):
                with open(f"{self.work}/sync/{name}") as file:
                    verb, _, role = file.read().strip().partition(" ")
                os.unlink(f"{self.work}/sync/{name}")
                self._switch(verb, self.guests.get(role))

    def _switch(self, verb, guest):
        if guest is None or verb not in ("cut", "on", "cycle"):
            self.log("-", f"a guest asks for {verb!r}, or for a guest that is not there")
            return
        if verb != "on" and guest.process:
            self.power_cut(guest)
        if verb != "cut" and not guest.process:
            self.power_on(guest)

    # ---- a run ----

    def power_on_all(self):
        for guest in self.guests.values():
            self.power_on(guest)

    def run(self):
        """None when every guest's script ended with 0, else what is wrong."""
        self.power_on_all()
        deadline = time.monotonic() + self.script.limit_s
        while any(guest.verdict is None for guest in self.guests.values()):
            if time.monotonic() > deadline:
                break
            if any(guest.verdict for guest in self.guests.values()):
                deadline = min(deadline, time.monotonic() + LAST_WORDS_S)
            self.step()
        wrong = []
        for guest in self.guests.values():
            if guest.verdict is None:
                wrong.append(f"{guest.role} had not ended after {time.monotonic() - self.start:.0f} s")
            elif guest.verdict != 0:
                wrong.append(f"{guest.role} ended with {guest.verdict}")
        return "; ".join(wrong) or None

    def step(self):
        """Do what is due; wait for it a moment."""
        for key, _ in self.selector.select(LOOK_S):
            key.data()
        self._serve()

    def close(self, keep):
        for guest in self.guests.values():
            if guest.process:
                guest.process.kill()
                guest.process.wait()
            for wire in guest.wires:
                wire.close()
        self.selector.close()
        self.log_file.close()
        if not keep:
            shutil.rmtree(self.work, ignore_errors=True)
