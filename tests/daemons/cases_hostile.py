"""Malformed bytes on every socket: that connection ends, the daemon goes on, and nothing leaks."""

import concurrent.futures
import os
import random
import socket
import struct
import time

from harness import expect, expect_equal
from wire import DATA, HEADERS, PREFACE, SETTINGS, EngineSocket, LongCall, call, field, frame, parse, varint

MIB = 1 << 20
LANE_MAGIC = b"kvflane\n"
NS = "tenant/model"
INVALID = 1

# EngineRequest's oneof
REGISTER, UNREGISTER, PUT_BEGIN, PUT_COMMIT, PUT_ABORT, LOOKUP, GET, RELEASE, CANCEL, FORGET = range(2, 12)

GENERATOR = random.Random(20260101)


def _noise(size):
    return GENERATOR.randbytes(size)


class _Watched:
    """A daemon that must be as before when the attack is over."""

    def __init__(self, case, daemon):
        self.case, self.daemon = case, daemon
        daemon.put(NS, "before", case.file("before", MIB))
        daemon.http("/metrics")
        self._warm_up()
        self.descriptors = daemon.descriptors()

    def _warm_up(self):
        """What the first connection of a kind brings (gRPC's own descriptors) is no leak."""
        for _ in range(3):
            self.daemon.must("stat")
            if self.daemon.port:
                _shout(self.daemon.port, PREFACE + _noise(100))
        time.sleep(1)

    def lives_on(self):
        daemon, case = self.daemon, self.case
        expect(daemon.lives(), f"the daemon died: {daemon.last_line()}")
        daemon.get(NS, "before")
        case.same(case.path("before"), daemon.output("before"), "a block from before")
        os.unlink(daemon.output("before"))
        daemon.gauges_return_to_zero()
        case.eventually(30, f"only {self.descriptors} descriptors are open again",
                        lambda: daemon.descriptors() <= self.descriptors, daemon.descriptors)


def _hear(connections, attacks, listen=True):
    """Say each on its connection; hear what comes until the other side ends it, or for a second."""
    heard = []
    for connection, attack in zip(connections, attacks):
        try:
            connection.settimeout(5)
            connection.sendall(attack)
        except OSError:
            pass  # it had heard enough
    until = time.monotonic() + 1
    for connection in connections:
        heard.append(b"")
        try:
            while listen:
                connection.settimeout(max(0.01, until - time.monotonic()))
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                heard[-1] += piece
        except OSError:
            pass
        connection.close()
    return heard


def _shout(port, *attacks, listen=True):
    """All at once over TCP, one connection each."""
    return _hear([socket.create_connection(("127.0.0.1", port), timeout=5) for _ in attacks], attacks, listen)


def _connect_unix(daemon, name):
    connection = socket.socket(socket.AF_UNIX)
    run_dir = os.open(f"{daemon.directory}/run", os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{run_dir}/{name}")
    finally:
        os.close(run_dir)
    return connection


def malformed_bytes_on_the_peer_port(case):
    a = case.start(case.daemon("a", listen=True))
    watched = _Watched(case, a)
    headers = call("/kvferry.Peer/Session")
    attacks = [
        _noise(10), _noise(100000), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + _noise(512),
        PREFACE, PREFACE + _noise(4096), PREFACE + b"\xff\xff\xff" + _noise(64), PREFACE[:11], headers[:60],
        PREFACE + frame(SETTINGS, 0, 0, b"") + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + _noise(2000),
        headers + frame(DATA, 0, 1, b"\0\xff\xff\xff\xff" + _noise(1000)),
        headers + frame(DATA, 0, 1, b"\x01\0\0\0\x10" + _noise(16)),
        headers + frame(DATA, 0, 1, b"\0\0\0\1\0half"),
        PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 4, 1, _noise(300)),
        call("/kvferry.Peer/NoSuch", [b""], end=True), call("/kvferry.Admin/Drain", [b""], end=True),
        call("/kvferry.Admin/Stat", [b""], end=True),
    ]
    _shout(a.port, *attacks)
    watched.lives_on()
    expect_equal(a.stat()["state"], "READY", "state")


