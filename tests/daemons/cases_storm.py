"""Very many connections, very slow ones, and no descriptors left: when it is over a healthy client is answered at once,
and while it lasts no listener dies and no thread spins."""

import errno
import os
import resource
import socket
import ssl
import time

from cases_identity import NS as TLS_NS, _pair, _restart
from harness import expect, expect_equal
from wire import DATA, PREFACE, SETTINGS, EngineSocket, call, field, frame

MIB = 1 << 20
NS = "tenant/model"
ANSWER_S = 3  # "answered within 3 s"

CLK_TCK = os.sysconf("SC_CLK_TCK")


class _Storm:
    """Connections to one daemon, all of which go at the end."""

    def __init__(self, daemon):
        self.daemon, self.sockets = daemon, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.sockets:
            connection.close()
        self.sockets = []

    def connect(self, port, count, say=b""):
        """So many more, without waiting for any to be accepted; those that are refused are not counted."""
        for _ in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            if connection.connect_ex(("127.0.0.1", port)) not in (0, errno.EINPROGRESS):
                connection.close()
                continue
            self.sockets.append(connection)
        if say:
            self.say(say)
        return self

    def connect_engines(self, count):
        for _ in range(count):
            try:
                self.sockets.append(EngineSocket(self.daemon).socket)
            except BlockingIOError:
                time.sleep(0.01)  # its backlog is full: those that are in it go first

    def say(self, data):
        for connection in self.sockets:
            try:
                connection.send(data)
            except OSError:
                pass  # it was ended

    def open(self):
        """How many the daemon has not ended."""
        return sum(not _is_ended(connection) for connection in self.sockets)


