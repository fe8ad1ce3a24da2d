"""The unit, and what the daemon tells systemd."""

import os
import re
import socket
import subprocess

from harness import Skipped, expect, expect_equal
from runner import TOP

FORCED_S = 10  # our own part of a forced end
MIB = 1 << 20


def _sections(path):
    """{section: {name: last value}} of a unit, but lists for what may stand more than once."""
    sections, now = {}, None
    with open(path) as file:
        for line in file.read().splitlines():
            if not line or line[0] in "#;":
                continue
            if line[0] == "[":
                now = sections.setdefault(line.strip("[]"), {})
            else:
                name, _, value = line.partition("=")
                now.setdefault(name, []).append(value)
    return sections


def _run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout


def unit_is_one_that_systemd_takes(case):
    root = case.path("root")
    code, said = _run(f"{TOP}/deploy/systemd/install", "--root", root, case.binary("kvferryd"), case.binary("kvferry"))
    expect_equal((code, said), (0, ""), "deploy/systemd/install")
    unit = f"{root}/usr/lib/systemd/system/kvferryd.service"
    # Below a root of their own systemd-analyze wants the units of the system too.
    for directory in ("usr/lib/systemd/system", "usr/share/doc/kvferry"):
        expect(os.path.isdir(f"{root}/{directory}"), f"{directory} is not installed")
    with open(unit) as file:
        text = file.read().replace("/usr/bin/kvferryd", f"{root}/usr/bin/kvferryd")
    alone = case.path("kvferryd.service")
    with open(alone, "w") as file:
        file.write(text)
    code, said = _run("systemd-analyze", "verify", "--man=no", alone)
    expect_equal((code, said), (0, ""), "systemd-analyze verify")
    planted = case.path("planted.service")
    with open(planted, "w") as file:
        file.write(text.replace("LimitMEMLOCK=infinity", "LimitMEMLOCK=plenty"))
    expect(_run("systemd-analyze", "verify", "--man=no", planted)[1] != "", "systemd-analyze verify takes anything")
    code, said = _run("systemd-analyze", "security", "--offline=yes", "--threshold=25", alone)
    expect(code == 0, f"the unit is exposed: {said.splitlines()[-1]}")


def unit_waits_longer_than_a_drain(case):
    service = _sections(f"{TOP}/deploy/systemd/kvferryd.service")["Service"]
    with open(f"{TOP}/docs/flags.md") as file:
        drain_s = int(re.search(r"--drain-timeout-s N` \| (\d+) ", file.read())[1])
    expect(int(service["TimeoutStopSec"][0]) > drain_s + FORCED_S + 5, "TimeoutStopSec is too short for a drain")
    expect_equal(service["Type"], ["notify"], "Type")
    expect_equal(service["LimitMEMLOCK"], ["infinity"], "LimitMEMLOCK")
    allowed = set(_run("systemd-analyze", "syscall-filter", "@aio")[1].split())
    for call in ("io_uring_setup", "io_uring_enter", "io_uring_register"):
        expect(call in allowed or call in service["SystemCallFilter"][0], f"the unit forbids {call}")


def example_configuration_is_one_that_kvferryd_takes(case):
    """As it is, and with every line that is commented out."""
    with open(f"{TOP}/deploy/systemd/kvferryd.conf") as file:
        text = file.read()
    full = re.sub(r"(?m)^#(?=[a-z-]+ = )", "", text)
    expect(full != text, "no examples in it")
    for name, content in (("plain", text), ("full", full)):
        with open(case.path(name), "w") as file:
            file.write(content)
        case.run("kvferryd", "--run-dir", "run", "--config", name, "--check-config").must_end_with(0)


def _listen(case):
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    supervisor.bind(case.path("notify"))
    supervisor.settimeout(30)
    case.environment = dict(case.environment, NOTIFY_SOCKET=case.path("notify"))
    return supervisor


def _hear(supervisor):
    return dict(line.split("=", 1) for line in supervisor.recv(4096).decode().splitlines())


def supervisor_hears_ready_and_stopping(case):
    supervisor = _listen(case)
    a = case.daemon("a", ssd_mib=768, flags=["--drain-timeout-s", 100]).launch()
    told = _hear(supervisor)
    expect_equal(told["READY"], "1", "the first word")
    a.wait_ready()
    expect_equal(a.http("/readyz"), (200, "ok"), "/readyz")
    engine = case.engine(a)
    a.term()
    told = _hear(supervisor)
    expect_equal(told["STOPPING"], "1", "the word at SIGTERM")
    expect(int(told["EXTEND_TIMEOUT_USEC"]) >= (100 + FORCED_S) * 1000000, f"the time asked for is too short: {told}")
    expect(a.lives(), "it ended while an engine was there")
    engine.must("close")
    a.must_exit(0)