def malformed_messages_of_peers(case):
    """Valid HTTP/2 and gRPC, but what is said is not our protocol: the session ends, in words where there are any."""
    a = case.start(case.daemon("a", listen=True))
    watched = _Watched(case, a)

    def hello():
        """Each from another process: a second one from the same would end the first."""
        return field(1, field(1, 1) + field(2, "tenant") + field(6, GENERATOR.getrandbits(60)) + field(8, "tcp"))

    def read(number, ns=NS, keys=(b"k",), length=100):
        blocks = b"".join(field(5, field(1, key) + field(2, length)) for key in keys)
        return field(3, field(1, number) + field(2, ns) + field(4, 5000000) + blocks)

    release, cancel = field(5, field(1, 9)), field(4, field(1, 9))
    sessions = [
        [_noise(50)], [_noise(1 << 20)], [b""], [read(1)], [release], [hello(), hello()], [hello(), b""],
        [hello(), field(31, b"unknown")], [hello(), _noise(2000)],
        [field(1, field(1, 1) + field(2, "no/tenant"))], [field(1, field(1, 1) + field(2, "x" * 5000))],
        [field(1, field(1, 1) + field(2, "t") + field(8, "carrier pigeon"))],
        [field(1, field(1, 1) + field(2, "t") + field(7, "n" * 500) + field(8, "tcp"))],
        [hello(), read(0)], [hello(), read(2), read(1)], [hello(), read(1, ns="other/model")], [hello(), read(1, ns="tenant")],
        [hello(), read(1, keys=[])], [hello(), read(1, keys=[b""])], [hello(), read(1, keys=[b"x" * 65])],
        [hello(), read(1, length=0)], [hello(), read(1, length=1 << 40)],
        [hello(), read(1, keys=[b"k%d" % i for i in range(4097)])], [hello(), release], [hello(), cancel],
    ]
    answers = _shout(a.port, *(call("/kvferry.Peer/Session", messages) for messages in sessions))
    for messages, heard in zip(sessions, answers):
        expect(heard, f"no answer at all to a session that says {[message[:20] for message in messages]}")
    lookups = [[_noise(500)], [b""], [field(1, "bad") + field(2, b"k")],
               [field(1, NS) + b"".join(field(2, b"") for _ in range(100))],
               [field(1, NS) + b"".join(field(2, b"k%d" % i) for i in range(60000))]]
    _shout(a.port, *(call("/kvferry.Peer/Lookup", messages, end=True) for messages in lookups))
    old, = _shout(a.port, call("/kvferry.Peer/Session", [field(1, field(1, 99) + field(2, "tenant"))]))
    expect(b"version 1" in old, "an old peer is not told which version we speak")
    watched.lives_on()


def malformed_reads_that_are_never_taken(case):
    """Hellos by the hundred, whose lanes are never opened: each costs a second at most."""
    a = case.start(case.daemon("a", listen=True))
    watched = _Watched(case, a)
    open_ones = []
    for instance in range(40):
        connection = socket.create_connection(("127.0.0.1", a.port), timeout=5)
        hello = field(1, field(1, 1) + field(2, "tenant") + field(6, instance + 1) + field(8, "tcp"))
        connection.sendall(call("/kvferry.Peer/Session", [hello]))
        open_ones.append(connection)
    a.get(NS, "before")
    for connection in open_ones:
        connection.close()
    watched.lives_on()


def malformed_bytes_on_the_data_port(case):
    a, b = case.pair()
    a.put(NS, "k", case.file("k", 9 * MIB))
    a.settle()
    watched = _Watched(case, a)
    magic = struct.pack("<8sII", LANE_MAGIC, 1, 0)
    silent = [socket.create_connection(("127.0.0.1", a.data_port), timeout=5) for _ in range(100)]
    attacks = (b"\0", _noise(48), _noise(1 << 20), magic + bytes(32), b"\xff" * 47, b"GET / HTTP/1.0\r\n\r\n" * 10)
    _shout(a.data_port, *attacks)
    _shout(a.data_port, *attacks, listen=False)
    b.get(NS, "k", source=a)
    case.same(case.path("k"), b.output("k"), "pulled beside strangers")
    strangers = a.stat()["lanes"][0]["protocol_errors"]
    expect(strangers >= len(attacks), f"{strangers} strangers are counted")
    time.sleep(2)
    for connection in silent:
        try:
            expect_equal(connection.recv(1), b"", "what a stranger hears")
        except ConnectionError:
            pass
        connection.close()
    b.stop()
    watched.lives_on()


