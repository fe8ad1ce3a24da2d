#include "server/node_fixture.h"

#include "base/crc32c.h"
#include "storage/faulty.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct kvf_loop *node_loop;
struct kvf_rpc *node_rpc;
static unsigned open_nodes;

void node_set_up(void)
{
    assert_true(kvf_is_ok(kvf_loop_create(&node_loop)));
    assert_true(kvf_is_ok(kvf_rpc_create(node_loop, &node_rpc)));
}

void node_tear_down(void)
{
    if (open_nodes > 0) { /* the test has failed: what it says counts, not what it left */
        open_nodes = 0;
        return;
    }
    kvf_rpc_destroy(node_rpc);
    for (int i = 0; i < 3; i++)
        kvf_loop_run_once(node_loop, 0);
    kvf_loop_destroy(node_loop);
}

int node_set_up_test(void **state)
{
    (void)state;
    node_set_up();
    return 0;
}

int node_tear_down_test(void **state)
{
    (void)state;
    node_tear_down();
    return 0;
}

/* ---- starting ---- */

static void memory_freed(void *context)
{
    kvf_admission_retry(&((struct node *)context)->admission);
}

static void reclaim(void *context, uint32_t drive, uint32_t segment, uint64_t sequence)
{
    kvf_carries_reclaim(((struct node *)context)->carries, drive, segment, sequence);
}

static void found(struct kvf_recovery *recovery, const struct kvf_record *record,
                  struct kvf_location location)
{
    kvf_index_recovered(((struct node *)recovery->context)->index, record, location);
}

static void recovered(struct kvf_recovery *recovery, const struct kvf_recovery_result *result)
{
    (void)result;
    recovery->context = NULL;
}

static void recover(struct node *node)
{
    node->recovery = (struct kvf_recovery){.found = found, .ended = recovered, .context = node};
    assert_true(kvf_is_ok(kvf_store_recover(node->store, &node->recovery, NULL)));
    node_run_until(node->recovery.context == NULL);
}

static void open_store(struct node *node, const struct node_options *how)
{
    const char *tmp = getenv("TEST_TMPDIR");
    struct kvf_why why = {.text = ""};
    (void)snprintf(node->path, sizeof(node->path), "%s/nodeXXXXXX",
                   tmp != NULL && strlen(tmp) < 40 ? tmp : "/tmp");
    assert_non_null(mkdtemp(node->path));
    const char *paths[] = {node->path};
    struct kvf_store_options options = {
        .loop = node_loop,
        .paths = paths,
        .path_count = 1,
        .capacity_bytes = 64 * KVF_MIB,
        .segment_bytes = 16 * KVF_MIB,
        .io = KVF_STORE_IO_PREAD,
        .read_threads =
            how->faulty && how->ssd_depth == 0 ? 3 : 1, /* a read that hangs takes one */
        .queue_depth = how->ssd_depth != 0 ? how->ssd_depth : 4,
        .inflight_bytes = 4 * KVF_MIB,
        .io_bytes = 256 << 10,
        .probe_ms = 100,
        .arenas = node->arenas,
        .arena_count = kvf_pool_arena_count(node->pool),
        .reclaim = reclaim,
        .context = node,
    };
    if (how->faulty)
        faulty_init(&kvf_engine_pread);
    struct kvf_status status =
        how->faulty ? kvf_store_open_engine(&options, &faulty_engine, &node->store, &why)
                    : kvf_store_open(&options, &node->store, &why);
    if (!kvf_is_ok(status))
        fail_msg("%s", why.text);
}

