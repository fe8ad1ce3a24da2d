/* Get, in the order of its life: planning, starting loads, their ends, the answer, giving back. What
 * it asks sources is in get_sources.c. */
#include "server/get_sources.h"

#include "base/clock.h"

#include <stdlib.h>

#define HURRY_NS (200 * KVF_NS_PER_MS)

static struct kvf_status get_fail(enum kvf_code code)
{
    return kvf_fail(KVF_MODULE_SERVER, code, 0);
}

void get_item_set_state(struct get_item *item, enum get_item_state to)
{
    static const bool allowed[][GET_RELEASED + 1] = {
        [GET_NEW] =
            {[GET_PENDING] = true, [GET_ASKING] = true, [GET_PLANNED] = true, [GET_MISSED] = true},
        [GET_PENDING] = {[GET_NEW] = true, [GET_MISSED] = true},
        [GET_ASKING] = {[GET_NEW] = true, [GET_PLANNED] = true, [GET_MISSED] = true},
        [GET_PLANNED] =
            {[GET_NEW] = true, [GET_LOADING] = true, [GET_FOUND] = true, [GET_MISSED] = true},
        [GET_LOADING] =
            {[GET_NEW] = true, [GET_PLANNED] = true, [GET_HELD] = true, [GET_MISSED] = true},
        [GET_HELD] = {[GET_RELEASED] = true},
        [GET_FOUND] = {false},
        [GET_MISSED] = {false},
        [GET_RELEASED] = {false},
    };
    kvf_assert(allowed[item->state][to]);
    item->state = to;
}

static void miss(struct get_item *item, enum kvf_code code)
{
    get_item_set_state(item, GET_MISSED);
    item->code = code;
}

/* A block that is over holds its part of the reservation no longer. */
static void settle_charge(struct get *get, struct get_item *item)
{
    bool over = item->state == GET_MISSED || item->state == GET_RELEASED;
    if (!over || item->loading || item->charge == 0)
        return;
    kvf_admission_return(get->gets->admission, &get->request, item->charge);
    item->charge = 0;
}

/* ---- planning ---- */

static void look_again(struct get_item *item)
{
    get_item_set_state(item, GET_NEW);
    if (--item->get->waits == 0)
        get_step(item->get);
}

static void settled(struct kvf_entry_watch *watch)
{
    look_again(kvf_container(watch, struct get_item, watch));
}

static void recovery_told(struct kvf_await *await)
{
    struct get_item *item = kvf_container(await, struct get_item, await);
    item->awaits = false;
    look_again(item);
}

/* It is nowhere, as far as is known by now. */
static void plan_unknown(struct get *get, struct get_item *item)
{
    struct kvf_awaited *awaited = get->gets->awaited;
    if (item->not_read || !kvf_awaited_is_open(awaited) || get->hurries) {
        miss(item, item->code == KVF_OK ? KVF_NOT_FOUND : item->code);
    } else if (get->lookup_only) {
        miss(item, KVF_PENDING);
    } else {
        get_item_set_state(item, GET_PENDING);
        item->awaits = true;
        item->await =
            (struct kvf_await){.ns = get->ns, .key = &item->key, .settled = recovery_told};
        get->waits++;
        kvf_awaited_add(awaited, &item->await);
    }
}

/* What the index knows of it, but for what this Get could not read a moment ago. */
static bool find_usable(const struct get *get, const struct get_item *item, struct kvf_found *found)
{
    return kvf_index_find(get->gets->index, get->ns, &item->key, found) &&
           !(item->not_read && found->on_ssd && !found->resident);
}

