/* Put, in the order of its life: places, commit or abort, the write to SSD, sync. */
#include "server/put.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static void reused(struct put_begin *begin, const struct put_item *item);

static void set_state(struct put *put, enum put_state to)
{
    static const bool allowed[][PUT_WRITING + 1] = {
        [PUT_OPEN] = {[PUT_QUARANTINED] = true, [PUT_WRITING] = true},
        [PUT_QUARANTINED] = {false},
        [PUT_WRITING] = {false},
    };
    kvf_assert(allowed[put->state][to]);
    put->state = to;
}

static struct kvf_status put_fail(enum kvf_code code)
{
    return kvf_fail(KVF_MODULE_SERVER, code, 0);
}

void puts_init(struct puts *puts)
{
    kvf_list_init(&puts->writing);
    kvf_list_init(&puts->syncs);
}

/* ---- places ---- */

struct put_begin *put_begin_create(struct puts *puts, uint32_t item_count)
{
    struct put_begin *begin = calloc(1, sizeof(*begin));
    if (begin == NULL)
        return NULL;
    begin->items = calloc(item_count > 0 ? item_count : 1, sizeof(*begin->items));
    if (begin->items == NULL) {
        free(begin);
        return NULL;
    }
    begin->puts = puts;
    begin->item_count = item_count;
    kvf_list_init(&begin->node);
    return begin;
}

static void free_begin(struct put_begin *begin)
{
    kvf_timer_stop(begin->puts->loop, &begin->timer);
    kvf_list_remove(&begin->node);
    kvf_tenants_leave(kvf_index_tenants(begin->puts->index), begin->request.tenant);
    free(begin->items);
    free(begin);
}

static void answer(struct put_begin *begin)
{
    struct kvf_counters *counters = begin->puts->counters;
    for (uint32_t i = 0; i < begin->item_count; i++) {
        counters->puts.exists += begin->items[i].code == KVF_EXISTS;
        counters->puts.busy += begin->items[i].code == KVF_BUSY;
    }
    begin->answered(begin);
    free_begin(begin);
}

/* What the key is already, or OK when it needs a place. */
static enum kvf_code present(const struct put_begin *begin, const struct put_item *item)
{
    if (item->length < 1 || item->length > KVF_BLOCK_MAX_BYTES)
        return item->length < 1 ? KVF_INVALID : KVF_TOO_LARGE;
    struct kvf_found found;
    if (!kvf_index_find(begin->puts->index, begin->ns, &item->key, &found) ||
        found.state == KVF_ENTRY_PULLING)
        return KVF_OK;
    return found.state == KVF_ENTRY_PENDING ? KVF_PENDING : KVF_EXISTS;
}

/* Memory for the block, and for the hold on it. False: there is none now. */
static bool take_room(struct put_begin *begin, struct put_item *item)
{
    item->put = calloc(1, sizeof(*item->put));
    return item->put != NULL && kvf_is_ok(kvf_index_room(begin->puts->index, begin->request.tenant,
                                                         item->length, &item->room));
}

static void return_room(struct put_begin *begin, struct put_item *item)
{
    kvf_index_return_room(begin->puts->index, &item->room);
    free(item->put);
    item->put = NULL;
}

/* For all that need it, or none of it is kept (false). Nobody else can see it yet. */
static bool take_rooms(struct put_begin *begin)
{
    uint64_t asked = 0;
    if (!kvf_index_within_share(begin->puts->index, begin->request.tenant, begin->request.bytes))
        return false;
    for (uint32_t i = 0; i < begin->item_count; i++) {
        struct put_item *item = &begin->items[i];
        item->code = present(begin, item);
        if (item->code != KVF_OK)
            continue;
        uint64_t bytes = kvf_round_up_page(item->length);
        if (asked + bytes > begin->request.bytes) {
            item->code = KVF_BUSY; /* it existed when we counted, and is gone */
            continue;
        }
        asked += bytes;
        if (!take_room(begin, item)) {
            do
                return_room(begin, &begin->items[i]);
            while (i-- > 0);
            return false;
        }
    }
    return true;
}

/* Of an item that has its room. */
static void make_place(struct put_begin *begin, struct put_item *item)
{
    struct puts *puts = begin->puts;
    struct put *put = item->put;
    item->code = present(begin, item); /* its key may stand here twice */
    if (item->code == KVF_OK) {
        put->entry =
            kvf_index_add(puts->index, begin->ns, &item->key, item->length, KVF_ENTRY_PENDING);
        item->code = put->entry != NULL ? KVF_OK : KVF_BUSY;
    }
    if (item->code != KVF_OK) {
        return_room(begin, item);
        return;
    }
    kvf_entry_give_extent(puts->index, put->entry, &item->room);
    put->puts = puts;
    put->charge = begin->request;
    put->charge.tenant = NULL; /* it has its memory */
    put->charge.bytes = put->entry->extent.bytes;
    kvf_list_init(&put->node);
}

