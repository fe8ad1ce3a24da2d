"""Dashboard and alert rules, with the real Prometheus of Debian beside real daemons."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

from harness import die_with_parent, expect, expect_equal, free_port
from runner import TOP

HERE = os.path.dirname(os.path.abspath(__file__))
DASHBOARD = f"{TOP}/deploy/monitoring/dashboard.json"
RULES = f"{TOP}/deploy/monitoring/alerts.yaml"
MIB = 1 << 20
NS = "tenant/model"
NAME = re.compile(r"\bkvferry_[a-z0-9_]+")
LABELS = re.compile(r'(kvferry_[a-z0-9_]+)\{([^}]*)\}')


def _promtool(*words):
    done = subprocess.run(["promtool", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


def rules_are_ones_that_prometheus_takes(case):
    code, said = _promtool("check", "rules", RULES)
    expect(code == 0 and "SUCCESS" in said, f"promtool check rules: {said}")


def rules_fire_when_they_should_and_only_then(case):
    """alerts_test.yaml has a history for each rule; none is without one."""
    shutil.copy(RULES, case.path("alerts.yaml"))
    shutil.copy(f"{HERE}/alerts_test.yaml", case.path("alerts_test.yaml"))
    code, said = _promtool("test", "rules", case.path("alerts_test.yaml"))
    expect(code == 0 and "SUCCESS" in said, f"promtool test rules: {said}")
    with open(RULES) as rules, open(f"{HERE}/alerts_test.yaml") as tests:
        named, tested = re.findall(r"- alert: (\w+)", rules.read()), re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n\s+- ", tests.read())
    expect_equal(sorted(set(tested)), sorted(named), "rules that a test shows firing")


# ---- with daemons ----


class _Prometheus:
    def __init__(self, case, *daemons):
        self.case, self.port = case, free_port()
        targets = ", ".join(f"'127.0.0.1:{daemon.http_port}'" for daemon in daemons)
        with open(case.path("prometheus.yaml"), "w") as file:
            file.write(f"global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: ['{RULES}']\n"
                       f"scrape_configs: [{{job_name: kvferry, static_configs: [{{targets: [{targets}]}}]}}]\n")
        with open(case.path("prometheus.log"), "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={case.path('prometheus.yaml')}", f"--storage.tsdb.path={case.path('tsdb')}",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log, preexec_fn=die_with_parent)
        try:
            case.eventually(60, "Prometheus has scraped every daemon", lambda: self._scraped(len(daemons)))
        except BaseException:
            self.close()
            raise

    def ask(self, path, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        """[(labels, value)]"""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=expression)["result"]]

    def value(self, expression):
        found = self.query(expression)
        expect(len(found) == 1, f"{expression} gives {found}")
        return found[0][1]

    def _scraped(self, count):
        expect(self.process.poll() is None, "Prometheus ended")
        try:
            # Twice each: rates need two.
            return len([1 for _, value in self.query("count_over_time(up[30s]) >= 3 and up == 1") if value >= 3]) == count
        except OSError:
            return False

    def close(self):
        self.process.terminate()
        self.process.wait(30)


@contextlib.contextmanager
def _monitored(case):
    """a and b after a pull, c with a tenant that has a share; and Prometheus."""
    a, b = case.pair(a_flags=["--ssd-io-kib", 256])
    with open(case.path("acl"), "w") as file:
        json.dump({"tenants": {"tenant": {"dram": 0.5, "ssd": 0.5}}, "identities": {f"uid:{os.getuid()}": {"tenant": ["read", "write"]}}},
                  file)
    c = case.start(case.daemon("c", ssd_mib=1280, acl="acl"))
    keys, paths = case.files(12, MIB + 5000)
    case.put_files(a, NS, keys, paths)
    case.put_files(c, NS, keys[:3], paths)
    a.run("put", NS, "k0", paths[0])
    a.settle()
    b.get(NS, *keys, source=a)
    b.get(NS, *keys[:4])
    b.get(NS, "nobody-has-it", source=a, code=4, timeout_s=5)
    c.must("sync", "--durable")
    for daemon in (a, b, c):
        daemon.gauges_return_to_zero()
    prometheus = _Prometheus(case, a, b, c)
    try:
        yield prometheus, a, b, c
    finally:
        prometheus.close()


def _rows():
    """(metric, meaning) of docs/stat.md's second table."""
    with open(f"{TOP}/docs/stat.md") as file:
        page = file.read()
    return re.findall(r"^\| `kvferry_(\w+)` \| \w+ \| [^|]+ \| (.+) \|$", page[page.index("## `/metrics`"):], re.M)


