#include "client/cli/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* One write(2) takes at most this much, so that a signal or a slow pipe never sees an absurd length. */
#define WRITE_BYTES ((size_t)8 << 20)

void files_name(const struct kvf_key *key, char name[FILES_NAME_ROOM])
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static const char digits[] = "0123456789ABCDEF";
    char *at = name;
    for (unsigned i = 0; i < key->length; i++) {
        uint8_t byte = key->bytes[i];
        bool is_plain = byte != 0 && strchr(plain, byte) != NULL && !(i == 0 && byte == '.');
        if (is_plain) {
            *at++ = (char)byte;
        } else {
            *at++ = '%';
            *at++ = digits[byte >> 4];
            *at++ = digits[byte & 15];
        }
    }
    *at = '\0';
}

static struct kvf_status fail_errno(struct kvf_why *why, const char *what, const char *path,
                                    int error)
{
    enum kvf_code code = error == ENOSPC || error == EDQUOT ? KVF_NO_SPACE : KVF_IO;
    return kvf_why_set(why, kvf_fail(KVF_MODULE_CLIENT, code, error), "cannot %s %s: %s", what,
                       path, strerror(error));
}

static int write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = write(fd, at, bytes < WRITE_BYTES ? bytes : WRITE_BYTES);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        at += written;
        bytes -= (size_t)written;
    }
    return 0;
}

struct kvf_status files_write_to(int fd, const char *name, const void *data, size_t bytes,
                                 struct kvf_why *why)
{
    int error = write_all(fd, data, bytes);
    return error == 0 ? kvf_ok() : fail_errno(why, "write", name, error);
}

static struct kvf_status write_in_place(const char *path, const void *data, size_t bytes,
                                        struct kvf_why *why)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(why, "open", path, errno);
    int error = write_all(fd, data, bytes);
    if (close(fd) != 0 && error == 0)
        error = errno;
    return error == 0 ? kvf_ok() : fail_errno(why, "write", path, error);
}

/* A name in the same directory that no key's file can have: those never begin with a dot. */
static bool temporary_name(const char *path, char name[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int directory = slash == NULL ? 0 : (int)(slash - path) + 1;
    int length = snprintf(name, PATH_MAX, "%.*s.kvferry-%ld.tmp", directory, path, (long)getpid());
    return length > 0 && length < PATH_MAX;
}

struct kvf_status files_write(const char *path, const void *data, size_t bytes, struct kvf_why *why)
{
    struct stat now;
    if (stat(path, &now) == 0 && !S_ISREG(now.st_mode)) {
        if (S_ISDIR(now.st_mode))
            return fail_errno(why, "write", path, EISDIR);
        return write_in_place(path, data, bytes, why);
    }
    char temporary[PATH_MAX];
    if (!temporary_name(path, temporary))
        return fail_errno(why, "write", path, ENAMETOOLONG);
    (void)unlink(temporary); /* left by a process of our number that was killed */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_errno(why, "create", temporary, errno);
    int error = write_all(fd, data, bytes);
    if (close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0 && rename(temporary, path) != 0)
        error = errno;
    if (error == 0)
        return kvf_ok();
    (void)unlink(temporary);
    return fail_errno(why, "write", path, error);
}

struct kvf_status files_make_directory(const char *path, struct kvf_why *why)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof(part))
        return fail_errno(why, "make directory", path, length == 0 ? ENOENT : ENAMETOOLONG);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        int error = mkdir(part, 0777) == 0 ? 0 : errno;
        struct stat found;
        if (error == 0 || (stat(part, &found) == 0 && S_ISDIR(found.st_mode)))
            continue;
        return fail_errno(why, "make directory", part, error == EEXIST ? ENOTDIR : error);
    }
    return kvf_ok();
}

struct kvf_status files_read(int fd, void *data, size_t room, size_t *give_bytes)
{
    size_t have = 0;
    while (have < room) {
        ssize_t got = read(fd, (char *)data + have, room - have);
        if (got < 0) {
            if (errno == EINTR)
                continue;
            return kvf_fail(KVF_MODULE_CLIENT, KVF_IO, errno);
        }
        if (got == 0)
            break;
        have += (size_t)got;
    }
    *give_bytes = have;
    return kvf_ok();
}