def supervisor_hears_nothing_of_a_start_that_fails(case):
    supervisor = _listen(case)
    case.run("kvferryd", "--run-dir", "run", "--ssd-path", "nowhere", "--ssd-capacity-mib", 768, "--http", "127.0.0.1:0").must_end_with(1)
    supervisor.settimeout(0.2)
    try:
        told = supervisor.recv(4096)
    except TimeoutError:
        told = b""
    expect_equal(told, b"", "what was told")


BOOTED = """
set -Eeuo pipefail
trap 'echo "not so: $BASH_COMMAND"; systemctl status kvferryd --no-pager -l' ERR
shown() { systemctl show kvferryd --value -p "$1"; }
is() { [ "$(shown "$1")" = "$2" ] || { echo "$1 is $(shown "$1"), not $2"; systemctl status kvferryd --no-pager -l; exit 1; }; }
client() { kvferry --run-dir /run/kvferry "$@"; }
becomes() { for _ in $(seq 300); do [ "$(shown "$1")" = "$2" ] && return; sleep 0.1; done; is "$1" "$2"; }

mkdir -p /var/lib/kvferry /out/drive && chown kvferry: /out/drive && mount --bind /out/drive /var/lib/kvferry
printf 'pool-mib = 256\nssd-path = /var/lib/kvferry\nssd-capacity-mib = 768\nnode-id = booted\n' >/etc/kvferry/kvferryd.conf

echo "-- a start returns when it serves, as its own user, without a capability"
systemctl start kvferryd
is ActiveState active
is StatusText "serving as node booted"
pid=$(shown MainPID)
grep -q '^CapEff:.0*$' /proc/$pid/status
[ "$(stat -c %U /proc/$pid)" = kvferry ]
# All that this host lets systemd give.
limit() { awk -v field=$2 '/^Max locked memory/ { print $field }' /proc/$1/limits; }
[ "$(limit $pid 4)" = unlimited ] || [ "$(limit $pid 4)" = "$(limit 1 5)" ]
head -c 5000000 /dev/urandom >/tmp/block
client put t/m k /tmp/block
client sync --durable
client evict --dram
client get t/m k -o /tmp/got
cmp /tmp/block /tmp/got/k
journalctl -u kvferryd --no-pager -o cat >/out/journal || true

echo "-- a reload is none of a start"
systemctl reload kvferryd
is MainPID $pid

echo "-- what dies comes back, with its blocks"
kill -KILL $pid
for _ in $(seq 300); do [ "$(shown MainPID)" != $pid ] && [ "$(shown ActiveState)" = active ] && break; sleep 0.1; done
is ActiveState active
rm /tmp/got/k
for _ in $(seq 100); do client get t/m k -o /tmp/got && break; sleep 0.1; done
cmp /tmp/block /tmp/got/k

echo "-- a drain by hand is an end in good order, and stays one"
client drain --wait
becomes ActiveState inactive
is Result success
sleep 3
is ActiveState inactive

echo "-- a stop waits for its engines, and ends well"
systemctl start kvferryd
systemctl stop kvferryd
is ActiveState inactive
is Result success
is ExecMainStatus 0

echo "-- what cannot be is not tried again"
echo 'pool-mib = none' >>/etc/kvferry/kvferryd.conf
if systemctl start kvferryd; then echo "a bad file was taken"; exit 1; fi
sleep 3
is ActiveState failed
is NRestarts 0
echo "-- all seen"
"""


def unit_does_its_work_under_systemd(case):
    """Booted in namespaces: hardening, users, limits and directories are the real ones."""
    out = case.path("out")
    os.makedirs(out)
    with open(f"{out}/script", "w") as file:
        file.write(BOOTED)
    done = subprocess.run([f"{TOP}/tests/deploy/boot", out, case.binary("kvferryd"), case.binary("kvferry"), "script"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if done.returncode == 77:
        raise Skipped(done.stdout.strip())
    with open(f"{out}/script.log", errors="replace") as file:
        log = file.read()
    expect(done.returncode == 0 and "-- all seen" in log, f"exit {done.returncode} {done.stdout}: {log[-3000:]}")
