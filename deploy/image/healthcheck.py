#!/usr/bin/python3
"""Add a health check to an image: OCI's own format has none, but engines read Docker's field from an OCI configuration.

    healthcheck.py LAYOUT COMMAND [ARGUMENT...]
"""

import hashlib
import json
import os
import sys


def read(layout, descriptor):
    with open(f"{layout}/blobs/sha256/{descriptor['digest'].split(':')[1]}") as file:
        return json.load(file)


def replace(layout, descriptor, document):
    """Put the blob in the place of the one that descriptor names, and let it name this one."""
    os.unlink(f"{layout}/blobs/sha256/{descriptor['digest'].split(':')[1]}")
    data = json.dumps(document, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest()
    with open(f"{layout}/blobs/sha256/{digest}", "wb") as file:
        file.write(data)
    descriptor.update(digest=f"sha256:{digest}", size=len(data))


def main(layout, *command):
    with open(f"{layout}/index.json") as file:
        index = json.load(file)
    manifest = read(layout, index["manifests"][0])
    config = read(layout, manifest["config"])
    seconds = 10**9
    config["config"]["Healthcheck"] = {"Test": ["CMD", *command], "Interval": 10 * seconds, "Timeout": 5 * seconds,
                                       "StartPeriod": 60 * seconds, "Retries": 3}
    replace(layout, manifest["config"], config)
    replace(layout, index["manifests"][0], manifest)
    with open(f"{layout}/index.json", "w") as file:
        json.dump(index, file)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
