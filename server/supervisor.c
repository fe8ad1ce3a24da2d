#include "server/supervisor.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MESSAGE_BYTES 512

/* "/a/path" or "@abstract". False: there is no supervisor, or none that can be reached so. */
static bool find_socket(struct sockaddr_un *address, socklen_t *bytes)
{
    const char *name = getenv("NOTIFY_SOCKET");
    if (name == NULL || (name[0] != '/' && name[0] != '@'))
        return false;
    const size_t length = strlen(name);
    if (length < 2 || length >= sizeof(address->sun_path))
        return false;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, name, length);
    if (name[0] == '@')
        address->sun_path[0] = '\0';
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return true;
}

static bool tell(const char *message)
{
    struct sockaddr_un address;
    socklen_t bytes;
    if (!find_socket(&address, &bytes))
        return false;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    const size_t length = strlen(message);
    ssize_t sent = sendto(fd, message, length, MSG_NOSIGNAL, (struct sockaddr *)&address, bytes);
    (void)close(fd);
    return sent == (ssize_t)length;
}

/* The protocol is one assignment a line; a foreign newline would begin another. */
static void one_line(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20)
            *text = '?';
}

bool kvf_supervisor_ready(const char *status)
{
    char line[MESSAGE_BYTES / 2], message[MESSAGE_BYTES];
    (void)snprintf(line, sizeof(line), "%s", status);
    one_line(line);
    (void)snprintf(message, sizeof(message), "READY=1\nSTATUS=%s\n", line);
    return tell(message);
}

bool kvf_supervisor_stopping(const char *reason, uint64_t most_s)
{
    char line[MESSAGE_BYTES / 2], message[MESSAGE_BYTES];
    (void)snprintf(line, sizeof(line), "%s", reason);
    one_line(line);
    (void)snprintf(message, sizeof(message),
                   "STOPPING=1\nSTATUS=draining: %s\nEXTEND_TIMEOUT_USEC=%" PRIu64 "\n", line,
                   most_s * 1000000);
    return tell(message);
}
