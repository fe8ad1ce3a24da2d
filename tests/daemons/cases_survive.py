"""What must be survived: kill -9 anywhere, memory that rots, drives that are full, and filesystems and hosts of every kind."""

import os
import shutil
import subprocess
import threading
import time

from harness import Failed, expect, expect_equal

MIB = 1 << 20
NS = "tenant/model"


# ---- kill -9 ----

SIZES = (5000, 65537, 300000, MIB)
LIFE_BYTES = 32 * MIB  # what one life puts at most: it fits in one segment, and each life begins a new one
LIVES = 12             # of one store, before it would be full


class _Traffic:
    """Engines that put and get while the daemon lives, and a sync beside them. What sync has said is durable."""

    def __init__(self, daemon, chance, first):
        self.daemon, self.chance = daemon, chance
        self.next, self.bytes = first, 0
        self.lock = threading.Lock()
        self.put, self.durable, self.begun = [], [], []  # of (size, first, count)
        self.wrong = []
        self.over = False

    def run(self, probes, old):
        """Until the daemon is killed; `old`: ranges of earlier lives to be read as well."""
        work = [(self._put,)] * 3 + [(self._get, list(old))] * 2
        self.threads = [threading.Thread(target=self._engine, args=(probe, *job)) for probe, job in zip(probes, work)]
        self.threads.append(threading.Thread(target=self._sync))
        for thread in self.threads:
            thread.start()

    def end(self):
        self.over = True
        for thread in self.threads:
            thread.join(60)
            expect(not thread.is_alive(), "an engine hangs after its daemon was killed")
        expect(not self.wrong, f"before the kill: {self.wrong[:1]}")

    def _engine(self, probe, act, *arguments):
        if probe.ask("open", self.daemon.run_dir, "probe")[0] == "OK":
            while not self.over and act(probe, *arguments):
                pass
            probe.ask("close")

    def _put(self, probe):
        with self.lock:
            size, count = self.chance.choice(SIZES), self.chance.randrange(1, 9)
            if self.bytes + size * count > LIFE_BYTES:
                return False
            some = (size, self.next, count)
            self.begun.append(some)
            self.next += count
            self.bytes += size * count
        code, values = probe.ask("put", NS, 2000, *some)
        if code == "OK" and values.get("OK") == count:
            self.put.append(some)
        return code == "OK"

    def _get(self, probe, old):
        with self.lock:
            known = old + self.put
            some = self.chance.choice(known) if known else None
        if some is None:
            time.sleep(0.002)
            return True
        code, values = probe.ask("check", NS, "-", 2000, *some)
        if values.get("wrong", 0) != 0:
            self.wrong.append((some, values))
        return code == "OK"

    def _sync(self):
        while not self.over:
            seen = list(self.put)
            if self.daemon.run("sync", "--durable").code != 0:
                return
            self.durable = seen


def _check(probe, ranges, must_be_there, what):
    for some in ranges:
        values = probe.must("check", NS, "-", 10000, *some)
        expect_equal(values["wrong"], 0, f"wrong blocks, {what} {some}")
        if must_be_there:
            expect_equal(values.get("OK"), some[2], f"durable blocks, {what} {some}, {values}")


def survive_kills_at_random_points(case):
    """100 kills in the middle of puts and gets (KVFERRY_TEST_KILLS): no wrong byte, nothing torn, and what sync --durable
    has seen is there, but for what a full store has given up. Every fourth store is a full one."""
    kills, chance = int(os.environ.get("KVFERRY_TEST_KILLS", "100")), case.chance()
    durable_count = first = store = 0
    *probes, checker = [case.probe() for _ in range(6)]
    while kills > 0:
        full = store % 4 == 3
        a = case.daemon(f"a{store}", ssd_mib=512 if full else 4096, pool_mib=64)
        durable = []
        a.start()
        for life in range(min(kills, LIVES)):
            traffic = _Traffic(a, chance, first)
            traffic.run(probes, durable)
            time.sleep(chance.uniform(0, 0.2))
            a.kill()
            traffic.end()
            if chance.random() < 0.15:  # in the middle of its start, too
                a.launch()
                time.sleep(chance.uniform(0, 0.1))
                a.kill()
            a.start()
            checker.must("open", a.run_dir, "checker")
            what = f"store {store}, life {life}"
            _check(checker, traffic.durable, True, what)
            _check(checker, [some for some in traffic.begun if some not in traffic.durable], False, what)
            _check(checker, chance.sample(durable, min(8, len(durable))), not full, what)
            checker.must("close")
            first, kills = traffic.next, kills - 1
            durable += traffic.durable
            durable_count += len(traffic.durable)
        checker.must("open", a.run_dir, "checker")
        _check(checker, durable, not full, f"store {store}, at its end")
        checker.must("close")
        a.stop()
        shutil.rmtree(f"{a.directory}/ssd")
        store += 1
    expect(durable_count > 0, "nothing was durable before any kill")