static void plan_item(struct get *get, struct get_item *item)
{
    struct kvf_found found;
    bool here = find_usable(get, item, &found);
    if (here && found.state == KVF_ENTRY_PULLING && get->lookup_only)
        here = false; /* not yet, and perhaps never */
    if (here && found.state == KVF_ENTRY_PENDING && get->hurries) {
        miss(item, KVF_DEADLINE);
    } else if (here && found.state == KVF_ENTRY_PENDING && !get->lookup_only) {
        get_item_set_state(item, GET_PENDING);
        item->watch.settled = settled;
        get->waits++;
        kvf_entry_watch(found.entry, &item->watch);
    } else if (here && found.state == KVF_ENTRY_PENDING) {
        miss(item, KVF_PENDING);
    } else if (here && item->length != 0 && item->length != found.length) {
        miss(item, KVF_NOT_FOUND); /* another geometry is another block */
    } else if (here) {
        item->length = found.length;
        item->tier = found.resident ? KVF_TIER_DRAM : KVF_TIER_SSD;
        item->origin = KVF_ORIGIN_LOCAL;
        get_item_set_state(item, GET_PLANNED);
    } else if (get_source_address(get, item->source) == NULL) {
        plan_unknown(get, item);
    } else {
        get_item_set_state(item, item->length != 0 && !get->lookup_only ? GET_PLANNED : GET_ASKING);
    }
}

static bool is_before_admission(const struct get_item *item)
{
    return item->state <= GET_PLANNED;
}

static void stop_watching(struct get *get, struct get_item *item)
{
    if (item->state != GET_PENDING)
        return;
    if (item->awaits)
        kvf_awaited_remove(get->gets->awaited, &item->await);
    else
        kvf_entry_unwatch(&item->watch);
    item->awaits = false;
    get->waits--;
}

/* Take an item back that holds nothing yet. */
static void give_up(struct get *get, struct get_item *item, enum kvf_code code)
{
    stop_watching(get, item);
    miss(item, code);
}

static void plan(struct get *get)
{
    bool gap = false;
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (gap && get->stop_at_first_miss && is_before_admission(item))
            give_up(get, item, KVF_NOT_FOUND);
        if (item->state == GET_NEW)
            plan_item(get, item);
        gap = gap || item->state == GET_MISSED;
        settle_charge(get, item);
    }
}

/* ---- starting: pin what is here, make room and loads for what is not ---- */

/* Pin what is here. First of all, for making room evicts what nobody pins. */
static void pin_what_is_here(struct get *get, struct get_item *item)
{
    struct kvf_found found;
    if (!find_usable(get, item, &found))
        return;
    if (found.state == KVF_ENTRY_PENDING || found.length != item->length) {
        miss(item, KVF_NOT_FOUND); /* it was put again meanwhile, as something else */
        return;
    }
    item->entry = kvf_index_pin(get->gets->index, &found);
    if (item->entry == NULL) {
        miss(item, KVF_NO_MEMORY);
        return;
    }
    if (found.state == KVF_ENTRY_READY) {
        item->tier = found.resident ? KVF_TIER_DRAM : KVF_TIER_SSD;
        item->origin = KVF_ORIGIN_LOCAL;
    }
}

/* The item's entry, pinned, has an extent; false: no room. Nothing is started yet. */
static bool take_entry(struct get *get, struct get_item *item)
{
    struct kvf_index *index = get->gets->index;
    struct kvf_extent room = {0};
    if (item->entry == NULL) /* a key that stands twice in the list has been added already */
        pin_what_is_here(get, item);
    if (item->state != GET_PLANNED)
        return true;
    if (item->entry == NULL && get_source_address(get, item->source) == NULL) {
        miss(item, KVF_NOT_FOUND);
        return true;
    }
    if (item->entry == NULL || item->entry->extent.bytes == 0) {
        if (!kvf_is_ok(kvf_index_room(index, get->request.tenant, item->length, &room)))
            return false;
        if (item->entry == NULL)
            item->entry =
                kvf_index_add(index, get->ns, &item->key, item->length, KVF_ENTRY_PULLING);
        if (item->entry == NULL) {
            kvf_index_return_room(index, &room);
            return false;
        }
        kvf_entry_give_extent(index, item->entry, &room);
        item->starts = true;
    }
    get_item_set_state(item, GET_LOADING);
    return true;
}

