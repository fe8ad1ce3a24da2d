/* kvferryd: flags, signals, the Manager's loop, the exit status. */
#include "base/log.h"
#include "base/version.h"
#include "server/manager.h"
#include "server/verify.h"

#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum exit_code {
    EXIT_DRAINED = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
};

struct signals {
    struct kvf_watch watch;
    struct kvf_manager *manager;
};

extern char **environ;

static void signal_ready(struct kvf_watch *watch, uint32_t events)
{
    struct signals *signals = kvf_container(watch, struct signals, watch);
    struct signalfd_siginfo info;
    (void)events;
    if (read(watch->fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGHUP)
        kvf_manager_reload(signals->manager, "SIGHUP");
    else
        kvf_manager_drain(signals->manager, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
}

/* Before any thread exists: all of them inherit the mask. */
static int block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* The right to lock memory, where it was given to our file but not in effect: a container's user that is not root has it
 * so. Whoever has none is told by the store what that costs. */
static void use_memory_lock_right(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, data) != 0)
        return;
    data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective |=
        data[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted & CAP_TO_MASK(CAP_IPC_LOCK);
    (void)syscall(SYS_capset, &header, data);
}

/* Says the one line and gives the exit status for it. */
static int fail(struct kvf_status status, const struct kvf_why *why)
{
    (void)fprintf(stderr, "kvferryd: %s\n",
                  why->text[0] != '\0' ? why->text : kvf_code_name(status.code));
    return status.code == KVF_INVALID ? EXIT_USAGE : EXIT_FAILED;
}

static int serve(const struct kvf_config *config)
{
    struct kvf_why why = {.text = ""};
    struct kvf_loop *loop = NULL;
    struct signals signals = {.watch = {.events = EPOLLIN, .ready = signal_ready}};
    (void)umask(077); /* sockets and files are ours until they are opened to others on purpose */
    signals.watch.fd = block_signals();
    raise_descriptor_limit();
    use_memory_lock_right();
    struct kvf_status status = kvf_loop_create(&loop);
    if (kvf_is_ok(status))
        status = kvf_manager_create(config, loop, &signals.manager, &why);
    if (!kvf_is_ok(status)) {
        kvf_loop_destroy(loop);
        return fail(status, &why);
    }
    status = kvf_watch_start(loop, &signals.watch);
    if (!kvf_is_ok(status))
        kvf_manager_drain(signals.manager, "no signals can be watched");
    kvf_loop_run(loop);
    kvf_watch_stop(loop, &signals.watch);
    int code = kvf_manager_exit_code(signals.manager);
    if (!kvf_manager_destroy(signals.manager))
        _exit(code);
    kvf_loop_destroy(loop);
    (void)close(signals.watch.fd);
    return code;
}

int main(int argc, char **argv)
{
    struct kvf_config config;
    struct kvf_why why = {.text = ""};
    struct kvf_status status = kvf_config_load(argc, argv, environ, &config, &why);
    if (!kvf_is_ok(status))
        return fail(status, &why);
    int code = EXIT_DRAINED;
    switch (config.action) {
    case KVF_CONFIG_RUN:
        code = serve(&config);
        break;
    case KVF_CONFIG_CHECK:
        kvf_config_log(&config);
        break;
    case KVF_CONFIG_VERIFY:
        code = kvf_verify_run(&config.ssd_paths, stdout, stderr);
        break;
    case KVF_CONFIG_HELP:
        kvf_config_print_help(stdout);
        break;
    case KVF_CONFIG_HELP_MARKDOWN:
        kvf_config_print_markdown(stdout);
        break;
    case KVF_CONFIG_VERSION:
        (void)printf("kvferryd %s\n", KVF_VERSION);
        break;
    }
    kvf_config_release(&config);
    return code;
}
