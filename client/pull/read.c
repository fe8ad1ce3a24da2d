/* read, in five parts: memory, slots, the end of a Read, asking, what the source says. */
#include "client/pull/read.h"

#include "base/clock.h"
#include "client/pull/pack.h"
#include "client/pull/results.h"

#include <stdlib.h>
#include <string.h>

/* A source that says Committed and then PENDING again is believed this often for one block. */
#define MAX_COMMITS 4
#define REASK_PAUSE_MIN_NS (100 * KVF_NS_PER_MS)
#define REASK_PAUSE_MAX_NS (2 * KVF_NS_PER_S)
#define FREE_READS_MAX 16

static void lane_ended(struct kvf_lane_read *lane_read, uint32_t i);
static void check(struct pull_read *read);

/* ---- memory ---- */

static struct pull_read *make(uint32_t count)
{
    uint32_t capacity = 16;
    while (capacity < count)
        capacity *= 2;
    struct pull_read *read = calloc(1, sizeof(*read));
    if (read == NULL)
        return NULL;
    read->capacity = capacity;
    read->lane.blocks = calloc(capacity, sizeof(read->lane.blocks[0]));
    read->slots = calloc(capacity, sizeof(read->slots[0]));
    kvf_list_init(&read->node);
    if (read->lane.blocks != NULL && read->slots != NULL)
        return read;
    free(read->lane.blocks);
    free(read->slots);
    free(read);
    return NULL;
}

static void destroy(struct pull_read *read)
{
    kvf_list_remove(&read->node);
    free(read->lane.blocks);
    free(read->slots);
    free(read);
}

/* From the free ones, when one is large enough. */
static struct pull_read *take(struct kvf_source *source, uint32_t count)
{
    kvf_list_for_each (node, &source->free_reads) {
        struct pull_read *read = kvf_container(node, struct pull_read, node);
        if (read->capacity < count)
            continue;
        kvf_list_remove(&read->node);
        source->free_read_count--;
        return read;
    }
    return make(count);
}

void reads_rested(struct kvf_source *source)
{
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&source->resting_reads)) != NULL) {
        kvf_list_push_front(&source->free_reads, node);
        if (++source->free_read_count <= FREE_READS_MAX)
            continue;
        source->free_read_count--;
        destroy(kvf_container(source->free_reads.previous, struct pull_read, node));
    }
}

void reads_free(struct kvf_source *source)
{
    reads_rested(source);
    while (!kvf_list_is_empty(&source->free_reads))
        destroy(kvf_container(source->free_reads.next, struct pull_read, node));
    source->free_read_count = 0;
}

/* ---- slots ---- */

static void set_state(struct pull_slot *slot, enum slot_state to)
{
    static const bool allowed[][SLOT_SETTLED + 1] = {
        [SLOT_ASKED] = {[SLOT_GRANTED] = true,
                        [SLOT_PENDING] = true,
                        [SLOT_RETURNING] = true,
                        [SLOT_DOOMED] = true},
        [SLOT_GRANTED] = {[SLOT_RETURNING] = true, [SLOT_DOOMED] = true, [SLOT_SETTLED] = true},
        [SLOT_PENDING] = {[SLOT_RETURNING] = true, [SLOT_DOOMED] = true},
        [SLOT_RETURNING] = {[SLOT_DOOMED] = true, [SLOT_SETTLED] = true},
        [SLOT_DOOMED] = {[SLOT_QUARANTINED] = true, [SLOT_SETTLED] = true},
        [SLOT_QUARANTINED] = {[SLOT_SETTLED] = true},
        [SLOT_SETTLED] = {false},
    };
    kvf_assert(allowed[slot->state][to]);
    slot->state = (uint8_t)to;
}

static void settle(struct pull_read *read, struct pull_slot *slot)
{
    kvf_assert(slot->lane_ended);
    set_state(slot, SLOT_SETTLED);
    read->unsettled--;
}

static void withdraw(struct pull_read *read, uint32_t i)
{
    if (read->session->lane != NULL && read->lane_open > 0)
        kvf_lane_withdraw(&read->lane, i);
}