/* An item's entry was taken in vain: leave the index as it was. */
static void untake_entry(struct get *get, struct get_item *item)
{
    struct kvf_index *index = get->gets->index;
    struct kvf_entry *entry = item->entry;
    if (entry == NULL)
        return;
    item->entry = NULL;
    if (item->state == GET_LOADING)
        get_item_set_state(item, GET_PLANNED);
    if (item->starts) {
        kvf_entry_drop_extent(index, entry);
        if (entry->state == KVF_ENTRY_PULLING)
            kvf_index_unlink(index, entry);
    }
    item->starts = false;
    kvf_entry_unpin(index, entry);
}

/* Entries that this Get is to load, from SSD (not `pulled`) or from one source; returns their
 * number. */
static uint32_t collect(struct get *get, bool pulled, uint32_t source, struct kvf_entry **entries)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (item->state == GET_LOADING && item->starts &&
            (item->entry->state == KVF_ENTRY_PULLING) == pulled &&
            (!pulled || item->source == source))
            entries[count++] = item->entry;
    }
    return count;
}

static void start_pulls(struct get *get, struct kvf_entry **entries)
{
    struct gets *gets = get->gets;
    for (uint32_t k = 0; get_source_address(get, k) != NULL; k++) {
        uint32_t count = collect(get, true, k, entries);
        struct kvf_load_pull how = {
            .instance = get->instance,
            .deadline_ns = get->deadline_ns,
            .batch_bytes = gets->read_batch_bytes,
            .batches_in_flight = gets->read_batches_in_flight,
            .stop_at_first_miss = get->stop_at_first_miss,
        };
        if (count > 0 && kvf_is_ok(kvf_sources_find(gets->sources, get_source_address(get, k),
                                                    get->ns, &how.source)))
            (void)kvf_load_from_source(gets->loads, &how, entries, count);
    }
}

static void waiter_ended(struct kvf_load_waiter *waiter, struct kvf_status status);
static void waiter_gone(struct kvf_load_waiter *waiter);

/* What could not be started goes on to the next place, or is a miss. */
static void not_started(struct get *get, struct get_item *item)
{
    bool pulled = item->entry->state == KVF_ENTRY_PULLING;
    untake_entry(get, item);
    if (!pulled) {
        miss(item, KVF_NO_MEMORY);
        return;
    }
    item->code = KVF_UNAVAILABLE;
    item->source++;
    get_item_set_state(item, GET_NEW);
}

/* Every taken item waits for its load, or has its bytes already. */
static void join_loads(struct get *get)
{
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (item->state != GET_LOADING || item->loading)
            continue;
        struct kvf_entry *entry = item->entry;
        if (entry->resident && entry->verified) {
            get_item_set_state(item, GET_HELD);
            continue;
        }
        if (entry->load == NULL && (!entry->resident || !kvf_load_check(get->gets->loads, entry))) {
            not_started(get, item);
            continue;
        }
        if (item->starts && entry->state == KVF_ENTRY_PULLING)
            item->source++; /* should it fail: the next one */
        item->starts = false;
        item->loading = true;
        item->waiter =
            (struct kvf_load_waiter){.verified = true, .ended = waiter_ended, .gone = waiter_gone};
        get->waits++;
        kvf_load_join(get->gets->loads, entry, &item->waiter);
    }
}

static void miss_planned(struct get *get, enum kvf_code code)
{
    for (uint32_t i = 0; i < get->item_count; i++) {
        if (get->items[i].state == GET_PLANNED)
            miss(&get->items[i], code);
        settle_charge(get, &get->items[i]);
    }
}

