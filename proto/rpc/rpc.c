#include "proto/rpc/rpc_internal.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "proto/rpc/accept.h"

#include <grpc/support/log.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* gRPC hands tags from one thread to another inside code that ThreadSanitizer does not see. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define HAND_OVER(tag) __tsan_release(tag)
#define TAKE_OVER(tag) __tsan_acquire(tag)
#else
#define HAND_OVER(tag) ((void)(tag))
#define TAKE_OVER(tag) ((void)(tag))
#endif

/* ---- tags ---- */

static void run_tag(struct kvf_post *post)
{
    struct rpc_tag *tag = kvf_container(post, struct rpc_tag, post);
    tag->done(tag, tag->ok);
}

void rpc_tag_init(struct rpc_tag *tag, void (*done)(struct rpc_tag *tag, bool ok))
{
    *tag = (struct rpc_tag){.post.run = run_tag, .done = done};
}

void *rpc_tag_lend(struct rpc_tag *tag)
{
    HAND_OVER(tag);
    return tag;
}

void rpc_early_begin(struct kvf_rpc *rpc)
{
    grpc_completion_queue_thread_local_cache_init(rpc->queue);
}

struct rpc_tag *rpc_early_end(struct kvf_rpc *rpc)
{
    void *early = NULL;
    int ok = 0;
    if (!grpc_completion_queue_thread_local_cache_flush(rpc->queue, &early, &ok))
        return NULL;
    struct rpc_tag *tag = early;
    TAKE_OVER(tag);
    tag->ok = ok != 0;
    return tag;
}

static void *serve_queue(void *argument)
{
    struct kvf_rpc *rpc = argument;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type != GRPC_OP_COMPLETE)
            continue;
        struct rpc_tag *tag = event.tag;
        TAKE_OVER(tag);
        tag->ok = event.success != 0;
        kvf_loop_post(rpc->loop, &tag->post);
    }
}

/* ---- gRPC itself ---- */

#define LINES_PER_SECOND 10

/* Strangers on the port must not fill the disk with what is said about them. */
bool rpc_may_log(void)
{
    static _Atomic uint64_t second;
    static _Atomic unsigned lines;
    uint64_t now = kvf_clock_now_ns() / KVF_NS_PER_S;
    if (atomic_exchange(&second, now) != now)
        atomic_store(&lines, 0);
    return atomic_fetch_add(&lines, 1) < LINES_PER_SECOND;
}

/* gRPC prints on its own otherwise, in another form; only its errors are worth a line. Any of its
 * threads. */
static void log_line(gpr_log_func_args *line)
{
    if (line->severity != GPR_LOG_SEVERITY_ERROR || !rpc_may_log())
        return;
    const char *words = strstr(line->message, "andshake failed") != NULL
                            ? rpc_credentials_explain(line->message, true, true)
                            : NULL;
    if (words != NULL)
        kvf_log_warning("tls", "handshake failed: %s", words);
    else
        kvf_log_warning("grpc", "%s", line->message);
}

/* Threads that are born in here take no signals: those are for the thread that waits for them. */
static struct kvf_status start(struct kvf_rpc *rpc)
{
    sigset_t before;
    kvf_thread_deafen(&before);
    gpr_set_log_function(log_line);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    int error = kvf_thread_start(&rpc->thread, "kvf-rpc", serve_queue, rpc);
    kvf_thread_hear_again(&before);
    if (error == 0)
        return kvf_ok();
    grpc_completion_queue_shutdown(rpc->queue);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown();
    return rpc_fail(KVF_NO_MEMORY, error);
}

struct kvf_status kvf_rpc_create(struct kvf_loop *loop, struct kvf_rpc **give)
{
    struct kvf_rpc *rpc = calloc(1, sizeof(*rpc));
    if (rpc == NULL)
        return rpc_fail(KVF_NO_MEMORY, 0);
    rpc->loop = loop;
    rpc_accept_init();
    struct kvf_status status = start(rpc);
    if (!kvf_is_ok(status)) {
        free(rpc);
        return status;
    }
    *give = rpc;
    return status;
}

void kvf_rpc_destroy(struct kvf_rpc *rpc)
{
    if (rpc == NULL)
        return;
    kvf_assert(rpc->users == 0);
    grpc_completion_queue_shutdown(rpc->queue);
    pthread_join(rpc->thread, NULL);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown();
    free(rpc);
}

/* ---- addresses ---- */

#define UNIX_PREFIX "unix:"

bool rpc_address_is_unix(const char *address)
{
    return strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
}

/* gRPC would take far more (xds:, several addresses, a URI with a host of its own): we know what we
 * mean. */
struct kvf_status rpc_address_check(const char *address, struct kvf_why *why)
{
    struct kvf_status invalid = rpc_fail(KVF_INVALID, 0);
    if (rpc_address_is_unix(address)) {
        size_t length = strlen(address + strlen(UNIX_PREFIX));
        if (length >= 1 && length < sizeof(((struct sockaddr_un *)NULL)->sun_path))
            return kvf_ok();
        return kvf_why_set(why, invalid, "%s: the path of a unix socket has 1 to 107 bytes",
                           address);
    }
    struct kvf_address parsed;
    if (!kvf_address_parse(address, &parsed))
        return kvf_why_set(why, invalid, "%s: an address is HOST:PORT or unix:/PATH", address);
    return kvf_ok();
}