/* Leave PENDING, where it is in that state. */
static void move_on(struct pull_read *read, struct pull_slot *slot, enum slot_state state)
{
    if (slot->state == SLOT_PENDING)
        read->pending--;
    set_state(slot, state);
}

static void doom(struct pull_read *read, uint32_t i, struct kvf_status verdict)
{
    struct pull_slot *slot = &read->slots[i];
    move_on(read, slot, SLOT_DOOMED);
    slot->verdict = verdict;
    if (slot->lane_ended) {
        settle(read, slot);
        results_end(read->pull, slot->block, verdict);
    } else if (!read->given_up) {
        withdraw(read, i); /* else all of it was withdrawn at once */
    }
}

/* Nobody needs to wait for a put behind the first miss. */
static void drop_behind_miss(struct pull_read *read)
{
    struct kvf_pull *pull = read->pull;
    kvf_list_for_each_safe (node, &read->session->reads) {
        struct pull_read *other = kvf_container(node, struct pull_read, node);
        if (other->pull != pull || other->pending == 0)
            continue;
        for (uint32_t i = 0; i < other->count; i++)
            if (other->slots[i].state == SLOT_PENDING &&
                results_is_behind_miss(pull, other->slots[i].block))
                doom(other, i, pull_fail(KVF_NOT_FOUND));
        if (other != read)
            check(other);
    }
}

/* Doomed by what the source said, or did not send right: a miss. */
static void miss(struct pull_read *read, uint32_t i, struct kvf_status verdict)
{
    uint32_t before = read->pull->first_miss;
    results_miss(read->pull, read->slots[i].block);
    doom(read, i, verdict);
    if (read->pull->stop_at_first_miss && read->pull->first_miss < before)
        drop_behind_miss(read);
}

/* Grant and lane agree that it is there: does the CRC? */
static void verify(struct pull_read *read, uint32_t i)
{
    struct pull_slot *slot = &read->slots[i];
    if (read->lane.blocks[i].crc32c != read->pull->blocks[slot->block].crc32c) {
        slot->bad = true;
        read->bad_count++;
        miss(read, i, pull_fail(KVF_CORRUPT));
        return;
    }
    settle(read, slot);
    results_end(read->pull, slot->block, kvf_ok());
}

/* Back to the pull, to be asked for in another Read. */
static void give_back(struct pull_read *read, uint32_t i, bool postponed)
{
    struct pull_slot *slot = &read->slots[i];
    if (slot->state != SLOT_RETURNING)
        move_on(read, slot, SLOT_RETURNING);
    if (!slot->lane_ended)
        return;
    settle(read, slot);
    if (postponed)
        results_postpone(read->pull, slot->block);
    else
        results_wait(read->pull, slot->block);
}

/* ---- the end of a Read ---- */

static void send_release(struct pull_read *read)
{
    struct wire *wire = &read->session->source->wire;
    Kvferry__Release release = KVFERRY__RELEASE__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    release.id = read->lane.id;
    if (read->bad_count > 0) {
        /* Asking for these blocks has reserved the room. */
        for (uint32_t i = 0; i < read->count; i++)
            if (read->slots[i].bad)
                wire->indexes[release.n_bad_blocks++] = i;
        release.bad_blocks = wire->indexes;
    }
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_RELEASE;
    up.release = &release;
    session_send(read->session, &up);
}

static void remember_unanswered(struct session *session, uint64_t id)
{
    session->unanswered[session->unanswered_next] = id;
    session->unanswered_next = (session->unanswered_next + 1) % SESSION_REMEMBERED_IDS;
}

static void set_parked(struct pull_read *read, bool parked)
{
    if (read->parked == parked)
        return;
    read->parked = parked;
    read->session->parked_reads += parked ? 1u : -1u;
    read->pull->reads_open -= parked ? 1u : -1u;
}