/* Take all that is planned, or (when waiting is still possible) nothing. */
static bool start_planned(struct get *get, bool may_wait)
{
    struct kvf_entry **entries = calloc(get->item_count, sizeof(struct kvf_entry *));
    bool room = entries != NULL;
    if (!room && !may_wait) {
        miss_planned(get, KVF_NO_MEMORY);
        return true;
    }
    for (uint32_t i = 0; i < get->item_count && room; i++)
        if (get->items[i].state == GET_PLANNED)
            pin_what_is_here(get, &get->items[i]);
    for (uint32_t i = 0; i < get->item_count && room; i++) {
        struct get_item *item = &get->items[i];
        if (item->state != GET_PLANNED)
            continue;
        room = take_entry(get, item);
        if (!room && !may_wait) {
            untake_entry(get, item);
            miss(item, KVF_BUSY);
            room = true;
        }
    }
    if (!room) {
        for (uint32_t i = get->item_count; i-- > 0;)
            if (get->items[i].state <= GET_LOADING && !get->items[i].loading)
                untake_entry(get, &get->items[i]);
        free(entries);
        return false;
    }
    uint32_t count = collect(get, false, 0, entries);
    if (count > 0)
        (void)kvf_load_from_ssd(get->gets->loads, entries, count, false);
    if (get->gets->sources != NULL)
        start_pulls(get, entries);
    free(entries);
    join_loads(get);
    for (uint32_t i = 0; i < get->item_count; i++)
        settle_charge(get, &get->items[i]);
    return true;
}

static void count_admission(struct get *get)
{
    kvf_histogram_add(&get->gets->counters->stages[KVF_STAGE_ADMISSION],
                      kvf_clock_now_ns() - get->request.since_ns);
}

static bool admit(struct kvf_request *request)
{
    struct get *get = kvf_container(request, struct get, request);
    uint64_t charged = 0;
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        item->charge = item->state == GET_PLANNED ? kvf_round_up_page(item->length) : 0;
        charged += item->charge;
    }
    if (!start_planned(get, true)) {
        for (uint32_t i = 0; i < get->item_count; i++)
            get->items[i].charge = 0;
        return false;
    }
    /* What an earlier try has found to be a miss needs its part no longer. */
    kvf_admission_return(get->gets->admission, request, request->bytes - charged);
    count_admission(get);
    if (!get->working)
        get_step(get);
    return true;
}

/* ---- ends of loads ---- */

static void waiter_ended(struct kvf_load_waiter *waiter, struct kvf_status status)
{
    struct get_item *item = kvf_container(waiter, struct get_item, waiter);
    if (item->state != GET_LOADING)
        return; /* the deadline was faster: it is a miss already */
    item->code = (enum kvf_code)status.code;
    item->not_read |= status.code == KVF_IO && item->entry->state == KVF_ENTRY_READY;
    if (!kvf_is_ok(status))
        return; /* what next is decided when the load has let go */
    get_item_set_state(item, GET_HELD);
    enum kvf_tier tier = kvf_load_source_tier(item->entry);
    if (tier != KVF_TIER_NONE) {
        item->tier = tier;
        item->origin = KVF_ORIGIN_REMOTE;
    }
}

static void waiter_gone(struct kvf_load_waiter *waiter)
{
    struct get_item *item = kvf_container(waiter, struct get_item, waiter);
    struct get *get = item->get;
    item->loading = false;
    if (item->state != GET_HELD) {
        kvf_entry_unpin(get->gets->index, item->entry);
        item->entry = NULL;
    }
    /* Another one's deadline, or session, is no reason not to try again. */
    if (item->state == GET_LOADING)
        get_item_set_state(item, kvf_clock_now_ns() < get->deadline_ns ? GET_NEW : GET_MISSED);
    settle_charge(get, item);
    if (get->answered_done || --get->waits == 0)
        get_step(get);
}

/* ---- the answer ---- */

