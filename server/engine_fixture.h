/* Engines by hand, each one connection, at a node that serves them. A test is set up and torn down by RAW_ENGINE_TEST. */
#ifndef KVFERRY_SERVER_ENGINE_FIXTURE_H
#define KVFERRY_SERVER_ENGINE_FIXTURE_H

#include "client/engine/wire.h"
#include "proto/engine.pb-c.h"
#include "server/engines.h"
#include "server/node_fixture.h"

/* The daemon. The namespace is NODE_SPACE. */
extern struct node node;
extern struct kvf_engines *engines;

int raw_set_up(void **state);
/* With an ACL, in which this process's user may read and write tenant t. */
int raw_set_up_acl(void **state);
int raw_tear_down(void **state);
#define RAW_ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, raw_set_up, raw_tear_down)
#define RAW_ENGINE_TEST_ACL(name)                                                                  \
    cmocka_unit_test_setup_teardown(name, raw_set_up_acl, raw_tear_down)

extern struct kvf_acl *raw_acl;
extern char raw_acl_path[];
/* rights: those of this process's user for tenant t; NULL: the ACL names somebody else. */
void raw_change_rights(const char *rights);

/* Bytes of puts that are not on SSD. */
uint64_t raw_dirty_bytes(void);

/* ---- an engine ---- */

struct raw_engine {
    int fd;
    uint64_t last_id;
    bool ended; /* by the daemon */
};

void raw_join(struct raw_engine *engine);
/* Over a socket that another process has connected: the daemon looks at that one. */
void raw_join_as_process(struct raw_engine *engine);
void raw_end_process(void);
void raw_leave(struct raw_engine *engine);

extern uint64_t raw_max_get_bytes, raw_max_put_bytes; /* of who registered last */
enum kvf_code raw_register(struct raw_engine *engine);

/* ---- what it asks: each gives the request's id ---- */

uint64_t raw_send(struct raw_engine *engine, Kvferry__EngineRequest *request);
void raw_send_as(struct raw_engine *engine, Kvferry__EngineRequest *request, uint64_t id);
/* Names of blocks for a request, until the next call. */
Kvferry__EngineName **raw_names(unsigned first, size_t count, uint64_t length);
uint64_t raw_send_get(struct raw_engine *engine, unsigned first, size_t count, uint64_t length);
uint64_t raw_send_put_begin(struct raw_engine *engine, unsigned first, size_t count,
                            uint64_t length);
uint64_t raw_send_commit(struct raw_engine *engine, uint64_t first, size_t count);
uint64_t raw_send_release(struct raw_engine *engine, uint64_t get);
uint64_t raw_send_cancel(struct raw_engine *engine, uint64_t id);
uint64_t raw_send_unregister(struct raw_engine *engine);
/* Packets are taken in their order: when this returns, those sent before have been taken. */
void raw_settle(struct raw_engine *engine);

/* ---- what it hears ---- */

/* The next packet, or NULL: the daemon has ended the connection. The caller frees it. */
Kvferry__EngineReply *raw_next_reply(struct raw_engine *engine);
/* The answer to `id`; what comes before it is passed over. */
Kvferry__EngineReply *raw_reply_to(struct raw_engine *engine, uint64_t id);
enum kvf_code raw_code_of(struct raw_engine *engine, uint64_t id);

#endif
