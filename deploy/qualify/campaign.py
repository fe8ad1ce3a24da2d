"""A campaign file: what is compared, on which hosts, how often. Read once, checked, and from then on frozen."""

import json
import re
import math

SIDES = ("baseline", "candidate")
ROLES = ("source", "consumer")
KINDS = ("loopback", "netns", "guests", "ssh")
# What the runner gives itself, per cell; a campaign that named them would undo fresh directories or the hosts' kind.
OWN_FLAGS = {"run-dir", "node-id", "listen", "data-listen", "data-advertise", "http", "config", "ssd-path", "peer", "tls-cert",
             "tls-key", "tls-ca", "acl", "insecure-loopback", "check-config", "verify", "version", "help"}

DEFAULTS = {"what": "", "pairs": 3, "warmups": 20, "restores": 100, "guard": 1.05, "seed": 1, "flags": {}, "timeout_s": 30}
REQUIRED = {"name", "hosts", "baseline", "candidate", "block_bytes", "payloads"}


class Bad(Exception):
    """The campaign cannot be run as it stands; the text says what to change."""


def _need(condition, text):
    if not condition:
        raise Bad(text)


def _whole(value, least, most, what):
    _need(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
          f"{what}: {value!r}: give a whole number from {least} to {most}")


def _names(value, allowed, what):
    _need(isinstance(value, dict), f"{what}: give an object")
    for name in value:
        _need(name in allowed, f"{what}: {name!r} is unknown; there are {', '.join(sorted(allowed))}")


def _check_flags(flags, what):
    _names(flags, ROLES, what)
    for role, values in flags.items():
        _need(isinstance(values, dict), f"{what}.{role}: give an object of kvferryd's flags, without the dashes")
        for name, value in values.items():
            _need(name not in OWN_FLAGS, f"{what}.{role}: --{name} is the runner's own")
            _need(isinstance(value, (int, str)) and not isinstance(value, bool),
                  f"{what}.{role}.{name}: give a number or a text")


def _check_host(host, what):
    _names(host, {"kind", "ssh", "address", "port", "work", "pin"}, what)
    _need(host.get("kind") in KINDS, f"{what}.kind: give {', '.join(KINDS)}")
    if host["kind"] == "ssh":
        words = host.get("ssh")
        _need(isinstance(words, list) and words and all(isinstance(word, str) for word in words),
              f'{what}.ssh: give the words of the command, as ["ssh", "-o", "BatchMode=yes", "node-a"]')
        _need(isinstance(host.get("address"), str) and host["address"], f"{what}.address: give what the other host dials")
    if "port" in host:
        _whole(host["port"], 1, 65535, f"{what}.port")


def _check_payload(payload, what):
    _names(payload, {"blocks", "reads"}, what)
    _whole(payload.get("blocks"), 1, 256, f"{what}.blocks")
    _names(payload.get("reads"), SIDES, f"{what}.reads")
    for side in SIDES:
        _whole(payload["reads"].get(side), 1, 256, f"{what}.reads.{side} (Reads of one restore, declared beforehand)")


def check(campaign):
    """The campaign with its defaults, or Bad."""
    _names(campaign, REQUIRED | set(DEFAULTS), "the campaign")
    for name in REQUIRED:
        _need(name in campaign, f"{name} is missing")
    campaign = {**DEFAULTS, **campaign}
    _need(isinstance(campaign["name"], str) and isinstance(campaign["what"], str), "name, what: give texts")
    _need(re.fullmatch(r"[\w.-]+", campaign["name"]), "name: results go to a directory of that name; give letters, digits, '.', '_' and '-'")
    _names(campaign["hosts"], ROLES, "hosts")
    for role in ROLES:
        _need(role in campaign["hosts"], f"hosts.{role} is missing")
        _check_host(campaign["hosts"][role], f"hosts.{role}")
    kinds = {host["kind"] for host in campaign["hosts"].values()}
    _need(len(kinds) == 1, "hosts: both are of one kind")
    _check_flags(campaign["flags"], "flags")
    for side in SIDES:
        _names(campaign[side], {"name", "flags"}, side)
        _need(isinstance(campaign[side].get("name"), str), f"{side}.name: give a text")
        _check_flags(campaign[side].get("flags", {}), f"{side}.flags")
    _whole(campaign["block_bytes"], 1, 128 << 20, "block_bytes")
    _need(isinstance(campaign["payloads"], list) and campaign["payloads"], "payloads: give a list")
    for at, payload in enumerate(campaign["payloads"]):
        _check_payload(payload, f"payloads[{at}]")
    _whole(campaign["pairs"], 2, 99, "pairs")
    _whole(campaign["warmups"], 0, 10000, "warmups")
    _whole(campaign["restores"], 1, 100000, "restores")
    _whole(campaign["seed"], 0, 1 << 62, "seed")
    _whole(campaign["timeout_s"], 1, 600, "timeout_s")
    guard = campaign["guard"]
    _need(isinstance(guard, (int, float)) and math.isfinite(guard) and guard >= 1, "guard: give a ratio, 1.05 for 5 %")
    return campaign


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return check(json.load(file))
    except (OSError, ValueError) as error:
        raise Bad(f"{path}: {error}") from None
    except Bad as error:
        raise Bad(f"{path}: {error}") from None


def flags(campaign, side, role):
    """The flags of one daemon: the common ones, then the side's. A control (side None) has only the common ones."""
    own = campaign[side].get("flags", {}) if side else {}
    return {**campaign["flags"].get(role, {}), **own.get(role, {})}


def cells(campaign):
    """Every cell in the order in which it runs: the controls of both orders of shutdown, then for each payload the pairs,
    baseline first in the first one and turned round from one to the next."""
    least = min(payload["blocks"] for payload in campaign["payloads"])
    plan = [{"name": f"control-{order}-first", "control": order, "side": None, "pair": None, "payload": None,
             "blocks": least, "reads": None, "warmups": 0, "restores": 2} for order in ("engine", "manager")]
    for at, payload in enumerate(campaign["payloads"]):
        for pair in range(campaign["pairs"]):
            for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
                plan.append({"name": f"{payload['blocks']}-blocks-pair-{pair + 1}-{side}", "control": None, "side": side, "pair": pair,
                             "payload": at, "blocks": payload["blocks"], "reads": payload["reads"][side],
                             "warmups": campaign["warmups"], "restores": campaign["restores"]})
    for number, cell in enumerate(plan):
        cell["directory"] = f"{number:02}-{cell['name']}"
    return plan