def ucx_finds_no_port_of_its_own(case):
    """UCX over TCP lets whoever reaches its port write anywhere. A daemon that was not told to use it has neither port nor code of it."""
    a, b = case.pair()
    a.put(NS, "k", case.file("k", 9 * MIB))
    b.get(NS, "k", source=a)
    for daemon, ports in ((a, {a.port, a.data_port, a.http_port}), (b, {b.http_port})):
        expect_equal(daemon.ports(), ports, f"ports that {daemon.name} listens on")
        with open(f"/proc/{daemon.process.pid}/maps", encoding="utf-8") as maps:
            expect("libuc" not in maps.read(), f"{daemon.name} has UCX's code in it")
        for port in ports:
            expect_equal(case.run("ucx_probe", port).must_end_with(0).out, "not written\n", f"a PUT to port {port} of {daemon.name}")
    case.same(case.path("k"), b.output("k"), "pulled beside a stranger")


def malformed_packets_on_engine_sock(case):
    a = case.start(case.daemon("a", ssd_mib=512))
    watched = _Watched(case, a)

    def ends(*packets, registered=True, with_descriptor=False):
        engine = EngineSocket(a)
        if registered:
            engine.send(engine.register())
            expect_equal(engine.reply()["code"], 0, "Register")
        try:
            for packet in packets:
                if with_descriptor:
                    engine.send_with_descriptor(packet)
                else:
                    engine.send(packet)
        except OSError:
            pass
        expect(engine.is_ended(), f"the connection goes on after {[packet[:40] for packet in packets]}")
        engine.close()

    garbage = [_noise(1), _noise(300), _noise(60000), b"\xff" * 64, field(1, 1), field(1, 1) + field(30, b"?"),
               varint(GET << 3 | 2) + varint(1 << 40), field(1, 5) + field(GET, _noise(50))]
    for packet in garbage:
        ends(packet, registered=False)
        ends(packet)
    for kind in range(UNREGISTER, FORGET + 1):
        ends(field(1, 1) + field(kind, b""), registered=False)
    ends(field(1, 1) + field(REGISTER, field(1, 1)))
    ends(bytes(100000), registered=False)
    ends(bytes(70000))
    ends(field(1, 1) + field(REGISTER, field(1, 1)), registered=False, with_descriptor=True)
    ends(field(1, 2) + field(RELEASE, field(1, 1)), with_descriptor=True)
    watched.lives_on()


def malformed_requests_of_registered_engines(case):
    """Well-formed messages that ask for what cannot be: an answer says so, the session goes on."""
    a = case.start(case.daemon("a", ssd_mib=512))
    watched = _Watched(case, a)
    engine = EngineSocket(a)
    engine.send(engine.register())
    engine.reply()

    def answer(kind, body):
        engine.send(engine.request(kind, body))
        reply = engine.reply()
        expect_equal(reply["id"], engine.next_id, "the answer's id")
        return reply

    def names(count, key=b"k%d", length=100):
        return b"".join(field(2, field(1, key % i if b"%d" in key else key) + field(2, length)) for i in range(count))

    deadline = field(3, 100000)
    for body in (b"", field(1, NS), field(1, NS) + names(513) + deadline, field(1, "bad") + names(1) + deadline,
                 field(1, NS) + names(1, key=b"") + deadline, field(1, NS) + names(1, key=b"x" * 65) + deadline,
                 field(1, "x" * 300 + "/y") + names(1) + deadline, field(1, "a/b/../c") + names(1) + deadline):
        expect_equal(answer(PUT_BEGIN, body)["code"], INVALID, f"PutBegin {body[:60]}")
    get_deadline = field(4, 100000)
    for body in (b"", field(1, NS) + names(513) + get_deadline, field(1, "bad") + names(1) + get_deadline,
                 field(1, NS) + names(1) + field(3, "h" * 500 + ":1") + get_deadline):
        expect_equal(answer(GET, body)["code"], INVALID, f"Get {body[:60]}")
    for body in (b"", field(1, NS), field(1, "bad") + field(2, b"k")):
        expect_equal(answer(LOOKUP, body)["code"], INVALID, f"Lookup {body[:60]}")
        expect_equal(answer(FORGET, body)["code"], INVALID, f"Forget {body[:60]}")

    refused = answer(GET, field(1, NS) + names(1) + field(3, "nowhere") + get_deadline)
    expect(refused["code"] != 0 or parse(refused["fields"][7])[1], "a Get from a senseless source found something")
    for length in (0, 128 * MIB + 1, 1 << 63):
        reply = answer(PUT_BEGIN, field(1, NS) + names(1, length=length) + deadline)
        expect(reply["code"] != 0 or parse(parse(reply["fields"][5])[1]).get(1, 0) != 0, f"a put of {length} bytes got a place")
    answer(PUT_COMMIT, field(1, field(1, 12345)))
    for kind, body in ((PUT_ABORT, field(1, b"")), (RELEASE, field(1, 999)), (RELEASE, field(1, 2) + field(2, varint(0xFFFFFFFF))),
                       (CANCEL, field(1, 999))):
        engine.send(engine.request(kind, body))  # without an answer
    twice = answer(PUT_BEGIN, field(1, NS) + names(2, key=b"same") + deadline)
    expect_equal(twice["code"], 0, "PutBegin with a key twice")
    answer(PUT_COMMIT, field(1, field(1, 1)) + field(1, field(1, 1)))
    answer(UNREGISTER, b"")
    engine.close()
    watched.lives_on()