static void finish(struct pull_read *read)
{
    struct session *session = read->session;
    kvf_assert(read->lane_open == 0 && read->unsettled == 0);
    set_parked(read, false);
    read->pull->reads_open--;
    source_place_pull(read->pull);
    read->pull = NULL;
    session->open_reads--;
    kvf_timer_stop(session->source->options.loop, &read->force);
    kvf_list_remove(&read->node);
    if (!read->refused && !read->granted && session_is_open(session))
        remember_unanswered(session, read->lane.id);
    /* Not free at once: the lane may be calling about it right now. */
    kvf_list_push_back(read->refused ? &session->source->resting_reads : &session->finished_reads,
                       &read->node);
}

void reads_release(struct session *session)
{
    struct kvf_list *node;
    while ((node = kvf_list_pop_front(&session->finished_reads)) != NULL) {
        if (session_is_open(session))
            send_release(kvf_container(node, struct pull_read, node));
        kvf_list_push_back(&session->source->resting_reads, node);
    }
}

static void give_back_pending(struct pull_read *read, bool postponed)
{
    struct kvf_pull *pull = read->pull;
    for (uint32_t i = 0; i < read->count; i++)
        if (read->slots[i].state == SLOT_PENDING)
            give_back(read, i, postponed);
    if (!postponed)
        return;
    uint64_t pause = 2 * pull->reask_pause_ns;
    pause = pause < REASK_PAUSE_MIN_NS ? REASK_PAUSE_MIN_NS : pause;
    pull->reask_pause_ns = pause < REASK_PAUSE_MAX_NS ? pause : REASK_PAUSE_MAX_NS;
    pull->reask_ns = kvf_clock_now_ns() + pull->reask_pause_ns;
    if (pull->reask_ns < pull->deadline_ns)
        kvf_timer_start(pull->source->options.loop, &pull->timer, pull->reask_ns);
}

/* Only pending blocks are left. A Read of nothing else holds no memory at the source and stays open
 * for Committed. One that does is released, and its pending blocks are asked for again, alone.
 * Parked Reads must not take all the slots of the session: beyond half of them the blocks are asked
 * for from time to time. */
static void park(struct pull_read *read)
{
    struct session *session = read->session;
    if (read->parked)
        return;
    if (read->holds)
        give_back_pending(read, false);
    else if (session->parked_reads >= session->max_open_reads / 2)
        give_back_pending(read, true);
    else
        set_parked(read, true);
    source_place_pull(read->pull);
}

/* After every change: is it over? May free the Read. */
static void check(struct pull_read *read)
{
    if (read->lane_open > 0)
        return;
    if (read->pending > 0 && read->pending == read->unsettled && session_is_open(read->session))
        park(read);
    if (read->unsettled == 0)
        finish(read);
}

static void lane_ended(struct kvf_lane_read *lane_read, uint32_t i)
{
    struct pull_read *read = kvf_container(lane_read, struct pull_read, lane);
    struct kvf_source *source = read->session->source;
    struct pull_slot *slot = &read->slots[i];
    reads_rested(source);
    kvf_assert(!slot->lane_ended);
    slot->lane_ended = true;
    read->lane_open--;
    struct kvf_status status = lane_read->blocks[i].status;
    switch ((enum slot_state)slot->state) {
    case SLOT_ASKED:
    case SLOT_GRANTED:
        if (!kvf_is_ok(status))
            session_end(read->session, status); /* nobody withdrew it: the lane is broken */
        else if (slot->state == SLOT_GRANTED)
            verify(read, i);
        break;
    case SLOT_PENDING:
        break;
    case SLOT_RETURNING:
        give_back(read, i, false);
        break;
    case SLOT_DOOMED:
        settle(read, slot);
        results_end(read->pull, slot->block, slot->verdict);
        break;
    case SLOT_QUARANTINED:
        settle(read, slot);
        results_free(read->pull, slot->block);
        break;
    case SLOT_SETTLED:
        kvf_assert(false);
    }
    check(read);
    source_settle(source);
}

/* Doom all slots that can still be. */
static void doom_all(struct pull_read *read, struct kvf_status why)
{
    read->given_up = true;
    withdraw(read, KVF_LANE_ALL_BLOCKS);
    for (uint32_t i = 0; i < read->count; i++)
        if (read->slots[i].state <= SLOT_RETURNING)
            doom(read, i, why);
}