def _is_ended(connection):
    try:
        while connection.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _raise_limit():
    """Our own descriptors, as many as we may have; returns how many connections are a storm here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(10000, hard - 1000)


def _limit(daemon, descriptors):
    """As `prlimit --nofile` does it; what is open stays open."""
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))


def _answers(case, daemon, what, rpc=True):
    """Engine, page and, with `rpc`, admin and peer: each answered within ANSWER_S, first try."""
    bound = ANSWER_S * case.slowness

    def timed(name, ask):
        start = time.monotonic()
        ask()
        seconds = time.monotonic() - start
        expect(seconds < bound, f"{what}: {name} took {seconds:.1f} s")

    timed("a get", lambda: daemon.get(NS, "before"))
    case.same(case.path("before"), daemon.output("before"), what)
    os.unlink(daemon.output("before"))
    timed("/healthz", lambda: expect_equal(daemon.http("/healthz")[0], 200, f"{what}: /healthz"))
    timed("/readyz", lambda: expect_equal(daemon.http("/readyz")[0], 200, f"{what}: /readyz"))
    if rpc:
        out = case.path("pulled")
        timed("stat", lambda: daemon.must("stat"))
        timed("a pull", lambda: case.run("kvferry", "pull", NS, "before", "--source", daemon.source, "-o", out).must_end_with(0))
        case.same(case.path("before"), f"{out}/before", f"{what}: pulled")
        os.unlink(f"{out}/before")


def _works_again(case, daemon, descriptors):
    """After a storm: every descriptor comes back, and everybody is answered."""
    _answers(case, daemon, "after the storm")
    case.eventually(30, f"only {descriptors} descriptors are open again", lambda: daemon.descriptors() <= descriptors,
                    daemon.descriptors)
    daemon.gauges_return_to_zero()


def _start(case, name="a", **options):
    daemon = case.start(case.daemon(name, listen=True, pool_mib=128, **options))
    daemon.put(NS, "before", case.file("before", MIB))
    _answers(case, daemon, "before the storm")
    time.sleep(1)
    return daemon, daemon.descriptors() + 4


def _cpu_share(daemon, seconds):
    """CPU seconds a second over a while."""
    before, start = daemon.cpu_ticks(), time.monotonic()
    time.sleep(seconds)
    return (daemon.cpu_ticks() - before) / CLK_TCK / (time.monotonic() - start)


def _idles(daemon, what):
    """What is left of the work ends soon; a thread that spins does not."""
    shares = []
    while not shares or shares[-1] >= 0.2:
        expect(len(shares) < 5, f"{what}: the daemon goes on using CPU: {shares}")
        shares.append(round(_cpu_share(daemon, 2), 2))


def storm_of_idle_connections(case):
    """Ten thousand that say nothing, on the peer port: those are ended, and nobody else waits for it."""
    count = _raise_limit()
    a, descriptors = _start(case)
    with _Storm(a) as storm:
        for _ in range(0, count, 100):
            storm.connect(a.port, 100)
            time.sleep(0.002)
        expect(len(storm.sockets) >= count * 9 // 10, f"only {len(storm.sockets)} connections of {count}")
        # gRPC has one thread for all of this: who needs it may wait for as long as ten thousand are let in.
        _answers(case, a, f"beside {len(storm.sockets)} idle connections", rpc=False)
        expect(a.memory_mib("VmRSS") < 128 + 1024, f"{a.memory_mib('VmRSS')} MiB for idle connections")
        case.eventually(30, "connections that never said anything are ended", lambda: storm.open() == 0, storm.open)
        _idles(a, "after idle connections were ended")
    _works_again(case, a, descriptors)


def storm_of_idle_tls_connections(case):
    """Ten thousand on a port that speaks TLS: most say nothing at all, some end their handshake in good order and then fall
    silent. A peer is answered beside them and, when they are gone, as if nothing had been."""
    count = _raise_limit()
    a, b = _pair(case)
    for name in ("k0", "k1", "k2"):
        a.put(TLS_NS, name, case.file(name, MIB))
    b.get(TLS_NS, "k0", source=a)
    time.sleep(1)
    descriptors = a.descriptors() + 4
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=case.path("tls/ca.crt"))
    context.load_cert_chain(case.path("tls/b.crt"), case.path("tls/b.key"))
    context.set_alpn_protocols(["h2"])

    def answered(key, what):
        _restart(b, "b")  # a handshake of its own
        start = time.monotonic()
        b.get(TLS_NS, key, source=a, timeout_s=20)
        seconds = time.monotonic() - start
        expect(seconds < ANSWER_S * case.slowness, f"{what}: a get took {seconds:.1f} s")
        case.same(case.path(key), b.output(key), what)

    with _Storm(a) as storm:
        for _ in range(150):
            plain = socket.create_connection(("127.0.0.1", a.port), timeout=20)
            idle = context.wrap_socket(plain, server_hostname="127.0.0.1")
            idle.setblocking(False)
            storm.sockets.append(idle)
        for _ in range(0, count, 100):
            storm.connect(a.port, 100)
            time.sleep(0.002)
        expect(len(storm.sockets) >= count * 9 // 10, f"only {len(storm.sockets)} connections of {count}")
        case.eventually(40, "idle TLS connections are ended", lambda: a.descriptors() <= descriptors, a.descriptors)
        expect(a.memory_mib("VmHWM") < 128 + 1024, f"{a.memory_mib('VmHWM')} MiB for idle connections")
        answered("k1", "right behind idle TLS connections")
        _idles(a, "after idle TLS connections were ended")
    answered("k2", "after the storm")
    for daemon in (a, b):
        daemon.gauges_return_to_zero()


def storm_of_silent_peers(case):
    """HTTP/2 that was opened in good order, then silence: the keepalive ends them."""
    _raise_limit()
    a, descriptors = _start(case)
    with _Storm(a) as storm:
        storm.connect(a.port, 2000)
        time.sleep(0.5)
        storm.say(PREFACE + frame(SETTINGS, 0, 0, b""))
        _answers(case, a, "beside peers that say nothing more")
        case.eventually(40, "peers that do not answer pings are ended", lambda: a.descriptors() <= descriptors, a.descriptors)
    _works_again(case, a, descriptors)


def storm_of_slow_clients(case):
    """A byte a second on every port, on more connections than each of them serves at a time."""
    a, descriptors = _start(case)
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"y" * 200
    greeting = b"kvflane\n" + bytes(40)
    half = call("/kvferry.Peer/Session", [field(1, field(1, 1) + field(2, "tenant"))])
    half += frame(DATA, 0, 1, b"\0\0\1\0\0" + b"x" * 100)  # a message of 64 KiB, hardly begun
    with _Storm(a) as peers, _Storm(a) as lanes, _Storm(a) as pages:
        peers.connect(a.port, 200)
        lanes.connect(a.data_port, 300)
        pages.connect(a.http_port, 300)
        until, at = time.monotonic() + 8, 0
        while time.monotonic() < until:
            for storm, text in ((peers, half), (lanes, greeting), (pages, request)):
                storm.say(text[at:at + 1] or b"x")
            at += 1
            time.sleep(0.5)
            if at in (2, 12):
                _answers(case, a, f"beside slow clients, {at / 2:.0f} s on")
        expect_equal(lanes.open(), 0, "strangers on the data port after their second")
        _idles(a, "beside slow clients")
    _works_again(case, a, descriptors)


def storm_of_silent_engines(case):
    """Who connects to engine.sock, as every user of the host may, and does not register is sent away."""
    _raise_limit()
    a, descriptors = _start(case)
    with _Storm(a) as storm:
        storm.connect_engines(1000)
        _answers(case, a, f"beside {len(storm.sockets)} silent engines")
        case.eventually(15, "silent engines are ended", lambda: a.descriptors() <= descriptors, a.descriptors)
    _works_again(case, a, descriptors)


def storm_of_connects(case):
    """Connect and be gone, as fast as one can, on every port and socket."""
    a, descriptors = _start(case)
    until, rounds = time.monotonic() + 4, 0
    while time.monotonic() < until:
        for port, say in ((a.port, PREFACE), (a.data_port, b"kvfl"), (a.http_port, b"GET /metrics HTTP/1.1\r\n\r\n")):
            with _Storm(a) as storm:
                storm.connect(port, 50, say)
        with _Storm(a) as storm:
            storm.connect_engines(50)
        rounds += 1
        if rounds % 10 == 0:
            _answers(case, a, "in a storm of connects")
    expect(rounds >= 2, f"only {rounds} rounds")
    _works_again(case, a, descriptors)


def storm_without_descriptors(case):
    """256 descriptors, on each listener in turn more connections than that: no spin, and nobody stays deaf."""
    a, descriptors = _start(case)
    _limit(a, 256)
    for name in ("the peer port", "the data port", "the page", "engine.sock", "admin.sock"):
        with _Storm(a) as storm:
            if name == "engine.sock":
                storm.connect_engines(400)
            elif name == "admin.sock":
                for _ in range(400):
                    storm.sockets.append(_connect_admin(a))
            else:
                storm.connect({"the peer port": a.port, "the data port": a.data_port, "the page": a.http_port}[name], 400)
            time.sleep(0.5)
            _idles(a, f"with no descriptor left, 400 connections on {name}")
            expect(a.lives(), f"the daemon died: {a.last_line()}")
        _works_again(case, a, descriptors)


def _connect_admin(daemon):
    connection = socket.socket(socket.AF_UNIX)
    run_dir = os.open(f"{daemon.directory}/run", os.O_PATH)
    try:
        connection.settimeout(5)
        connection.connect(f"/proc/self/fd/{run_dir}/admin.sock")
    finally:
        os.close(run_dir)
    return connection


def storm_without_descriptors_everywhere(case):
    """All listeners at once, and what takes descriptors inside: engines' pidfds, lanes, pulls from elsewhere."""
    a, descriptors = _start(case)
    b = case.start(case.daemon("b", pool_mib=128))
    _limit(a, 256)
    with _Storm(a) as storm:
        for port in (a.port, a.data_port, a.http_port):
            storm.connect(port, 200)
        storm.connect_engines(200)
        for attempt in range(5):
            command = b.begin_get(NS, "before", source=a, timeout_s=2)
            expect(command.end(20).code in (0, 1, 4), "a get while its source has no descriptors")
        _idles(a, "with no descriptor left anywhere")
    _works_again(case, a, descriptors)
