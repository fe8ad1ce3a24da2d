"""What an operator sets, alike in all three engines; and hints, where a block may be."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Mapping, NamedTuple, Optional

from .engine import KvferryError

RUN_DIR = "KVFERRY_RUN_DIR"


class Settings(NamedTuple):
    run_dir: str = ""  # of the local kvferryd; else KVFERRY_RUN_DIR, else /run/kvferry
    tenant: str = "default"
    timeout_ms: int = 2000  # of a put or get
    lookup_timeout_ms: int = 500
    verify: bool = True  # check each block's CRC32C while it is copied
    source: str = ""  # HOST:PORT to ask for what is not here, where a request has no hint
    source_port: int = 0  # of hints: the kvferryd's, in place of the engine's own
    salt: str = ""  # whatever else tells blocks apart: revision, adapter weights
    model: str = ""  # in place of what the engine calls it

    @property
    def socket_path(self) -> str:
        return os.path.join(self.run_dir or os.environ.get(RUN_DIR) or "/run/kvferry", "engine.sock")

    def source_for(self, hints: Any) -> Optional[str]:
        return source_of(hints, self.source_port) or self.source or None

    def salted(self, facts: Mapping[str, Any]) -> str:
        """What an engine says of its blocks, and the operator's salt, in few bytes."""
        text = json.dumps([_plain(facts), self.salt], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Engines' configuration as JSON has it, alike in every process: what has no text of its own counts by its type."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return _plain(vars(value))
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text


def read(options: Mapping[str, Any]) -> Settings:
    """From an engine's free-form configuration. Raises KvferryError, which names the option."""
    values = {}
    for name, default in Settings()._asdict().items():
        value = options.get(name, default)
        if isinstance(default, bool) or not isinstance(default, int):
            good = isinstance(value, type(default))
        else:
            good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not good:
            raise KvferryError(f"kvferry: {name} is {value!r}: give it as {default!r} is given")
        values[name] = value
    settings = Settings(**values)
    for name in ("timeout_ms", "lookup_timeout_ms"):
        if not 1 <= getattr(settings, name) <= 600_000:
            raise KvferryError(f"kvferry: {name} is {getattr(settings, name)}: give 1 to 600000")
    if settings.source_port > 65535:
        raise KvferryError(f"kvferry: source_port is {settings.source_port}: give 1 to 65535, or 0 for the hint's own")
    return settings


NESTED_HINTS = ("remote_kv_source", "remote_prefiller")


def source_of(hints: Any, port: int = 0) -> Optional[str]:
    """HOST:PORT from kv_transfer_params: remote_host and remote_port, there or in one of NESTED_HINTS. `port`, when it is not 0,
    takes the place of remote_port. None: no hint, or none that makes sense."""
    if not isinstance(hints, Mapping):
        return None
    for where in (hints, *(hints.get(name) for name in NESTED_HINTS)):
        if not isinstance(where, Mapping):
            continue
        host, number = where.get("remote_host"), port or where.get("remote_port")
        try:
            number = int(number) if number is not None and not isinstance(number, bool) else 0
        except (TypeError, ValueError):
            continue
        if isinstance(host, str) and host.isascii() and host.isprintable() and 0 < len(host) <= 250 and 0 < number <= 65535:
            return f"[{host}]:{number}" if ":" in host and not host.startswith("[") else f"{host}:{number}"
    return None
