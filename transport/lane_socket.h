/* A lane's TCP socket: connected to one of several addresses, closed. All on the thread of the loop that watches it; watch->fd is
 * -1 where there is none. */
#ifndef KVFERRY_TRANSPORT_LANE_SOCKET_H
#define KVFERRY_TRANSPORT_LANE_SOCKET_H

#include "base/loop.h"
#include "transport/lane_address.h"

/* Connect a new one to the next address, in place of what there was. 0: EPOLLOUT brings the answer. Else no address is left: why
 * the last one failed, an errno, or `error` where there was none to try. */
int lane_socket_connect(struct kvf_loop *loop, struct kvf_watch *watch,
                        struct lane_addresses *addresses, int error);
/* What EPOLLOUT has brought: 0 or an errno. */
int lane_socket_answer(const struct kvf_watch *watch);
void lane_socket_close(struct kvf_loop *loop, struct kvf_watch *watch);

#endif