static void send_cancel(struct pull_read *read)
{
    /* Where the lane holds nothing any more Release follows at once and says as much. */
    if (read->given_up || read->refused || read->lane_open == 0 || !session_is_open(read->session))
        return;
    Kvferry__Cancel cancel = KVFERRY__CANCEL__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    cancel.id = read->lane.id;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_CANCEL;
    up.cancel = &cancel;
    session_send(read->session, &up);
}

void read_give_up(struct pull_read *read, struct kvf_status why)
{
    send_cancel(read);
    doom_all(read, why);
    check(read);
}

static void force(struct kvf_timer *timer)
{
    struct pull_read *read = kvf_container(timer, struct pull_read, force);
    struct kvf_source *source = read->session->source;
    session_end(read->session, pull_fail(KVF_DEADLINE));
    source_settle(source);
}

void read_expire(struct pull_read *read)
{
    struct kvf_loop *loop = read->session->source->options.loop;
    send_cancel(read);
    for (uint32_t i = 0; i < read->count; i++)
        if (read->slots[i].state == SLOT_PENDING)
            doom(read, i, pull_fail(KVF_PENDING));
    doom_all(read, pull_fail(KVF_DEADLINE));
    for (uint32_t i = 0; i < read->count; i++) {
        struct pull_slot *slot = &read->slots[i];
        if (slot->state != SLOT_DOOMED)
            continue;
        set_state(slot, SLOT_QUARANTINED);
        results_quarantine(read->pull, slot->block, slot->verdict);
    }
    if (read->lane_open > 0)
        kvf_timer_start(loop, &read->force, read->pull->deadline_ns + KVF_PEER_RELEASE_GRACE_NS);
    check(read);
}

void read_drain(struct pull_read *read)
{
    for (uint32_t i = 0; i < read->count; i++)
        if (read->slots[i].state == SLOT_PENDING || read->slots[i].state == SLOT_RETURNING)
            doom(read, i, pull_fail(KVF_DRAINING));
    check(read);
}

void read_sweep(struct pull_read *read)
{
    struct session *session = read->session;
    struct kvf_pull *pull = read->pull;
    kvf_assert(read->lane_open == 0);
    if (read->unsettled > 0 && pull->broken_session != session->number) {
        pull->broken_session = session->number;
        pull->breaks++;
    }
    for (uint32_t i = 0; i < read->count; i++) {
        if (read->slots[i].state > SLOT_RETURNING)
            continue;
        if (session->source->draining)
            doom(read, i, pull_fail(KVF_DRAINING));
        else if (pull->breaks > 1)
            doom(read, i, pull_fail(KVF_UNAVAILABLE));
        else
            give_back(read, i, false);
    }
    finish(read);
    if (pull->breaks > 1)
        results_end_waiting(pull, pull_fail(KVF_UNAVAILABLE));
}

/* ---- asking ---- */

/* Collects the pull's next blocks into wire->indexes. */
static uint32_t choose(struct session *session, struct kvf_pull *pull)
{
    struct wire *wire = &session->source->wire;
    struct pull_pack pack = {.batch_bytes = pull->batch_bytes,
                             .max_bytes = session->max_grant_bytes,
                             .max_blocks = session->max_blocks};
    uint32_t i = pull->next_block;
    for (; i < pull->block_count; i++) {
        const struct kvf_pull_block *block = &pull->blocks[i];
        if (block->state != KVF_PULL_WAITING || block->postponed)
            continue;
        if (!pull_pack_add(&pack, block->length))
            break;
        wire->indexes[pack.blocks - 1] = i;
    }
    pull->next_block = i;
    return pack.blocks;
}