static void start_memory(struct node *node, uint64_t bytes)
{
    assert_true(kvf_is_ok(kvf_pool_create(bytes, false, &node->pool, NULL)));
    for (size_t i = 0; i < kvf_pool_arena_count(node->pool); i++)
        node->arenas[i] = kvf_pool_arena(node->pool, i);
    node->admission.loop = node_loop;
    for (int class = 0; class < KVF_CLASS_COUNT; class ++)
        node->admission.classes[class].limit_bytes = bytes;
    node->admission.query.limit_bytes = bytes;
    kvf_admission_init(&node->admission);
    assert_true(kvf_is_ok(kvf_worker_create(node_loop, &node->worker)));
}

static void start_index(struct node *node, const struct kvf_acl *acl)
{
    struct kvf_index_options index = {.pool = node->pool,
                                      .store = node->store,
                                      .boot_epoch = 7,
                                      .acl = acl,
                                      .freed = memory_freed,
                                      .context = node};
    assert_true(kvf_is_ok(kvf_index_create(&index, &node->index)));
    if (node->store != NULL)
        assert_true(
            kvf_is_ok(kvf_carries_create(node_loop, node->index, node->store, &node->carries)));
    if (node->store != NULL)
        recover(node);
    assert_true(kvf_is_ok(kvf_awaited_init(&node->awaited, node->index)));
    struct kvf_loads_options loads = {.index = node->index,
                                      .store = node->store,
                                      .worker = node->worker,
                                      .counters = &node->counters,
                                      .awaited = &node->awaited};
    assert_true(kvf_is_ok(kvf_loads_create(&loads, &node->loads)));
}

static void start_queries(struct node *node, uint64_t bytes)
{
    struct kvf_sources_options sources = {
        .source = {.loop = node_loop,
                   .rpc = node_rpc,
                   .transports = kvf_transports_only(node->transport),
                   .node_id = "node",
                   .boot_epoch = 7,
                   .process_instance = (uintptr_t)node,
                   .stats = &node->pull_stats}};
    assert_true(kvf_is_ok(kvf_sources_create(&sources, &node->sources)));
    node->gets = (struct gets){.loop = node_loop,
                               .index = node->index,
                               .loads = node->loads,
                               .admission = &node->admission,
                               .sources = node->sources,
                               .counters = &node->counters,
                               .awaited = &node->awaited,
                               .peers = node->peer_addresses,
                               .read_batches_in_flight = 2};
    while (node->gets.peer_count < 2 && node->peer_addresses[node->gets.peer_count] != NULL)
        node->gets.peer_count++;
    node->puts = (struct puts){.loop = node_loop,
                               .index = node->index,
                               .admission = &node->admission,
                               .store = node->store,
                               .counters = &node->counters,
                               .awaited = &node->awaited};
    puts_init(&node->puts);
    node->leases = (struct kvf_leases){.loop = node_loop,
                                       .index = node->index,
                                       .loads = node->loads,
                                       .admission = &node->admission,
                                       .counters = &node->counters,
                                       .awaited = &node->awaited,
                                       .max_grant_bytes = bytes,
                                       .max_lease_ns = 60 * KVF_NS_PER_S};
}

static void start_serving(struct node *node, uint64_t bytes, const struct node_options *how)
{
    struct kvf_peers_options options = {.loop = node_loop,
                                        .transports = kvf_transports_only(node->transport),
                                        .index = node->index,
                                        .leases = &node->leases,
                                        .node_id = "node",
                                        .boot_epoch = 7,
                                        .max_blocks_per_read = 64,
                                        .per_identity_limit_bytes = bytes,
                                        .acl = how->acl,
                                        .audit = how->audit};
    struct kvf_why why = {.text = ""};
    assert_true(kvf_is_ok(kvf_peers_create(&options, &node->peers)));
    kvf_peers_methods(node->peers, node->methods);
    if (!kvf_is_ok(kvf_rpc_server_start(node_rpc, "127.0.0.1:0", NULL, node->methods,
                                        KVF_PEERS_METHODS, &node->server, &why)))
        fail_msg("%s", why.text);
    (void)snprintf(node->address, sizeof(node->address), "127.0.0.1:%d",
                   kvf_rpc_server_port(node->server));
}

