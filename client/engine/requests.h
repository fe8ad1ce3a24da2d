/* The requests, each in two parts, for those who wait for the answer and those who do not: fill one, to be sent at once (it borrows
 * everything, the client's scratch memory included); take its answer, which has been judged to be OK.
 *
 * Lists are at most DIALOG_BLOCKS long. Taking fails with PROTOCOL only, and the session has ended then. */
#ifndef KVFERRY_CLIENT_ENGINE_REQUESTS_H
#define KVFERRY_CLIENT_ENGINE_REQUESTS_H

#include "client/engine/dialog.h"

struct request {
    Kvferry__EngineRequest message;
    union {
        Kvferry__EnginePutBegin put_begin;
        Kvferry__EnginePutCommit put_commit;
        Kvferry__EngineGet get;
        Kvferry__EngineLookup lookup;
        Kvferry__EngineForget forget;
    } body;
};

/* ---- put.c ---- */

void put_begin_fill(struct kvf_client *client, struct request *request, const char *ns,
                    struct kvf_put *puts, size_t count, uint64_t deadline_ns);
KVF_MUST_USE struct kvf_status put_begin_take(struct kvf_client *client,
                                              const Kvferry__EngineReply *reply,
                                              struct kvf_put *puts, size_t count);
/* Zeroes the rest of the last page and computes the checksum, which may have been computed already. */
void put_seal(struct kvf_put *put);
/* The puts at these positions, sealed. */
void put_commit_fill(struct kvf_client *client, struct request *request, const struct kvf_put *puts,
                     const size_t *positions, size_t count);
KVF_MUST_USE struct kvf_status put_commit_take(struct kvf_client *client,
                                               const Kvferry__EngineReply *reply,
                                               struct kvf_put *puts, const size_t *positions,
                                               size_t count);

/* ---- get.c ---- */

void get_fill(struct kvf_client *client, struct request *request,
              const struct kvf_get_options *options, struct kvf_get_block *blocks, size_t count,
              uint64_t deadline_ns);
KVF_MUST_USE struct kvf_status get_take(struct kvf_client *client,
                                        const Kvferry__EngineReply *reply,
                                        struct kvf_get_block *blocks, size_t count);
void lookup_fill(struct kvf_client *client, struct request *request,
                 const struct kvf_get_options *options, struct kvf_get_block *blocks, size_t count,
                 uint64_t deadline_ns);
KVF_MUST_USE struct kvf_status lookup_take(struct kvf_client *client,
                                           const Kvferry__EngineReply *reply,
                                           struct kvf_get_block *blocks, size_t count);
bool get_source_is_valid(const char *source);

/* ---- forget.c ---- */

/* Borrows the keys of client->keys. */
void forget_fill(struct kvf_client *client, struct request *request, const char *ns, size_t count);
KVF_MUST_USE struct kvf_status forget_take(struct kvf_client *client,
                                           const Kvferry__EngineReply *reply, size_t count,
                                           size_t *forgotten);

#endif
