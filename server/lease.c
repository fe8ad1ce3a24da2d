/* Leases, in the order of their life: admission, places, granting, loads and lane, giving back. */
#include "server/lease.h"

#include "base/clock.h"
#include "proto/peer.h"

#include <stdlib.h>

static void set_state(struct kvf_lease *lease, enum kvf_lease_state to)
{
    static const bool allowed[][KVF_LEASE_RELEASED + 1] = {
        [KVF_LEASE_QUEUED] = {[KVF_LEASE_GRANTED] = true, [KVF_LEASE_RELEASED] = true},
        [KVF_LEASE_GRANTED] = {[KVF_LEASE_RELEASED] = true},
        [KVF_LEASE_RELEASED] = {false},
    };
    kvf_assert(allowed[lease->state][to]);
    lease->state = to;
}

/* ---- giving back ---- */

static void free_if_over(struct kvf_lease *lease)
{
    if (lease->state != KVF_LEASE_RELEASED || lease->held > 0 || lease->working)
        return;
    kvf_timer_stop(lease->leases->loop, &lease->timer);
    kvf_list_remove(&lease->node);
    lease->leases->open--;
    kvf_tenants_leave(kvf_index_tenants(lease->leases->index), lease->request.tenant);
    lease->freed(lease->user, lease);
    free(lease->lane_blocks);
    free(lease->blocks);
    free(lease);
}

static void return_places(struct kvf_lease *lease, uint32_t count)
{
    kvf_assert(lease->places >= count);
    lease->places -= count;
    lease->lane->places += count;
}

static void return_charge(struct kvf_lease *lease, struct kvf_lease_block *block)
{
    kvf_admission_return(lease->leases->admission, &lease->request, block->charge);
    block->charge = 0;
}

/* Nothing of ours touches the block, and the consumer is done with it (or it will never be sent):
 * it goes back. */
static void settle(struct kvf_lease *lease, struct kvf_lease_block *block)
{
    if (block->entry == NULL || block->loading || block->on_lane)
        return;
    if (block->failed != KVF_OK && lease->state == KVF_LEASE_GRANTED) {
        enum kvf_code failed = block->failed;
        block->failed = KVF_OK;
        lease->events->fault(lease, (uint32_t)(block - lease->blocks), failed);
    }
    if (lease->state != KVF_LEASE_RELEASED)
        return;
    kvf_entry_unpin(lease->leases->index, block->entry);
    block->entry = NULL;
    return_charge(lease, block);
    lease->held--;
}

static void unwatch(struct kvf_lease_block *block)
{
    if (block->watching)
        kvf_entry_unwatch(&block->watch);
    if (block->awaiting)
        kvf_awaited_remove(block->lease->leases->awaited, &block->await);
    block->watching = block->awaiting = false;
}

static bool is_on_lane(const struct kvf_lease *lease)
{
    for (uint32_t i = 0; i < lease->block_count; i++)
        if (lease->blocks[i].on_lane)
            return true;
    return false;
}

static void let_others_ask(struct kvf_lease_lane *shared);

void kvf_lease_release(struct kvf_lease *lease)
{
    if (lease->state == KVF_LEASE_RELEASED)
        return;
    kvf_admission_withdraw(lease->leases->admission, &lease->request);
    kvf_timer_stop(lease->leases->loop, &lease->timer);
    kvf_list_remove(&lease->place_node);
    if (lease->state == KVF_LEASE_QUEUED)
        return_places(lease, lease->places);
    else if (is_on_lane(lease))
        kvf_lane_release(&lease->lane_read);
    set_state(lease, KVF_LEASE_RELEASED);
    for (uint32_t i = 0; i < lease->block_count; i++) {
        unwatch(&lease->blocks[i]);
        settle(lease, &lease->blocks[i]);
    }
    let_others_ask(lease->lane);
    free_if_over(lease);
}

void kvf_lease_cancel(struct kvf_lease *lease)
{
    if (is_on_lane(lease))
        kvf_lane_withdraw(&lease->lane_read, KVF_LANE_ALL_BLOCKS);
}