# ---- memory that rots ----

def survive_bits_that_flip_in_memory(case):
    """200 blocks lose a bit in the arena of the node that holds them, after their checksum was taken: a verifying get and a
    pull see each one, the daemon that holds them is told and drops them, and a new put heals."""
    a, b = case.pair(ssd_mib=1024)
    length, count = 100001, 50
    for turn, pulled in enumerate((False, True, False, True)):
        owner = case.engine(a)
        first = turn * count
        owner.must("put", NS, 10000, length, first, count)
        a.must("sync", "--durable")
        owner.must("get", NS, "-", 10000, length, first, count)
        owner.must("flip", turn + 1)
        dropped = a.metric('dropped_blocks_total{reason="corrupt"}')
        if pulled:
            missed = b.metric('misses_total{reason="corrupt"}')
            found = case.engine(b).must("check", NS, a.source, 10000, length, first, count)
            expect_equal(b.metric('misses_total{reason="corrupt"}') - missed, count, "misses_total at the consumer")
        else:
            found = case.engine(a).must("check", NS, "-", 10000, length, first, count)
        expect_equal((found.get("CORRUPT"), found["wrong"]), (count, 0), "blocks that rot in memory")
        case.eventually(10, "the holder has dropped them",
                        lambda: a.metric('dropped_blocks_total{reason="corrupt"}') - dropped == count)
        expect("not the bytes of its checksum" in a.log(), "the holder's log is silent")
        owner.must("release")
        owner.must("put", NS, 10000, length, first, count)
        found = case.engine(b).must("check", NS, a.source, 10000, length, first, count)
        expect_equal((found.get("OK"), found["wrong"]), (count, 0), "blocks that were put again")


# ---- drives and filesystems ----

class _Mount:
    """A filesystem under the case's directory; needs root."""

    def __init__(self, case, name, *how):
        self.path = case.path(name)
        os.makedirs(self.path, exist_ok=True)
        subprocess.run(["mount", *how, self.path], check=True)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", self.path], check=True)