static void free_place(struct put *put)
{
    struct kvf_index *index = put->puts->index;
    kvf_index_unlink(index, put->entry);
    kvf_entry_drop_extent(index, put->entry);
    kvf_entry_unpin(index, put->entry);
    free(put);
}

static bool admit(struct kvf_request *request)
{
    struct put_begin *begin = kvf_container(request, struct put_begin, request);
    uint64_t taken = 0;
    if (!take_rooms(begin))
        return false;
    for (uint32_t i = 0; i < begin->item_count; i++) {
        struct put_item *item = &begin->items[i];
        if (item->put != NULL)
            make_place(begin, item);
        taken += item->put != NULL ? item->put->charge.bytes : 0;
    }
    kvf_admission_return(begin->puts->admission, request, request->bytes - taken);
    for (uint32_t i = 0; i < begin->item_count; i++) {
        struct put_item *item = &begin->items[i];
        if (item->code == KVF_EXISTS)
            reused(begin, item);
        else if (item->put != NULL)
            kvf_awaited_look(begin->puts->awaited, begin->ns, &item->key);
    }
    answer(begin);
    return true;
}

static void fail_all(struct put_begin *begin, enum kvf_code code)
{
    begin->refusal = kvf_admission_explain(begin->puts->admission, &begin->request, code);
    kvf_admission_withdraw(begin->puts->admission, &begin->request);
    begin->status = put_fail(code);
    for (uint32_t i = 0; i < begin->item_count; i++)
        begin->items[i].code = code;
    answer(begin);
}

static void deadline(struct kvf_timer *timer)
{
    fail_all(kvf_container(timer, struct put_begin, timer), KVF_BUSY);
}

void put_begin_start(struct put_begin *begin)
{
    struct kvf_request *request = &begin->request;
    request->class = KVF_CLASS_DIRTY;
    request->tenant = kvf_tenants_enter(kvf_index_tenants(begin->puts->index), begin->ns);
    request->admit = admit;
    for (uint32_t i = 0; i < begin->item_count; i++)
        if (present(begin, &begin->items[i]) == KVF_OK)
            request->bytes += kvf_round_up_page(begin->items[i].length);
    if (!kvf_admission_can_ever_fit(begin->puts->admission, request)) {
        fail_all(begin, KVF_TOO_LARGE);
        return;
    }
    if (request->bytes == 0) { /* nothing needs a place: nothing to wait for */
        (void)admit(request);
        return;
    }
    begin->timer.fire = deadline;
    kvf_timer_start(begin->puts->loop, &begin->timer, begin->deadline_ns);
    kvf_admission_submit(begin->puts->admission, request);
}

void put_begin_drop(struct put_begin *begin)
{
    kvf_admission_withdraw(begin->puts->admission, &begin->request);
    free_begin(begin);
}

/* ---- commit or abort ---- */

static void return_charge(struct put *put)
{
    kvf_admission_return(put->puts->admission, &put->charge, put->charge.bytes);
}

void put_abort(struct put *put)
{
    kvf_assert(put->state != PUT_WRITING);
    if (put->state == PUT_QUARANTINED)
        put->puts->quarantine_bytes -= put->entry->extent.bytes;
    kvf_list_remove(&put->node);
    return_charge(put);
    free_place(put);
}

void put_quarantine(struct put *put)
{
    set_state(put, PUT_QUARANTINED);
    put->puts->quarantine_bytes += put->entry->extent.bytes;
    kvf_index_unlink(put->puts->index, put->entry);
}

static void start_write(struct put *put);

/* A block that is larger than all that its tenant may have on SSD stays in DRAM. */
static bool is_bound_for_ssd(const struct puts *puts, const struct kvf_entry *entry)
{
    return puts->store != NULL &&
           kvf_round_up_page(entry->length) <= entry->space->tenant->limit_bytes[KVF_SHARE_SSD];
}

struct kvf_generation put_finish(struct put *put, uint32_t crc32c)
{
    struct puts *puts = put->puts;
    kvf_assert(put->state == PUT_OPEN);
    kvf_list_remove(&put->node);
    puts->counters->puts.blocks++;
    kvf_entry_ready(puts->index, put->entry, crc32c);
    struct kvf_generation generation = put->entry->generation;
    bool bound = is_bound_for_ssd(puts, put->entry);
    if (bound && !puts->write_at_reuse) {
        start_write(put);
        return generation;
    }
    puts->counters->dropped[puts->store == NULL ? KVF_DROP_NO_SSD : KVF_DROP_SSD_SHARE] += !bound;
    return_charge(put);
    kvf_entry_unpin(puts->index, put->entry);
    free(put);
    return generation;
}

/* ---- the write to SSD ---- */

static void tell_syncs(struct puts *puts)
{
    uint64_t oldest = UINT64_MAX;
    if (!kvf_list_is_empty(&puts->writing))
        oldest = kvf_container(puts->writing.next, struct put, node)->sequence;
    kvf_list_for_each_safe (node, &puts->syncs) {
        struct kvf_sync *sync = kvf_container(node, struct kvf_sync, node);
        if (sync->last_sequence >= oldest)
            continue;
        kvf_list_remove(&sync->node);
        sync->done(sync);
    }
}

