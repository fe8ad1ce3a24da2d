"""report.html: one file without anything from elsewhere, its plots inline SVG. It shows what judge.py found and adds no
judgement of its own; of an invalid campaign it shows what there is."""

import html
import json
import math
import os

import campaign as campaigns
import judge

BASELINE, CANDIDATE = "#5b6b7f", "#c2571a"
COLOURS = {"baseline": BASELINE, "candidate": CANDIDATE}
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2430; background: #fff; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #d6dbe2; }
.verdict { display: inline-block; padding: .15rem .7rem; border-radius: .3rem; color: #fff; font-weight: 600; }
.promote { background: #23733b; } .keep { background: #5b6b7f; } .invalid { background: #a3231f; }
table { border-collapse: collapse; font-size: .85rem; } td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #e6e9ee; }
td:first-child, th:first-child { text-align: left; } .wide { overflow-x: auto; } code, pre { font-size: .8rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f6f8; padding: .5rem; border-radius: .3rem; }
svg { width: 100%; height: auto; max-width: 46rem; } svg text { font: 12px system-ui, sans-serif; fill: #1d2430; }
.key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; vertical-align: middle; }
"""


def _e(text):
    return html.escape(str(text))


class Axis:
    """A linear scale with round ticks."""

    def __init__(self, low, high, start, end):
        span = (high - low) or abs(high) or 1
        self.low, self.high, self.start, self.end = low - 0.05 * span, high + 0.05 * span, start, end

    def at(self, value):
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        rough = (self.high - self.low) / 6
        step = 10 ** math.floor(math.log10(rough))
        step *= next(factor for factor in (1, 2, 5, 10) if step * factor >= rough)
        first = math.ceil(self.low / step)
        return [round(step * number, 10) for number in range(first, math.floor(self.high / step) + 1)]


def _line(x1, y1, x2, y2, colour="#1d2430", width=1, dash=""):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _text(x, y, text, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_e(text)}</text>'


def _svg(width, height, label, parts):
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_e(label)}">{"".join(parts)}</svg>'


def _x_axis(axis, y, height, unit):
    parts = [_line(axis.start, y, axis.end, y)]
    for tick in axis.ticks():
        parts += [_line(axis.at(tick), y - height, axis.at(tick), y, "#e6e9ee"), _line(axis.at(tick), y, axis.at(tick), y + 4),
                  _text(axis.at(tick), y + 18, f"{tick:g}", "middle")]
    return parts + [_text(axis.end, y + 34, unit, "end")]


# ---- plots ----


def plot_ratios(payload, guard):
    """Each pair's ratio of medians with its interval, and all of them together, cut at the picture's edge; 1 and the guard as
    lines."""
    rows = [(f"pair {number}", pair) for number, pair in enumerate(payload["pairs"], 1)] + [("together", payload)]
    values = [pair[name] for pair in payload["pairs"] for name in ("low", "high")] + [1, guard]
    bottom = 26 * len(rows) + 14
    axis = Axis(min(values), max(values), 90, 590)
    parts = _x_axis(axis, bottom, bottom - 6, "candidate / baseline")
    parts += [_line(axis.at(1), 6, axis.at(1), bottom, "#1d2430", 1.5), _line(axis.at(guard), 6, axis.at(guard), bottom, "#a3231f", 1.5, "5 4")]
    for number, (name, row) in enumerate(rows):
        y, width = 22 + 26 * number, 3 if name == "together" else 1.5
        low, high = max(row["low"], axis.low), min(row["high"], axis.high)  # few pairs that disagree say next to nothing
        parts += [_text(82, y + 4, name, "end"), _line(axis.at(low), y, axis.at(high), y, CANDIDATE, width),
                  f'<circle cx="{axis.at(row["ratio"]):.1f}" cy="{y}" r="{3 + width / 2}" fill="{CANDIDATE}"/>',
                  _text(600, y + 4, f"{row['ratio']:.3f}")]
    return _svg(660, bottom + 42, f"paired ratios, {payload['blocks']} blocks", parts)


def plot_distribution(times):
    """times: {side: ms}. How many of the restores took at most so long; the slowest one is in the picture, too."""
    everything = [value for values in times.values() for value in values]
    axis = Axis(min(everything), max(everything), 60, 620)
    parts = _x_axis(axis, 230, 214, "ms")
    for per_cent in (0, 25, 50, 75, 100):
        y = 230 - 2.1 * per_cent
        parts += [_line(60, y, 620, y, "#e6e9ee"), _text(54, y + 4, f"{per_cent} %", "end")]
    for side, values in times.items():
        points = [(axis.at(value), 230 - 210 * (number + 1) / len(values)) for number, value in enumerate(sorted(values))]
        path = f"M {points[0][0]:.1f} 230" + "".join(f" H {x:.1f} V {y:.1f}" for x, y in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[side]}" stroke-width="2"/>')
    return _svg(660, 272, "latency distributions", parts)


def plot_in_order(cells):
    """cells: [(side, ms)] as they ran. Every measured restore, so that drift and outliers are seen."""
    everything = [value for _, values in cells for value in values]
    axis = Axis(0, max(everything), 200, 16)
    parts = [_line(60, axis.at(tick), 640, axis.at(tick), "#e6e9ee") + _text(54, axis.at(tick) + 4, f"{tick:g}", "end")
             for tick in axis.ticks() if tick >= 0]
    gap = max(6, len(everything) // 60) if len(everything) > 60 else 1
    x, step = 66.0, 570 / (len(everything) + gap * len(cells))
    for side, values in cells:
        for value in values:
            parts.append(f'<circle cx="{x:.1f}" cy="{axis.at(value):.1f}" r="2" fill="{COLOURS[side]}"/>')
            x += step
        x += gap * step
    return _svg(660, 220, "restores in their order, ms", parts + [_text(54, 216, "ms", "end")])


# ---- tables ----


def _table(head, rows):
    cells = "".join(f"<th>{_e(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_e(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells}</tr>{body}</table></div>'


def _read(path):
    """What is there; {} where it is not, or no JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def _grown(before, after, *path):
    for name in path:
        before, after = before.get(name, {}), after.get(name, {})
    return after - before if isinstance(before, int) and isinstance(after, int) else "absent"


def _copied(where):
    try:
        with open(f"{where}/samples.jsonl", encoding="utf-8") as file:
            return sum(json.loads(line)["h2d_bytes"] for line in file)
    except (OSError, ValueError, KeyError, TypeError):
        return "absent"


def _counter_row(where, plan):
    before, after = ({role: _read(f"{where}/stat-{role}-{when}.json") for role in campaigns.ROLES} for when in ("before", "after"))
    drives = [sum(drive.get("read_payload_bytes", 0) for drive in stat["source"].get("ssd", [])) for stat in (before, after)]
    gauges = [f"{role}.{name} {value}" for role in campaigns.ROLES for name, value in after[role].get("drain", {}).items() if value]
    return [plan["name"], _copied(where), _grown(before["consumer"], after["consumer"], "pull", "reads"),
            _grown(before["source"], after["source"], "serve", "reads"), _grown(before["consumer"], after["consumer"], "pull", "bytes"),
            _grown(before["source"], after["source"], "serve", "bytes"), drives[1] - drives[0], ", ".join(gauges) or "all 0"]


def _counters(directory, plans):
    rows = [_counter_row(f"{directory}/cells/{plan['directory']}", plan) for plan in plans
            if os.path.isdir(f"{directory}/cells/{plan['directory']}")]
    return _table(["cell", "copied bytes (H2D)", "Reads, consumer", "Reads, source", "pulled bytes", "served bytes", "SSD payload bytes, source",
                   "drain gauges"], rows)


def _latencies(payload, campaign):
    note = " (descriptive)" if payload["p99_is_descriptive"] else ""
    return _table(["", "restores", "p50 ms", f"p99 ms{note}", "Reads a restore"],
                  [[f"{side}: {campaign[side]['name']}", payload[side]["samples"], f"{payload[side]['p50_ms']:.3f}",
                    f"{payload[side]['p99_ms']:.3f}", payload["reads"][side]] for side in campaigns.SIDES])


# ---- the page ----


def _payload(directory, campaign, at, payload):
    plans = [plan for plan in campaigns.cells(campaign) if plan["payload"] == at]
    cells = [(plan["side"], judge.times_ms(f"{directory}/cells/{plan['directory']}")) for plan in plans]
    times = {side: [value for of, values in cells if of == side for value in values] for side in campaigns.SIDES}
    size = payload["blocks"] * campaign["block_bytes"]
    key = "".join(f'<span style="background:{COLOURS[side]}"></span>{_e(campaign[side]["name"])}' for side in campaigns.SIDES)
    return f"""<h2>{payload['blocks']} blocks of {campaign['block_bytes']} bytes ({size / 2**20:.6g} MiB a restore)</h2>
{_latencies(payload, campaign)}
<h3>Ratio of medians, pair by pair, with 95 % intervals</h3><p>Dashed: the guard. Left of 1 the candidate is faster.</p>
{plot_ratios(payload, campaign['guard'])}
<h3>Latency distributions</h3><p class="key">{key}</p>{plot_distribution(times)}
<h3>Every measured restore, in its order</h3>{plot_in_order(cells)}"""


def _rule(campaign):
    return (f"{campaign['pairs']} alternating pairs of cells, each with fresh daemons on fresh directories, {campaign['warmups']} warm-ups and "
            f"{campaign['restores']} measured restores. Declared beforehand: invalid if anything is not as it must be in any cell; else keep if "
            f"a ratio of medians is above {campaign['guard']:g}; promote if all are not and the 95 % interval of at least one lies below 1; "
            "else keep. A restore is the Get and the copy out of the arena into host memory; every one begins at the source's SSD.")


def _page(directory, campaign, verdict):
    reasons = "".join(f"<li>{_e(reason)}</li>" for reason in verdict["reasons"])
    body = "".join(_payload(directory, campaign, at, payload) for at, payload in enumerate(verdict["payloads"]))
    environment = _read(f"{directory}/environment.json")
    surveys = "".join(f"<h3>{_e(role)}</h3><pre>{_e(chr(10).join(lines))}</pre>" for role, lines in environment.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_e(campaign['name'])}: {_e(verdict['verdict'])}</title><style>{STYLE}</style></head><body>
<h1>{_e(campaign['name'])} <span class="verdict {verdict['verdict']}">{_e(verdict['verdict'])}</span></h1>
<p>{_e(campaign['what'] or campaign['candidate']['name'] + ' against ' + campaign['baseline']['name'])}</p><ul>{reasons}</ul><p>{_e(_rule(campaign))}</p>
{body}
<h2>Counters, cell by cell</h2>{_counters(directory, campaigns.cells(campaign))}
<h2>Environment</h2>{surveys}
<h2>The frozen campaign</h2><pre>{_e(json.dumps(campaign, indent=1))}</pre>
<p>Raw samples, stats and logs lie beside this page under <code>cells/</code>; <code>deploy/qualify/check DIR</code> judges them again.</p>
</body></html>
"""


def write(directory, verdict):
    """A campaign that was never frozen has no page."""
    try:
        campaign = judge.load(directory)
    except judge.Wrong:
        return
    with open(f"{directory}/report.html.part", "w", encoding="utf-8") as file:
        file.write(_page(directory, campaign, verdict))
    os.replace(f"{directory}/report.html.part", f"{directory}/report.html")
