"""What cannot be is refused: the exit status says so, one line names the thing, and nothing was created or lost."""

import json
import os
import socket
import time

from harness import expect, expect_equal

MIB = 1 << 20
NS = "tenant/model"


def _snapshot(directory):
    """Every file below with its length, time of change and content."""
    found = {}
    for at, directories, files in os.walk(directory):
        for name in directories + files:
            path = os.path.join(at, name)
            info = os.lstat(path)
            content = open(path, "rb").read() if os.path.isfile(path) and info.st_size < MIB else b""
            found[path] = (info.st_size, info.st_mtime_ns, content)
    return found


def _flags(case, **changes):
    """A command line that would work, with changes: None takes a flag away."""
    for name in ("d", "ssd"):
        os.makedirs(case.path(name), exist_ok=True)
    flags = {"node-id": "n", "run-dir": "d/run", "http": "127.0.0.1:0", "pool-mib": "64", "ssd-path": "ssd",
             "ssd-capacity-mib": "512"}
    flags.update({name.replace("_", "-"): value for name, value in changes.items()})
    words = []
    for name, value in flags.items():
        if value is not None:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def _refused(case, code, names, *extra, **changes):
    """This start fails as it must, and leaves everything as it was."""
    words = _flags(case, **changes) + list(extra)
    before = _snapshot(case.directory)
    result = case.run("kvferryd", *words, seconds=60).must_end_with(code).must_name(*names)
    expect_equal(len(result.err.splitlines()), 1, f"lines of kvferryd {' '.join(words)}, log included")
    after = _snapshot(case.directory)
    created = sorted(set(after) - set(before))
    expect(not created, f"kvferryd {' '.join(words)}: was refused, but created {created}")
    lost = sorted(path for path in before if after.get(path) != before[path] and not os.path.isdir(path))
    expect(not lost, f"kvferryd {' '.join(words)}: was refused, but changed {lost}")


def refused_unknown_and_malformed_flags(case):
    _refused(case, 2, ["--pool", "--pool-mib"], "--pool", "5")
    _refused(case, 2, ["--no-such-flag"], "--no-such-flag")
    _refused(case, 2, ["stray"], "stray")
    _refused(case, 2, ["--pool-mib"], "--pool-mib")
    _refused(case, 2, ["--pool-mib", "abc"], pool_mib="abc")
    _refused(case, 2, ["--pool-mib", "-5"], pool_mib="-5")
    _refused(case, 2, ["--pool-mib", "99999999999999999999"], pool_mib="99999999999999999999")
    _refused(case, 2, ["--transport", "carrier-pigeon"], transport="carrier-pigeon")
    _refused(case, 2, ["--listen", "localhost"], listen="localhost")
    _refused(case, 2, ["--listen", "70000"], listen="127.0.0.1:70000")
    _refused(case, 2, ["--run-dir"], run_dir=None)


def refused_impossible_sizes(case):
    _refused(case, 2, ["--pool-mib", "0"], pool_mib=0)
    _refused(case, 2, ["--ssd-capacity-mib", "511"], ssd_capacity_mib=511)
    _refused(case, 2, ["--ssd-capacity-mib", "--ssd-path"], ssd_capacity_mib=None)
    _refused(case, 2, ["--ssd-capacity-mib", "--ssd-path"], ssd_path=None)
    _refused(case, 2, ["--ssd-capacity-mib"], ssd_capacity_mib=1 << 29)
    _refused(case, 2, ["--dirty-limit-mib", "65", "--pool-mib"], dirty_limit_mib=65)
    _refused(case, 2, ["--ssd-io-kib", "5"], ssd_io_kib=5)
    _refused(case, 2, ["--ssd-queue-depth", "4097"], ssd_queue_depth=4097)
    _refused(case, 2, ["--max-blocks-per-read", "0"], max_blocks_per_read=0)
    _refused(case, 2, ["--read-batch-mib", "19", "--query-limit-per-instance-mib"], read_batch_mib=19)


def refused_pool_beyond_the_memory(case):
    _refused(case, 1, ["--pool-mib", str(8 << 20)], pool_mib=8 << 20)


