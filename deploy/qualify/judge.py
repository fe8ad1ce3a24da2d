"""The verdict, from the raw files of a campaign alone: campaign.json and cells/. The runner calls the same functions after
each cell and at the end, so that `check` can never see it otherwise than `run` did."""

import json
import math
import os
import random
import re

import campaign as campaigns

PROMOTE, KEEP, INVALID = "promote", "keep", "invalid"
EXITS = {PROMOTE: 0, KEEP: 6, INVALID: 7}
GAUGES = ["query_bytes", "leases", "pinned_bytes", "ssd_reads", "ssd_writes", "dirty_bytes", "quarantine_bytes"]
SSD_GAUGES = ["ssd_reads", "ssd_writes"]
LOGS = ["source.log", "consumer.log", "engine.log", "evictor.log", "fill.log"]
# What no process that is well says. A daemon's log level is a word of its own in each line.
FINDING = re.compile(r"Traceback|Sanitizer|runtime error|assert|panic|core dumped|Segmentation|^\S+Z error ")
TIERS = ["dram", "ssd", "remote_dram", "remote_ssd"]
DRAWS = 2000
SEED = 20261


class Wrong(Exception):
    """A file that should be there is not, or is not what it should be."""


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise Wrong(f"{os.path.basename(path)}: {error.strerror}") from None


def _json(path):
    try:
        value = json.loads(_text(path))
    except ValueError:
        raise Wrong(f"{os.path.basename(path)} is no JSON") from None
    if not isinstance(value, dict):
        raise Wrong(f"{os.path.basename(path)} is no JSON object")
    return value


def _lines(path):
    values = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError:
            raise Wrong(f"{os.path.basename(path)}, line {number}: {line[:120]}") from None
        if not isinstance(value, dict):
            raise Wrong(f"{os.path.basename(path)}, line {number}: no JSON object")
        values.append(value)
    return values


def _number(value, *path):
    """A whole number at this path of a stat; Wrong where it is absent: absent is not 0."""
    at = value
    for name in path:
        if not isinstance(at, dict) or name not in at:
            raise Wrong(f"{'.'.join(path)} is absent")
        at = at[name]
    if not isinstance(at, int) or isinstance(at, bool):
        raise Wrong(f"{'.'.join(path)} is {at!r}, no whole number")
    return at


# ---- one cell ----


