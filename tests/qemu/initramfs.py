"""What a guest's memory holds when it starts: busybox, the kernel's modules, this host's tools, and the shared libraries
of the tools and of the programs that will run there."""

import os
import re
import shutil
import subprocess

# Tools of this host that busybox lacks. Found along SEARCH; PACKAGES says where one that is missing comes from.
TOOLS = "ip ss tc rdma mkfs.ext4 e2fsck dmsetup ibv_devices ibv_devinfo rping ib_read_bw".split()
PACKAGES = "iproute2 e2fsprogs dmsetup ibverbs-utils rdmacm-utils perftest busybox-static dropbear-bin"
SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
# What no program names and libraries open when they run: the verbs provider, libgcc_s for threads that end, UCX.
OPENED_LATER = ["/etc/libibverbs.d/rxe.driver", "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
                "/lib/x86_64-linux-gnu/libgcc_s.so.1", "/usr/lib/x86_64-linux-gnu/libucp.so.0",
                "/usr/lib/x86_64-linux-gnu/ucx/libuct_ib.so.0"]


class Missing(Exception):
    """This host lacks a tool; the text says which."""


def build(path, kernel, init, programs, more_tools=()):
    """Write the archive to `path`."""
    root = f"{path}.d"
    for folder in ("bin", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp", "host", "sync", "drive"):
        os.makedirs(f"{root}/{folder}")
    os.symlink("usr/lib", f"{root}/lib")
    os.symlink("usr/lib64", f"{root}/lib64")
    shutil.copy2(init, f"{root}/init")
    tools = [_find(name) for name in (*TOOLS, *more_tools)]
    shutil.copy2(_find("busybox"), f"{root}/bin/busybox")
    for tool in tools:
        shutil.copy2(os.path.realpath(tool), f"{root}/usr/bin/{os.path.basename(tool)}")
    later = [file for file in OPENED_LATER if os.path.exists(file)]
    for file in sorted({*later, *_libraries(tools + programs + later)}):
        _copy_in_place(root, file)
    shutil.copytree(f"{kernel.modules}/lib/modules", f"{root}/usr/lib/modules")
    with open(path, "wb") as archive:
        names = subprocess.run(["find", "."], cwd=root, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"], cwd=root, check=True, input=names, stdout=archive)
    shutil.rmtree(root)


def _find(tool):
    found = shutil.which(tool, path=SEARCH)
    if not found:
        raise Missing(f"{tool} is missing: apt-get install {PACKAGES}")
    return found


def _libraries(files):
    """Every shared library that these need, by its path here."""
    said = subprocess.run(["ldd", *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return set(re.findall(r"(/\S+) \(0x", said))


def _copy_in_place(root, file):
    """Where the loader looks for it: /lib is /usr/lib in a guest as on the host."""
    to = f"{root}{file}" if file.startswith(("/usr/", "/etc/")) else f"{root}/usr{file}"
    os.makedirs(os.path.dirname(to), exist_ok=True)
    shutil.copy2(os.path.realpath(file), to)
