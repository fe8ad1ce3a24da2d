/* Threads that are deaf to signals: those are the business of the one thread that waits for them. */
#ifndef KVFERRY_BASE_THREAD_H
#define KVFERRY_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* 0 or an errno. The kernel shows 15 bytes of the name. */
int kvf_thread_start(pthread_t *thread, const char *name, void *(*run)(void *context),
                     void *context);

/* Around a library that starts threads of its own: those born between the two are deaf as well. */
void kvf_thread_deafen(sigset_t *before);
void kvf_thread_hear_again(const sigset_t *before);

#endif