void node_start(struct node *node, const struct node_options *options)
{
    uint64_t bytes = options->pool_bytes != 0 ? options->pool_bytes : 16 * KVF_MIB;
    *node = (struct node){0};
    open_nodes++;
    memcpy(node->peer_addresses, options->peers, sizeof(node->peer_addresses));
    start_memory(node, bytes);
    struct kvf_transport_options transport = {
        .loop = node_loop, .arenas = node->arenas, .arena_count = kvf_pool_arena_count(node->pool)};
    assert_true(kvf_is_ok(kvf_transport_open("tcp", &transport, &node->transport, NULL)));
    assert_true(kvf_is_ok(kvf_transport_listen(node->transport, "127.0.0.1:0", NULL)));
    if (options->ssd)
        open_store(node, options);
    start_index(node, options->acl);
    start_queries(node, bytes);
    start_serving(node, bytes, options);
}

/* ---- stopping ---- */

static void set_true(void *context)
{
    *(bool *)context = true;
}

void node_assert_idle(struct node *node)
{
    struct kvf_index_stats stats;
    node_run_until(node->gets.open == 0 && node->leases.open == 0 &&
                   kvf_loads_open(node->loads) == 0 && kvf_list_is_empty(&node->puts.writing) &&
                   kvf_carries_open(node->carries) == 0);
    kvf_index_get_stats(node->index, &stats);
    for (int class = 0; class < KVF_CLASS_COUNT; class ++)
        assert_int_equal(node->admission.classes[class].used_bytes, 0);
    assert_int_equal(node->admission.query.used_bytes, 0);
    assert_int_equal(stats.pinned_bytes, 0);
    assert_int_equal(node->puts.quarantine_bytes, 0);
    assert_int_equal(node->pull_stats.quarantine_bytes, 0);
}

void node_stop_serving(struct node *node)
{
    bool stopped = node->server == NULL;
    if (stopped)
        return;
    kvf_peers_force(node->peers);
    kvf_rpc_server_stop(node->server, 0, set_true, &stopped);
    node_run_until(stopped && kvf_peers_sessions(node->peers) == 0);
    node->server = NULL;
}

static void remove_files(const char *path)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", path);
    assert_int_equal(system(command), 0);
}

void node_stop(struct node *node)
{
    bool closed = false;
    kvf_sources_close(node->sources, set_true, &closed);
    node_run_until(closed);
    node_stop_serving(node);
    node_assert_idle(node);
    kvf_sources_destroy(node->sources);
    kvf_peers_destroy(node->peers);
    kvf_loads_destroy(node->loads);
    kvf_carries_destroy(node->carries);
    kvf_awaited_fini(&node->awaited);
    kvf_index_destroy(node->index, false);
    kvf_store_close(node->store);
    kvf_transport_close(node->transport);
    kvf_worker_destroy(node->worker);
    kvf_pool_destroy(node->pool, false);
    if (node->path[0] != '\0')
        remove_files(node->path);
    open_nodes--;
}

/* ---- blocks ---- */

struct kvf_acl *node_shares(const char *tenants)
{
    char text[512];
    struct kvf_acl *acl = NULL;
    int length = snprintf(text, sizeof(text), "{\"tenants\": {%s}, \"identities\": {}}", tenants);
    assert_true(kvf_is_ok(kvf_acl_parse("test", text, (size_t)length, &acl, NULL)));
    return acl;
}

struct kvf_key node_key(unsigned block)
{
    struct kvf_key key;
    uint8_t bytes[2] = {(uint8_t)block, 'k'};
    assert_true(kvf_key_set(&key, bytes, sizeof(bytes)));
    return key;
}

static void fill(uint8_t *at, unsigned block, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        at[i] = (uint8_t)(block * 37 + i * 11 + (i >> 12));
}

