"""protobuf-c code for one .proto file, and beside it (hdrs) what the file cannot say."""

def protobuf_c_library(name, src, hdrs = [], deps = [], **kwargs):
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_gen",
        srcs = [src],
        outs = [stem + ".pb-c.c", stem + ".pb-c.h"],
        cmd = "protoc-c -I. --c_out=$(BINDIR) $(location %s)" % src,
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb-c.c"],
        hdrs = [stem + ".pb-c.h"] + hdrs,
        copts = ["-w"],
        deps = ["//third_party:protobuf_c"] + deps,
        **kwargs
    )
