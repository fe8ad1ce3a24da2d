#include "proto/rpc/rpc_internal.h"

#include <string.h>

grpc_status_code rpc_code_to_grpc(enum kvf_code code)
{
    switch (code) {
    case KVF_OK:
        return GRPC_STATUS_OK;
    case KVF_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case KVF_TOO_LARGE:
        return GRPC_STATUS_OUT_OF_RANGE;
    case KVF_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case KVF_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case KVF_PENDING:
        return GRPC_STATUS_ABORTED;
    case KVF_STALE:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case KVF_BUSY:
    case KVF_NO_MEMORY:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case KVF_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case KVF_DEADLINE:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case KVF_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    case KVF_DRAINING:
    case KVF_UNAVAILABLE:
        return GRPC_STATUS_UNAVAILABLE;
    case KVF_PROTOCOL:
        return GRPC_STATUS_INTERNAL;
    case KVF_CORRUPT:
        return GRPC_STATUS_DATA_LOSS;
    case KVF_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case KVF_IO:
    case KVF_NO_SPACE:
    case KVF_CODE_COUNT:
        break;
    }
    return GRPC_STATUS_UNKNOWN;
}

static enum kvf_code nearest(grpc_status_code code)
{
    switch (code) {
    case GRPC_STATUS_OK:
        return KVF_OK;
    case GRPC_STATUS_CANCELLED:
        return KVF_CANCELLED;
    case GRPC_STATUS_INVALID_ARGUMENT:
        return KVF_INVALID;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return KVF_DEADLINE;
    case GRPC_STATUS_NOT_FOUND:
        return KVF_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return KVF_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED:
        return KVF_DENIED;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return KVF_BUSY;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return KVF_STALE;
    case GRPC_STATUS_ABORTED:
        return KVF_PENDING;
    case GRPC_STATUS_OUT_OF_RANGE:
        return KVF_TOO_LARGE;
    case GRPC_STATUS_UNIMPLEMENTED:
        return KVF_UNSUPPORTED;
    case GRPC_STATUS_INTERNAL:
        return KVF_PROTOCOL;
    case GRPC_STATUS_UNAVAILABLE:
        return KVF_UNAVAILABLE;
    case GRPC_STATUS_DATA_LOSS:
        return KVF_CORRUPT;
    case GRPC_STATUS_UNKNOWN:
    case GRPC_STATUS__DO_NOT_USE:
        break;
    }
    return KVF_IO;
}

struct kvf_status rpc_code_from_grpc(grpc_status_code code, const char *text)
{
    /* To gRPC a message beyond the limit is RESOURCE_EXHAUSTED, but it will not fit later either. */
    if (code == GRPC_STATUS_RESOURCE_EXHAUSTED && strstr(text, "message larger than max") != NULL)
        return rpc_fail(KVF_TOO_LARGE, (int)code);
    if (code == GRPC_STATUS_OK)
        return kvf_ok();
    return rpc_fail(nearest(code), (int)code);
}

struct kvf_status rpc_fail(enum kvf_code code, int detail)
{
    return kvf_fail(KVF_MODULE_PROTO, code, detail);
}