static void fill(struct pull_read *read, struct session *session, struct kvf_pull *pull,
                 uint32_t count)
{
    struct wire *wire = &session->source->wire;
    *read = (struct pull_read){
        .lane = {.id = ++session->last_id,
                 .instance = pull->instance,
                 .blocks = read->lane.blocks,
                 .block_count = count,
                 .ended = lane_ended},
        .session = session,
        .pull = pull,
        .force = {.fire = force},
        .capacity = read->capacity,
        .count = count,
        .lane_open = count,
        .unsettled = count,
        .slots = read->slots,
    };
    memset(read->lane.blocks, 0, count * sizeof(read->lane.blocks[0]));
    memset(read->slots, 0, count * sizeof(read->slots[0]));
    for (uint32_t i = 0; i < count; i++) {
        const struct kvf_pull_block *block = &pull->blocks[wire->indexes[i]];
        read->slots[i].block = wire->indexes[i];
        read->lane.blocks[i].extent = block->extent;
        read->lane.blocks[i].length = block->length;
        wire_set_block(wire, i, &block->key, block->length, block->pin);
        results_asked(pull, wire->indexes[i]);
    }
    kvf_list_push_back(&session->reads, &read->node);
    session->open_reads++;
    pull->reads_open++;
}

static void send_read(struct pull_read *read, uint64_t left_ns)
{
    struct kvf_pull *pull = read->pull;
    Kvferry__Read message = KVFERRY__READ__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    message.id = read->lane.id;
    message.namespace_ = (char *)(uintptr_t)pull->namespace;
    message.instance = pull->instance;
    message.deadline_us = left_ns / KVF_NS_PER_US > 0 ? left_ns / KVF_NS_PER_US : 1;
    message.n_blocks = read->count;
    message.blocks = read->session->source->wire.pointers;
    message.stop_at_first_miss = pull->stop_at_first_miss;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_READ;
    up.read = &message;
    session_send(read->session, &up);
}

void read_raise(struct pull_read *read)
{
    if (read->given_up || read->refused || !session_is_open(read->session))
        return;
    Kvferry__Raise raise = KVFERRY__RAISE__INIT;
    Kvferry__SessionUp up = KVFERRY__SESSION_UP__INIT;
    raise.id = read->lane.id;
    up.message_case = KVFERRY__SESSION_UP__MESSAGE_RAISE;
    up.raise = &raise;
    session_send(read->session, &up);
}

void read_ask(struct session *session, struct kvf_pull *pull)
{
    struct kvf_source *source = session->source;
    uint64_t left_ns = kvf_clock_left_ns(pull->deadline_ns, kvf_clock_now_ns());
    kvf_list_remove(&pull->node);
    kvf_list_push_back(&source->others, &pull->node);
    if (left_ns == 0)
        return; /* its timer is about to end it */
    uint32_t most =
        pull->askable_blocks < session->max_blocks ? pull->askable_blocks : session->max_blocks;
    if (!wire_reserve(&source->wire, most)) {
        results_end_waiting(pull, pull_fail(KVF_NO_MEMORY));
        return;
    }
    reads_release(session); /* first, or the source would count one Read too many */
    uint32_t count = choose(session, pull);
    kvf_assert(count > 0);
    struct pull_read *read = take(source, count);
    if (read == NULL) {
        results_end_waiting(pull, pull_fail(KVF_NO_MEMORY));
        return;
    }
    fill(read, session, pull, count);
    kvf_lane_expect(session->lane, &read->lane);
    send_read(read, left_ns);
    if (pull->raised)
        read_raise(read);
    source_place_pull(pull);
}

/* ---- what the source says ---- */

static bool grants_are_legal(const struct pull_read *read, const Kvferry__Grants *grants)
{
    if (read->granted || read->refused || grants->n_blocks != read->count)
        return false;
    for (size_t i = 0; i < grants->n_blocks; i++)
        if (grants->blocks[i]->code == KVF_OK &&
            kvf_generation_is_none(wire_generation(grants->blocks[i]->generation)))
            return false;
    return true;
}

