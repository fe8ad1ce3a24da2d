"""Nodes that are replaced one after the other, and nodes of two versions: what comes is right, what does not is a miss, and why is said."""

import socket
import threading

from harness import expect, expect_equal
from wire import EngineSocket, field

MIB = 1 << 20
PREFIXES, BLOCKS = 4, 6


# ---- a rolling restart ----


class _Node:
    """A daemon with blocks of its own on its SSD, and an engine that pulls the other node's."""

    def __init__(self, case, name):
        self.case, self.name, self.ns = case, name, f"t/of-{name}"
        self.daemon = case.daemon(name, ssd_mib=512, pool_mib=128, listen=True, flags=["--drain-timeout-s", "20"])
        self.engine = self.other = None
        self.said = []  # what its engines told at their ends

    def fill(self):
        producer = self.case.load(self.daemon, "producer", self.ns, prefixes=PREFIXES, blocks=BLOCKS, block_bytes=MIB)
        self.case.eventually(30, "the prefixes are put", lambda: self.daemon.metric('puts_total{outcome="stored"}') >= 3 * PREFIXES * BLOCKS)
        producer.must_leave()
        self.daemon.settle()

    def begin_engine(self):
        self.engine = self.case.load(self.daemon, f"engine of {self.name}", self.other.ns, prefixes=PREFIXES, blocks=BLOCKS,
                                     block_bytes=MIB, source=self.other.daemon)

    def pulled(self):
        return self.daemon.metric("pull_blocks_total")

    def missed(self):
        return sum(value for name, value in self.daemon.metrics().items() if name.startswith("kvferry_misses_total"))

    def must_pull_on(self, what):
        before = self.pulled()
        self.case.eventually(20, f"{self.name} pulls {what}", lambda: self.pulled() > before + BLOCKS)

    def restart(self):
        """Told to end under load; the engine here leaves by itself, the one at the other node goes on and sees misses."""
        before = self.other.missed()
        self.daemon.term()
        self.said.append(self.engine.must_leave(None))
        self.daemon.must_exit(0)
        self.case.eventually(20, f"{self.other.name} reports misses", lambda: self.other.missed() > before)
        self.daemon.start()
        self.begin_engine()
        self.must_pull_on("after its own restart")
        self.other.must_pull_on(f"after the restart of {self.name}")


def upgrade_by_a_rolling_restart_under_load(case):
    """Two nodes pull from each other while each is restarted, twice: never a wrong byte, no error, and misses are counted."""
    nodes = [_Node(case, "a"), _Node(case, "b")]
    case.start(*[node.daemon for node in nodes])
    nodes[0].other, nodes[1].other = nodes[1], nodes[0]
    for node in nodes:
        node.fill()
    for node in nodes:
        node.begin_engine()
    for node in nodes:
        node.must_pull_on("before any restart")
    for node in nodes + nodes:
        node.restart()
    for node in nodes:
        node.said.append(node.engine.must_leave())
        for said in node.said:  # must_leave has seen that none was wrong
            expect(said["got"] > 0, f"an engine of {node.name} got nothing: {said}")
        expect(any(said["missing"] > 0 for said in node.said), f"no engine of {node.name} saw a miss: {node.said}")
        expect_equal(len(node.said), 3, "engines")


def upgrade_check_config_beside_a_daemon(case):
    """A new release is asked about the old one's flags while that one runs: it touches nothing, and says what it would refuse."""
    a = case.start(case.daemon("a", ssd_mib=512, listen=True))
    case.run("kvferryd", *a.arguments(), "--check-config").must_end_with(0)
    for flags, word in ((["--ssd-readers", "4"], "ssd-readers"), (["--read-batch-mib", "4096"], "read-batch-mib")):
        case.run("kvferryd", *a.arguments(), *flags, "--check-config").must_end_with(2).must_name(word)
    expect_equal(a.stat()["state"], "READY", "state of the daemon that runs")


# ---- versions ----


class _Translator:
    """Between two daemons: what goes by is handed on, one sequence of bytes replaced by another as long, each way."""

    def __init__(self, daemon, up=(b"", b""), down=(b"", b"")):
        self.daemon, self.up, self.down = daemon, up, down
        self.seen = {"up": 0, "down": 0}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.source = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                inner, _ = self.listener.accept()
            except OSError:
                return
            outer = socket.create_connection(("127.0.0.1", self.daemon.port))
            for source, sink, way, words in ((inner, outer, "up", self.up), (outer, inner, "down", self.down)):
                threading.Thread(target=self._hand_on, args=(source, sink, way, words), daemon=True).start()

    def _hand_on(self, source, sink, way, words):
        """A message of a session's beginning is one small write, and comes in one piece on loopback."""
        old, new = words
        try:
            while piece := source.recv(1 << 16):
                if old:
                    self.seen[way] += piece.count(old)
                    piece = piece.replace(old, new)
                sink.sendall(piece)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def _hello(version):
    return field(1, version) + field(2, "t")  # Hello {version, tenant}


def _welcome(version):
    return field(1, version) + field(2, "a")  # Welcome {version, node_id}


def upgrade_peers_of_other_versions_are_refused_and_told(case):
    """A consumer, then a source, whose version is another one, older or newer: a miss here, a reason in the log, no harm to others."""
    a, b = case.pair()
    a.put("t/f", "k", case.file("in", 100000))
    for version in (0, 2):
        consumer = _Translator(a, up=(_hello(1), field(1, version) + field(2, "t")))
        b.get("t/f", "k", source=consumer.source, code=4)
        expect(consumer.seen["up"] > 0, "no Hello came by")
        source = _Translator(a, down=(_welcome(1), field(1, version) + field(2, "a")))
        b.get("t/f", "k", source=source.source, code=4)
        expect(source.seen["down"] > 0, "no Welcome came by")
        for translator in (consumer, source):
            b.must_log(translator.source, f"version 1 of the peer protocol, the other one {version}:", "upgrade the older one")
            translator.close()
    plain = _Translator(a)
    b.get("t/f", "k", source=plain.source)
    case.same(case.path("in"), b.output("k"), "pulled by the version that both have")
    plain.close()


def upgrade_engines_of_later_releases_may_say_more(case):
    """The same protocol version with fields that this daemon does not know is understood."""
    a = case.start(case.daemon("a"))
    engine = EngineSocket(a)
    engine.send(engine.request(2, field(1, 1) + field(2, "later") + field(90, "something new")))
    expect_equal(engine.reply()["code"], 0, "code for an engine of a later release")
    engine.close()
