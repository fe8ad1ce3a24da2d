"""Identity and rights over real TLS: who is refused, what he learns, what the log and the audit say."""

import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import time

from cases_replay import _replay
from harness import expect, expect_equal
from wire import DATA, HEADERS, SETTINGS, call, field, frame, header, parse

MIB = 1 << 20
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UID = f"uid:{os.getuid()}"
NS = "t/model"
OTHERS = "secret/model"  # of a tenant that only this node's own engines may touch

# ---- certificates and ACLs ----


def _uri(name):
    return f"spiffe://kvferry/{name}"


def _certificates(case, *names):
    subprocess.run([f"{TOP}/deploy/make-certs", case.path("tls"), *names], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def _odd_certificate(case, name, names, days=2, authority="ca"):
    """One that deploy/make-certs would not make; names: its SAN, or None."""
    tls = case.path("tls")
    if not os.path.exists(f"{tls}/{authority}.crt"):
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=other",
                 "-days", "2", "-keyout", f"{tls}/{authority}.key", "-out", f"{tls}/{authority}.crt")
    common_name = _uri(name).replace("/", "\\/")
    _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={common_name}",
             "-keyout", f"{tls}/{name}.key", "-out", f"{tls}/{name}.csr")
    with open(f"{tls}/{name}.ext", "w") as file:
        file.write(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
    _openssl("x509", "-req", "-in", f"{tls}/{name}.csr", "-CA", f"{tls}/{authority}.crt", "-CAkey", f"{tls}/{authority}.key",
             "-CAcreateserial", "-days", str(days), "-extfile", f"{tls}/{name}.ext", "-out", f"{tls}/{name}.crt")


def _openssl(*words):
    subprocess.run(["openssl", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _rights(case, name, tenants=None, **identities):
    """Write an ACL, by rename; the user of these tests may do everything on it. Underscores for what is no name."""
    everything = {"t": ["read", "write"], "secret": ["read", "write"]}
    content = {"tenants": tenants or {}, "identities": {UID: everything}}
    content["identities"].update({_uri(who): rights for who, rights in identities.items()})
    with open(case.path(f"{name}.new"), "w") as file:
        json.dump(content, file)
    os.rename(case.path(f"{name}.new"), case.path(name))
    return name


READS = {"t": ["read"]}
SERVES = {"t": ["serve"]}


def _pair(case, a_rights=None, b_rights=None, a_tls="a", b_tls="b", **b_options):
    """a is a source with an SSD, b pulls; both over TLS with ACLs."""
    _certificates(case, "a", "b", "c")
    a = case.daemon("a", ssd_mib=768, pool_mib=128, listen=True, tls=a_tls, acl=_rights(case, "a.json", **(a_rights or {"b": READS})))
    b = case.daemon("b", pool_mib=128, tls=b_tls, acl=_rights(case, "b.json", **(b_rights or {"a": SERVES})), **b_options)
    return case.start(a, b)


def _restart(daemon, tls):
    daemon.stop()
    daemon.tls = tls
    return daemon.start()


# ---- the straight path ----


def certificates_are_made_whole_or_not_at_all(case):
    """What openssl refuses costs nobody the key that goes with a certificate."""
    tls = case.path("tls")

    def files():
        return {name: open(f"{tls}/{name}", "rb").read() for name in sorted(os.listdir(tls))}

    _certificates(case, "node-a", "node-b")
    before = files()
    expect_equal(list(before), ["ca.crt", "ca.key", "node-a.crt", "node-a.key", "node-b.crt", "node-b.key"], "made")
    made = subprocess.run([f"{TOP}/deploy/make-certs", tls, "node-a", "node-b,IP:nonsense"], stderr=subprocess.PIPE)
    expect(made.returncode != 0 and made.stderr, "an address that is none was accepted")
    expect(files() == before, "something was changed all the same")
    _certificates(case, "node-a")
    after = files()
    expect(after["node-a.key"] != before["node-a.key"] and after["ca.key"] == before["ca.key"], "the wrong key is new")


def identity_put_here_get_there(case):
    a, b = _pair(case)
    keys, paths = case.files(12, MIB)
    case.put_files(a, NS, keys, paths)
    a.settle()
    b.get(NS, *keys, source=a)
    for key, path in zip(keys, paths):
        case.same(path, b.output(key), "pulled over TLS")
    a.must_log("audit: read identity=spiffe://kvferry/b tenant=t", f"hits={len(keys)} sent={len(keys)} bytes={len(keys) * MIB}",
               "outcome=OK")
    reads = a.stat()["serve"]["reads"]
    case.eventually(10, "one audit line per Read", lambda: len(a.lines("audit: read")) == reads, lambda: a.lines("audit:"))
    expect(a.lines("identity spiffe://kvferry/a, good until"), "a does not say who it is")
    expect(not a.lines("no ACL"), "a says that it has no ACL")
    for line in a.lines("audit:"):
        for key in keys:
            expect(f"key={key.encode().hex()}" in line or key not in line.split("audit:")[1], f"a key is in {line}")


def identity_off_loopback(case):
    """With TLS and an ACL every address is served."""
    _certificates(case, "a", "b")
    a = case.daemon("a", ssd_mib=768, pool_mib=128, listen=True, tls="a", acl=_rights(case, "a.json", b=READS))
    a.listen_host = "0.0.0.0"
    b = case.daemon("b", pool_mib=128, tls="b", acl=_rights(case, "b.json", a=SERVES), flags=["--peer", a.source])
    case.start(a, b)
    a.put(NS, "k", case.file("k", 3 * MIB))
    b.get(NS, "k")
    case.same(case.path("k"), b.output("k"), "pulled from a --peer over TLS")


def identity_replay(case):
    a, b = _pair(case)
    a.stop(), b.stop()
    a.acl = _rights(case, "a.json", b={"replay": ["read"]})
    b.acl = _rights(case, "b.json", a={"replay": ["serve"]})
    for path in ("a.json", "b.json"):
        with open(case.path(path)) as file:
            content = json.load(file)
        content["identities"][UID]["replay"] = ["read", "write"]
        with open(case.path(path), "w") as file:
            json.dump(content, file)
    a.pool_mib = b.pool_mib = 512
    case.start(a, b)
    got = _replay(case, a, b)
    expect(got["hits"]["remote_ssd"] > 0, f"no block came from the source's SSD: {got['hits']}")
    case.eventually(10, "one audit line per Read", lambda: len(a.lines("audit: read")) == a.stat()["serve"]["reads"])


# ---- refusals ----


def _denied_get(b, a):
    """Nothing comes. Who is told why is denied (1); a handshake that fails tells no more than that nobody is there (4)."""
    got = b.run("get", NS, "k", "-o", "b/out", "--source", a.source, "--timeout-s", "3")
    expect(got.code == (1 if "DENIED" in got.err else 4), str(got))


def identity_bad_certificates_of_a_consumer(case):
    """A key that is there stays a miss; the source's log says which check failed, the consumer's what it can know."""
    a, b = _pair(case)
    _odd_certificate(case, "expired", f"URI:{_uri('b')},IP:127.0.0.1", days=-1)
    _odd_certificate(case, "stranger", f"URI:{_uri('b')},IP:127.0.0.1", authority="other")
    _odd_certificate(case, "none", "DNS:b,IP:127.0.0.1")
    _odd_certificate(case, "two", f"URI:{_uri('b')},URI:{_uri('c')}")
    _odd_certificate(case, "common", None)
    _odd_certificate(case, "local", f"URI:{UID}")
    a.put(NS, "k", case.file("k", MIB))
    for tls, source_says, consumer_says in (
            ("expired", "we refused the other side's certificate", "closed the connection during the TLS handshake"),
            ("stranger", "we refused the other side's certificate", "closed the connection during the TLS handshake"),
            (None, "it does not speak TLS", "it may want TLS"),
            ("none", "has no URI SAN", "has no URI SAN"),
            ("two", "more than one URI SAN", "more than one URI SAN"),
            ("common", "has no URI SAN", "has no URI SAN"),
            ("local", "begins with uid:", "begins with uid:"),
            ("c", "audit: denied identity=spiffe://kvferry/c", "does not name this identity")):
        if tls is None:
            b.acl = None
        _restart(b, tls)
        before = len(a.lines(source_says))
        _denied_get(b, a)
        case.eventually(10, f"the source says {source_says!r} to {tls}", lambda: len(a.lines(source_says)) > before, a.last_line)
        b.must_log(consumer_says)
        b.acl = "b.json"
    _restart(b, "b").get(NS, "k", source=a)
    case.same(case.path("k"), b.output("k"), "pulled in the end")
    expect_equal(a.stat()["serve"]["reads"], 1, "Reads that were granted")


def identity_bad_certificates_of_a_source(case):
    a, b = _pair(case)
    _odd_certificate(case, "expired", f"URI:{_uri('a')},IP:127.0.0.1", days=-1)
    _odd_certificate(case, "stranger", f"URI:{_uri('a')},IP:127.0.0.1", authority="other")
    _odd_certificate(case, "none", "DNS:a,IP:127.0.0.1")
    _odd_certificate(case, "two", f"URI:{_uri('a')},URI:{_uri('c')},IP:127.0.0.1")
    _odd_certificate(case, "elsewhere", f"URI:{_uri('a')},IP:10.0.0.1")
    a.put(NS, "k", case.file("k", MIB))
    a.must("sync", "--durable")
    for tls, says in (("expired", "it is expired"), ("stranger", "none of our authorities"), ("none", "no URI SAN"),
                      ("two", "more than one URI SAN"), ("elsewhere", "name or address that was dialled"),
                      ("c", "audit: denied identity=spiffe://kvferry/c tenant=t what=serve reason=no_right")):
        _restart(a, tls)
        before = len(b.lines(says))

        def refused():  # the rest of a back-off may come first
            _denied_get(b, a)
            return len(b.lines(says)) > before

        case.eventually(20, f"the consumer says {says!r}", refused, b.last_line)
        expect_equal(a.stat()["serve"]["reads"], 0, f"Reads that came to a source that is {tls}")
    expect(not a.lines("every peer will refuse it"), "a good certificate of another one is no fault of its own")
    _restart(a, "none")
    expect(a.lines("warning trust", "no URI SAN", "every peer will refuse it"), "a does not see the fault of its own certificate")
    _restart(a, "a")
    case.eventually(20, "a get works again", lambda: b.run("get", NS, "k", "-o", "b/out", "--source", a.source).code == 0)
    case.same(case.path("k"), b.output("k"), "pulled in the end")


# ---- what is denied looks like what is missing ----


class _Raw:
    """One call over TLS by hand; the bytes that come back."""

    def __init__(self, case, daemon, tls, path, messages, end):
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=case.path("tls/ca.crt"))
        context.load_cert_chain(case.path(f"tls/{tls}.crt"), case.path(f"tls/{tls}.key"))
        context.set_alpn_protocols(["h2"])
        self.data = b""  # of stream 1
        self.frames = []  # (kind, length) of stream 1
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=5) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                connection.sendall(call(path, messages, end=end))
                self._hear(connection)

    def _hear(self, connection):
        connection.settimeout(3)
        stream = b""
        try:
            while piece := connection.recv(1 << 16):
                stream += piece
                if self._split(stream):
                    return
        except OSError:
            self._split(stream)

    def _split(self, stream):
        """True: stream 1 has ended."""
        self.data, self.frames, at = b"", [], 0
        while at + 9 <= len(stream):
            length = int.from_bytes(stream[at:at + 3], "big")
            kind, flags = stream[at + 3], stream[at + 4]
            number = struct.unpack(">I", stream[at + 5:at + 9])[0]
            if at + 9 + length > len(stream):
                break
            if number == 1:
                self.frames.append((kind, length))
                self.data += stream[at + 9:at + 9 + length] if kind == DATA else b""
                if flags & 1 and kind in (DATA, 1):
                    return True
            at += 9 + length
        return False

    def messages(self):
        found, at = [], 0
        while at < len(self.data):
            length = struct.unpack(">I", self.data[at + 1:at + 5])[0]
            found.append(self.data[at + 5:at + 5 + length])
            at += 5 + length
        return found


def identity_denied_lookup_is_like_a_missing_key(case):
    a, _ = _pair(case)
    a.put(OTHERS, "there", case.file("there", MIB))
    a.put(NS, "there", case.file("mine", MIB))

    def ask(ns, keys, tls="b"):
        return _Raw(case, a, tls, "/kvferry.Peer/Lookup", [field(1, ns) + b"".join(field(2, key) for key in keys)], end=True)

    hit = ask(NS, [b"there", b"nowhere"])
    missing = ask(NS, [b"absen", b"nowhere"])
    denied_there = ask(OTHERS, [b"there", b"nowhere"])
    denied_missing = ask(OTHERS, [b"absen", b"nowhere"])
    no_tenant = ask("nobody/model", [b"there", b"nowhere"])
    expect(hit.messages() != missing.messages(), "a hit looks like a miss")
    for what, answer in (("that is there", denied_there), ("that is not", denied_missing), ("of no tenant", no_tenant)):
        expect_equal(answer.data, missing.data, f"the answer about a denied key {what}")
        expect_equal(answer.frames, missing.frames, f"the frames about a denied key {what}")
    expect(ask(NS, [b"there"], tls="c").messages() == [], "who is not in the ACL gets an answer")
    a.must_log("audit: denied identity=spiffe://kvferry/b tenant=secret what=lookup reason=no_right")
    a.must_log("audit: denied identity=spiffe://kvferry/c tenant=- what=lookup reason=unknown_identity")


def identity_denied_read_is_like_a_missing_key(case):
    a, b = _pair(case, b_rights={"a": {"t": ["serve"], "secret": ["serve"]}})
    a.put(OTHERS, "there", case.file("there", MIB))
    a.put(NS, "there", case.file("mine", MIB))

    def ask(tenant, key):
        hello = field(1, field(1, 1) + field(2, tenant) + field(6, 77) + field(8, "tcp"))
        block = field(1, key) + field(2, MIB)
        read = field(3, field(1, 1) + field(2, f"{tenant}/model") + field(4, 1000000) + field(5, block))
        answer = _Raw(case, a, "b", "/kvferry.Peer/Session", [hello, read], end=False)
        messages = [parse(message) for message in answer.messages()]
        expect(len(messages) == 2 and 1 in messages[0] and 2 in messages[1], f"no Welcome and Grants: {messages}")
        return len(answer.messages()[0]), answer.messages()[1]

    hit, missing = ask("t", b"there"), ask("t", b"absen")
    expect(hit != missing, "a hit looks like a miss")
    for what, tenant, key in (("that is there", "secret", b"there"), ("that is not", "secret", b"absen"), ("of no tenant", "nobody", b"there")):
        expect_equal(ask(tenant, key), missing, f"Welcome's size and Grants about a denied key {what}")
    a.must_log("audit: denied identity=spiffe://kvferry/b tenant=secret what=read reason=no_right")
    result = b.get(OTHERS, "there", source=a, code=4, timeout_s=3)
    other = b.get(OTHERS, "absen", source=a, code=4, timeout_s=3)
    expect_equal(result.err.replace("there", "absen"), other.err, "what the command says")
    expect_equal(result.out.replace("there", "absen"), other.out, "what the command prints")


def identity_flood_of_denials_is_counted(case):
    a, b = _pair(case, b_rights={"a": {"secret": ["serve"]}})
    a.put(OTHERS, "k0", case.file("k0", MIB))
    for _ in range(4):
        commands = [b.begin_get(OTHERS, *[f"k{i}" for i in range(8)], source=a, timeout_s=5) for _ in range(8)]
        for command in commands:
            command.end().must_end_with(4)
    case.eventually(10, "denials are told", lambda: a.lines("audit: denied"))
    a.stop()
    told = len(a.lines("audit: denied identity=spiffe://kvferry/b tenant=secret what=lookup"))
    kept_back = sum(int(line.rsplit("=", 1)[1]) for line in a.lines("audit: denied suppressed="))
    expect_equal(told + kept_back, 32, "denials, told or counted")


# ---- rights of engines ----


def identity_rights_of_local_users(case):
    path = case.path("engines.json")
    with open(path, "w") as file:
        json.dump({"identities": {UID: {"t": ["read", "write"], "r": ["read"], "w": ["write"]}}}, file)
    a = case.start(case.daemon("a", ssd_mib=768, pool_mib=128, acl="engines.json"))
    block = case.file("k", MIB)
    a.put("t/m", "k", block)
    a.get("t/m", "k")
    a.put("w/m", "k", block)
    denied = a.get("w/m", "k", code=4)
    missing = a.get("w/m", "x", code=4)
    expect_equal(denied.err.replace(" k", " x"), missing.err.replace(" k", " x"), "what get says of a denied key")
    a.run("put", "r/m", "k", block).must_end_with(1)
    a.run("put", "other/m", "k", block).must_end_with(1)
    a.get("other/m", "k", code=4)
    a.must_log(f"audit: denied identity={UID} tenant=r what=put reason=no_right")
    with open(path, "w") as file:
        json.dump({"identities": {"uid:4294967": {"t": ["read"]}}}, file)
    a.signal(signal.SIGHUP)
    a.must_log("ACL read again (SIGHUP)")
    a.run("get", "t/m", "k", "-o", "a/out").must_end_with(1)
    a.must("stat")


# ---- rights of sources ----


def identity_source_without_the_right_to_serve(case):
    a, b = _pair(case, b_rights={"a": {"t": ["read"]}})
    a.put(NS, "k", case.file("k", MIB))
    b.get(NS, "k", source=a, code=1, timeout_s=3)
    expect_equal(a.stat()["serve"]["reads"], 0, "Reads that a source without the right to serve saw")
    b.must_log("audit: denied identity=spiffe://kvferry/a tenant=t what=serve reason=no_right")
    _rights(case, "b.json", a=SERVES)
    b.signal(signal.SIGHUP)
    b.must_log("ACL read again (SIGHUP)")
    case.eventually(20, "a get works", lambda: b.run("get", NS, "k", "-o", "b/out", "--source", a.source).code == 0)
    case.same(case.path("k"), b.output("k"), "pulled")
    # Taken away with the session open: it ends, and nothing more is asked for.
    a.put(NS, "k2", case.file("k2", MIB))
    before = a.stat()["serve"]["reads"]
    _rights(case, "b.json")
    b.signal(signal.SIGHUP)
    case.eventually(10, "the ACL is read again", lambda: len(b.lines("ACL read again")) == 2)
    b.get(NS, "k2", source=a, code=1, timeout_s=3)
    expect_equal(a.stat()["serve"]["reads"], before, "Reads after the right was taken away")


def identity_no_key_is_told_to_who_may_not_serve(case):
    """A source by hand, with a good certificate but without the right: it answers, and hears no key."""
    _, b = _pair(case)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=case.path("tls/ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(case.path("tls/c.crt"), case.path("tls/c.key"))
    context.set_alpn_protocols(["h2"])
    heard = b""
    reply = frame(HEADERS, 4, 1, header(":status", "200") + header("content-type", "application/grpc"))
    reply += frame(DATA, 0, 1, bytes(5)) + frame(HEADERS, 5, 1, header("grpc-status", "0"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        listener.settimeout(10)
        get = b.begin_get(NS, "quite-secret-key", source=f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=3)
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.settimeout(2)
            connection.sendall(frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, 1, 0, b""))
            try:
                while piece := connection.recv(1 << 16):
                    heard += piece
                    if b"/kvferry.Peer/Lookup" in heard and reply:
                        connection.sendall(reply)
                        reply = b""
            except OSError:
                pass
    get.end().must_end_with(1)
    expect(b"/kvferry.Peer/Lookup" in heard, f"no Lookup came: {heard!r}")
    for secret in (b"quite-secret-key", b"model"):
        expect(secret not in heard, f"{secret!r} was told")
    b.must_log("audit: denied identity=spiffe://kvferry/c tenant=t what=serve reason=no_right")


# ---- changes at run time ----


def identity_removed_from_the_acl_at_run_time(case):
    a, b = _pair(case)
    a.put(NS, "k0", case.file("k0", MIB))
    a.put(NS, "k1", case.file("k1", MIB))
    b.get(NS, "k0", source=a)
    _rights(case, "a.json", c=READS)  # no signal: the file is watched
    a.must_log("ACL read again (the file has changed)")
    a.must_log("audit: reload what=acl outcome=OK")
    a.must_log("audit: forced identity=spiffe://kvferry/b tenant=t reason=rights")
    b.get(NS, "k1", source=a, code=1, timeout_s=3)
    expect_equal(len(a.lines("audit: forced")), 1, "forced ends")
    with open(case.path("a.json"), "w") as file:
        file.write('{"identities": {"spiffe://kvferry/b": {"t": ["raed"]}}}')
    a.must_log("rights stay as they were", "a.json", "raed")
    a.must_log("audit: reload what=acl outcome=INVALID")
    b.get(NS, "k1", source=a, code=1, timeout_s=3)
    _rights(case, "a.json", b=READS)
    case.eventually(10, "the ACL is read again", lambda: len(a.lines("ACL read again")) == 2)
    case.eventually(20, "a get works again", lambda: b.run("get", NS, "k1", "-o", "b/out", "--source", a.source).code == 0)
    case.same(case.path("k1"), b.output("k1"), "pulled in the end")


def identity_changed_while_no_descriptor_is_left(case):
    """A right that is taken away, and a certificate, count as soon as their files can be read; the failure is told once."""
    a, b = _pair(case)
    a.put(NS, "k0", case.file("k0", MIB))
    a.put(NS, "k1", case.file("k1", MIB))
    b.get(NS, "k0", source=a)
    _, hard = before = resource.prlimit(a.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(a.process.pid, resource.RLIMIT_NOFILE, (3, hard))
    _rights(case, "a.json", c=READS)
    a.must_log("rights stay as they were", "Too many open files")
    for kind in ("crt", "key"):
        os.rename(case.path(f"tls/c.{kind}"), case.path(f"tls/a.{kind}"))
    a.must_log("TLS stays as it was", "Too many open files")
    time.sleep(3)  # it is tried again, and still fails
    resource.prlimit(a.process.pid, resource.RLIMIT_NOFILE, before)
    a.must_log("ACL read again")
    a.must_log("TLS read again", "identity spiffe://kvferry/c")
    a.must_log("audit: forced identity=spiffe://kvferry/b tenant=t reason=rights")
    for what in ("acl", "tls"):
        for outcome in ("INVALID", "OK"):
            expect_equal(len(a.lines(f"audit: reload what={what} outcome={outcome}")), 1, f"lines about {what}, {outcome}")
    b.get(NS, "k1", source=a, code=1, timeout_s=3)


def _within(daemon, name, dram_mib, ssd_mib):
    """What the tenant has is at most so much; as stat says it."""
    tenant = daemon.stat()["tenants"][name]
    return tenant["dram_bytes"] <= dram_mib * MIB and tenant["ssd_bytes"] <= ssd_mib * MIB


def _all_there(engine, ns, first, count):
    found = engine.must("check", ns, "-", 10000, MIB, first, count)
    expect_equal((found["dram"] + found["ssd"], found["wrong"]), (count, 0), f"blocks of {ns}, and wrong ones")


def identity_shares_greedy_beside_modest_tenant(case):
    """One tenant fills DRAM and SSD again and again; it loses its own oldest blocks, another one none. Shares change at
    run time, also below what is used."""
    _certificates(case, "a")
    a = case.daemon("a", ssd_mib=1300, pool_mib=128, listen=True, tls="a",
                    acl=_rights(case, "a.json", {"t": {"dram": 0.25, "ssd": 0.2}}))
    case.start(a)
    expect_equal(a.stat()["tenants"], {"t": {"dram_bytes": 0, "dram_limit_bytes": 32 * MIB, "ssd_bytes": 0,
                                             "ssd_limit_bytes": 260 * MIB, "ssd_shed_blocks": 0}}, "at first")
    greedy, modest = case.engine(a, "greedy"), case.engine(a, "modest")
    for part in range(4):  # their blocks lie side by side
        expect_equal(modest.must("put", OTHERS, 10000, MIB, part * 16, 16)["OK"], 16, "puts of the modest one")
        expect_equal(greedy.must("put", NS, 10000, MIB, part * 100, 100)["OK"], 100, "puts of the greedy one")
    for turn in range(3):
        greedy.must("put", NS, 10000, MIB, 400 + turn * 500, 500)
        expect(_within(a, "t", 32, 260), f"the greedy one: {a.stat()['tenants']}")
        expect_equal(a.stat()["tenants"]["secret"]["dram_bytes"], 64 * MIB, "what the modest one has in DRAM")
    a.must("sync", "--durable")
    tenants = a.stat()["tenants"]
    expect_equal(tenants["secret"]["ssd_bytes"], 64 * MIB, "what the modest one has on SSD")
    expect(tenants["t"]["ssd_bytes"] >= 250 * MIB, f"the greedy one's share is used: {tenants}")
    expect(tenants["t"]["ssd_shed_blocks"] >= 1640, f"it has lost its oldest: {tenants}")
    expect_equal(a.metric('tenant_ssd_shed_blocks_total{tenant="t"}'), tenants["t"]["ssd_shed_blocks"], "the metric")
    expect_equal(sum(drive["carries_failed"] + drive["dropped"] for drive in a.stat()["ssd"]), 0, "lost writes")
    a.must("evict", "--dram")
    _all_there(modest, OTHERS, 0, 64)
    _all_there(greedy, NS, 1900 - 32, 32)
    expect_equal(greedy.must("check", NS, "-", 3000, MIB, 0, 8)["NOT_FOUND"], 8, "the greedy one's oldest")

    _rights(case, "a.json", {"t": {"dram": 0.125, "ssd": 0.05}, "secret": {"dram": 0.25}})
    case.eventually(10, "each has no more than its smaller share", lambda: _within(a, "t", 16, 65) and
                    _within(a, "secret", 32, 64), a.stat)
    expect_equal(a.stat()["tenants"]["secret"]["ssd_bytes"], 64 * MIB, "what the modest one has on SSD")
    modest = case.engine(a, "again")  # who asks for less at a time now
    _all_there(modest, OTHERS, 0, 64)
    a.kill()
    a.start()
    case.eventually(20, "recovery has ended", lambda: not any(drive["recovering"] for drive in a.stat()["ssd"]))
    expect(_within(a, "t", 16, 65), f"after a restart: {a.stat()['tenants']}")
    modest = case.engine(a, "once-more")
    _all_there(modest, OTHERS, 0, 64)
    _rights(case, "a.json")
    case.eventually(10, "without shares none is told", lambda: "tenants" not in a.stat())
    _all_there(modest, OTHERS, 0, 64)


def identity_shares_who_holds_all_of_it_waits_alone(case):
    """What does not fit beside what its tenant holds waits, and is BUSY with the reason in the log; others go on."""
    _certificates(case, "a")
    a = case.daemon("a", ssd_mib=768, listen=True, tls="a",
                    acl=_rights(case, "a.json", {"t": {"dram": 0.0625, "ssd": 0.03}}))  # 32, 23 MiB
    case.start(a)
    holder, other = case.engine(a, "holder"), case.engine(a, "other")
    holder.must("put", NS, 10000, MIB, 0, 20)
    expect_equal(holder.must("get", NS, "-", 10000, MIB, 0, 20)["wrong"], 0, "wrong bytes")
    expect_equal(other.ask("begin", NS, 500, MIB, 100, 20)[0], "BUSY", "a put beside what the tenant holds")
    a.must_log("a PutBegin of engine", "BUSY", "short of the tenant's share of memory")
    expect_equal(other.must("put", OTHERS, 3000, MIB, 100, 40)["OK"], 40, "puts of another tenant")
    holder.must("release")
    expect_equal(other.must("put", NS, 3000, MIB, 100, 20)["OK"], 20, "puts after that")
    a.must("put", NS, "large", case.file("large", 33 * MIB), code=2)
    a.must_log("a PutBegin of engine", "TOO_LARGE", "short of the tenant's share of memory")
    a.must("put", NS, "lonely", case.file("lonely", 24 * MIB))  # more than all that it may have on SSD
    expect_equal(a.metric('dropped_blocks_total{reason="ssd_share"}'), 1, "blocks that no share takes")
    a.must("sync", "--durable")
    a.get(NS, "lonely")
    case.same(case.path("lonely"), a.output("lonely"), "from DRAM")
    a.must("evict", "--dram")
    a.get(NS, "lonely", code=4, timeout_s=3)


def identity_shares_smaller_than_a_read_of_a_peer(case):
    """A source tells its consumers to ask for no more at a time than the tenant may have there."""
    _certificates(case, "a", "b")
    a = case.daemon("a", ssd_mib=768, listen=True, tls="a",
                    acl=_rights(case, "a.json", {"t": {"dram": 0.0625}}, b=READS))  # 32 MiB of 512
    b = case.daemon("b", tls="b", acl=_rights(case, "b.json", a=SERVES))
    case.start(a, b)
    engine, puller = case.engine(a, "a"), case.engine(b, "b")
    for part in range(6):
        engine.must("put", NS, 10000, MIB, part * 16, 16)
    a.settle()
    found = puller.must("get", NS, a.source, 10000, MIB, 0, 96)
    expect_equal((found["remote_ssd"], found["wrong"]), (96, 0), "pulled blocks, and wrong ones")
    puller.must("release")
    expect_equal(a.stat()["serve"]["reads"], 3, "Reads of 32 MiB")
    _rights(case, "a.json", {"t": {"dram": 0.03125}}, b=READS)
    case.eventually(10, "the share is smaller", lambda: _within(a, "t", 16, 1000), a.stat)
    b.must("evict", "--dram")
    found = puller.must("get", NS, a.source, 10000, MIB, 0, 96)
    expect_equal((found["remote_ssd"] + found["remote_dram"], found["wrong"]), (96, 0), "pulled blocks, and wrong ones")
    expect_equal(a.stat()["serve"]["reads"], 9, "Reads of 32 MiB, then of 16")


def identity_new_certificate_without_a_restart(case):
    """Other identity, other authority: connections from then on use them, what is open goes on."""
    a, b = _pair(case)
    a.put(NS, "k0", case.file("k0", MIB))
    a.put(NS, "k1", case.file("k1", MIB))
    b.get(NS, "k0", source=a)
    pid = a.process.pid

    def replace(name, kind, to):
        with open(case.path(f"tls/{name}.{kind}"), "rb") as file:
            content = file.read()
        with open(case.path("tls/replace"), "wb") as file:
            file.write(content)
        os.rename(case.path("tls/replace"), case.path(f"tls/{to}.{kind}"))

    replace("c", "crt", "a")
    a.signal(signal.SIGHUP)
    a.must_log("TLS stays as it was", "a.key")
    a.must_log("audit: reload what=tls outcome=INVALID")
    a.put(NS, "k2", case.file("k2", MIB))
    b.get(NS, "k2", source=a)
    replace("c", "key", "a")
    a.must_log("TLS read again (a file has changed)", "identity spiffe://kvferry/c")
    # A fresh consumer meets another identity, which may not serve.
    _restart(b, "b")
    b.get(NS, "k1", source=a, code=1, timeout_s=3)
    b.must_log("audit: denied identity=spiffe://kvferry/c tenant=t what=serve")
    _rights(case, "b.json", c=SERVES)
    b.must_log("ACL read again")
    case.eventually(20, "a get works again", lambda: b.run("get", NS, "k1", "-o", "b/out", "--source", a.source).code == 0)
    case.same(case.path("k1"), b.output("k1"), "pulled from the new identity")
    expect_equal(a.process.pid, pid, "the source's process")
    # The consumer's own certificate, for its next connection.
    replace("c", "crt", "b")
    replace("c", "key", "b")
    b.signal(signal.SIGHUP)
    b.must_log("TLS read again", "identity spiffe://kvferry/c")
    a.stop()
    a.start()
    a.put(NS, "k3", case.file("k3", MIB))
    b.get(NS, "k3", source=a, code=1, timeout_s=3)
    a.must_log("audit: denied identity=spiffe://kvferry/c", "unknown_identity")
