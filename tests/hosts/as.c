/* Runs a program as on a host that lacks something:
 *
 *   as [--deny-uring EPERM|ENOSYS] [--memlock-kib N] [--nobody] [--lacks WORDS] PROGRAM [ARGUMENT...]
 *
 *   --deny-uring   io_uring_setup fails so, as under a container's seccomp profile
 *   --memlock-kib  RLIMIT_MEMLOCK, which binds whoever has no CAP_IPC_LOCK: so root becomes a plain user as well (--nobody)
 *   --nobody       a plain user, where we are root
 *   --lacks        storage's suites take it for a kernel without these (storage/host.h)
 *
 * KVF_TEST_HOST tells the suites which engines to expect. Exit 125: this launcher itself failed. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void give_up(const char *what)
{
    (void)fprintf(stderr, "as: %s: %s\n", what, strerror(errno));
    exit(125);
}

static void deny_uring(const char *name)
{
    int error = strcmp(name, "ENOSYS") == 0 ? ENOSYS : EPERM;
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == NULL ||
        seccomp_rule_add(filter, SCMP_ACT_ERRNO((unsigned)error), SCMP_SYS(io_uring_setup), 0) !=
            0 ||
        seccomp_load(filter) != 0)
        give_up("seccomp");
    seccomp_release(filter);
    (void)setenv("KVF_TEST_HOST", "no-uring", 1);
}

static void limit_memlock(const char *kib)
{
    rlim_t bytes = strtoull(kib, NULL, 10) << 10;
    if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){bytes, bytes}) != 0)
        give_up("RLIMIT_MEMLOCK");
    (void)setenv("KVF_TEST_HOST", "no-memlock", 1);
}

static void become_nobody(void)
{
    const gid_t group = 65534;
    if (geteuid() != 0)
        return;
    if (setgroups(1, &group) != 0 || setgid(group) != 0 || setuid(65534) != 0)
        give_up("nobody");
}

int main(int argc, char **argv)
{
    bool nobody = false;
    const char *denied = NULL;
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--nobody") == 0) {
            nobody = true;
            continue;
        }
        if (at + 1 >= argc)
            break;
        const char *value = argv[at + 1];
        if (strcmp(argv[at], "--deny-uring") == 0) {
            denied = value;
        } else if (strcmp(argv[at], "--memlock-kib") == 0) {
            limit_memlock(value);
        } else if (strcmp(argv[at], "--lacks") == 0) {
            (void)setenv("KVF_TEST_HOST", "lacks", 1);
            (void)setenv("KVF_TEST_LACKS", value, 1);
        } else {
            break;
        }
        at++;
    }
    if (at >= argc || strncmp(argv[at], "--", 2) == 0) {
        (void)fprintf(stderr, "usage: as [--deny-uring EPERM|ENOSYS] [--memlock-kib N] [--nobody] "
                              "[--lacks WORDS] PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    /* By its descriptor: its directory may be closed to a plain user. */
    int program = open(argv[at], O_RDONLY);
    if (program < 0)
        give_up(argv[at]);
    if (nobody)
        become_nobody();
    if (denied != NULL)
        deny_uring(denied);
    (void)fexecve(program, argv + at, environ);
    give_up(argv[at]);
}
