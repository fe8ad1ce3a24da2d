/* Forget: drop keys on this node. */
#include "client/engine/requests.h"

#define FORGET_TIMEOUT_MS 10000u

void forget_fill(struct kvf_client *client, struct request *request, const char *ns, size_t count)
{
    Kvferry__EngineForget *forget = &request->body.forget;
    kvferry__engine_request__init(&request->message);
    kvferry__engine_forget__init(forget);
    forget->namespace_ = (char *)(uintptr_t)ns;
    forget->n_keys = count;
    forget->keys = client->keys;
    request->message.message_case = KVFERRY__ENGINE_REQUEST__MESSAGE_FORGET;
    request->message.forget = forget;
}

struct kvf_status forget_take(struct kvf_client *client, const Kvferry__EngineReply *reply,
                              size_t count, size_t *forgotten)
{
    if (reply->forgotten->blocks > count)
        return dialog_protocol_error(client);
    *forgotten += reply->forgotten->blocks;
    return kvf_ok();
}

static struct kvf_status forget_page(struct kvf_client *client, const char *ns,
                                     const struct kvf_key *keys, size_t count, size_t *forgotten)
{
    struct request request;
    const Kvferry__EngineReply *reply;
    for (size_t i = 0; i < count; i++)
        client->keys[i] = (ProtobufCBinaryData){.len = keys[i].length,
                                                .data = (uint8_t *)(uintptr_t)keys[i].bytes};
    forget_fill(client, &request, ns, count);
    KVF_TRY(dialog_ask(client, &request.message, dialog_deadline(FORGET_TIMEOUT_MS), &reply));
    return forget_take(client, reply, count, forgotten);
}

struct kvf_status kvf_forget(struct kvf_client *client, const char *ns, const struct kvf_key *keys,
                             size_t count, size_t *forgotten)
{
    size_t sum = 0;
    struct kvf_status status = dialog_check(client);
    if (ns == NULL || !kvf_namespace_is_valid(ns))
        status = kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    for (size_t i = 0; kvf_is_ok(status) && i < count; i++) {
        if (!dialog_key_is_valid(&keys[i]))
            status = kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0);
    }
    for (size_t done = 0; kvf_is_ok(status) && done < count;) {
        size_t page = count - done < DIALOG_BLOCKS ? count - done : DIALOG_BLOCKS;
        status = forget_page(client, ns, keys + done, page, &sum);
        done += page;
    }
    if (forgotten != NULL)
        *forgotten = sum;
    return status;
}
