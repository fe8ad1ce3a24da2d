#include "proto/rpc/rpc_internal.h"

#include <stdio.h>
#include <stdlib.h>

static grpc_channel *open_channel(const char *address, grpc_channel_credentials *credentials)
{
    grpc_arg arguments[] = {
        RPC_INTEGER_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)KVF_RPC_MAX_MESSAGE_BYTES),
        RPC_INTEGER_ARG(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)KVF_RPC_MAX_MESSAGE_BYTES),
        RPC_INTEGER_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, 5000),
        RPC_INTEGER_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000),
        RPC_INTEGER_ARG(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        /* gRPC adds up to a fifth to the back-off: it stays below 2 s. */
        RPC_INTEGER_ARG(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        RPC_INTEGER_ARG(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1600),
        /* In truth the time that one attempt to connect may take. */
        RPC_INTEGER_ARG(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000),
        RPC_INTEGER_ARG(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000),
        RPC_INTEGER_ARG(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, 2000),
        RPC_INTEGER_ARG(GRPC_ARG_ENABLE_RETRIES, 0),
        RPC_INTEGER_ARG(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        RPC_INTEGER_ARG(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        RPC_INTEGER_ARG(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        RPC_INTEGER_ARG(GRPC_ARG_ENABLE_CHANNELZ, 0),
        /* Identity only: a small compressed message could unpack to any size. */
        RPC_INTEGER_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
    };
    grpc_channel_args all = {.num_args = sizeof(arguments) / sizeof(arguments[0]),
                             .args = arguments};
    char target[320];
    bool plain = rpc_address_is_unix(address) || address[0] == '[';
    (void)snprintf(target, sizeof(target), "%s%s", plain ? "" : "dns:///", address);
    return grpc_channel_create(target, credentials, &all);
}

struct kvf_status kvf_rpc_channel_open(struct kvf_rpc *rpc, const char *address,
                                       struct kvf_rpc_tls *tls, struct kvf_rpc_channel **give,
                                       struct kvf_why *why)
{
    KVF_TRY(rpc_address_check(address, why));
    grpc_channel_credentials *credentials = rpc_credentials_client(tls);
    struct kvf_rpc_channel *channel = calloc(1, sizeof(*channel));
    if (channel == NULL || credentials == NULL) {
        free(channel);
        grpc_channel_credentials_release(credentials);
        return rpc_fail(KVF_NO_MEMORY, 0);
    }
    channel->rpc = rpc;
    channel->tls = tls != NULL;
    channel->channel = open_channel(address, credentials);
    grpc_channel_credentials_release(credentials);
    rpc->users++;
    *give = channel;
    return kvf_ok();
}

void kvf_rpc_channel_close(struct kvf_rpc_channel *channel)
{
    if (channel == NULL)
        return;
    kvf_assert(channel->calls == 0);
    grpc_channel_destroy(channel->channel);
    channel->rpc->users--;
    free(channel);
}
