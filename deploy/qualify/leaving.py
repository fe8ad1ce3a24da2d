"""A campaign that is told to end leaves by way of every `finally`, and not between the making of something and the note that it
has to be taken away again."""

import contextlib
import signal
import sys

_held, _came = 0, None


def _leave(number, _):
    global _came
    if _held:
        _came = number
    else:
        sys.exit(128 + number)


def install():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


@contextlib.contextmanager
def held():
    """What comes meanwhile takes effect afterwards."""
    global _held, _came
    _held += 1
    try:
        yield
    finally:
        _held -= 1
        if _came is not None and not _held:
            number, _came = _came, None
            sys.exit(128 + number)
