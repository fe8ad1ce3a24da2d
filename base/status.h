/* The outcome of anything that can fail, by value and not to be ignored.
 *
 * A status is a small stable code, the module that raised it and a detail (an errno, a gRPC status, a wc status; 0 if
 * there is none). base, storage and transport only return it; server and client say it in words, once, where it is
 * handled. A constructor may also fill a `struct kvf_why`: one line that names the thing and the remedy. */
#ifndef KVFERRY_BASE_STATUS_H
#define KVFERRY_BASE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#define KVF_MUST_USE __attribute__((warn_unused_result))
#define KVF_PRINTF(at, first) __attribute__((format(printf, at, first)))

/* Stable: the numbers travel in kvferry's own protocols. Append only. */
enum kvf_code {
    KVF_OK = 0,
    KVF_INVALID = 1,      /* the request makes no sense: fix the caller */
    KVF_TOO_LARGE = 2,    /* can never fit, whatever ends */
    KVF_NOT_FOUND = 3,    /* a miss; what is denied looks the same */
    KVF_EXISTS = 4,       /* the key has content already: nothing was written */
    KVF_PENDING = 5,      /* somebody is putting this key now */
    KVF_STALE = 6,        /* the pinned generation is gone */
    KVF_BUSY = 7,         /* no room by the deadline; later it may fit */
    KVF_DRAINING = 8,     /* the daemon is going away: ask another one */
    KVF_DENIED = 9,       /* the identity has no right (never told to a peer about a block) */
    KVF_DEADLINE = 10,    /* time was up */
    KVF_CANCELLED = 11,   /* the caller, or the end of its session, took it back */
    KVF_UNAVAILABLE = 12, /* the other side is not there */
    KVF_PROTOCOL = 13,    /* the other side said something illegal: its connection ends */
    KVF_CORRUPT = 14,     /* bytes do not match their checksum */
    KVF_IO = 15,          /* the drive or the kernel failed; detail is the errno */
    KVF_NO_SPACE = 16,    /* the drive is full or over quota; detail is the errno */
    KVF_NO_MEMORY = 17,   /* the process has no memory left */
    KVF_UNSUPPORTED = 18, /* this host or this version cannot do it */
    KVF_CODE_COUNT
};

enum kvf_module {
    KVF_MODULE_BASE = 0,
    KVF_MODULE_PROTO,
    KVF_MODULE_STORAGE,
    KVF_MODULE_TRANSPORT,
    KVF_MODULE_CLIENT,
    KVF_MODULE_SERVER,
    KVF_MODULE_COUNT
};

struct kvf_status {
    uint16_t code;   /* enum kvf_code */
    uint16_t module; /* enum kvf_module */
    int32_t detail;
};

/* One line for a human: what is wrong and what to do. Empty when nothing was said. */
struct kvf_why {
    char text[320];
};

static inline struct kvf_status kvf_ok(void)
{
    return (struct kvf_status){.code = KVF_OK};
}

static inline struct kvf_status kvf_fail(enum kvf_module module, enum kvf_code code, int detail)
{
    return (struct kvf_status){
        .code = (uint16_t)code, .module = (uint16_t)module, .detail = detail};
}

static inline bool kvf_is_ok(struct kvf_status status)
{
    return status.code == KVF_OK;
}

/* "TOO_LARGE" for KVF_TOO_LARGE; "UNKNOWN" for a number that is no code. */
const char *kvf_code_name(unsigned code);
const char *kvf_module_name(unsigned module);

/* Fill why (may be NULL); longer text is cut. Returns the status that the caller goes on to return. */
KVF_PRINTF(3, 4)
struct kvf_status kvf_why_set(struct kvf_why *why, struct kvf_status status, const char *format,
                              ...);

/* Leave the function when an expression's status is not OK. */
#define KVF_TRY(expression)                                                                        \
    do {                                                                                           \
        struct kvf_status kvf_try_status_ = (expression);                                          \
        if (!kvf_is_ok(kvf_try_status_))                                                           \
            return kvf_try_status_;                                                                \
    } while (0)

/* For our own bugs only, never for what a peer, an engine, a disk, a file or a flag said. On in every build. */
#define kvf_assert(condition)                                                                      \
    ((condition) ? (void)0 : kvf_assert_failed(#condition, __FILE__, __LINE__))
__attribute__((noreturn, cold)) void kvf_assert_failed(const char *condition, const char *file,
                                                       int line);

#endif