class CellFiles:
    """What one cell left, and every rule about it. `wrong` collects what is not as it must be."""

    def __init__(self, directory, campaign, plan):
        self.directory, self.campaign, self.plan = directory, campaign, plan
        self.wrong = []

    def path(self, name):
        return f"{self.directory}/{name}"

    def must(self, condition, text):
        if not condition:
            self.wrong.append(text)

    # ---- what was run ----

    def frozen(self):
        cell = _json(self.path("cell.json"))
        for name, value in self.plan.items():
            self.must(cell.get(name) == value, f"cell.json: {name} is {cell.get(name)!r}, the campaign has {value!r}")
        for role in campaigns.ROLES:
            got = cell.get("hashes", {}).get(role)
            self.must(got == self.campaign["hashes"], f"the programs at the {role} are not those that were frozen: {got}")

    def effective_flags(self):
        """What each daemon logged as its configuration is what the campaign says."""
        for role in campaigns.ROLES:
            said = dict(re.findall(r"([\w-]+)=(\S+)", " ".join(
                line for line in _text(self.path(f"{role}.log")).splitlines() if " info config: " in line)))
            for name, value in campaigns.flags(self.campaign, self.plan["side"], role).items():
                self.must(said.get(name) == str(value), f"{role}.log: {name} is {said.get(name)}, the campaign has {value}")

    def startup(self, samples):
        startup = _json(self.path("startup.json"))
        for role in campaigns.ROLES:
            outcome = startup.get(role)
            self.must(isinstance(outcome, dict) and outcome.get("ready") is True, f"the {role} daemon did not become ready: {outcome}")
        at = startup.get("at")
        self.must(isinstance(at, float) and all(at < sample["at"] for sample in samples),
                  "startup.json was not there before the first latency")

    # ---- restores ----

    def samples(self):
        samples = _lines(self.path("samples.jsonl"))
        bytes_each = self.plan["blocks"] * self.campaign["block_bytes"]
        for kind in ("warmup", "restore"):
            count = sum(sample.get("kind") == kind for sample in samples)
            self.must(count == self.plan[kind + "s"], f"{count} samples of kind {kind}, the campaign has {self.plan[kind + 's']}")
        self.must(len(samples) == self.plan["warmups"] + self.plan["restores"], f"{len(samples)} samples")
        for number, sample in enumerate(samples, 1):
            self.sample(f"restore {number}", sample, bytes_each)
            if self.wrong:
                break
        return samples

    def sample(self, what, sample, bytes_each):
        self.must(_number(sample, "mismatches") == 0, f"{what}: {sample['mismatches']} blocks with a wrong byte at the destination")
        self.must(_number(sample, "missing") == 0, f"{what}: {sample['missing']} blocks are missing ({sample.get('reason')})")
        self.must(_number(sample, "h2d_bytes") == bytes_each, f"{what}: {sample['h2d_bytes']} bytes were copied, not {bytes_each}")
        hits = {tier: _number(sample, "hits", tier) for tier in TIERS}
        self.must(hits["remote_ssd"] == self.plan["blocks"] and sum(hits.values()) == self.plan["blocks"],
                  f"{what}: not all blocks came from the source's SSD: {hits}")
        self.must(_number(sample, "get_ns") > 0 and _number(sample, "copy_ns") >= 0, f"{what}: times {sample}")
        self.must(isinstance(sample.get("at"), float), f"{what}: no time of day")

    # ---- counters ----

    def stats(self, samples):
        before = {role: _json(self.path(f"stat-{role}-before.json")) for role in campaigns.ROLES}
        after = {role: _json(self.path(f"stat-{role}-after.json")) for role in campaigns.ROLES}

        def grown(role, *path):
            return _number(after[role], *path) - _number(before[role], *path)

        restored = sum(sample["h2d_bytes"] for sample in samples)
        moved = {"copied to the destinations (H2D)": restored, "pull.bytes at the consumer": grown("consumer", "pull", "bytes"),
                 "serve.bytes at the source": grown("source", "serve", "bytes"),
                 "SSD payload bytes at the source": self.ssd_bytes(after["source"]) - self.ssd_bytes(before["source"])}
        self.must(len(set(moved.values())) == 1, f"bytes do not agree: {moved}")
        reads = {"pull.reads at the consumer": grown("consumer", "pull", "reads"), "serve.reads at the source": grown("source", "serve", "reads")}
        if self.plan["reads"]:
            wanted = self.plan["reads"] * len(samples)
            self.must(set(reads.values()) == {wanted}, f"Reads: {reads}, declared were {wanted} ({self.plan['reads']} a restore)")
        for role, path in (("consumer", ("pull", "misses")), ("source", ("serve", "busy"))):
            self.must(grown(role, *path) == 0, f"{'.'.join(path)} of the {role} grew by {grown(role, *path)}")
        for role in campaigns.ROLES:
            self.gauges(role, after[role])

    @staticmethod
    def ssd_bytes(stat):
        drives = stat.get("ssd")
        if not isinstance(drives, list) or not drives:
            raise Wrong("ssd of the source is absent")
        return sum(_number(drive, "read_payload_bytes") for drive in drives)

    def gauges(self, role, stat):
        """Present and 0, in the stat and in the last line of the log; a daemon without an SSD has none of the SSD's."""
        has_ssd = "ssd-capacity-mib" in campaigns.flags(self.campaign, self.plan["side"], role)
        last = (_text(self.path(f"{role}.log")).splitlines() or [""])[-1]
        said = dict(re.findall(r"(\w+)=(\d+)", last))
        for gauge in GAUGES:
            if gauge in SSD_GAUGES and not has_ssd:
                continue
            value = stat.get("drain", {}).get(gauge) if isinstance(stat.get("drain"), dict) else None
            self.must(value == 0 and not isinstance(value, bool),
                      f"drain gauge {gauge} of the {role} is {'absent' if value is None else value}")
            self.must(said.get(gauge) == "0", f"drain gauge {gauge} in the last log line of the {role} is {said.get(gauge, 'absent')}")

    # ---- ends ----

    def events(self):
        events = _lines(self.path("events.jsonl"))
        for event in events:
            self.must(event.get("what") != "failed", f"it ended early: {event.get('why')}")
        ends = {}
        for number, event in enumerate(events):
            if "exit" in event:
                ends[event.get("what")] = number
                self.must(event["exit"] == 0 and not isinstance(event["exit"], bool), f"{event.get('what')} ended with {event['exit']}")
        for what in ("fill", "evictor", "engine", "consumer", "source", "drain consumer", "drain source"):
            self.must(what in ends, f"the end of {what} was not seen")
        first, second = ("engine", "drain consumer") if self.plan["control"] != "manager" else ("consumer", "engine")
        self.must(ends.get(first, -1) < ends.get(second, -1), f"the order of shutdown is not {first}, then {second}")
        self.must(bool(events) and events[-1].get("what") == "done", "the cell did not run to its end")

    def engine(self):
        lines = _lines(self.path("engine.out"))
        last = lines[-1] if lines else {}
        self.must(last.get("unregistered") is True, f"the engine's last line does not say that it has unregistered: {last}")
        if self.plan["control"] != "manager":
            self.must(last.get("daemon_was_gone") is False, "the engine unregistered late: its Manager was gone already")
            self.must(last.get("ended") == "told", f"the engine ended by itself: {last.get('ended')}")
            self.must(re.search(r" draining \([^)]*\): 0 engines,", _text(self.path("consumer.log"))),
                      "the engine unregistered late: its Manager still had it when its drain began (consumer.log)")

    def logs(self):
        for name in LOGS:
            for line in _text(self.path(name)).splitlines():
                self.must(not FINDING.search(line), f"{name}: {line[:200]}")

    def judge(self):
        """Everything that is wrong; what cannot be judged because of it is left out."""
        samples = []
        for step in (self.frozen, self.events, self.logs, self.effective_flags, self.engine):
            self._try(step)
        if not self.wrong:
            self._try(lambda: samples.extend(self.samples()))
        if not self.wrong:
            self._try(lambda: self.startup(samples))
        if not self.wrong:
            self._try(lambda: self.stats(samples))
        return self.wrong

    def _try(self, step):
        try:
            step()
        except Wrong as error:
            self.wrong.append(str(error))


