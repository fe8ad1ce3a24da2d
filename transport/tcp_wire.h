/* What travels on a tcp lane: a greeting each way (lane_wire.h), then only the source speaks, in frames: a header with
 * TCP_MARK, and `length` bytes of payload. */
#ifndef KVFERRY_TRANSPORT_TCP_WIRE_H
#define KVFERRY_TRANSPORT_TCP_WIRE_H

#include "transport/lane_wire.h"

#define TCP_MARK 0x6d617266u /* "fram" */

static const struct lane_greeting tcp_greeting = {
    .magic = {'k', 'v', 'f', 'l', 'a', 'n', 'e', '\n'}, .version = 1};

#endif
