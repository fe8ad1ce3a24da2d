#include "transport/lane_socket.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

static int connect_one(struct kvf_loop *loop, struct kvf_watch *watch,
                       const struct lane_addresses *addresses, unsigned index)
{
    const struct sockaddr *address = (const struct sockaddr *)&addresses->at[index];
    watch->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (watch->fd < 0)
        return errno;
    if (connect(watch->fd, address, addresses->bytes[index]) != 0 && errno != EINPROGRESS)
        return errno;
    watch->events = EPOLLOUT;
    return kvf_watch_start(loop, watch).detail;
}

int lane_socket_connect(struct kvf_loop *loop, struct kvf_watch *watch,
                        struct lane_addresses *addresses, int error)
{
    lane_socket_close(loop, watch);
    while (addresses->next < addresses->count) {
        error = connect_one(loop, watch, addresses, addresses->next++);
        if (error == 0)
            return 0;
        lane_socket_close(loop, watch);
    }
    return error;
}

int lane_socket_answer(const struct kvf_watch *watch)
{
    int error = 0;
    socklen_t bytes = sizeof(error);
    return getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

void lane_socket_close(struct kvf_loop *loop, struct kvf_watch *watch)
{
    kvf_watch_stop(loop, watch);
    if (watch->fd >= 0)
        (void)close(watch->fd);
    watch->fd = -1;
}
