/* UCX as a library that is there only for those who chose it: opened when a ucx transport is, never before.
 *
 * A program that was linked to UCX would have its code running before main: it installs handlers for signals, reads its
 * settings from the environment and from ucx.conf in three directories. So it is opened by name instead, without its
 * names becoming the program's, in an environment of ours; every setting that decides what it does is set by us after
 * that. What is left to an operator's UCX_* variables is which GID (UCX_IB_GID_INDEX), and sizes of queues. */
#ifndef KVFERRY_TRANSPORT_UCX_LIBRARY_H
#define KVFERRY_TRANSPORT_UCX_LIBRARY_H

#include "transport/transport.h"

#include <ucp/api/ucp.h>

#define UCX_CALLS(call)                                                                            \
    call(ucp_am_recv_data_nbx) call(ucp_am_send_nbx) call(ucp_cleanup) call(ucp_config_modify)     \
        call(ucp_config_read) call(ucp_config_release) call(ucp_ep_close_nbx) call(ucp_ep_create)  \
            call(ucp_ep_flush_nbx) call(ucp_init_version) call(ucp_mem_map) call(ucp_mem_unmap)    \
                call(ucp_request_check_status) call(ucp_request_free) call(ucp_worker_arm)         \
                    call(ucp_worker_create) call(ucp_worker_destroy) call(ucp_worker_get_address)  \
                        call(ucp_worker_get_efd) call(ucp_worker_progress)                         \
                            call(ucp_worker_release_address) call(ucp_worker_set_am_recv_handler)

/* Its functions by their own names; tests put others there. Immutable once it is open. */
struct ucx_calls {
#define UCX_CALL_MEMBER(name) __typeof__(name) *name;
    UCX_CALLS(UCX_CALL_MEMBER)
#undef UCX_CALL_MEMBER
    const char *(*ucs_status_string)(ucs_status_t status);
};
extern struct ucx_calls ucx;

/* Once per process, and it stays: a second call does nothing. The owner's thread, before threads start that read the
 * environment: for a moment it is another one. UNSUPPORTED: it is not installed. */
KVF_MUST_USE struct kvf_status ucx_library_open(struct kvf_why *why);

/* A context over RDMA's reliable connections on these devices (none named: all), or over TCP on the loopback. */
KVF_MUST_USE struct kvf_status ucx_context_create(const struct kvf_transport_options *options,
                                                  ucp_context_h *give, struct kvf_why *why);

#endif
