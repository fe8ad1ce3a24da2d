"""The image's recipes; deploy/image/test runs the image itself."""

import re

from harness import expect
from runner import TOP


def image_numbers_agree(case):
    """What stands in several places: version, user, ports, packages."""
    with open(f"{TOP}/base/version.h") as file:
        version = re.search(r'KVF_VERSION "([^"]+)"', file.read())[1]
    with open(f"{TOP}/deploy/image/Containerfile") as file:
        text = file.read()
    with open(f"{TOP}/deploy/image/build") as file:
        build = file.read()
    expect(f'image.version="{version}"' in text and f"kvferry:{version}" in text, "the Containerfile's version")
    for word in ("10001:10001", "9470/tcp", "9471/tcp", "cap_ipc_lock=p", "/var/lib/kvferry", "SIGTERM"):
        expect(word in text and word in build, f"{word} is in one of Containerfile and build only")