def _of_stat(stat, meaning):
    """{label text: value} that docs/stat.md says a metric has, from stat; None: the page names no key of stat."""
    if found := re.fullmatch(r"`([\w.]+)`", meaning):
        value = stat
        for word in found[1].split("."):
            if not isinstance(value, dict) or word not in value:
                return {}
            value = value[word]
        return {"": value}
    if found := re.fullmatch(r"`(\w+)` of all drives", meaning):
        return {"": sum(drive[found[1]] for drive in stat.get("ssd", []))}
    if found := re.fullmatch(r"by `path`: `(\w+)`", meaning):
        return {f'path="{drive["path"]}"': int(drive[found[1]]) for drive in stat.get("ssd", [])}
    if found := re.fullmatch(r"by `tenant`: `(\w+)`", meaning):
        return {f'tenant="{name}"': one[found[1]] for name, one in stat.get("tenants", {}).items() if found[1] in one}
    if meaning.startswith("by `class`: "):
        return {f'class="{name}"': stat["pool"][name] for name in re.findall(r"`pool\.(\w+)`", meaning)}
    return None


def prometheus_says_what_stat_says(case):
    with _monitored(case) as (prometheus, *daemons):
        compared, moved = 0, set()
        for daemon in daemons:
            stat = daemon.stat()
            for name, meaning in _rows():
                for label, wanted in (_of_stat(stat, meaning) or {}).items():
                    where = f'instance="127.0.0.1:{daemon.http_port}"' + (f",{label}" if label else "")
                    got = prometheus.value(f"kvferry_{name}{{{where}}}")
                    expect_equal(got, float(wanted), f"{name} {label} of {daemon.name}")
                    compared += 1
                    moved |= {name} if wanted else set()
        expect(compared >= 100, f"only {compared} values were compared")
        for name in ("pull_reads_total", "serve_bytes_total", "ssd_read_sqes_total", "query_peak_bytes", "tenant_ssd_bytes"):
            expect(name in moved, f"{name} is 0 everywhere: nothing was compared")


def _families(*daemons):
    return {name for daemon in daemons for name in re.findall(r"^# TYPE (\w+) ", daemon.http("/metrics")[1], re.M)}


def _expressions():
    with open(DASHBOARD) as file:
        panels = json.load(file)["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def dashboard_shows_what_is_there(case):
    """Every panel gives numbers, every name and label is one of a daemon's, and every metric of a daemon is shown or known
    to be of no use in a picture."""
    unseen = {"kvferry_boot_epoch", "kvferry_read_batch_mib", "kvferry_pull_blocks_total", "kvferry_pull_misses_total",
              "kvferry_serve_blocks_total", "kvferry_pool_bytes", "kvferry_index_blocks", "kvferry_ssd_read_sets_total",
              "kvferry_ssd_read_sqes_total", "kvferry_ssd_registrations_total", "kvferry_ssd_write_syncs_total",
              "kvferry_ssd_carried_blocks_total", "kvferry_ssd_carries_failed_total"}
    with _monitored(case) as (prometheus, *daemons):
        families = _families(*daemons)
        used = set()
        for title, expression in _expressions():
            used |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(expression)}
            expression = expression.replace("$instance", ".+").replace("$__rate_interval", "20s")
            expect("$" not in expression, f"{title}: a variable that nobody sets: {expression}")
            found = prometheus.query(expression)
            expect(found, f"{title}: {expression} gives nothing")
            expect(all(not math.isinf(value) for _, value in found), f"{title}: {expression} gives {found}")
        expect_equal(used - families, set(), "metrics of the dashboard that no daemon has")
        expect_equal(families - used - unseen, set(), "metrics that the dashboard does not show")
        expect_equal(unseen - families, set(), "metrics that are gone")


def alerts_name_what_is_there_and_are_quiet(case):
    with open(RULES) as file:
        text = file.read()
    with _monitored(case) as (prometheus, *daemons):
        families = _families(*daemons)
        expect_equal(set(NAME.findall(text)) - families, set(), "metrics of the rules that no daemon has")
        for name, matchers in LABELS.findall(text):
            for label, value in re.findall(r'(\w+)!?="([^"]*)"', matchers):
                expect(prometheus.query(f'{name}{{{label}="{value}"}}'), f"no daemon has {name}{{{label}={value}}}")
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        case.eventually(20, "the rules are judged", lambda: all(
            rule["health"] == "ok" for group in prometheus.ask("rules")["groups"] for rule in group["rules"]))
        expect(len(rules) == len(re.findall("- alert:", text)), "Prometheus does not have every rule")
        expect_equal(prometheus.ask("alerts")["alerts"], [], "alerts of healthy daemons")
        for rule in rules:
            expect(rule["annotations"].keys() >= {"summary", "description"}, f"{rule['name']} does not say what to do")
