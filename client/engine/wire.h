/* One message a packet on engine.sock (SOCK_SEQPACKET), descriptors beside it: the framing that
 * both ends share.
 *
 * Nothing here waits, allocates or keeps state; both ends bring their own buffers and their own way
 * of waiting. What arrives is foreign: its length is bounded here, its content is the caller's to
 * check. */
#ifndef KVFERRY_CLIENT_ENGINE_WIRE_H
#define KVFERRY_CLIENT_ENGINE_WIRE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define KVF_WIRE_VERSION 1u              /* EngineRegister.version */
#define KVF_WIRE_MAX_BYTES (64u * 1024u) /* the longest message */
#define KVF_WIRE_MAX_FDS 253u            /* the kernel passes no more in one packet (SCM_MAX_FD) */

/* The most blocks that one message names. The widest element, a 64-byte key with its length, takes
 * 79 bytes, so that this many and a namespace and a source always fit into KVF_WIRE_MAX_BYTES.
 * Requests of libkvferry keep to it. */
#define KVF_WIRE_MAX_BLOCKS 512u

/* A close-on-exec, non-blocking socket connected to `path`. Errors: INVALID (longer than a unix
 * socket's path can be), DENIED, UNAVAILABLE (nobody listens there), IO; detail is the errno. */
KVF_MUST_USE struct kvf_status kvf_wire_connect(const char *path, int *give);

/* Send one message of 1 to KVF_WIRE_MAX_BYTES bytes and, beside it, copies of at most
 * KVF_WIRE_MAX_FDS descriptors (borrowed). BUSY: the socket is full, nothing was sent, wait for
 * POLLOUT. UNAVAILABLE: the other end is gone. IO: the kernel refused. */
KVF_MUST_USE struct kvf_status kvf_wire_send(int fd, const void *bytes, size_t length,
                                             const int *fds, size_t fd_count);

/* Take one message into `buffer` (KVF_WIRE_MAX_BYTES long) and at most `room` descriptors
 * (close-on-exec, the caller's). BUSY: nothing there, wait for POLLIN. UNAVAILABLE: the other end
 * is gone, or sent an empty packet, which looks the same. PROTOCOL: too long, or more descriptors
 * than `room`. NO_MEMORY: this process has no descriptors left. On any error what came is gone and
 * no descriptor stays open. */
KVF_MUST_USE struct kvf_status kvf_wire_receive(int fd, void *buffer, size_t *length, int *fds,
                                                size_t room, size_t *fd_count);

#endif