void kvf_lease_raise(struct kvf_lease *lease)
{
    uint64_t held_bytes = 0;
    for (uint32_t i = 0; i < lease->block_count; i++)
        held_bytes += lease->blocks[i].charge;
    kvf_admission_raise(lease->leases->admission, &lease->request, held_bytes);
    for (uint32_t i = 0; i < lease->block_count; i++)
        if (lease->blocks[i].loading)
            kvf_load_raise(&lease->blocks[i].waiter);
}

void kvf_lease_recheck(struct kvf_lease *lease, uint32_t block)
{
    if (block >= lease->block_count || lease->blocks[block].entry == NULL)
        return;
    kvf_load_doubt(lease->leases->loads, lease->blocks[block].entry);
}

/* ---- loads and lane ---- */

static void lane_ended(struct kvf_lane_read *read, uint32_t index)
{
    struct kvf_lease *lease = kvf_container(read, struct kvf_lease, lane_read);
    struct kvf_lease_block *block = &lease->blocks[index];
    block->on_lane = false;
    if (kvf_is_ok(lease->lane_blocks[index].status)) {
        lease->leases->counters->serve.blocks++;
        lease->leases->counters->serve.bytes += block->length;
        lease->account.sent++;
        lease->account.sent_bytes += block->length;
    }
    settle(lease, block);
    return_places(lease, 1);
    bool working = lease->working;
    lease->working = true; /* the session may end inside */
    let_others_ask(lease->lane);
    lease->working = working;
    free_if_over(lease);
}

static void load_landed(struct kvf_load_waiter *waiter, uint64_t landed_bytes)
{
    struct kvf_lease_block *block = kvf_container(waiter, struct kvf_lease_block, waiter);
    if (block->on_lane)
        kvf_lane_landed(&block->lease->lane_read, (uint32_t)(block - block->lease->blocks),
                        landed_bytes);
}

static void load_ended(struct kvf_load_waiter *waiter, struct kvf_status status)
{
    struct kvf_lease_block *block = kvf_container(waiter, struct kvf_lease_block, waiter);
    if (kvf_is_ok(status)) {
        load_landed(waiter, block->length);
        return;
    }
    block->failed = (enum kvf_code)status.code;
    if (block->on_lane)
        kvf_lane_withdraw(&block->lease->lane_read, (uint32_t)(block - block->lease->blocks));
}

static void load_gone(struct kvf_load_waiter *waiter)
{
    struct kvf_lease_block *block = kvf_container(waiter, struct kvf_lease_block, waiter);
    struct kvf_lease *lease = block->lease;
    block->loading = false;
    settle(lease, block);
    free_if_over(lease);
}

/* ---- looking ---- */

/* Of no block: who waits for one of it waits for the end of recovery. */
#define NO_NAMESPACE ""

/* What the index says to this block; nothing where the Read is denied. */
static bool find(const struct kvf_lease *lease, const struct kvf_lease_block *block,
                 struct kvf_found *found)
{
    return !lease->denied && kvf_index_find(lease->leases->index, lease->ns, &block->key, found);
}

/* ---- pending blocks: a put is under way, or recovery may still find it ---- */

static void wait_pending(struct kvf_lease *lease, struct kvf_lease_block *block);

/* What was waited for is over. */
static void look_again(struct kvf_lease_block *block)
{
    struct kvf_lease *lease = block->lease;
    struct kvf_found found;
    if (find(lease, block, &found) && found.state == KVF_ENTRY_READY)
        lease->events->committed(lease, (uint32_t)(block - lease->blocks), found.length);
    else
        wait_pending(lease, block);
}

static void settled(struct kvf_entry_watch *watch)
{
    struct kvf_lease_block *block = kvf_container(watch, struct kvf_lease_block, watch);
    block->watching = false;
    look_again(block);
}

