/* The store's own threads: named, and deaf to signals, which are the owner's business. */
#ifndef KVFERRY_STORAGE_THREAD_H
#define KVFERRY_STORAGE_THREAD_H

#include <pthread.h>

/* 0 or an errno. The name is cut by the caller to 15 bytes. */
int kvf_thread_start(pthread_t *thread, const char *name, void *(*run)(void *context),
                     void *context);

#endif
