"""The guests' kernel: Debian's own, downloaded with apt and unpacked, never installed.

What has been fetched once lies in $KVFERRY_GUESTS_CACHE (~/.cache/kvferry/guests, or where XDG_CACHE_HOME says) and needs
no network any more:

    6.1/package.deb, 6.1/vmlinux
    6.1/modules-HASH/lib/modules/VERSION/    the modules named below and what they need; HASH is of their names

Remove the folder to get what the archive has now.
"""

import contextlib
import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile

# What guests may load. What a kernel has built in or lacks is left out; a guest that misses it hears so from modprobe.
MODULES = """
    virtio_pci virtio_net 9p 9pnet_virtio nvme ext4 crc32c_generic crc32c_intel
    rdma_rxe ib_uverbs rdma_ucm crc32_generic sch_netem
    dm-mod dm-flakey dm-delay loop
""".split()

MAGIC = {b"\xfd7zXZ\x00": lambda packed: lzma.LZMADecompressor().decompress(packed),
         b"\x28\xb5\x2f\xfd": lambda packed: subprocess.run(["zstd", "-dcq"], input=packed, stdout=subprocess.PIPE,
                                                           stderr=subprocess.DEVNULL).stdout}


class NoKernel(Exception):
    """It cannot be had; the text says why and what to do."""


class Kernel:
    def __init__(self, directory, modules):
        self.vmlinux = f"{directory}/vmlinux"
        self.modules = modules  # a folder with lib/modules/VERSION


def cache_directory():
    ours = os.environ.get("KVFERRY_GUESTS_CACHE")
    return ours or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvferry/guests")


def get(series):
    """The newest kernel of this series ("6.1") that is in the cache, else in the archive."""
    directory = f"{cache_directory()}/{series}"
    modules = f"{directory}/modules-{hashlib.sha256(' '.join(MODULES).encode()).hexdigest()[:12]}"
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise NoKernel(f"no place to keep a kernel: {error}; set KVFERRY_GUESTS_CACHE") from None
    with _only_one(f"{directory}/lock"):
        if not os.path.exists(f"{directory}/package.deb"):
            _download(series, directory)
        if not os.path.exists(modules):
            _unpack(directory, modules)
    return Kernel(directory, modules)


@contextlib.contextmanager
def _only_one(path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _whole_or_not(path):
    """A folder to fill, which takes its name when it is complete."""
    part = tempfile.mkdtemp(dir=os.path.dirname(path))
    try:
        yield part
        os.chmod(part, 0o755)
        os.rename(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


# ---- from the archive ----

def _package_name(series):
    """linux-image-6.1.0-57-amd64, or None: the versioned package that a meta package depends on."""
    for meta in (f"linux-image-{series}-amd64", "linux-image-amd64"):
        said = subprocess.run(["apt-cache", "depends", meta], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        found = re.search(rf"Depends: (linux-image-{re.escape(series)}\.\S+)", said)
        if found:
            return found[1]
    return None


def _download(series, directory):
    for attempt in ("with the lists at hand", "with fresh ones"):
        if attempt == "with fresh ones" and os.geteuid() == 0:
            subprocess.run(["apt-get", "-qq", "update"], check=False)
        package = _package_name(series)
        if package is None:
            continue
        with tempfile.TemporaryDirectory(dir=directory) as here:
            os.chmod(here, 0o755)
            said = subprocess.run(["apt-get", "-qq", "download", package], cwd=here, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if said.returncode == 0:
                os.rename(os.path.join(here, os.listdir(here)[0]), f"{directory}/package.deb")
                return
    raise NoKernel(f"no kernel {series} in the cache ({directory}), and apt does not find one: see that `apt-get update` works")


# ---- out of the package ----

def _unpack(directory, modules):
    with tempfile.TemporaryDirectory(dir=directory) as here:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", f"{directory}/package.deb"], stdout=subprocess.PIPE) as package:
            subprocess.run(["tar", "-x", "-C", here, "--exclude=./usr/share"], stdin=package.stdout, check=True)
        if not os.path.exists(f"{here}/lib"):
            os.symlink("usr/lib", f"{here}/lib")
        version = os.listdir(f"{here}/lib/modules")[0]
        _extract_vmlinux(f"{here}/boot/vmlinuz-{version}", f"{directory}/vmlinux")
        with _whole_or_not(modules) as part:
            _pick_modules(here, part, version)


def _extract_vmlinux(packed_path, path):
    """QEMU boots the ELF file within a bzImage directly, which spares the slow decompression in the guest."""
    with open(packed_path, "rb") as file:
        packed = file.read()
    for magic, unpack in MAGIC.items():
        at = packed.find(magic)
        while at >= 0:
            with contextlib.suppress(lzma.LZMAError):
                vmlinux = unpack(packed[at:])
                if vmlinux.startswith(b"\x7fELF"):
                    with open(path, "wb") as file:
                        file.write(vmlinux)
                    return
            at = packed.find(magic, at + 1)
    raise NoKernel(f"{packed_path}: packed in a way that kernel.py does not know (XZ, Zstandard)")


def _pick_modules(package, target, version):
    """Copy the modules that guests need, uncompressed, with the list of what each one needs (modules.dep)."""
    source, to = (f"{root}/lib/modules/{version}" for root in (package, target))
    for path in _closure(package, version):
        plain = f"{to}/{path.removesuffix('.xz')}"
        os.makedirs(os.path.dirname(plain), exist_ok=True)
        with (lzma.open if path.endswith(".xz") else open)(f"{source}/{path}", "rb") as packed, open(plain, "wb") as file:
            shutil.copyfileobj(packed, file)
    for name in ("modules.builtin", "modules.order"):
        shutil.copy2(f"{source}/{name}", f"{to}/{name}")
    _write_modules_dep(target, version)


def _write_modules_dep(root, version):
    subprocess.run(["/usr/sbin/depmod", "-b", root, version], check=True, stderr=subprocess.DEVNULL)


def _closure(package, version):
    """The files of MODULES and of all that they need."""
    _write_modules_dep(package, version)
    wanted = {name.replace("-", "_") for name in MODULES}
    files = set()
    with open(f"{package}/lib/modules/{version}/modules.dep") as needs:
        for line in needs:
            path, _, more = line.partition(":")
            if os.path.basename(path).partition(".")[0].replace("-", "_") in wanted:
                files.update([path, *more.split()])
    return files