/* The log hears when a drive stops taking writes, and when it takes them again. */
static void say_drives(struct puts *puts, struct kvf_status status)
{
    for (size_t i = 0; i < kvf_store_drive_count(puts->store); i++) {
        struct kvf_drive_stats drive;
        const uint64_t bit = UINT64_C(1) << i;
        kvf_store_stats(puts->store, i, &drive);
        if (drive.read_only == ((puts->read_only_drives & bit) != 0))
            continue;
        puts->read_only_drives ^= bit;
        if (drive.read_only)
            kvf_log_error("puts",
                          "%s is read-only now: a write failed: %s; another is tried every few "
                          "seconds: free some space, or look at the kernel's log and the drive",
                          drive.path,
                          status.detail != 0 ? strerror(status.detail) : "(no reason given)");
        else
            kvf_log_info("puts", "%s takes writes again", drive.path);
    }
}

static void write_ended(struct kvf_append *append, struct kvf_status status,
                        struct kvf_location location)
{
    struct put *put = kvf_container(append, struct put, append);
    struct puts *puts = put->puts;
    const bool again = put->entry->refused; /* and counted then */
    put->entry->dirty = false;
    put->entry->refused = !kvf_is_ok(status);
    if (!kvf_is_ok(status) || puts->read_only_drives != 0)
        say_drives(puts, status);
    if (kvf_is_ok(status)) {
        kvf_entry_stored(puts->index, put->entry, location);
    } else {
        puts->any_refused = true;
        puts->counters->dropped[KVF_DROP_WRITE_ERROR] += !again;
        kvf_list_for_each (node, &puts->syncs) {
            struct kvf_sync *sync = kvf_container(node, struct kvf_sync, node);
            sync->failed += put->sequence <= sync->last_sequence;
        }
    }
    kvf_list_remove(&put->node);
    return_charge(put);
    kvf_entry_unpin(puts->index, put->entry);
    free(put);
    tell_syncs(puts);
}

static void start_write(struct put *put)
{
    struct kvf_entry *entry = put->entry;
    set_state(put, PUT_WRITING);
    put->sequence = ++put->puts->next_sequence;
    kvf_list_push_back(&put->puts->writing, &put->node);
    entry->dirty = true;
    put->append.record = (struct kvf_record){
        .namespace = entry->space->text,
        .key = entry->key,
        .generation = entry->generation,
        .length = entry->length,
        .crc32c = entry->crc32c,
    };
    put->append.extent = entry->extent;
    put->append.ended = write_ended;
    kvf_store_append(put->puts->store, &put->append);
}

static bool is_worth_keeping(const struct puts *puts, const struct kvf_entry *entry)
{
    return is_bound_for_ssd(puts, entry) && entry->linked && entry->state == KVF_ENTRY_READY &&
           entry->resident && !entry->on_ssd && !entry->dirty;
}

void put_keep(struct puts *puts, struct kvf_entry *entry, bool now)
{
    if (!is_worth_keeping(puts, entry))
        return;
    if (!now && !kvf_budget_fits(&puts->admission->classes[KVF_CLASS_DIRTY], entry->extent.bytes))
        return;
    struct put *put = calloc(1, sizeof(*put));
    if (put == NULL)
        return;
    put->puts = puts;
    put->entry = entry;
    put->charge = (struct kvf_request){.class = KVF_CLASS_DIRTY, .bytes = entry->extent.bytes};
    kvf_list_init(&put->node);
    kvf_entry_pin(puts->index, entry);
    kvf_admission_take(puts->admission, &put->charge);
    start_write(put);
}

/* The second put of a block that may wait for one. What has no entry is on SSD already. */
static void reused(struct put_begin *begin, const struct put_item *item)
{
    struct puts *puts = begin->puts;
    struct kvf_found found;
    if (puts->write_at_reuse && kvf_index_find(puts->index, begin->ns, &item->key, &found) &&
        found.entry != NULL)
        put_keep(puts, found.entry, false);
}

static void keep_each(void *context, struct kvf_entry *entry)
{
    struct puts *puts = context;
    if (!entry->pulled && (puts->write_at_reuse || entry->refused))
        put_keep(puts, entry, true);
}

void put_keep_all(struct puts *puts)
{
    if (!puts->write_at_reuse && !puts->any_refused)
        return;
    puts->any_refused = false;
    kvf_index_each(puts->index, keep_each, puts);
}

/* ---- sync ---- */

void kvf_sync_start(struct puts *puts, struct kvf_sync *sync)
{
    sync->last_sequence = puts->next_sequence;
    sync->blocks = sync->bytes = sync->failed = 0;
    kvf_list_for_each (node, &puts->writing) {
        sync->blocks++;
        sync->bytes += kvf_container(node, struct put, node)->entry->length;
    }
    kvf_list_push_back(&puts->syncs, &sync->node);
    tell_syncs(puts);
}

void kvf_sync_cancel(struct kvf_sync *sync)
{
    kvf_list_remove(&sync->node);
}