def refused_ssd_directories(case):
    _refused(case, 1, ["missing"], ssd_path="missing")
    with open(case.path("file"), "w") as file:
        file.write("not a directory")
    _refused(case, 1, ["file"], ssd_path="file")
    os.makedirs(case.path("foreign/sub"))
    for name in ("foreign/thesis.tex", "foreign/segment-00000", "foreign/sub/deep"):
        with open(case.path(name), "w") as file:
            file.write(f"precious {name}")
    _refused(case, 1, ["foreign"], ssd_path="foreign")
    _refused(case, 2, ["ssd"], "--ssd-path", "ssd")


def refused_ssd_capacity_beyond_the_disk(case):
    """Found before a byte is taken: what others write there is not disturbed."""
    _refused(case, 1, ["ssd", "MiB"], ssd_capacity_mib=8 << 20)


def refused_ssd_directory_in_use(case):
    a = case.start(case.daemon("a", ssd_mib=512))
    a.put(NS, "k", case.file("in", MIB))
    a.settle()  # so that nobody else writes there now
    _refused(case, 1, ["a/ssd"], ssd_path="a/ssd")
    a.get(NS, "k")
    case.same(case.path("in"), a.output("k"), "the first daemon's block")


def refused_run_directories(case):
    _refused(case, 2, ["--run-dir"], run_dir="d/" + "x" * 120)
    with open(case.path("file"), "w") as file:
        file.write("not a directory")
    _refused(case, 1, ["--run-dir", "file"], run_dir="file")
    _refused(case, 1, ["--run-dir", "no/such"], run_dir="no/such/run")
    a = case.start(case.daemon("a"))
    _refused(case, 1, ["a/run"], run_dir="a/run")
    expect_equal(a.stat()["state"], "READY", "the first daemon's state")


def refused_ports_that_are_taken(case):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        _refused(case, 1, ["--listen", taken], listen=taken, insecure_loopback=True)
        _refused(case, 1, ["--http", taken], http=taken)
        _refused(case, 1, ["--data-listen", taken], listen="127.0.0.1:0", data_listen=taken, insecure_loopback=True)
    _refused(case, 1, ["--http", "192.0.2.1:9471"], http="192.0.2.1:9471")


def refused_plaintext_off_loopback(case):
    _refused(case, 2, ["--listen", "0.0.0.0:19999", "TLS"], listen="0.0.0.0:19999")
    _refused(case, 2, ["--listen", "0.0.0.0:19999", "TLS"], listen="0.0.0.0:19999", insecure_loopback=True)
    _refused(case, 2, ["--listen", "127.0.0.1:19999", "--insecure-loopback"], listen="127.0.0.1:19999")
    _refused(case, 2, ["--peer", "192.0.2.1:9470", "TLS"], peer="192.0.2.1:9470", insecure_loopback=True)
    _refused(case, 2, ["--tls-key"], tls_cert="c.pem", tls_ca="a.pem", listen="0.0.0.0:19999")
    _refused(case, 2, ["--ucx-trust-peers"], transport="ucx")


