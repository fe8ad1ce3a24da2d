#include "base/thread.h"

#include <stdio.h>

void kvf_thread_deafen(sigset_t *before)
{
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, before);
}

void kvf_thread_hear_again(const sigset_t *before)
{
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

int kvf_thread_start(pthread_t *thread, const char *name, void *(*run)(void *context),
                     void *context)
{
    char shown[16];
    sigset_t before;
    kvf_thread_deafen(&before);
    int error = pthread_create(thread, NULL, run, context);
    kvf_thread_hear_again(&before);
    (void)snprintf(shown, sizeof(shown), "%s", name);
    if (error == 0)
        (void)pthread_setname_np(*thread, shown);
    return error;
}