def judge_cell(directory, campaign, plan):
    """[] when the cell counts, else why it does not."""
    return CellFiles(directory, campaign, plan).judge()


def transports(directory):
    """What the cell's blocks came over; Wrong where the consumer does not say."""
    received = []
    for when in ("before", "after"):
        lanes = _json(f"{directory}/stat-consumer-{when}.json").get("lanes")
        if not isinstance(lanes, list) or not all(isinstance(lane, dict) for lane in lanes):
            raise Wrong("lanes of the consumer are absent")
        received.append({lane.get("transport"): _number(lane, "received_bytes") for lane in lanes})
    return {name for name, count in received[1].items() if count > received[0].get(name, 0)}


def times_ms(directory):
    """The measured restores: get and copy, in their order."""
    return [(sample["get_ns"] + sample["copy_ns"]) / 1e6 for sample in _lines(f"{directory}/samples.jsonl") if sample["kind"] == "restore"]


# ---- statistics ----


def quantile(values, fraction):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _mean_ratio(ratios):
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))


# 97.5 % quantiles of Student's t by degrees of freedom; beyond the table its last value, a little too wide.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]


def _student(ratios):
    """The 95 % interval of the geometric mean by what the pairs differ among themselves."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1) / len(logs))
    reach = STUDENT[min(len(logs) - 2, len(STUDENT) - 1)] * spread
    return math.exp(max(mean - reach, -50)), math.exp(min(mean + reach, 50))


def compare(pairs):
    """pairs: [(baseline times, candidate times)], two or more. Ratios of medians per pair with a bootstrap interval each, their
    geometric mean, and its 95 % interval: the wider, on either side, of a bootstrap that draws pairs, and times within each, anew,
    and of Student's t over the pairs. With three pairs the bootstrap alone would see a gain by chance one time in eight. The same
    samples always give the same numbers."""
    chance = random.Random(SEED)

    def drawn(pair):
        baseline, candidate = (median(chance.choices(times, k=len(times))) for times in pair)
        return candidate / baseline

    ratios = [median(candidate) / median(baseline) for baseline, candidate in pairs]
    draws = sorted(_mean_ratio([drawn(chance.choice(pairs)) for _ in pairs]) for _ in range(DRAWS))
    each = [sorted(drawn(pair) for _ in range(DRAWS)) for pair in pairs]
    low, high = DRAWS // 40, DRAWS - 1 - DRAWS // 40
    least, most = _student(ratios)
    return {"ratio": _mean_ratio(ratios), "low": min(draws[low], least), "high": max(draws[high], most),
            "pairs": [{"ratio": ratio, "low": own[low], "high": own[high]} for ratio, own in zip(ratios, each)]}


# ---- the campaign ----


def load(directory):
    """The frozen campaign, or Wrong."""
    frozen = _json(f"{directory}/campaign.json")
    hashes = frozen.pop("hashes", None)
    frozen.pop("frozen_at", None)
    if not isinstance(hashes, dict) or set(hashes) != {"kvferryd", "kvferry"}:
        raise Wrong("campaign.json has no hashes of the programs")
    try:
        return {**campaigns.check(frozen), "hashes": hashes}
    except campaigns.Bad as error:
        raise Wrong(f"campaign.json: {error}") from None


def _payload(directory, campaign, at):
    """Ratios and latencies of one payload whose cells all count."""
    plans = {(plan["pair"], plan["side"]): plan for plan in campaigns.cells(campaign) if plan["payload"] == at}
    times = {key: times_ms(f"{directory}/cells/{plan['directory']}") for key, plan in plans.items()}
    pairs = [(times[pair, "baseline"], times[pair, "candidate"]) for pair in range(campaign["pairs"])]
    result = {"blocks": campaign["payloads"][at]["blocks"], "reads": campaign["payloads"][at]["reads"], **compare(pairs)}
    for side in campaigns.SIDES:
        joined = [value for pair in range(campaign["pairs"]) for value in times[pair, side]]
        result[side] = {"samples": len(joined), "p50_ms": median(joined), "p99_ms": quantile(joined, 0.99)}
    result["p99_is_descriptive"] = result["baseline"]["samples"] < 1000
    return result


def _decide(campaign, payloads):
    """(verdict, reasons): promote what costs nothing anywhere and gains somewhere."""
    reasons, gains, losses = [], False, False
    for payload in payloads:
        said = f"{payload['blocks']} blocks: ratio of medians {payload['ratio']:.3f} ({payload['low']:.3f} to {payload['high']:.3f})"
        if payload["ratio"] > campaign["guard"]:
            losses = True
            reasons.append(f"{said}: above the guard of {campaign['guard']:g}")
        elif payload["high"] < 1:
            gains = True
            reasons.append(f"{said}: a stable gain")
        else:
            reasons.append(f"{said}: within the guard of {campaign['guard']:g}, no stable gain")
    return (PROMOTE if gains and not losses else KEEP), reasons


def judge(directory):
    """{verdict, exit, reasons, payloads}"""
    def invalid(*reasons):
        return {"verdict": INVALID, "exit": EXITS[INVALID], "reasons": list(reasons), "payloads": []}

    try:
        campaign = load(directory)
    except Wrong as error:
        return invalid(str(error))
    plans = campaigns.cells(campaign)
    try:
        present = set(os.listdir(f"{directory}/cells"))
    except OSError:
        return invalid("there are no cells")
    strange = present - {plan["directory"] for plan in plans}
    if strange:
        return invalid(f"cells that the campaign does not have: {', '.join(sorted(strange))}")
    for number, plan in enumerate(plans):
        if plan["directory"] not in present:
            return invalid(f"cell {plan['directory']} and {len(plans) - number - 1} more were not run")
        wrong = judge_cell(f"{directory}/cells/{plan['directory']}", campaign, plan)
        if wrong:
            return invalid(*[f"cell {plan['directory']}: {text}" for text in wrong])
    try:
        for side in campaigns.SIDES:
            used = set().union(*[transports(f"{directory}/cells/{plan['directory']}") for plan in plans if plan["side"] == side])
            if len(used) != 1:
                return invalid(f"the blocks of the {side} came over {', '.join(sorted(used)) or 'nothing'}: give flags one transport")
    except Wrong as error:
        return invalid(str(error))
    payloads = [_payload(directory, campaign, at) for at in range(len(campaign["payloads"]))]
    verdict, reasons = _decide(campaign, payloads)
    return {"verdict": verdict, "exit": EXITS[verdict], "reasons": reasons, "payloads": payloads}