static void recovery_told(struct kvf_await *await)
{
    struct kvf_lease_block *block = kvf_container(await, struct kvf_lease_block, await);
    block->awaiting = false;
    look_again(block);
}

/* For the put, or for recovery; else there is nothing to wait for. */
static void wait_pending(struct kvf_lease *lease, struct kvf_lease_block *block)
{
    struct kvf_found found;
    if (find(lease, block, &found) && found.state == KVF_ENTRY_PENDING) {
        block->watching = true;
        block->watch.settled = settled;
        kvf_entry_watch(found.entry, &block->watch);
    } else if (kvf_awaited_is_open(lease->leases->awaited)) {
        block->awaiting = true;
        block->await = (struct kvf_await){.ns = lease->denied ? NO_NAMESPACE : lease->ns,
                                          .key = &block->key,
                                          .settled = recovery_told};
        kvf_awaited_add(lease->leases->awaited, &block->await);
    } else {
        lease->events->fault(lease, (uint32_t)(block - lease->blocks), KVF_NOT_FOUND);
    }
}

/* ---- granting ---- */

/* What the index says to this block; a hit is pinned. */
static void resolve(struct kvf_lease *lease, struct kvf_lease_block *block)
{
    struct kvf_found found;
    if (!find(lease, block, &found) || found.state == KVF_ENTRY_PULLING) {
        block->code = kvf_awaited_is_open(lease->leases->awaited) ? KVF_PENDING : KVF_NOT_FOUND;
    } else if (found.state == KVF_ENTRY_PENDING) {
        block->code = KVF_PENDING;
    } else if (!kvf_generation_is_none(block->pin) &&
               !kvf_generation_equal(block->pin, found.generation)) {
        block->code = KVF_STALE;
    } else if (block->length != found.length) {
        block->code = KVF_NOT_FOUND; /* another geometry is another block */
    } else {
        block->entry = kvf_index_pin(lease->leases->index, &found);
        block->code = block->entry != NULL ? KVF_OK : KVF_NOT_FOUND; /* no memory: a miss */
        block->tier = found.resident ? KVF_TIER_DRAM : KVF_TIER_SSD;
        lease->held += block->entry != NULL;
    }
}

static bool make_room(struct kvf_lease *lease, struct kvf_lease_block *block)
{
    struct kvf_extent room = {0};
    if (block->entry == NULL || block->entry->extent.bytes > 0)
        return true;
    if (!kvf_is_ok(
            kvf_index_room(lease->leases->index, lease->request.tenant, block->length, &room)))
        return false;
    kvf_entry_give_extent(lease->leases->index, block->entry, &room);
    block->starts = true;
    return true;
}

static void undo(struct kvf_lease *lease)
{
    for (uint32_t i = lease->block_count; i-- > 0;) {
        struct kvf_lease_block *block = &lease->blocks[i];
        if (block->entry == NULL)
            continue;
        if (block->starts)
            kvf_entry_drop_extent(lease->leases->index, block->entry);
        kvf_entry_unpin(lease->leases->index, block->entry);
        block->entry = NULL;
        block->starts = false;
        lease->held--;
    }
}

static bool take_all(struct kvf_lease *lease)
{
    bool gap = false;
    for (uint32_t i = 0; i < lease->block_count; i++) {
        struct kvf_lease_block *block = &lease->blocks[i];
        if (gap && lease->stop_at_first_miss)
            block->code = KVF_NOT_FOUND;
        else
            resolve(lease, block);
        gap = gap || (block->code != KVF_OK && block->code != KVF_PENDING);
    }
    for (uint32_t i = 0; i < lease->block_count; i++)
        if (!make_room(lease, &lease->blocks[i]))
            return false;
    return true;
}

static bool start_loads(struct kvf_lease *lease)
{
    uint32_t count = 0;
    struct kvf_entry **entries = calloc(lease->block_count, sizeof(struct kvf_entry *));
    if (entries == NULL)
        return false;
    for (uint32_t i = 0; i < lease->block_count; i++)
        if (lease->blocks[i].starts)
            entries[count++] = lease->blocks[i].entry;
    bool started = count == 0 || kvf_load_from_ssd(lease->leases->loads, entries, count,
                                                   lease->request.speculative);
    free(entries);
    return started;
}

