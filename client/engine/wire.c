#include "client/engine/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Room for descriptors; what a socket option of the receiver adds (credentials, a pidfd) fits
 * behind them. */
union control {
    struct cmsghdr header; /* aligns */
    char bytes[CMSG_SPACE(KVF_WIRE_MAX_FDS * sizeof(int)) + 128];
};

static struct kvf_status fail_with(int error)
{
    enum kvf_code code = KVF_IO;
    if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM)
        code = KVF_BUSY;
    else if (error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNREFUSED ||
             error == ENOENT || error == ENOTDIR)
        code = KVF_UNAVAILABLE;
    else if (error == EACCES || error == EPERM)
        code = KVF_DENIED;
    return kvf_fail(KVF_MODULE_CLIENT, code, error);
}

struct kvf_status kvf_wire_connect(const char *path, int *give)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof(address.sun_path))
        return kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, ENAMETOOLONG);
    memcpy(address.sun_path, path, length);

    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return kvf_fail(KVF_MODULE_CLIENT, KVF_IO, errno);
    int result;
    do
        result = connect(fd, (const struct sockaddr *)&address, sizeof(address));
    while (result != 0 && errno == EINTR);
    if (result != 0) {
        int error = errno;
        (void)close(fd);
        /* EPROTOTYPE: somebody else's socket. EAGAIN: its backlog is full, so nobody takes
         * connections. */
        if (error == EPROTOTYPE || error == EAGAIN)
            return kvf_fail(KVF_MODULE_CLIENT, KVF_UNAVAILABLE, error);
        return fail_with(error);
    }
    *give = fd;
    return kvf_ok();
}

struct kvf_status kvf_wire_send(int fd, const void *bytes, size_t length, const int *fds,
                                size_t fd_count)
{
    kvf_assert(length > 0 && length <= KVF_WIRE_MAX_BYTES && fd_count <= KVF_WIRE_MAX_FDS);
    union control control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? fail_with(errno) : kvf_ok();
}

/* Moves at most `room` descriptors to fds and closes the rest. Returns how many came. */
static size_t take_descriptors(struct msghdr *message, int *fds, size_t room)
{
    size_t came = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++, came++) {
            int one;
            memcpy(&one, CMSG_DATA(header) + i * sizeof(int), sizeof(one));
            if (came < room)
                fds[came] = one;
            else
                (void)close(one);
        }
    }
    return came;
}

struct kvf_status kvf_wire_receive(int fd, void *buffer, size_t *length, int *fds, size_t room,
                                   size_t *fd_count)
{
    union control control;
    struct iovec part = {.iov_base = buffer, .iov_len = KVF_WIRE_MAX_BYTES};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    ssize_t got;
    do
        got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return fail_with(errno);

    size_t came = take_descriptors(&message, fds, room);
    struct kvf_status status = kvf_ok();
    if (got == 0)
        status = kvf_fail(KVF_MODULE_CLIENT, KVF_UNAVAILABLE, 0);
    else if ((message.msg_flags & MSG_TRUNC) != 0 || came > room)
        status = kvf_fail(KVF_MODULE_CLIENT, KVF_PROTOCOL, 0);
    else if ((message.msg_flags & MSG_CTRUNC) !=
             0) /* there was room, so it was the kernel that ran out */
        status = kvf_fail(KVF_MODULE_CLIENT, KVF_NO_MEMORY, EMFILE);
    if (kvf_is_ok(status)) {
        *length = (size_t)got;
        *fd_count = came;
        return status;
    }
    for (size_t i = 0; i < came && i < room; i++)
        (void)close(fds[i]);
    return status;
}
