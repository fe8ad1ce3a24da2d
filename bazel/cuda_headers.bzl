"""The CUDA Toolkit's driver header, where it is found: for one test that compares our declarations with it.

Looked for in $CUDA_HOME, /usr/local/cuda, /opt/cuda and /usr; KVFERRY_CUDA_HEADERS=off finds none. @NAME//:present.bzl has PRESENT.
"""

def _cuda_headers_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "")
    places = [home] if home else []
    places += ["/usr/local/cuda", "/opt/cuda", "/usr"]
    found = [place for place in places if ctx.path(place + "/include/cuda.h").exists]
    present = bool(found) and ctx.os.environ.get("KVFERRY_CUDA_HEADERS", "") != "off"
    if present:
        ctx.symlink(found[0] + "/include/cuda.h", "include/cuda.h")
    ctx.file("present.bzl", "PRESENT = %r\n" % present)
    ctx.file("BUILD.bazel", """
cc_library(
    name = "lib",
    hdrs = glob(["include/cuda.h"]),
    includes = ["include"],
    visibility = ["@kvferry//third_party:__pkg__"],
)
""")

cuda_headers = repository_rule(
    implementation = _cuda_headers_impl,
    environ = ["CUDA_HOME", "KVFERRY_CUDA_HEADERS"],
    local = True,
)