static void count_answer(struct get *get)
{
    struct kvf_counters *counters = get->gets->counters;
    for (uint32_t i = 0; i < get->item_count && !get->lookup_only; i++) {
        const struct get_item *item = &get->items[i];
        enum kvf_hit hit = item->tier == KVF_TIER_SSD ? KVF_HIT_SSD : KVF_HIT_DRAM;
        if (item->origin == KVF_ORIGIN_REMOTE)
            hit = item->tier == KVF_TIER_SSD ? KVF_HIT_REMOTE_SSD : KVF_HIT_REMOTE_DRAM;
        if (item->state == GET_HELD)
            counters->hits[hit]++;
        else
            counters->misses[item->code]++;
    }
}

/* What a Get shows to be worth a place on SSD. */
static void keep(struct get *get)
{
    struct gets *gets = get->gets;
    for (uint32_t i = 0; i < get->item_count && gets->puts != NULL; i++) {
        struct get_item *item = &get->items[i];
        if (item->state == GET_HELD && (item->entry->pulled ? gets->keep_pulled : gets->keep_hits))
            put_keep(gets->puts, item->entry, false);
    }
}

static void answer(struct get *get)
{
    get->answered_done = true;
    kvf_timer_stop(get->gets->loop, &get->timer);
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (item->state == GET_PLANNED)
            get_item_set_state(item, GET_FOUND); /* a look-up's hit */
        if (item->state != GET_MISSED)
            item->code = KVF_OK;
    }
    count_answer(get);
    keep(get);
    if (!get->dropped)
        get->answered(get);
}

static void free_if_over(struct get *get)
{
    if (!get->answered_done || get->lookup_open || get->working)
        return;
    for (uint32_t i = 0; i < get->item_count; i++)
        if (get->items[i].state == GET_HELD || get->items[i].loading)
            return;
    get->gets->open--;
    void (*freed)(void *user) = get->freed;
    void *user = get->user;
    kvf_tenants_leave(kvf_index_tenants(get->gets->index), get->request.tenant);
    free(get->items);
    free(get);
    freed(user);
}

/* Answer without what is not there yet. The caller keeps the Get alive. */
static void answer_early(struct get *get, enum kvf_code code)
{
    if (get->answered_done)
        return;
    if (get->request.state == KVF_REQUEST_QUEUED) {
        get->refusal = kvf_admission_explain(get->gets->admission, &get->request, KVF_BUSY);
        kvf_admission_withdraw(get->gets->admission, &get->request);
        if (code == KVF_DEADLINE)
            get->status = get_fail(code = KVF_BUSY);
    }
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (is_before_admission(item))
            give_up(get, item, code);
        else if (item->state == GET_LOADING)
            miss(item, code);
        settle_charge(get, item);
    }
    for (uint32_t i = 0; i < get->item_count; i++)
        if (get->items[i].loading)
            kvf_load_leave(&get->items[i].waiter);
    get->waits = 0;
    kvf_timer_stop(get->gets->loop, &get->lookup_timer);
    if (get->lookup_open)
        kvf_lookup_cancel(&get->lookup);
    answer(get);
}

static void end_early(struct get *get, enum kvf_code code)
{
    bool working = get->working;
    get->working = true; /* the answer may give everything back at once */
    answer_early(get, code);
    get->working = working;
    free_if_over(get);
}

static void reserve(struct get *get)
{
    for (uint32_t i = 0; i < get->item_count; i++)
        if (get->items[i].state == GET_PLANNED)
            get->request.bytes += kvf_round_up_page(get->items[i].length);
    if (!kvf_admission_can_ever_fit(get->gets->admission, &get->request)) {
        get->status = get_fail(KVF_TOO_LARGE);
        get->refusal = kvf_admission_explain(get->gets->admission, &get->request, KVF_TOO_LARGE);
        answer_early(get, KVF_TOO_LARGE);
        return;
    }
    kvf_admission_submit(get->gets->admission, &get->request);
}

static bool has_planned(const struct get *get)
{
    for (uint32_t i = 0; i < get->item_count; i++)
        if (get->items[i].state == GET_PLANNED)
            return true;
    return false;
}

