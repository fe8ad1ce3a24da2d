"""The status page, as a browser shows it, beside what `stat` says."""

import contextlib
import json
import os

from browser import Browser
from harness import expect, expect_equal

MIB = 1 << 20
NS = "tenant/model"


@contextlib.contextmanager
def _browser(case):
    browser = Browser(case)
    try:
        yield browser
    finally:
        browser.close()


def _looks(browser):
    return int(browser.script("return document.body.dataset.looks || 0"))


def _open(case, browser, daemon, width, height, **options):
    browser.open(f"http://127.0.0.1:{daemon.http_port}/", width, height, **options)
    case.eventually(20, "the page has looked", lambda: _looks(browser) >= 1)


def _see(case, browser, selector, *words):
    case.eventually(20, f"{selector} shows {words}", lambda: all(word in browser.text(selector) for word in words),
                    lambda: browser.text(selector))


def _pulled(case):
    """Two daemons after a pull of 12 blocks of 1 MiB from a's SSD, and one key that nobody has."""
    a, b = case.pair(a_flags=["--ssd-io-kib", 256])
    keys, paths = case.files(12, MIB)
    case.put_files(a, NS, keys, paths)
    a.settle()
    b.get(NS, *keys, source=a)
    b.get(NS, "nobody-has-it", source=a, code=4, timeout_s=5)
    return a, b


def page_shows_what_stat_says(case):
    a, b = _pulled(case)
    with _browser(case) as browser:
        _open(case, browser, b, 1280, 1000)
        stat = b.stat()
        _see(case, browser, "#node", "b")
        _see(case, browser, "#state", "READY")
        _see(case, browser, "#throughput", f"{stat['pull']['reads']} Reads, 12.0 MiB")
        _see(case, browser, "#tiers", "SSD of a source 12", "Missing 1")
        _see(case, browser, "#budgets", "Pool 512 MiB", "All Gets and Reads")
        _see(case, browser, "#sources", a.source, "tenant")
        _see(case, browser, "#recent", "no ACL: any tenant name is accepted")
        expect_equal(browser.script("return getComputedStyle(document.getElementById('drives-card')).display"), "none",
                     "a card of drives that are not there")
        before = _looks(browser)
        b.get(NS, "k0", "k1", "k2")
        case.eventually(20, "the page looks again", lambda: _looks(browser) > before + 1)
        _see(case, browser, "#tiers", "DRAM here 3", "SSD of a source 12")
        expect("MB/s" in browser.text("#throughput"), "no rates after two looks")
        expect_equal(browser.screenshot("page.png"), (1280, browser.script("return innerHeight")), "the screenshot's size")
        expect_equal(browser.complaints(), [], "complaints of the browser")
        _open(case, browser, a, 1280, 1000)
        _see(case, browser, "#consumers", "tenant", "open")
        _see(case, browser, "#drives", f"{a.name}/ssd", "ok", "12.0 MiB")
        _see(case, browser, "#throughput", "Read from SSD", "Served 1 Reads, 12.0 MiB")
        browser.screenshot("page-source.png")
        expect_equal(browser.complaints(), [], "complaints of the browser")


def page_on_a_phone_needs_no_sideways_scrolling(case):
    a, _b = _pulled(case)
    with _browser(case) as browser:
        _open(case, browser, a, 375, 812, phone=True)
        _see(case, browser, "#drives", "ok")
        expect_equal(browser.script("return [innerWidth, document.documentElement.scrollWidth]"), [375, 375], "widths")
        small = browser.script("""return [...document.querySelectorAll("main *")].filter(one => one.childElementCount === 0 &&
            one.textContent.trim() && parseFloat(getComputedStyle(one).fontSize) < 12).map(one => one.textContent)""")
        expect_equal(small, [], "text that is too small")
        expect_equal(browser.screenshot("page-phone.png"), (750, 1624), "the screenshot's size")


def page_tells_of_a_drain_and_then_of_silence(case):
    a = case.start(case.daemon("a", ssd_mib=768, flags=["--drain-timeout-s", 40]))
    engine = case.engine(a)
    with _browser(case) as browser:
        _open(case, browser, a, 1000, 800)
        _see(case, browser, "#open", "Engines 1", "Drain timeout 40 s")
        a.term()
        _see(case, browser, "#state", "DRAINING")
        _see(case, browser, "#notice", "waits for 1 engine that has not unregistered", "forced in")
        browser.screenshot("page-drain.png")
        engine.must("close")
        a.must_exit(0)
        _see(case, browser, "#state", "no answer")
        _see(case, browser, "#notice", "does not answer")


def page_shows_warnings_and_foreign_names_as_text(case):
    """A path is text, whatever it is called."""
    name = "<b id=planted>x</b>"
    a = case.daemon("a", ssd_mib=768)
    drive = case.path(f"a/{name.replace('/', '')}")
    os.makedirs(drive)
    a.flags += ["--nics", "mlx5_0", "--ssd-path", drive]
    case.start(a)
    with _browser(case) as browser:
        _open(case, browser, a, 1000, 800)
        _see(case, browser, "#drives", "<b id=planted>x<b>")
        _see(case, browser, "#recent", "--nics chooses nothing")
        expect_equal(browser.script("return document.getElementById('planted')"), None, "a planted element")
        expect_equal(browser.complaints(), [], "complaints of the browser")


def page_document_is_what_stat_says(case):
    a, b = _pulled(case)
    for daemon in (a, b):
        daemon.gauges_return_to_zero()
        status, text = daemon.http("/status.json")
        expect_equal(status, 200, "/status.json")
        found = json.loads(text)
        expect_equal(found["stat"], daemon.stat(), "stat in /status.json")
        limits = {one["name"]: one["limit_bytes"] // MIB for one in found["budgets"]}
        expect_equal([limits[name] for name in ("dirty", "pull", "instance", "identity")], [128, 192, 144, 144], "limits in MiB")
        expect(limits["serve"] >= 192 and limits["query"] >= 384, f"limits in MiB: {limits}")
        peaks = {one["name"]: one["peak_bytes"] for one in found["budgets"]}
        expect_equal(peaks["query"], daemon.stat()["query"]["peak_bytes"], "the query budget's peak")
    expect_equal(json.loads(a.http("/status.json")[1])["consumers"]["count"], 1, "consumers of a")
    expect_equal([one["who"] for one in json.loads(b.http("/status.json")[1])["sources"]["rows"]], [a.source], "sources of b")