uint32_t node_crc(unsigned block, uint64_t length)
{
    uint8_t *bytes = malloc(length);
    assert_non_null(bytes);
    fill(bytes, block, length);
    uint32_t crc32c = kvf_crc32c(0, bytes, length);
    free(bytes);
    return crc32c;
}

static void begun(struct put_begin *begin)
{
    struct put **put = begin->user;
    *put = begin->items[0].put;
}

static struct put *begin_in(struct node *node, const char *ns, unsigned block)
{
    struct put *put = NULL;
    struct put_begin *begin = put_begin_create(&node->puts, 1);
    assert_non_null(begin);
    strcpy(begin->ns, ns);
    begin->deadline_ns = kvf_clock_now_ns() + KVF_NS_PER_S;
    begin->answered = begun;
    begin->user = &put;
    begin->items[0].key = node_key(block);
    begin->items[0].length = NODE_BLOCK_BYTES;
    put_begin_start(begin);
    assert_non_null(put);
    return put;
}

struct put *node_begin(struct node *node, unsigned block)
{
    return begin_in(node, NODE_SPACE, block);
}

void node_commit(struct put *put, unsigned block)
{
    uint64_t length = put->entry->length;
    fill(kvf_extent_at(put->entry->extent), block, length);
    (void)put_finish(put, node_crc(block, length));
}

void node_put_in(struct node *node, const char *ns, unsigned block)
{
    node_commit(begin_in(node, ns, block), block);
    node_run_until(kvf_list_is_empty(&node->puts.writing));
}

void node_put(struct node *node, unsigned block)
{
    node_put_in(node, NODE_SPACE, block);
}

bool node_look(struct node *node, unsigned block, struct kvf_found *found)
{
    struct kvf_key key = node_key(block);
    return kvf_index_find(node->index, NODE_SPACE, &key, found);
}

bool node_has(struct node *node, unsigned block)
{
    return node_has_in(node, NODE_SPACE, block);
}

bool node_has_in(struct node *node, const char *ns, unsigned block)
{
    struct kvf_found found;
    struct kvf_key key = node_key(block);
    return kvf_index_find(node->index, ns, &key, &found);
}

struct kvf_entry *node_find(struct node *node, unsigned block)
{
    struct kvf_found found;
    return node_look(node, block, &found) ? found.entry : NULL;
}

void node_forget(struct node *node, unsigned block)
{
    struct kvf_found found;
    assert_true(node_look(node, block, &found));
    kvf_index_forget(node->index, &found);
}

struct node_lost node_lose(struct node *node, unsigned block)
{
    struct kvf_found found;
    assert_true(node_look(node, block, &found));
    struct kvf_entry *entry = kvf_index_pin(node->index, &found);
    assert_non_null(entry);
    assert_true(entry->on_ssd);
    struct node_lost lost = {.record = {.namespace = NODE_SPACE,
                                        .key = entry->key,
                                        .generation = entry->generation,
                                        .length = entry->length,
                                        .crc32c = entry->crc32c},
                             .location = entry->location};
    kvf_index_unlink(node->index, entry);
    kvf_entry_unpin(node->index, entry);
    return lost;
}

void node_recovers(struct node *node, const struct node_lost *lost)
{
    kvf_index_recovered(node->index, &lost->record, lost->location);
    kvf_awaited_look(&node->awaited, lost->record.namespace, &lost->record.key);
}

void node_evict(struct node *node)
{
    uint64_t blocks = 0, bytes = 0;
    kvf_index_evict_all(node->index, &blocks, &bytes);
}

void node_flip_on_ssd(struct node *node, struct kvf_location at, uint64_t bit)
{
    char path[96];
    uint8_t byte;
    (void)snprintf(path, sizeof(path), "%s/segment-%05u", node->path, (unsigned)at.segment);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)(at.offset + bit / 8)), 1);
    byte ^= (uint8_t)(1 << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(at.offset + bit / 8)), 1);
    assert_int_equal(close(fd), 0);
}