class _Loop:
    """ext4 on a loop device over a file."""

    def __init__(self, case, image, name, *options):
        subprocess.run(["truncate", "-s", "900M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        self.device = subprocess.run(["losetup", "--direct-io=on", "--find", "--show", image], check=True,
                                     stdout=subprocess.PIPE, text=True).stdout.strip()
        self.mount = _Mount(case, name, *options, self.device)

    def __enter__(self):
        return self.mount.path

    def __exit__(self, *_):
        self.mount.__exit__()
        subprocess.run(["losetup", "-d", self.device], check=True)


def _can_mount(case):
    """Mounting needs root: a plain user hears that these were not run."""
    if os.geteuid() == 0:
        return True
    print("        not run: mounting needs root")
    return False


def _end(case, daemon):
    """Before its filesystem goes."""
    for probe in case.probes:
        if probe.process.poll() is None:
            probe.end()
    if daemon.lives():
        daemon.gauges_return_to_zero()
        daemon.stop()


def _lives_there(case, daemon, words):
    """Puts and gets, a kill -9, and again; the log says these words of how the drive is used."""
    daemon.start()
    for word in words:
        expect(word in daemon.log(), f"the log does not say {word!r}: {daemon.log()}")
    engine = case.engine(daemon)
    engine.must("put", NS, 10000, 300000, 0, 60)
    daemon.settle()
    daemon.kill()
    engine.must("close")
    daemon.start()
    engine.must("open", daemon.run_dir, "probe")
    found = engine.must("check", NS, "-", 10000, 300000, 0, 60)
    expect_equal((found["ssd"], found["wrong"]), (60, 0), "blocks after kill -9")
    engine.must("close")
    _end(case, daemon)


def survive_ssd_path_on_tmpfs(case):
    if not _can_mount(case):
        return
    with _Mount(case, "a/ssd", "-t", "tmpfs", "-o", "size=700m", "tmpfs"):
        _lives_there(case, case.daemon("a", ssd_mib=512, pool_mib=64), ["a/ssd is a tmpfs"])


def survive_ssd_path_on_a_loop_device(case):
    if not _can_mount(case):
        return
    with _Mount(case, "ram", "-t", "tmpfs", "-o", "size=1g", "tmpfs") as ram, _Loop(case, f"{ram}/image", "a/ssd"):
        _lives_there(case, case.daemon("a", ssd_mib=512, pool_mib=64), [])
        expect("refuses O_DIRECT" not in case.daemons[0].log(), "O_DIRECT is not used on ext4")


def survive_ssd_path_where_o_direct_is_refused(case):
    """ext4 that journals data has none: the page cache it is, and the log says so."""
    if not _can_mount(case):
        return
    with _Mount(case, "ram", "-t", "tmpfs", "-o", "size=1g", "tmpfs") as ram, \
            _Loop(case, f"{ram}/image", "a/ssd", "-o", "data=journal"):
        _lives_there(case, case.daemon("a", ssd_mib=512, pool_mib=64), ["a/ssd refuses O_DIRECT"])


def survive_ssd_path_on_overlayfs(case):
    if not _can_mount(case):
        return
    for name in ("lower", "upper", "work"):
        os.makedirs(case.path(name))
    layers = ",".join(f"{name}dir={case.path(name)}" for name in ("lower", "upper", "work"))
    with _Mount(case, "a/ssd", "-t", "overlay", "-o", layers, "overlay"):
        _lives_there(case, case.daemon("a", ssd_mib=512, pool_mib=64), [])


def survive_drives_that_cannot_be_used(case):
    """Smaller than a segment, or not ours to write: refused in one line, and nothing is left there."""
    if not _can_mount(case):
        return
    with _Mount(case, "a/ssd", "-t", "tmpfs", "-o", "size=100m", "tmpfs") as ssd:
        a = case.daemon("a", ssd_mib=512, pool_mib=64)
        case.run("kvferryd", *a.arguments()).must_end_with(1).must_name("a/ssd", "510 MiB more", "100 are free")
        expect_equal(os.listdir(ssd), [], "what was left on a drive that is too small")
    b = case.daemon("b", ssd_mib=512, pool_mib=64)
    for path in (case.directory, b.directory):
        os.chown(path, 65534, 65534)
    os.chmod(f"{b.directory}/ssd", 0o755)
    case.run("as", "--nobody", case.binary("kvferryd"), *b.arguments()).must_end_with(1).must_name(
        "b/ssd", "Permission denied", "writable for the daemon's user")
    expect_equal(os.listdir(f"{b.directory}/ssd"), [], "what was left in a directory of somebody else")


def survive_drive_that_fills_up_while_running(case):
    """Preallocation is a promise that not every filesystem keeps. Where it breaks, the drive is read-only and says so; it is
    written again, without a restart, when there is space."""
    if not _can_mount(case):
        return
    with _Mount(case, "a/ssd", "-t", "tmpfs", "-o", "size=560m", "tmpfs") as ssd:
        a = case.start(case.daemon("a", ssd_mib=512, pool_mib=64))
        engine = case.engine(a)
        engine.must("put", NS, 10000, MIB, 0, 20)
        a.settle()
        # Take back what was preallocated and is not written yet, and fill the filesystem with something else.
        for name in sorted(os.listdir(ssd)):
            if name.startswith("segment-"):
                subprocess.run(["fallocate", "--punch-hole", "--offset", str(64 * MIB), "--length", str(90 * MIB),
                                f"{ssd}/{name}"], check=True)
        with open(f"{ssd}/filler", "wb", buffering=0) as filler:
            try:
                while filler.write(bytes(MIB)) == MIB:
                    pass
            except OSError:
                pass
        engine.must("put", NS, 10000, MIB, 100, 10)
        for number in range(20):  # until a write meets the hole
            engine.must("put", NS, 10000, MIB, 200 + 10 * number, 10)
            a.run("sync", "--durable")
            if a.stat()["ssd"][0]["read_only"]:
                break
        expect(a.stat()["ssd"][0]["read_only"], "the drive is full and nobody noticed")
        status, text = a.http("/readyz")
        expect(status == 200 and text.startswith("degraded") and "read-only" in text, f"/readyz: {status} {text}")
        refused = a.metric('dropped_blocks_total{reason="write_error"}')
        expect(refused > 0, "refused blocks were not counted")
        expect("a/ssd is read-only now: a write failed: No space left on device" in a.log(), "the log is silent")
        a.run("sync", "--durable").must_end_with(1)
        expect_equal(a.metric('dropped_blocks_total{reason="write_error"}'), refused, "refused blocks, tried again")
        a.must("evict", "--dram")
        found = engine.must("check", NS, "-", 10000, MIB, 0, 20)
        expect_equal((found["ssd"], found["wrong"]), (20, 0), "blocks on a full drive")
        engine.must("put", NS, 10000, MIB, 500, 5)  # DRAM goes on
        expect_equal(engine.must("check", NS, "-", 10000, MIB, 500, 5)["OK"], 5, "blocks in DRAM")
        os.unlink(f"{ssd}/filler")
        case.eventually(30, "the drive is written again", lambda: not a.stat()["ssd"][0]["read_only"])
        expect_equal(a.http("/readyz"), (200, "ok"), "/readyz")
        a.must("sync", "--durable")  # also what was refused before and is still in DRAM
        expect("a/ssd takes writes again" in a.log(), "the log is silent")
        engine.must("put", NS, 10000, MIB, 600, 20)
        a.settle()
        found = engine.must("check", NS, "-", 10000, MIB, 600, 20)
        expect_equal((found["ssd"], found["wrong"]), (20, 0), "blocks put when there was space again")
        a.kill()
        engine.must("close")
        a.start()
        engine.must("open", a.run_dir, "probe")
        for first, count in ((0, 20), (500, 5), (600, 20)):
            found = engine.must("check", NS, "-", 10000, MIB, first, count)
            expect_equal((found["ssd"], found["wrong"]), (count, 0), f"blocks from {first} on, after kill -9")
        engine.must("close")
        _end(case, a)


# ---- hosts ----

def survive_hosts_that_forbid_io_uring(case):
    """By seccomp, as containers do, or by too little lockable memory: pread, and a line that says why and what to do."""
    hosts = ((("--deny-uring", "EPERM"), "pread: io_uring is forbidden by a seccomp profile"),
             (("--deny-uring", "ENOSYS"), "pread: io_uring is hidden by a seccomp profile or missing in this kernel"))
    for number, (host, words) in enumerate(hosts):
        a = case.daemon(f"a{number}", ssd_mib=512, pool_mib=64)
        a.host = host
        _lives_there(case, a, [words])
        case.run("as", *host, case.binary("kvferryd"), *a.arguments(), "--ssd-io", "uring").must_end_with(1).must_name(
            "io_uring", "seccomp", "--ssd-io auto")
    if os.geteuid() != 0:
        return
    a = case.daemon("nobody", ssd_mib=512, pool_mib=64)
    a.host = ("--memlock-kib", "64", "--nobody")
    for path in (case.directory, a.directory, f"{a.directory}/ssd"):
        os.chown(path, 65534, 65534)
    _lives_there(case, a, ["RLIMIT_MEMLOCK"])
