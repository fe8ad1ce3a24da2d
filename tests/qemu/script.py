"""A guest script and what it says that it needs, in lines of its head that begin with `#: `.

    #: hosts 2                        guests: 1 (a) or 2 (a and b)
    #: memory 512                     MiB of each
    #: cpus 1                         of each
    #: nodes 2                        NUMA nodes, each with a CPU and its share of the memory
    #: wires 1                        between the two: eth0, eth1, ...
    #: drive a 1024                   an emulated NVMe drive of so many MiB at a; as often as needed
    #: programs //server:kvferryd     of the tree, to /host/bin; as often as needed
    #: certificates                   of a and b, in /host/tls
    #: ssh                            a way in from this host (lib.sh's ssh_up answers there)
    #: limit 60                       seconds until it has failed
    #: by-name                        run only when it is named
"""

import copy
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
QUIET = ["--noshow_progress", "--ui_event_filters=-info"]


class BadScript(Exception):
    """It is not there, or says what we do not understand."""


class Script:
    def __init__(self, name=None):
        """`name` is a file of scripts/ or a path; None is a script that does nothing, for guests to sit down at."""
        self.path = None
        self.hosts, self.memory_mib, self.cpus, self.nodes, self.wires, self.limit_s = 1, 512, 1, 1, 1, 60
        self.drives, self.programs, self.certificates, self.ssh, self.by_name = {}, [], False, False, False
        if name is None:
            return
        self.path = name if "/" in name else f"{HERE}/scripts/{name}"
        if not os.path.isfile(self.path):
            raise BadScript(f"no script {self.path}; there are {', '.join(sorted(os.listdir(HERE + '/scripts')))}")
        with open(self.path) as file:
            for line in file:
                if line.startswith("#: "):
                    self._learn(line[3:].split())

    def _learn(self, words):
        match words:
            case ["hosts", "1" | "2" as number]:
                self.hosts = int(number)
            case ["memory", number]:
                self.memory_mib = int(number)
            case ["cpus", number]:
                self.cpus = int(number)
            case ["nodes", number]:
                self.nodes = int(number)
            case ["wires", number]:
                self.wires = int(number)
            case ["limit", number]:
                self.limit_s = int(number)
            case ["drive", "a" | "b" as role, number]:
                self.drives[role] = int(number)
            case ["programs", *labels]:
                self.programs += labels
            case ["certificates"]:
                self.certificates = True
            case ["ssh"]:
                self.ssh = True
            case ["by-name"]:
                self.by_name = True
            case _:
                raise BadScript(f"{self.path}: `#: {' '.join(words)}` means nothing (script.py has the list)")

    @property
    def roles(self):
        return "ab"[:self.hosts]

    def changed(self, **changes):
        """The same with these fields, where they are not None."""
        other = copy.copy(self)
        vars(other).update({name: value for name, value in changes.items() if value is not None})
        return other


def all_scripts():
    """Those that run when none is named."""
    names = sorted(os.listdir(f"{HERE}/scripts"))
    return [name for name in names if not Script(name).by_name]


def find_programs(labels):
    """The paths of these targets on this host: built now, or ready in $KVFERRY_BIN."""
    ready = os.environ.get("KVFERRY_BIN")
    if ready:
        return [_ready(ready, label) for label in labels]
    if not labels:
        return []
    subprocess.run(["bazel", "build", *QUIET, *labels], cwd=TOP, check=True)
    built = subprocess.run(["bazel", "info", *QUIET, "bazel-bin"], cwd=TOP, check=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True).stdout.strip()
    return [f"{built}/{label.removeprefix('//').replace(':', '/')}" for label in labels]


def _ready(directory, label):
    package, _, name = label.removeprefix("//").partition(":")
    for path in (f"{directory}/{name}", f"{directory}/{package}/{name}"):
        if os.path.isfile(path):
            return path
    raise BadScript(f"{label} is not in {directory}")