static void slot_granted(struct pull_read *read, uint32_t i, const Kvferry__GrantBlock *grant)
{
    struct pull_slot *slot = &read->slots[i];
    struct kvf_pull_block *block = &read->pull->blocks[slot->block];
    if (grant->code == KVF_PENDING && !results_is_behind_miss(read->pull, slot->block)) {
        set_state(slot, SLOT_PENDING);
        read->pending++;
        if (!slot->lane_ended)
            withdraw(read, i);
        return;
    }
    if (grant->code != KVF_OK) {
        miss(read, i, wire_status(grant->code));
        return;
    }
    read->holds = true;
    struct kvf_generation generation = wire_generation(grant->generation);
    if (grant->length != block->length ||
        (!kvf_generation_is_none(block->pin) && !kvf_generation_equal(block->pin, generation))) {
        miss(read, i, pull_fail(KVF_STALE));
        return;
    }
    block->generation = generation;
    block->crc32c = grant->crc32c;
    block->tier = wire_tier(grant->tier);
    set_state(slot, SLOT_GRANTED);
    if (slot->lane_ended)
        verify(read, i);
}

bool read_granted(struct pull_read *read, const Kvferry__Grants *grants)
{
    if (!grants_are_legal(read, grants))
        return false;
    read->granted = true;
    read->session->source->options.stats->reads++;
    if (!read->given_up)
        for (uint32_t i = 0; i < read->count; i++)
            slot_granted(read, i, grants->blocks[i]);
    check(read);
    return true;
}

static void tell_refused(struct kvf_source *source, struct kvf_status why,
                         const Kvferry__Refused *refused)
{
    const uint64_t most_us = UINT64_MAX / KVF_NS_PER_US;
    struct kvf_pull_refusal refusal = {
        .status = why,
        .short_of = refused->short_of,
        .waited_ns = (refused->waited_us < most_us ? refused->waited_us : most_us) * KVF_NS_PER_US,
        .short_bytes = refused->short_bytes,
    };
    if (source->options.refused != NULL)
        source->options.refused(source->options.context, source, &refusal);
}

bool read_refused(struct pull_read *read, const Kvferry__Refused *refused)
{
    struct kvf_status why = wire_status(refused->code);
    if (read->granted || read->refused || kvf_is_ok(why))
        return false;
    read->refused = true;
    tell_refused(read->session->source, why, refused);
    if (!read->given_up) {
        results_miss(read->pull, read->slots[0].block);
        doom_all(read, why);
    }
    if (refused->code == KVF_DRAINING)
        source_drains(read->session->source);
    check(read);
    return true;
}

bool read_tokens(struct pull_read *read, const Kvferry__Tokens *tokens)
{
    if (!read->granted)
        return false;
    for (size_t i = 0; i < tokens->n_tokens; i++) {
        const Kvferry__Token *token = tokens->tokens[i];
        if (token->block >= read->count || token->token.len == 0 ||
            token->token.len > KVF_TOKEN_MAX_BYTES)
            return false;
        if (read->slots[token->block].state != SLOT_GRANTED)
            continue;
        if (!kvf_is_ok(
                kvf_lane_take(&read->lane, token->block, token->token.data, token->token.len)))
            return false;
    }
    return true;
}

bool read_fault(struct pull_read *read, const Kvferry__Fault *fault)
{
    if (!read->granted || fault->block >= read->count || fault->code == KVF_OK)
        return false;
    uint8_t state = read->slots[fault->block].state;
    if (state == SLOT_GRANTED || state == SLOT_PENDING) /* of the latter: it will not come */
        miss(read, fault->block, wire_status(fault->code));
    check(read);
    return true;
}

bool read_committed(struct pull_read *read, const Kvferry__Committed *committed)
{
    if (!read->granted || committed->block >= read->count)
        return false;
    struct pull_slot *slot = &read->slots[committed->block];
    if (slot->state != SLOT_PENDING)
        return true; /* crossed with something of ours */
    struct kvf_pull_block *block = &read->pull->blocks[slot->block];
    if (committed->length != block->length)
        miss(read, committed->block, pull_fail(KVF_STALE));
    else if (block->commits >= MAX_COMMITS)
        miss(read, committed->block, pull_fail(KVF_PENDING));
    else {
        block->commits++;
        give_back(read, committed->block, false);
    }
    source_place_pull(read->pull);
    check(read);
    return true;
}
