/* The sources of a Get: which there are, and Lookups at one after the other. */
#include "server/get_sources.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* The pause before a key that is PENDING at its source is asked for again; it doubles. */
#define ASK_AGAIN_FIRST_NS (20 * KVF_NS_PER_MS)
#define ASK_AGAIN_MOST_NS (200 * KVF_NS_PER_MS)

/* ---- sources of a Get: the hint, then the peers ---- */

const char *get_source_address(const struct get *get, uint32_t k)
{
    const struct gets *gets = get->gets;
    if (gets->sources == NULL)
        return NULL;
    if (get->hint[0] != '\0' && k-- == 0)
        return get->hint;
    for (size_t p = 0; p < gets->peer_count; p++)
        if (strcmp(gets->peers[p], get->hint) != 0 && k-- == 0)
            return gets->peers[p];
    return NULL;
}

/* ---- asking sources how long a block is ---- */

/* Not from this source, for that reason: the next one may have it. */
static void pass_source(struct get_item *item, enum kvf_code code)
{
    item->code = code;
    item->pending = false;
    item->source++;
    get_item_set_state(item, GET_NEW);
}

static void take_answer(struct get *get, struct get_item *item,
                        const struct kvf_lookup_block *block)
{
    if (item->state != GET_ASKING)
        return; /* the deadline was faster */
    bool other_length = item->length != 0 && item->length != block->length;
    if (block->status.code == KVF_OK && !other_length && block->length > 0 &&
        block->length <= KVF_BLOCK_MAX_BYTES) {
        item->length = block->length;
        item->tier = block->tier;
        item->origin = KVF_ORIGIN_REMOTE;
        get_item_set_state(item, GET_PLANNED);
    } else if (block->status.code == KVF_PENDING && get->hurries) {
        pass_source(item, KVF_DEADLINE);
    } else if (block->status.code == KVF_PENDING && !get->lookup_only) {
        item->pending = true;
    } else {
        pass_source(item, block->status.code == KVF_OK ? KVF_NOT_FOUND : block->status.code);
    }
}

static void ask_again(struct kvf_timer *timer)
{
    struct get *get = kvf_container(timer, struct get, lookup_timer);
    for (uint32_t i = 0; i < get->item_count; i++)
        get->items[i].pending = false;
    get->waits--;
    get_step(get);
}

void get_hurry_sources(struct get *get)
{
    for (uint32_t i = 0; i < get->item_count; i++)
        if (get->items[i].pending)
            pass_source(&get->items[i], KVF_DEADLINE);
    get->waits -= get->lookup_timer.armed;
    kvf_timer_stop(get->gets->loop, &get->lookup_timer);
}

static void pause_asking(struct get *get)
{
    uint64_t wait = ASK_AGAIN_FIRST_NS << (get->lookup_tries < 4 ? get->lookup_tries : 4);
    get->lookup_tries++;
    get->lookup_timer.fire = ask_again;
    get->waits++;
    kvf_timer_start(get->gets->loop, &get->lookup_timer,
                    kvf_clock_now_ns() + (wait < ASK_AGAIN_MOST_NS ? wait : ASK_AGAIN_MOST_NS));
}

static void lookup_ended(struct kvf_lookup *lookup)
{
    struct get *get = kvf_container(lookup, struct get, lookup);
    get->lookup_open = false;
    for (uint32_t b = 0; b < lookup->block_count; b++)
        take_answer(get, &get->items[get->lookup_items[b]], &lookup->blocks[b]);
    free(lookup->blocks);
    free(get->lookup_items);
    get->lookup_items = NULL;
    if (!get->answered_done)
        get->waits--;
    get_step(get);
}

static bool is_to_ask(const struct get_item *item, uint32_t source)
{
    return item->state == GET_ASKING && !item->pending && item->source == source;
}

static void ask_failed(struct get *get, uint32_t source, enum kvf_code code)
{
    for (uint32_t i = 0; i < get->item_count; i++) {
        struct get_item *item = &get->items[i];
        if (is_to_ask(item, source))
            pass_source(item, code);
    }
}

/* The first source that somebody still wants to ask; UINT32_MAX: none. */
static uint32_t next_source(const struct get *get, bool *pending)
{
    uint32_t source = UINT32_MAX;
    *pending = false;
    for (uint32_t i = 0; i < get->item_count; i++) {
        const struct get_item *item = &get->items[i];
        if (item->state != GET_ASKING)
            continue;
        if (item->pending)
            *pending = true;
        else if (item->source < source)
            source = item->source;
    }
    return source;
}

/* A look-up at this source of all who want to ask it. */
static struct kvf_status start_lookup(struct get *get, uint32_t source)
{
    struct kvf_lookup *lookup = &get->lookup;
    struct kvf_source *at = NULL;
    KVF_TRY(kvf_sources_find(get->gets->sources, get_source_address(get, source), get->ns, &at));
    *lookup = (struct kvf_lookup){
        .namespace = get->ns, .deadline_ns = get->deadline_ns, .ended = lookup_ended};
    lookup->blocks = calloc(get->item_count, sizeof(*lookup->blocks));
    get->lookup_items = calloc(get->item_count, sizeof(*get->lookup_items));
    if (lookup->blocks == NULL || get->lookup_items == NULL) {
        free(lookup->blocks);
        free(get->lookup_items);
        get->lookup_items = NULL;
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < get->item_count; i++) {
        if (!is_to_ask(&get->items[i], source))
            continue;
        get->lookup_items[count] = i;
        lookup->blocks[count++].key = get->items[i].key;
    }
    lookup->block_count = count;
    get->lookup_open = true;
    get->waits++;
    kvf_lookup_start(at, lookup);
    return kvf_ok();
}

/* One look-up at a time. When all have been told PENDING they are asked again after a pause. */
bool get_ask_sources(struct get *get)
{
    bool pending;
    uint32_t source = next_source(get, &pending);
    if (source == UINT32_MAX) {
        if (pending && get->waits == 0)
            pause_asking(get);
        return true;
    }
    struct kvf_status status = start_lookup(get, source);
    if (!kvf_is_ok(status))
        ask_failed(get, source, (enum kvf_code)status.code);
    return kvf_is_ok(status);
}
