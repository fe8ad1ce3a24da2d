"""One cell: two fresh daemons, an engine, its restores, and both orders of going away. Everything that is seen is written
down as it comes; nothing is judged here (judge.py does, from the files alone)."""

import json
import os
import subprocess
import time

import campaign as campaigns
from hosts import Lines, Unreachable

READY_S = 180      # a large pool takes a while to be pinned
ENGINE_END_S = 10  # an engine that was told to end has unregistered by then
DAEMON_END_S = 90  # above kvferryd's default --drain-timeout-s
GAUGES_S = 10
MEET_S = 30        # a firewall, or a name that does not resolve, shows at once; a busy host may need more than one try
GREETING = ("bench/meet", "hello")
EVICT_LOOP = 'while read -r _; do "$0" --run-dir "$1" evict --dram >/dev/null && echo evicted || echo failed; done'


class Stop(Exception):
    """The cell cannot go on; events.jsonl says so, and the judge will."""


class Cell:
    def __init__(self, pair, campaign, plan, directory):
        self.pair, self.campaign, self.plan, self.directory = pair, campaign, plan, directory
        self.daemons = {}
        self.files = []
        os.makedirs(directory)

    # ---- writing down ----

    def write(self, name, value):
        path = f"{self.directory}/{name}"
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
        os.replace(path + ".part", path)

    def event(self, what, **more):
        with open(f"{self.directory}/events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.time(), "what": what, **more}) + "\n")

    def stop(self, why):
        self.event("failed", why=why)
        raise Stop(why)

    def log(self, name):
        file = open(f"{self.directory}/{name}", "ab")
        self.files.append(file)
        return file

    # ---- commands of a host ----

    def program(self, role, name):
        return f"{self.pair[role].work}/bin/{name}"

    def run_dir(self, role):
        return f"{self.pair[role].work}/cell/run"

    def ferry(self, role, *words):
        return [self.program(role, "kvferry"), "--run-dir", self.run_dir(role), *words]

    def bench_words(self):
        return ["--block-bytes", self.campaign["block_bytes"], "--blocks", self.plan["blocks"], "--seed", self.campaign["seed"],
                "--timeout-s", self.campaign["timeout_s"]]

    # ---- daemons ----

    def arguments(self, role):
        host = self.pair[role]
        words = ["--node-id", role, "--run-dir", self.run_dir(role), "--http", "127.0.0.1:0", *self.pair.trust_flags(role)]
        flags = campaigns.flags(self.campaign, self.plan["side"], role)
        if role == "source":
            words += ["--listen", f"{host.address}:{host.port}"]
        if "ssd-capacity-mib" in flags:
            words += ["--ssd-path", f"{host.work}/cell/ssd"]
        for name, value in flags.items():
            words += [f"--{name}", value]
        return [str(word) for word in words]

    def launch(self, role):
        host = self.pair[role]
        host.must(["sh", "-c", 'rm -rf "$1" && mkdir -p "$1/ssd"', "sh", f"{host.work}/cell"])
        log = self.log(f"{role}.log")
        self.daemons[role] = host.start("daemon", [self.program(role, "kvferryd"), *self.arguments(role)],
                                        subprocess.DEVNULL, log, log)

    def is_ready(self, role):
        with open(f"{self.directory}/{role}.log", errors="replace", encoding="utf-8") as file:
            return "READY:" in file.read()

    def start_daemons(self):
        """Both, and what came of it: startup.json is there before any latency is."""
        began, outcome = time.time(), {}
        for role in campaigns.ROLES:
            self.launch(role)
        while len(outcome) < 2 and time.time() - began < READY_S:
            for role in campaigns.ROLES:
                if role in outcome:
                    continue
                exit_status = self.daemons[role].poll()
                if exit_status is not None or self.is_ready(role):
                    outcome[role] = {"ready": exit_status is None, "seconds": round(time.time() - began, 3), "exit": exit_status}
            time.sleep(0.05)
        for role in campaigns.ROLES:
            outcome.setdefault(role, {"ready": False, "seconds": READY_S, "exit": None})
        self.write("startup.json", {"at": time.time(), **outcome})
        for role, got in outcome.items():
            if not got["ready"]:
                self.stop(f"the {role} daemon did not become ready (see {role}.log)")

    def stat(self, role, name):
        """The daemon's own words, as they are; parsed for those who look on."""
        code, out, err = self.pair[role].run(self.ferry(role, "stat", "--json"))
        with open(f"{self.directory}/{name}", "w", encoding="utf-8") as file:
            file.write(out)
        if code != 0:
            self.stop(f"stat of the {role} ended with {code}: {err.strip()}")
        try:
            return json.loads(out)
        except ValueError:
            self.stop(f"stat of the {role} is no JSON")

    def stats_before(self):
        for role in campaigns.ROLES:
            self.stat(role, f"stat-{role}-before.json")

    def stats_after(self):
        """Once the gauges are at 0, or when they had time enough to be."""
        until = time.time() + GAUGES_S
        for role in campaigns.ROLES:
            while True:
                drain = self.stat(role, f"stat-{role}-after.json").get("drain", {})
                if not any(drain.values()) or time.time() > until:
                    break
                time.sleep(0.2)

    def end_daemon(self, role):
        code, out, err = self.pair[role].run(self.ferry(role, "drain", "--wait", "--timeout-s", DAEMON_END_S), seconds=DAEMON_END_S + 30)
        self.event(f"drain {role}", exit=code, said=(out + err).strip())
        try:
            self.event(role, exit=self.daemons[role].wait(DAEMON_END_S))
        except subprocess.TimeoutExpired:
            self.stop(f"the {role} daemon still ran {DAEMON_END_S} s after its drain")

    # ---- the engine ----

    def fill(self):
        code, out, err = self.pair["source"].run(self.ferry("source", "bench", "fill", *self.bench_words()), seconds=600)
        with self.log("fill.log") as file:
            file.write((out + err).encode())
        self.event("fill", exit=code)
        if code != 0:
            self.stop(f"the blocks could not be put at the source: {err.strip()}")

    def meet(self):
        """A block of its own, before anything counts: whether the two reach each other is said here, in words, and no restore
        pays for the first handshake."""
        source = self.pair["source"]
        code, _, err = source.run(self.ferry("source", "put", *GREETING, "-"), b"hello")
        if code != 0:
            self.stop(f"no block can be put at the source: {err.strip()}")
        words = self.ferry("consumer", "get", *GREETING, "-o", "-", "--source", f"{source.address}:{source.port}")
        until = time.time() + MEET_S
        while True:
            code, out, err = self.pair["consumer"].run(words)
            if code == 0 and out == "hello":
                return
            if time.time() > until:
                self.stop(f"the consumer got nothing from the source in {MEET_S} s: {err.strip() or repr(out)}")
            time.sleep(0.5)

    def start_engine(self):
        source = self.pair["source"]
        words = self.ferry("consumer", "bench", "engine", "--source", f"{source.address}:{source.port}", *self.bench_words())
        return self._lines("consumer", "engine", words)

    def start_evictor(self):
        """Empties the source's DRAM whenever it is told, so that each restore begins at the SSD."""
        return self._lines("source", "evictor", ["sh", "-c", EVICT_LOOP, self.program("source", "kvferry"), self.run_dir("source")])

    def _lines(self, role, name, words):
        process = self.pair[role].start(name, words, subprocess.PIPE, subprocess.PIPE, self.log(f"{name}.log"))
        return Lines(process, f"{self.directory}/{name}.out")

    def hear(self, lines, what, seconds):
        try:
            line = lines.line(seconds)
        except TimeoutError:
            self.stop(f"{what}: nothing came for {seconds} s")
        if line is None:
            self.stop(f"{what}: it ended")
        return line

    def tell(self, lines, what, text):
        try:
            lines.tell(text)
        except OSError:
            self.stop(f"{what}: it ended")

    def restore(self, engine, evictor):
        self.tell(evictor, "evict --dram at the source", "go")
        if self.hear(evictor, "evict --dram at the source", 60) != "evicted":
            self.stop("evict --dram at the source failed (see evictor.log)")
        self.tell(engine, "the engine", "restore")
        line = self.hear(engine, "the engine", self.campaign["timeout_s"] + 30)
        try:
            return json.loads(line)
        except ValueError:
            self.stop(f"the engine said: {line[:200]}")

    def restores(self, engine, evictor):
        count = self.plan["warmups"] + self.plan["restores"]
        with open(f"{self.directory}/samples.jsonl", "w", encoding="utf-8") as file:
            for number in range(count):
                sample = self.restore(engine, evictor)
                kind = "warmup" if number < self.plan["warmups"] else "restore"
                file.write(json.dumps({"kind": kind, "at": time.time(), **sample}) + "\n")
                file.flush()
                if sample.get("missing") or sample.get("mismatches"):
                    self.stop(f"restore {number + 1}: {sample.get('missing')} blocks missing, {sample.get('mismatches')} wrong")

    def end_lines(self, what, lines):
        exit_status = lines.end(ENGINE_END_S)
        if exit_status is None:
            self.stop(f"the {what} had not ended {ENGINE_END_S} s after it was told to: an engine must unregister before its Manager ends")
        self.event(what, exit=exit_status)

    # ---- the whole ----

    def run(self):
        self.write("cell.json", {**self.plan, "hashes": {role: self.pair[role].hashes() for role in campaigns.ROLES},
                                 "arguments": {role: self.arguments(role) for role in campaigns.ROLES}})
        self.start_daemons()
        self.meet()
        self.fill()
        self.stats_before()
        engine, evictor = self.start_engine(), self.start_evictor()
        if self.hear(engine, "the engine", 30) != '{"registered": true}':
            self.stop("the engine did not register (see engine.log)")
        self.event("engine registered")
        self.restores(engine, evictor)
        self.end_lines("evictor", evictor)
        if self.plan["control"] == "manager":
            self.stats_after()
            for role in campaigns.ROLES:
                self.end_daemon(role)
            self.end_lines("engine", engine)
        else:
            self.end_lines("engine", engine)
            self.stats_after()
            for role in campaigns.ROLES[::-1]:
                self.end_daemon(role)
        self.event("done")

    def close(self):
        for role in campaigns.ROLES:
            host = self.pair[role]
            host.end_processes()
            host.run(["rm", "-rf", f"{host.work}/cell"])
        for file in self.files:
            file.close()


def run(pair, campaign, plan, directory):
    """None, or why the cell ended early. What the cell is worth is the judge's word, whatever is returned."""
    cell = Cell(pair, campaign, plan, directory)
    try:
        cell.run()
        return None
    except Stop as error:
        return str(error)
    except Unreachable as error:
        cell.event("failed", why=str(error))
        return str(error)
    finally:
        cell.close()