def _has_verbs():
    return bool(os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"))


def refused_verbs_where_there_is_none(case):
    """Or not the NIC that is named: tests/qemu has the hosts that have some."""
    if not _has_verbs():
        _refused(case, 1, ["no verbs device", "/dev/infiniband", "tcp"], transport="verbs")
    _refused(case, 1, ["no verbs device", "no_such_nic0"], transport="verbs", nics="no_such_nic0")


def refused_ucx_without_trust_or_devices(case):
    _refused(case, 2, ["--transport ucx", "--ucx-trust-peers"], transport="ucx")
    if not _has_verbs():
        _refused(case, 1, ["UCX cannot use any RDMA device", "tcp"], transport="ucx", ucx_trust_peers=True)


def transport_auto_without_verbs_is_tcp_and_says_why(case):
    a = case.start(case.daemon("a", listen=True, flags=["--transport", "auto", "--nics", "no_such_nic0"]))
    a.must_log("no lanes over verbs", "no_such_nic0")
    a.must_log("lanes over tcp: data port")
    expect_equal(a.stat()["transport"], "tcp", "the transport in stat")
    a.stop()


def transports_are_listed_with_why_not(case):
    listed = json.loads(case.run("kvferry", "--json", "transports").must_end_with(0).out)
    rows = {row["name"]: row for row in listed["transports"]}
    expect_equal(sorted(rows), ["tcp", "ucx", "verbs"], "the transports")
    expect(rows["tcp"]["usable"], "tcp is not usable")
    for name in () if _has_verbs() else ("verbs",):
        expect(not rows[name]["usable"] and rows[name]["why"], f"{name} is usable, or does not say why not")


def refused_acls(case):
    def acl(text):
        with open(case.path("acl.json"), "w") as file:
            file.write(text)
        return "acl.json"

    _refused(case, 2, ["--acl", "absent.json"], acl="absent.json")
    _refused(case, 2, ["--acl acl.json", "line 2"], acl=acl('{"identities":\n nonsense}'))
    _refused(case, 2, ["--acl acl.json", "reed", '"read"'], acl=acl('{"identities": {"uid:0": {"t": ["reed"]}}}'))
    _refused(case, 2, ["--acl", "--listen", "--tls-cert"], acl=acl('{"identities": {}}'), listen="127.0.0.1:19999",
             insecure_loopback=True)
    _refused(case, 2, ["--tls-cert", "--acl"], listen="0.0.0.0:19999", acl="acl.json")
    _refused(case, 2, ["--acl"], listen="0.0.0.0:19999", tls_cert="c", tls_key="k", tls_ca="a")


def refused_tls_files(case):
    tls = {"listen": "127.0.0.1:19999", "tls_cert": "absent.crt", "tls_key": "k", "tls_ca": "a"}
    _refused(case, 2, ["absent.crt"], **tls)
    with open(case.path("empty.crt"), "w"):
        pass
    _refused(case, 2, ["empty.crt"], **{**tls, "tls_cert": "empty.crt"})


def refused_configuration_files(case):
    with open(case.path("bad.conf"), "w") as file:
        file.write("# fine\npool-mib = 64\nno-such = 1\n")
    _refused(case, 2, ["bad.conf", "no-such"], config="bad.conf")
    _refused(case, 2, ["absent.conf"], config="absent.conf")


def flags_come_from_environment_and_file_too(case):
    with open(case.path("good.conf"), "w") as file:
        file.write("pool-mib = 96\nread-batch-mib = 7\nnode-id = from-file\n")
    case.environment = dict(case.environment, KVFERRY_READ_BATCH_MIB="5", KVFERRY_NODE_ID="from-environment")
    a = case.daemon("a", pool_mib=64, flags=["--config", "good.conf"])
    case.start(a)
    stat = a.stat()
    expect_equal(stat["pool"]["bytes"], 64 * MIB, "pool.bytes: the command line wins")
    expect_equal(stat["read_batch_mib"], 5, "read_batch_mib: the environment before the file")
    for word in ("pool-mib=64", "read-batch-mib=5", "node-id=a"):
        expect(word in a.log(), f"the effective {word} is not in the log")


def commands_without_a_daemon_fail_in_one_line(case):
    path = case.file("in", 1000)
    run_dir = case.path("nobody")
    for words in (["stat"], ["put", NS, "k", path], ["get", NS, "k", "-o", "out"], ["sync", "--durable"],
                  ["evict", "--dram"], ["set", "read-batch-mib", "1"], ["drain"]):
        result = case.run("kvferry", "--run-dir", run_dir, *words)
        result.must_end_with(1).must_name("nobody")
        expect(result.seconds < 10 * case.slowness, f"{result}: took too long")
    expect(not os.path.exists(case.path("out")), "get made its directory although there is no daemon")
    a = case.start(case.daemon("a"))
    a.kill()
    case.run("kvferry", "--run-dir", a.run_dir, "stat").must_end_with(1).must_name("a/run")


def commands_refuse_what_makes_no_sense(case):
    a = case.start(case.daemon("a"))
    path = case.file("in", 1000)
    for names, words in (
            (["fly"], ["fly"]), (["--wings"], ["stat", "--wings"]), (["put"], ["put", NS]),
            (["-o"], ["get", NS, "k"]), (["tenant"], ["put", "tenant", "k", path]),
            (["a b/c"], ["put", "a b/c", "k", path]), (["x" * 20], ["put", NS, "x" * 65, path]),
            (["hex:0"], ["put", NS, "hex:0", path]), (["hex:zz"], ["get", NS, "hex:zz", "-o", "out"]),
            (["absent"], ["put", NS, "k", case.path("absent")]), (["a/run"], ["put", NS, "k", case.path("a/run")]),
            (["--source", "nowhere"], ["get", NS, "k", "-o", "out", "--source", "nowhere"]),
            (["--timeout-s"], ["stat", "--timeout-s", "0"]), (["--dram"], ["evict"]), (["replay"], ["replay"])):
        a.must(*words, code=2).must_name(*names)
    case.run("kvferry", "stat").must_end_with(2).must_name("--run-dir")
    expect_equal(a.stat()["puts"]["blocks"], 0, "puts.blocks")


def replay_of_a_bad_trace_puts_nothing(case):
    a, b = case.pair()
    good = '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}'
    for number, bad in enumerate(("{not json", "[]", '{"timestamp": 0}', good[:-1] + ', "hash_ids": [-1]}', good.replace("[1, 2]", '["x"]'), "", good + "x")):
        name = f"bad{number}.jsonl"
        with open(case.path(name), "w") as file:
            file.write(f"{good}\n{good}\n{bad}\n{good}\n")
        if number == 3:
            continue  # two equal names in one object: what that means is the parser's choice
        case.run("kvferry", "replay", "--trace", name, "--prefill", a.run_dir, "--decode", b.run_dir, "--source",
                 a.source, "--json", "out.json").must_end_with(2).must_name(f"{name}:3")
    case.run("kvferry", "replay", "--trace", "absent.jsonl", "--prefill", a.run_dir, "--decode", b.run_dir, "--source",
             a.source).must_end_with(2).must_name("absent.jsonl")
    open(case.path("empty.jsonl"), "w").close()
    case.run("kvferry", "replay", "--trace", "empty.jsonl", "--prefill", a.run_dir, "--decode", b.run_dir, "--source",
             a.source).must_end_with(2).must_name("empty.jsonl")
    expect_equal(a.stat()["puts"], {"blocks": 0, "exists": 0, "busy": 0}, "puts")
    expect(not os.path.exists(case.path("out.json")), "a JSON file was written")


def sources_that_are_not_there_cost_little(case):
    """Nothing listens: a miss at once. Somebody listens and never answers: a miss by the deadline."""
    b = case.start(case.daemon("b"))
    engine = case.engine(b)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        dead = b.get(NS, "b0", source=address, code=4)
        dead.must_name("b0", address, "UNAVAILABLE")
        several = b.get(NS, "b0", "b1", "b2", source=address, code=4)
        expect(all(f" {key}: " in several.err for key in ("b0", "b1", "b2")), f"each is named: {several}")
        expect_equal(several.err.count(address), 1, "how often what to do is said")
        expect(dead.seconds < 5 * case.slowness, f"a miss at a dead source took {dead.seconds:.1f} s")
        start = time.monotonic()
        found = engine.must("get", NS, address, 20000, MIB, 0, 4)
        expect_equal(found.get("UNAVAILABLE"), 4, "misses of blocks whose length is known")
        expect(time.monotonic() - start < 5 * case.slowness, "a pull from a dead source took too long")
        engine.must("release")
        holder.listen(64)
        for timeout_s in (5, 2):
            mute = b.get(NS, "b0", source=address, code=4, timeout_s=timeout_s)
            mute.must_name("b0")
            expect(mute.seconds < timeout_s + 3 * case.slowness, f"a deadline of {timeout_s} s took {mute.seconds:.1f} s")
        start = time.monotonic()
        found = engine.must("get", NS, address, 4000, MIB, 0, 4)
        expect("OK" not in found, "a mute source gave blocks")
        expect(time.monotonic() - start < 4 + 3 * case.slowness, "a pull from a mute source took too long")
        b.gauges_return_to_zero()
    b.put(NS, "k", case.file("in", MIB))
    b.get(NS, "k")
    engine.must("close")


def sources_given_as_peers_are_asked_in_turn(case):
    """Without a hint: the first --peer is dead, the second one has the block."""
    a = case.daemon("a", ssd_mib=512, listen=True)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{holder.getsockname()[1]}"
        b = case.daemon("b", flags=["--insecure-loopback", "--peer", dead, "--peer", a.source])
        case.start(a, b)
        a.put(NS, "k", case.file("in", 3 * MIB))
        b.get(NS, "k")
        case.same(case.path("in"), b.output("k"), "pulled from the second peer")
        b.get(NS, "absent", code=4).must_name("absent")
        b.get(NS, "k", source=dead)