static void offer(struct kvf_lease *lease)
{
    bool any = false;
    for (uint32_t i = 0; i < lease->block_count; i++) {
        struct kvf_lease_block *block = &lease->blocks[i];
        if (block->entry == NULL)
            continue;
        any = block->on_lane = true;
        lease->lane_blocks[i].extent = block->entry->extent;
        lease->lane_blocks[i].length = block->length;
        lease->lane_blocks[i].landed_bytes = kvf_load_landed_bytes(block->entry);
    }
    if (any)
        kvf_lane_offer(lease->lane->lane, &lease->lane_read);
}

static void join_loads(struct kvf_lease *lease)
{
    for (uint32_t i = 0; i < lease->block_count; i++) {
        struct kvf_lease_block *block = &lease->blocks[i];
        block->starts = false;
        if (block->entry == NULL || block->entry->resident)
            continue;
        block->loading = true;
        block->waiter = (struct kvf_load_waiter){.speculative = lease->request.speculative,
                                                 .landed = load_landed,
                                                 .ended = load_ended,
                                                 .gone = load_gone};
        kvf_load_join(lease->leases->loads, block->entry, &block->waiter);
    }
}

static void watch_pending(struct kvf_lease *lease)
{
    for (uint32_t i = 0; i < lease->block_count; i++)
        if (lease->blocks[i].code == KVF_PENDING)
            wait_pending(lease, &lease->blocks[i]);
}

static void overdue(struct kvf_timer *timer)
{
    struct kvf_lease *lease = kvf_container(timer, struct kvf_lease, timer);
    lease->events->overdue(lease);
}

static bool admit(struct kvf_request *request)
{
    struct kvf_lease *lease = kvf_container(request, struct kvf_lease, request);
    struct kvf_leases *leases = lease->leases;
    if (!take_all(lease) || !start_loads(lease)) {
        undo(lease);
        return false;
    }
    set_state(lease, KVF_LEASE_GRANTED);
    return_places(lease, lease->places - lease->held);
    leases->counters->serve.reads++;
    lease->account.granted_ns = kvf_clock_now_ns();
    lease->account.hits = lease->held;
    kvf_histogram_add(&leases->counters->stages[KVF_STAGE_ADMISSION],
                      lease->account.granted_ns - request->since_ns);
    for (uint32_t i = 0; i < lease->block_count; i++) {
        lease->blocks[i].charge = kvf_round_up_page(lease->blocks[i].length);
        if (lease->blocks[i].entry == NULL)
            return_charge(lease, &lease->blocks[i]);
    }
    lease->timer.fire = overdue;
    kvf_timer_start(leases->loop, &lease->timer, lease->deadline_ns + KVF_PEER_RELEASE_GRACE_NS);
    lease->working = true; /* the session may end inside an event */
    offer(lease);          /* first: the lane's thread sends while Grants are packed */
    lease->events->granted(lease);
    join_loads(lease);
    if (lease->state == KVF_LEASE_GRANTED)
        watch_pending(lease);
    let_others_ask(lease->lane); /* the places of what is missing */
    lease->working = false;
    free_if_over(lease);
    return true;
}

/* ---- admission ---- */

static void refuse(struct kvf_lease *lease, struct kvf_refusal refusal)
{
    lease->account.code = refusal.code;
    lease->leases->counters->serve.busy += refusal.code == KVF_BUSY;
    lease->events->refused(lease, &refusal);
    kvf_lease_release(lease);
}

static void deadline(struct kvf_timer *timer)
{
    struct kvf_lease *lease = kvf_container(timer, struct kvf_lease, timer);
    struct kvf_refusal refusal =
        kvf_admission_explain(lease->leases->admission, &lease->request, KVF_BUSY);
    if (!kvf_list_is_empty(&lease->place_node)) {
        refusal.shortage = KVF_SHORT_OF_READS;
        refusal.waited_ns = kvf_clock_now_ns() - lease->account.start_ns;
    }
    refuse(lease, refusal);
}