/* Runs on every segment file of the node. */
static void for_segments(struct node *node, void (*run)(int fd))
{
    DIR *directory = opendir(node->path);
    unsigned count = 0;
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        struct stat info;
        int fd = openat(dirfd(directory), entry->d_name, O_RDWR);
        if (fd < 0)
            continue;
        if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= (off_t)KVF_MIB) {
            run(fd);
            count++;
        }
        (void)close(fd);
    }
    (void)closedir(directory);
    assert_true(count > 0);
}

static void cut(int fd)
{
    assert_int_equal(ftruncate(fd, 4096), 0);
}

static void change(int fd)
{
    uint8_t bytes[4096];
    memset(bytes, 0xa5, sizeof(bytes));
    for (off_t at = 0; at < (off_t)(4 * KVF_MIB); at += (off_t)sizeof(bytes))
        assert_int_equal(pwrite(fd, bytes, sizeof(bytes), at), sizeof(bytes));
    (void)fsync(fd);
}

void node_cut_segments(struct node *node)
{
    for_segments(node, cut);
}

void node_change_segments(struct node *node)
{
    for_segments(node, change);
}

static struct kvf_extent taken[64];
static size_t taken_count;

void node_take_memory(struct node *node)
{
    node_evict(node);
    taken_count = 0;
    while (taken_count < 64 &&
           kvf_is_ok(kvf_index_room(node->index, NULL, KVF_MIB, &taken[taken_count])))
        taken_count++;
}

void node_return_memory(struct node *node)
{
    while (taken_count > 0)
        kvf_index_return_room(node->index, &taken[--taken_count]);
}

/* ---- Gets ---- */

static void get_answered(struct get *get)
{
    struct node_get *ask = get->user;
    ask->answered++;
    ask->status = get->status;
    ask->prefix = get_prefix(get);
    for (uint32_t i = 0; i < get->item_count; i++) {
        const struct get_item *item = &get->items[i];
        ask->codes[i] = item->code;
        ask->tiers[i] = item->tier;
        ask->origins[i] = item->origin;
        if (item->code != KVF_OK || item->entry == NULL)
            continue;
        uint32_t right = node_crc(ask->blocks[i], item->length);
        assert_int_equal(item->entry->crc32c, right);
        assert_int_equal(kvf_crc32c(0, kvf_extent_at(item->entry->extent), item->length), right);
    }
    if (ask->on_answer != NULL)
        ask->on_answer(ask);
}

static void get_freed(void *user)
{
    struct node_get *ask = user;
    ask->freed++;
    ask->get = NULL;
}

void node_get_prepare(struct node *node, struct node_get *ask, const unsigned *blocks,
                      uint32_t count, uint64_t timeout_ms)
{
    *ask = (struct node_get){.node = node, .get = get_create(&node->gets, count)};
    struct get *get = ask->get;
    assert_non_null(get);
    strcpy(get->ns, NODE_SPACE);
    get->instance = 1;
    get->deadline_ns = kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
    get->answered = get_answered;
    get->freed = get_freed;
    get->user = ask;
    for (uint32_t i = 0; i < count; i++) {
        ask->blocks[i] = blocks[i];
        get->items[i].key = node_key(blocks[i]);
        get->items[i].length = NODE_BLOCK_BYTES;
    }
}

void node_get_start(struct node *node, struct node_get *ask, const unsigned *blocks, uint32_t count,
                    uint64_t timeout_ms)
{
    node_get_prepare(node, ask, blocks, count, timeout_ms);
    get_start(ask->get);
}

void node_get_drop(struct node_get *ask)
{
    if (ask->get != NULL)
        get_drop(ask->get);
}

void node_get_release(struct node_get *ask)
{
    for (uint32_t i = 0; i < NODE_MAX_ITEMS && ask->get != NULL; i++)
        get_release(ask->get, i);
}
