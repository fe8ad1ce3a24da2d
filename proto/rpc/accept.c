#include "proto/rpc/accept.h"

#include "base/clock.h"
#include "base/log.h"
#include "proto/rpc/rpc_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* reserve */
static int reserve = -1;
static _Atomic uint64_t dropped, log_due_ns;

static int kernel_accept(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    return (int)syscall(SYS_accept4, fd, address, bytes, flags);
}

static void refill_reserve(void)
{
    if (reserve < 0)
        reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void rpc_accept_init(void)
{
    (void)pthread_mutex_lock(&mutex);
    refill_reserve();
    (void)pthread_mutex_unlock(&mutex);
}

uint64_t rpc_accept_dropped(void)
{
    return atomic_load(&dropped);
}

/* A storm of connections must not become one of lines. */
static bool is_time_to_log(void)
{
    uint64_t now_ns = kvf_clock_now_ns(), due_ns = atomic_load(&log_due_ns);
    return now_ns >= due_ns &&
           atomic_compare_exchange_strong(&log_due_ns, &due_ns, now_ns + KVF_NS_PER_S);
}

/* Take one connection with the descriptor in reserve, and close it. False: there was none, or no descriptor either. */
static bool drop_one(int fd)
{
    (void)pthread_mutex_lock(&mutex);
    refill_reserve();
    if (reserve >= 0)
        (void)close(reserve);
    reserve = -1;
    int connection = kernel_accept(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection >= 0)
        (void)close(connection);
    refill_reserve();
    (void)pthread_mutex_unlock(&mutex);
    if (connection < 0)
        return false;
    uint64_t count = atomic_fetch_add(&dropped, 1) + 1;
    if (is_time_to_log() && rpc_may_log())
        kvf_log_warning("rpc",
                        "no descriptor left for a connection: closed it (%" PRIu64
                        " so far); raise the limit of open files",
                        count);
    return true;
}

#define TRIES 8 /* of one accept4 that fails for another reason */

static bool is_lack_of_memory(int error)
{
    return error == ENOMEM || error == ENOBUFS;
}

/* About the connection, which is gone with it, or a firewall's word: nothing is wrong with the listener. */
static bool is_of_the_connection(int error)
{
    switch (error) {
    case ECONNABORTED:
    case ECONNRESET:
    case EPROTO:
    case ENOPROTOOPT:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
    case ETIMEDOUT:
    case EPERM:
    case EACCES:
        return true;
    default:
        return false;
    }
}

static void pause_10_ms(void)
{
    struct timespec pause = {.tv_nsec = 10 * (long)KVF_NS_PER_MS};
    (void)nanosleep(&pause, NULL);
}

/* In front of libc's. A listener that is told of connections once only (EPOLLET, as gRPC's) must find its queue empty
 * when it hears EAGAIN, hence the loop. */
int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    /* Our own listeners do not ask who it is; they wait by themselves, without a thread that sleeps. */
    bool is_ours = address == NULL;
    for (int tries = 0; tries < TRIES;) {
        int connection = kernel_accept(fd, address, bytes, flags);
        if (connection >= 0)
            return connection;
        if (errno == EMFILE || errno == ENFILE) {
            if (!drop_one(fd))
                break;
            continue;
        }
        if (is_ours || (!is_lack_of_memory(errno) && !is_of_the_connection(errno)))
            return connection;
        tries++;
        if (is_lack_of_memory(errno))
            pause_10_ms();
    }
    errno = EAGAIN; /* who is left in the queue is heard with the next one that comes */
    return -1;
}
