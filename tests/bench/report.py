#!/usr/bin/env python3
"""Rows, one JSON object a line on stdin: `line` echoes each in short on stderr, `table` prints them all, `json` prints
them as one array."""
import json
import sys


def size(number):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} B"


def quartiles(row, key):
    if key + "_quartiles" not in row:
        return f"{row[key]:.2f}"
    low, high = row[key + "_quartiles"]
    return f"{row[key]:.2f} ({low:.2f} to {high:.2f})"


KNOWN = {"name", "device", "block_bytes", "ours", "limit", "limit2", "ratio", "ratio2", "unit", "n",
         "ratio_quartiles", "ratio2_quartiles"}


def more(row):
    return " ".join(f"{key}={value}" for key, value in row.items() if key not in KNOWN)


def cells(row):
    return [
        row["name"],
        row["device"],
        size(row["block_bytes"]),
        f"{row['ours']:.3f}",
        f"{row['limit']:.3f}",
        row["unit"],
        quartiles(row, "ratio"),
        f"{row['limit2']:.3f}" if "limit2" in row else "",
        quartiles(row, "ratio2") if "limit2" in row else "",
        str(row["n"]),
        more(row),
    ]


def table(rows):
    lines = [["row", "device", "block", "ours", "limit", "unit", "ratio (quartiles)", "limit2", "ratio2", "pairs", "more"]]
    lines += [cells(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main():
    rows = (json.loads(line) for line in sys.stdin if line.strip())
    if sys.argv[1:] == ["line"]:
        for row in rows:
            print("   " + "  ".join(cell for cell in cells(row) if cell), file=sys.stderr, flush=True)
    elif sys.argv[1:] == ["table"]:
        table(list(rows))
    elif sys.argv[1:] == ["json"]:
        print(json.dumps(list(rows), indent=1))
    else:
        sys.exit("report.py line|table|json")


main()
