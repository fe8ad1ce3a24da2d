"""The rules that nearly every BUILD file uses."""

def kvf_module(name, deps = [], test_deps = [], hdrs = None, srcs = None, test = True, **kwargs):
    """A module: NAME.h, NAME.c and, beside them, NAME_test.c (cmocka)."""
    native.cc_library(
        name = name,
        srcs = srcs if srcs != None else [name + ".c"],
        hdrs = hdrs if hdrs != None else [name + ".h"],
        deps = deps,
        **kwargs
    )
    if test:
        kvf_test(name = name + "_test", deps = [":" + name] + deps + test_deps)

def kvf_test(name, srcs = None, deps = [], **kwargs):
    """A cmocka test program."""
    native.cc_test(
        name = name,
        size = kwargs.pop("size", "small"),
        srcs = srcs if srcs != None else [name + ".c"],
        deps = deps + ["//third_party:cmocka"],
        **kwargs
    )

def kvf_fuzz(name, deps):
    """A fuzz target, NAME.c, and its corpus, tests/corpus/NAME.

    NAME is libFuzzer's program, for tests/fuzz (--config=fuzz). NAME_replay is a test like any other: it takes the corpus
    through the target once.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [name + ".c"],
        tags = ["fuzz", "manual"],
        deps = deps + ["//tests/corpus:pieces"],
    )
    native.cc_test(
        name = name + "_replay",
        size = "medium",
        srcs = [name + ".c"],
        args = ["tests/corpus/" + name],
        data = ["//tests/corpus:" + name],
        deps = deps + ["//tests/corpus:pieces", "//tests/corpus:replay"],
    )
