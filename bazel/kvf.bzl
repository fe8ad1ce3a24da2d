"""The two rules that nearly every BUILD file uses."""

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
