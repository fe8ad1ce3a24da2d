"""A library of the host as a Bazel repository: one cc_library `lib` with what pkg-config says.

One that is optional and not there is an empty cc_library. @NAME//:present.bzl has PRESENT, for BUILD files that then build something else.
"""

def _ask(ctx, flag):
    result = ctx.execute(["pkg-config", flag, ctx.attr.package])
    if result.return_code != 0:
        fail("pkg-config does not know %s: install deploy/packages.txt (%s)" % (ctx.attr.package, result.stderr))
    return [word for word in result.stdout.strip().split(" ") if word]

def _is_present(ctx):
    return ctx.execute(["pkg-config", "--exists", ctx.attr.package]).return_code == 0

def _system_library_impl(ctx):
    present = not ctx.attr.optional or _is_present(ctx)
    libs, cflags = [], []
    if present:
        libs = ctx.attr.libs.split(" ") if ctx.attr.libs else _ask(ctx, "--libs")
        cflags = _ask(ctx, "--cflags")
    ctx.file("present.bzl", "PRESENT = %r\n" % present)
    ctx.file("BUILD.bazel", """
cc_library(
    name = "lib",
    copts = [],
    defines = %r,
    linkopts = %r,
    visibility = ["@kvferry//third_party:__pkg__"],
)
""" % ([flag[2:] for flag in cflags if flag.startswith("-D")], libs))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "package": attr.string(mandatory = True, doc = "pkg-config name"),
        "libs": attr.string(doc = "linker words instead of pkg-config --libs"),
        "optional": attr.bool(doc = "do without where pkg-config does not know it"),
    },
    local = True,
)