/* ---- places on the lane ---- */

void kvf_lease_lane_init(struct kvf_lease_lane *shared, struct kvf_lane *lane,
                         const struct kvf_transport_traits *traits)
{
    shared->lane = lane;
    shared->places = traits->lane_blocks > 0 ? traits->lane_blocks : UINT64_MAX / 2;
    kvf_list_init(&shared->waiting);
}

static void ask_admission(struct kvf_lease *lease)
{
    lease->places = lease->block_count;
    lease->lane->places -= lease->block_count;
    kvf_admission_submit(lease->leases->admission, &lease->request);
}

static void let_others_ask(struct kvf_lease_lane *shared)
{
    while (shared->lane != NULL && !kvf_list_is_empty(&shared->waiting)) {
        struct kvf_lease *next = kvf_container(shared->waiting.next, struct kvf_lease, place_node);
        if (next->block_count > shared->places)
            return;
        kvf_list_remove(&next->place_node);
        ask_admission(next);
    }
}

struct kvf_lease *kvf_lease_create(struct kvf_leases *leases, uint32_t block_count)
{
    struct kvf_lease *lease = calloc(1, sizeof(*lease));
    if (lease == NULL)
        return NULL;
    lease->blocks = calloc(block_count, sizeof(*lease->blocks));
    lease->lane_blocks = calloc(block_count, sizeof(*lease->lane_blocks));
    if (lease->blocks == NULL || lease->lane_blocks == NULL) {
        free(lease->blocks);
        free(lease->lane_blocks);
        free(lease);
        return NULL;
    }
    lease->leases = leases;
    lease->block_count = block_count;
    kvf_list_init(&lease->node);
    kvf_list_init(&lease->place_node);
    for (uint32_t i = 0; i < block_count; i++)
        lease->blocks[i].lease = lease;
    leases->open++;
    return lease;
}

void kvf_lease_start(struct kvf_lease *lease)
{
    struct kvf_leases *leases = lease->leases;
    lease->account.start_ns = kvf_clock_now_ns();
    uint64_t latest = lease->account.start_ns + leases->max_lease_ns;
    if (lease->deadline_ns > latest)
        lease->deadline_ns = latest;
    lease->lane_read = (struct kvf_lane_read){
        .id = lease->id,
        .instance = lease->instance,
        .blocks = lease->lane_blocks,
        .block_count = lease->block_count,
        .ended = lane_ended,
    };
    lease->request.class = KVF_CLASS_SERVE;
    lease->request.party = lease->party;
    if (!lease->denied) /* else nothing is found, and it must not matter whose it would be */
        lease->request.tenant = kvf_tenants_enter(kvf_index_tenants(leases->index), lease->ns);
    lease->request.speculative = lease->speculative;
    lease->request.admit = admit;
    for (uint32_t i = 0; i < lease->block_count; i++)
        lease->request.bytes += kvf_round_up_page(lease->blocks[i].length);
    uint64_t bytes = lease->request.bytes;
    if (bytes > leases->max_grant_bytes) {
        refuse(lease, (struct kvf_refusal){.code = KVF_TOO_LARGE,
                                           .shortage = KVF_SHORT_OF_GRANT,
                                           .short_bytes = bytes - leases->max_grant_bytes});
        return;
    }
    if (!kvf_admission_can_ever_fit(leases->admission, &lease->request)) {
        refuse(lease, kvf_admission_explain(leases->admission, &lease->request, KVF_TOO_LARGE));
        return;
    }
    lease->timer.fire = deadline;
    kvf_timer_start(leases->loop, &lease->timer, lease->deadline_ns);
    kvf_list_push_back(&lease->lane->waiting, &lease->place_node);
    let_others_ask(lease->lane);
}