/* As far as it goes now. Everything that happens to a Get ends here. */
void get_step(struct get *get)
{
    if (get->working)
        return;
    get->working = true;
    while (!get->answered_done && get->waits == 0 && get->request.state != KVF_REQUEST_QUEUED) {
        do {
            plan(get);
        } while (!get_ask_sources(get));
        if (get->waits > 0)
            break;
        if (get->lookup_only || !has_planned(get))
            answer(get);
        else if (get->request.state == KVF_REQUEST_IDLE)
            reserve(get);
        else
            (void)start_planned(get, false);
    }
    get->working = false;
    free_if_over(get);
}

static void deadline(struct kvf_timer *timer)
{
    end_early(kvf_container(timer, struct get, timer), KVF_DEADLINE);
}

/* Most of its time is over: one key that is pending must not cost it all the others. Where there are none it is waited for to the end. */
static void hurry(struct kvf_timer *timer)
{
    struct get *get = kvf_container(timer, struct get, timer);
    get->timer.fire = deadline;
    kvf_timer_start(get->gets->loop, &get->timer, get->deadline_ns);
    if (get->request.state != KVF_REQUEST_IDLE || !has_planned(get))
        return;
    get->hurries = true;
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (item->state != GET_PENDING)
            continue;
        stop_watching(get, item);
        get_item_set_state(item, GET_NEW);
    }
    get_hurry_sources(get);
    get_step(get);
}

/* ---- the caller's side ---- */

struct get *get_create(struct gets *gets, uint32_t item_count)
{
    struct get *get = calloc(1, sizeof(*get));
    if (get == NULL)
        return NULL;
    get->items = calloc(item_count > 0 ? item_count : 1, sizeof(*get->items));
    if (get->items == NULL) {
        free(get);
        return NULL;
    }
    get->gets = gets;
    get->item_count = item_count;
    for (uint32_t i = 0; i < item_count; i++)
        get->items[i].get = get;
    get->timer.fire = hurry;
    get->request.class = KVF_CLASS_PULL;
    get->request.admit = admit;
    gets->open++;
    return get;
}

void get_start(struct get *get)
{
    get->request.party = get->party;
    get->request.tenant = kvf_tenants_enter(kvf_index_tenants(get->gets->index), get->ns);
    uint64_t left_ns = kvf_clock_left_ns(get->deadline_ns, kvf_clock_now_ns()) / 4;
    kvf_timer_start(get->gets->loop, &get->timer,
                    get->deadline_ns - (left_ns < HURRY_NS ? left_ns : HURRY_NS));
    get_step(get);
}

static void release(struct get *get, struct get_item *item)
{
    if (item->state != GET_HELD)
        return;
    get_item_set_state(item, GET_RELEASED);
    if (item->loading)
        return; /* dropped between its load's end and what comes of it: waiter_gone unpins */
    kvf_entry_unpin(get->gets->index, item->entry);
    item->entry = NULL;
    settle_charge(get, item);
}

void get_release(struct get *get, uint32_t item)
{
    if (item < get->item_count && get->answered_done)
        release(get, &get->items[item]);
    free_if_over(get);
}

void get_report_bad(struct get *get, uint32_t item)
{
    if (item >= get->item_count || !get->answered_done || get->items[item].state != GET_HELD)
        return;
    kvf_load_doubt(get->gets->loads, get->items[item].entry);
}

void get_cancel(struct get *get)
{
    end_early(get, KVF_CANCELLED);
}

void get_drop(struct get *get)
{
    bool working = get->working;
    get->working = get->dropped = true;
    answer_early(get, KVF_CANCELLED);
    for (uint32_t i = 0; i < get->item_count; i++)
        release(get, &get->items[i]);
    get->working = working;
    free_if_over(get);
}

uint32_t get_prefix(const struct get *get)
{
    uint32_t prefix = 0;
    while (prefix < get->item_count && get->items[prefix].code == KVF_OK)
        prefix++;
    return prefix;
}
