"""The operations guide: what it quotes is what the sources say, and where it points there is something."""

import os
import re
import subprocess

from harness import expect
from runner import TOP


def guide_quotes_what_the_sources_say(case):
    with open(f"{TOP}/docs/operations.md") as file:
        page = file.read()
    files = subprocess.run(["git", "ls-files", "server/*.c", "storage/*.c", "transport/*.c", "base/*.c"], cwd=TOP, check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split()
    text = ""
    for name in files:
        if not name.endswith(("_test.c", "_fuzz.c")):
            with open(f"{TOP}/{name}") as file:
                text += re.sub(r'"\s*\n\s*"', "", file.read())
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    expect(len(quoted) >= 15, f"only {len(quoted)} messages are quoted")
    for message in quoted:
        pattern = ".{1,30}".join(re.escape(part) for part in message.split("..."))
        expect(re.search(pattern, text), f"docs/operations.md quotes what no source says: {message}")
    for name in re.findall(r"`([\w/-]+\.(?:md|json))`", page):
        expect(os.path.exists(f"{TOP}/{name}") or os.path.exists(f"{TOP}/docs/{name}"), f"docs/operations.md names {name}, which is not there")
    flags = open(f"{TOP}/docs/flags.md").read()
    for flag in set(re.findall(r"`(--[a-z-]+)`", page)):
        expect(f"`{flag}" in flags or flag in ("--wait",), f"docs/operations.md names {flag}, which is no flag")