def malformed_lies_about_checksums_never_reach_a_reader(case):
    """An engine commits bytes with another checksum: whoever asks gets a miss, here or elsewhere, and the block goes."""
    a, b = case.pair(ssd_mib=512)
    engine = EngineSocket(a)
    engine.send(engine.register())
    engine.reply()
    for key in (b"lie", b"tale"):
        engine.send(engine.request(PUT_BEGIN, field(1, NS) + field(2, field(1, key) + field(2, 5000)) + field(3, 1000000)))
        place = parse(parse(engine.reply()["fields"][5])[1])
        engine.send(engine.request(PUT_COMMIT, field(1, field(1, place[4]) + field(2, 0x12345678))))
        engine.reply()
    a.get(NS, "lie", code=4).must_name("lie", "CORRUPT")
    a.settle()
    b.get(NS, "tale", source=a, code=4).must_name("tale", "CORRUPT")
    for key in ("lie", "tale"):
        case.eventually(10, f"{key} is gone", lambda: "NOT_FOUND" in a.get(NS, key, code=4).err)
        b.get(NS, key, source=a, code=4).must_name(key)
    engine.send(engine.request(UNREGISTER))
    engine.reply()
    engine.close()


def malformed_bytes_on_admin_sock_and_http(case):
    a = case.start(case.daemon("a"))
    watched = _Watched(case, a)

    attacks = [_noise(5000), PREFACE + _noise(5000), b"GET / HTTP/1.1\r\n\r\n",
               call("/kvferry.Admin/SetReadBatch", [field(1, (1 << 64) - 1)], end=True)]
    for method in ("Stat", "SetReadBatch", "Evict", "Sync", "Drain"):
        for messages in ([_noise(200)], [], [b"\x08" + b"\xff" * 20]):
            attacks.append(call(f"/kvferry.Admin/{method}", messages, end=True))
    _hear([_connect_unix(a, "admin.sock") for _ in attacks], attacks)
    expect_equal(a.stat()["state"], "READY", "state after nonsense on admin.sock")
    expect_equal(a.stat()["read_batch_mib"], 0, "read_batch_mib after nonsense")

    _shout(a.http_port, _noise(5000), b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /metrics HT",
           b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
           b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
           b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n")
    silent = [socket.create_connection(("127.0.0.1", a.http_port), timeout=5) for _ in range(20)]
    expect_equal(a.http("/healthz")[0], 200, "/healthz beside silent connections")
    for connection in silent:
        connection.close()
    watched.lives_on()


def malformed_bytes_from_a_source_end_its_session(case):
    """Whoever answers as a source and talks nonsense is left; the get is a miss by its deadline."""
    b = case.start(case.daemon("b"))
    watched = _Watched(case, b)
    settings = frame(SETTINGS, 0, 0, b"")
    for answer in (b"HTTP/1.1 200 OK\r\n\r\n", _noise(3000), settings + _noise(3000), settings, settings + b"\xff\xff\xff\0\0\0\0\0\1"):
        with socket.socket() as source:
            source.bind(("127.0.0.1", 0))
            source.listen(16)
            source.settimeout(10)
            get = b.begin_get(NS, "k", source=f"127.0.0.1:{source.getsockname()[1]}", timeout_s=3)
            connection, _ = source.accept()
            with connection:
                try:
                    connection.sendall(answer)
                except OSError:
                    pass
                result = get.end(30).must_end_with(4)
            expect(result.seconds < 3 + 3 * case.slowness, f"a deadline of 3 s took {result.seconds:.1f} s")
    watched.lives_on()


# What a message must not be: each as the body of a message whose field `number` is repeated.
def _bombs(number, size):
    empty = field(number, b"")
    deep = b""
    while len(deep) < 5000:
        deep = field(number, deep)
    return [
        empty * (size // len(empty)),
        b"".join(field(100 + i % 500000, i) for i in range(size // 8)),
        varint(number << 3 | 2) + varint(1 << 30) + b"x" * 100,
        varint(number << 3 | 2) + varint((1 << 64) - 1) + b"x" * 100,
        field(number, b"y" * size)[:size // 2],
        varint(number << 3) + varint(5) + varint(number << 3 | 5) + b"1234" + varint(number << 3 | 1) + b"12345678",
        deep,
        b"".join(varint(i << 3 | 3) for i in range(1, size // 4)),
        varint(number << 3 | 2) + varint(size - 10) + b"\0" * (size - 10),
    ]


def _say_all(connect, calls):
    """Ten calls at a time, each to its end; a call is (path, messages)."""
    def one(path, messages):
        long_call = LongCall(connect(), path)
        all(long_call.say(message) for message in messages)
        long_call.finish()

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        for future in [pool.submit(one, *each) for each in calls]:
            future.result()


def _grows_less_than(case, daemon, mib, attack):
    """The peak of its memory over an attack; the pool is resident from the start."""
    before = daemon.memory_mib("VmRSS")
    daemon.forget_peak()
    attack()
    grown = daemon.memory_mib("VmHWM") - before
    if case.slowness == 1:  # a sanitizer keeps what was freed
        expect(grown < mib, f"{grown:.0f} MiB more for foreign messages, {mib} are enough")


def malformed_messages_that_want_much_memory_of_peers(case):
    """A megabyte each, ten at a time: what a message may unpack to is bounded by one buffer of the daemon's, 4 MiB."""
    a = case.start(case.daemon("a", listen=True))
    watched = _Watched(case, a)
    size = MIB - 64
    hello = field(1, field(1, 1) + field(2, "tenant") + field(8, "tcp"))
    session, lookup = "/kvferry.Peer/Session", "/kvferry.Peer/Lookup"
    calls = [(session, [bomb]) for bomb in _bombs(3, size)]
    calls += [(session, [hello, field(3, field(1, 1) + field(2, NS) + bomb)]) for bomb in _bombs(5, size - 64)]
    calls += [(session, [hello, field(5, field(1, 1) + bomb)]) for bomb in _bombs(2, size - 64)]
    calls += [(lookup, [field(1, NS) + bomb]) for bomb in _bombs(2, size - 64)]
    calls += [(lookup, [field(2, b"") * 10000000])]  # ten million elements: gRPC itself says no
    connect = lambda: socket.create_connection(("127.0.0.1", a.port), timeout=5)

    def attack():
        _say_all(connect, calls)
        for claimed in (1 << 30, 0xFFFFFFFF, 20 << 20):  # lengths that never come
            one = LongCall(connect(), session)
            one.say(b"x" * 1000, claimed)
            one.finish()

    _grows_less_than(case, a, 64, attack)
    refused = a.log().count("a message that is no SessionUp, or names far too much")
    expect(refused >= 10, f"only {refused} of the messages came as far as the service")
    watched.lives_on()


def malformed_messages_that_want_much_memory_of_engines(case):
    """As large as a packet may be, from engines that are registered and from such that are not."""
    a = case.start(case.daemon("a", ssd_mib=512))
    watched = _Watched(case, a)

    def attack():
        for kind, number in ((PUT_BEGIN, 2), (PUT_COMMIT, 1), (PUT_ABORT, 1), (LOOKUP, 2), (GET, 2), (RELEASE, 2), (FORGET, 2)):
            for bomb in _bombs(number, 65000):
                engine = EngineSocket(a)
                engine.send(engine.register())
                engine.reply()
                for packet in (engine.request(kind, field(1, NS) + bomb), bomb):
                    try:
                        engine.send(packet)
                    except OSError:
                        break  # it is ended
                engine.close()

    _grows_less_than(case, a, 16, attack)
    watched.lives_on()


def malformed_messages_that_want_much_memory_of_admin(case):
    a = case.start(case.daemon("a"))
    watched = _Watched(case, a)
    calls = [(f"/kvferry.Admin/{method}", [bomb])
             for method in ("Stat", "SetReadBatch", "Evict", "Sync") for bomb in _bombs(2, MIB - 64)]
    _grows_less_than(case, a, 64, lambda: _say_all(lambda: _connect_unix(a, "admin.sock"), calls))
    expect_equal(a.stat()["state"], "READY", "state")
    watched.lives_on()
