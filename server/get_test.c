#include "server/node_fixture.h"

#define SECONDS 1000u

static struct node node;

/* ---- one node ---- */

static void get__resident__is_held_until_released(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){0});
    node_put(&node, 1);
    node_put(&node, 2);
    node_get_start(&node, &ask, LIST(1, 2, 3), 3, 10 * SECONDS);
    assert_int_equal(ask.answered, 1);
    assert_int_equal(ask.prefix, 2);
    assert_int_equal(ask.codes[2], KVF_NOT_FOUND);
    assert_int_equal(ask.tiers[0], KVF_TIER_DRAM);
    assert_int_equal(node.admission.query.used_bytes, 2 * NODE_BLOCK_BYTES);
    get_release(ask.get, 0);
    get_release(ask.get, 0);
    get_release(ask.get, 77);
    assert_int_equal(node.admission.query.used_bytes, NODE_BLOCK_BYTES);
    node_get_release(&ask);
    assert_int_equal(ask.freed, 1);
    node_stop(&node);
}

static void get__on_ssd__is_loaded_and_checked(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_put(&node, 2);
    node_evict(&node);
    node_get_start(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.prefix, 2);
    assert_int_equal(ask.tiers[1], KVF_TIER_SSD);
    assert_int_equal(ask.origins[1], KVF_ORIGIN_LOCAL);
    assert_true(node_find(&node, 1)->verified);
    node_get_release(&ask);
    node_stop(&node);
}

static void get__key_that_stands_twice__is_loaded_once_and_held_twice(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_evict(&node);
    node_get_start(&node, &ask, LIST(1, 1), 2, 10 * SECONDS);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.prefix, 2);
    assert_int_equal(node.admission.query.used_bytes, 2 * NODE_BLOCK_BYTES);
    get_release(ask.get, 0);
    assert_int_equal(node_find(&node, 1)->pins, 1);
    node_get_release(&ask);
    node_stop(&node);
}

static void get__other_length__is_a_miss(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){0});
    node_put(&node, 1);
    node_get_prepare(&node, &ask, LIST(1), 1, 10 * SECONDS);
    ask.get->items[0].length = 4096;
    get_start(ask.get);
    assert_int_equal(ask.codes[0], KVF_NOT_FOUND);
    assert_int_equal(ask.freed, 1);
    node_stop(&node);
}

static void get__more_than_can_ever_fit__is_too_large(void **state)
{
    (void)state;
    struct node_get ask;
    struct kvf_party instance = {.budget.limit_bytes = NODE_BLOCK_BYTES};
    node_start(&node, &(struct node_options){0});
    node_put(&node, 1);
    node_put(&node, 2);
    node_get_prepare(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    ask.get->party = &instance;
    get_start(ask.get);
    assert_int_equal(ask.status.code, KVF_TOO_LARGE);
    assert_int_equal(ask.codes[0], KVF_TOO_LARGE);
    assert_int_equal(ask.freed, 1);
    node_stop(&node);
}

static void get__pending__is_waited_for_without_memory(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){0});
    struct put *put = node_begin(&node, 1);
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    assert_int_equal(ask.answered, 0);
    assert_int_equal(node.admission.query.used_bytes, 0);
    node_commit(put, 1);
    assert_int_equal(ask.answered, 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    node_get_release(&ask);
    node_stop(&node);
}

/* The others are there: they must not be lost with it. */
static void get__one_key_stays_pending__the_others_come_by_the_deadline(void **state)
{
    (void)state;
    struct node_get ask;
    for (unsigned prefix_only = 0; prefix_only < 2; prefix_only++) {
        node_start(&node, &(struct node_options){.ssd = true});
        for (unsigned i = 1; i <= 4; i++)
            node_put(&node, i);
        node_evict(&node);
        struct put *put = node_begin(&node, 9);
        node_get_prepare(&node, &ask, LIST(1, 2, 9, 3, 4), 5, 800);
        ask.get->stop_at_first_miss = prefix_only != 0;
        get_start(ask.get);
        node_run_until(ask.answered == 1);
        assert_true(kvf_clock_now_ns() < ask.get->deadline_ns + KVF_NS_PER_S);
        assert_int_equal(ask.status.code, KVF_OK);
        assert_int_equal(ask.codes[0], KVF_OK);
        assert_int_equal(ask.codes[1], KVF_OK);
        assert_int_equal(ask.codes[2], KVF_DEADLINE);
        assert_int_equal(ask.codes[3], prefix_only ? KVF_NOT_FOUND : KVF_OK);
        assert_int_equal(ask.codes[4], prefix_only ? KVF_NOT_FOUND : KVF_OK);
        put_abort(put);
        node_get_release(&ask);
        node_stop(&node);
    }
}

static void get__pending_put_aborted__is_a_miss(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){0});
    struct put *put = node_begin(&node, 1);
    node_get_start(&node, &ask, LIST(1, 1), 2, 10 * SECONDS);
    put_abort(put);
    assert_int_equal(ask.answered, 1);
    assert_int_equal(ask.codes[0], KVF_NOT_FOUND);
    assert_int_equal(ask.freed, 1);
    node_stop(&node);
}

/* ---- while recovery runs ---- */

static void get__recovery_finds_it__is_read_without_memory_until_then(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    struct node_lost lost = node_lose(&node, 1);
    kvf_awaited_open(&node.awaited);
    node_get_start(&node, &ask, LIST(1, 1), 2, 10 * SECONDS);
    assert_int_equal(ask.answered, 0);
    assert_int_equal(node.admission.query.used_bytes, 0);
    node_recovers(&node, &lost);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.tiers[1], KVF_TIER_SSD);
    node_get_release(&ask);
    kvf_awaited_close(&node.awaited);
    node_stop(&node);
}

static void get__recovery_ends_without_it__is_a_miss(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    kvf_awaited_open(&node.awaited);
    node_get_start(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    assert_int_equal(ask.answered, 0);
    kvf_awaited_close(&node.awaited);
    assert_int_equal(ask.answered, 1);
    assert_int_equal(ask.codes[1], KVF_NOT_FOUND);
    assert_int_equal(ask.freed, 1);
    node_stop(&node);
}

static void get__put_while_it_waits_for_recovery__has_what_was_put(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    struct node_lost lost = node_lose(&node, 1);
    kvf_awaited_open(&node.awaited);
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    struct put *put = node_begin(&node, 1);
    node_recovers(&node, &lost); /* an older one: it does not replace what is being put */
    assert_int_equal(ask.answered, 0);
    node_commit(put, 1);
    node_recovers(&node, &lost);
    assert_int_equal(ask.answered, 1);
    assert_int_equal(ask.tiers[0], KVF_TIER_DRAM);
    assert_true(node_find(&node, 1)->generation.counter > lost.record.generation.counter);
    node_get_release(&ask);
    kvf_awaited_close(&node.awaited);
    node_stop(&node);
}

static void lookup__while_recovery_runs__unknown_is_pending(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    kvf_awaited_open(&node.awaited);
    node_get_prepare(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    ask.get->lookup_only = true;
    get_start(ask.get);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.codes[1], KVF_PENDING);
    assert_int_equal(ask.freed, 1);
    kvf_awaited_close(&node.awaited);
    node_stop(&node);
}

/* What may interrupt a Get, and how far it has come then. */
enum end { END_DEADLINE, END_CANCEL, END_DROP };
enum phase { PHASE_PENDING, PHASE_RECOVERING, PHASE_QUEUED, PHASE_LOADING };

static void interrupt(enum phase phase, enum end end)
{
    struct node_get ask;
    struct put *put = NULL;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_put(&node, 2);
    node_evict(&node);
    if (phase == PHASE_PENDING)
        put = node_begin(&node, 3);
    else if (phase == PHASE_RECOVERING)
        kvf_awaited_open(&node.awaited);
    else if (phase == PHASE_QUEUED)
        node_take_memory(&node);
    node_get_start(&node, &ask, LIST(1, 2, 3), phase <= PHASE_RECOVERING ? 3 : 2,
                   end == END_DEADLINE ? 0 : 10 * SECONDS);
    assert_int_equal(ask.answered, 0);
    if (end == END_CANCEL)
        get_cancel(ask.get);
    else if (end == END_DROP)
        node_get_drop(&ask);
    node_run_until(end == END_DROP ? ask.freed == 1 : ask.answered == 1);
    assert_int_equal(ask.answered, end != END_DROP);
    if (end == END_CANCEL)
        assert_int_equal(ask.codes[0], KVF_CANCELLED);
    if (end == END_DEADLINE && phase == PHASE_QUEUED)
        assert_int_equal(ask.status.code, KVF_BUSY);
    node_get_release(&ask);
    if (phase == PHASE_QUEUED)
        node_return_memory(&node);
    if (put != NULL)
        put_abort(put);
    node_run_until(ask.freed == 1);
    node_assert_idle(&node);
    node_stop(&node);
}

static void get__interrupted_in_any_phase__leaves_nothing(void **state)
{
    (void)state;
    for (int phase = PHASE_PENDING; phase <= PHASE_LOADING; phase++)
        for (int end = END_DEADLINE; end <= END_DROP; end++)
            interrupt((enum phase)phase, (enum end)end);
}

static void get__dropped_before_start__leaves_nothing(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){0});
    node_get_prepare(&node, &ask, LIST(1), 1, 10 * SECONDS);
    node_get_drop(&ask);
    assert_int_equal(ask.freed, 1);
    assert_int_equal(ask.answered, 0);
    node_stop(&node);
}

static void drop_other(struct node_get *ask)
{
    node_get_drop(ask->other);
}

/* As an engine does that dies while its first answer is on the way. */
static void get__dropped_by_the_answer_of_another_that_shares_its_load__leaves_nothing(void **state)
{
    (void)state;
    struct node_get first, second;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_evict(&node);
    node_get_start(&node, &first, LIST(1), 1, 10 * SECONDS);
    node_get_start(&node, &second, LIST(1), 1, 10 * SECONDS);
    assert_int_equal(node.counters.coalesced_loads, 1);
    first.other = &second;
    first.on_answer = drop_other;
    node_run_until(first.answered == 1 && second.freed == 1);
    assert_int_equal(second.answered, 0);
    node_get_release(&first);
    node_stop(&node);
}

static void drop_itself(struct node_get *ask)
{
    node_get_drop(ask);
}

static void get__dropped_by_its_own_answer__leaves_nothing(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_evict(&node);
    node_get_prepare(&node, &ask, LIST(1, 9), 2, 10 * SECONDS);
    ask.on_answer = drop_itself;
    get_start(ask.get);
    node_run_until(ask.freed == 1);
    assert_int_equal(ask.answered, 1);
    node_stop(&node);
}

static void get__block_gone_while_it_waits_for_memory__returns_the_whole_reservation(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_put(&node, 2);
    node_take_memory(&node);
    node_get_start(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    assert_int_equal(ask.get->request.state, KVF_REQUEST_QUEUED);
    node_forget(&node, 1);
    kvf_admission_retry(&node.admission); /* in vain, but now the first is a miss */
    kvf_loop_run_once(node_loop, 0);
    kvf_loop_run_once(node_loop, 0);
    assert_int_equal(ask.answered, 0);
    assert_int_equal(node.admission.query.used_bytes, 0);
    node_return_memory(&node);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_NOT_FOUND);
    assert_int_equal(ask.codes[1], KVF_OK);
    assert_int_equal(node.admission.query.used_bytes, NODE_BLOCK_BYTES);
    node_get_release(&ask);
    node_stop(&node);
}

static void get__put_anew_while_it_waits_for_memory__is_a_miss(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    node_put(&node, 1);
    node_put(&node, 2);
    node_take_memory(&node);
    node_get_start(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    node_forget(&node, 1);
    node_return_memory(&node);
    struct put *put = node_begin(&node, 1);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_NOT_FOUND);
    assert_int_equal(ask.codes[1], KVF_OK);
    node_get_release(&ask);
    put_abort(put);
    node_stop(&node);
}

static void get__segment_reclaimed_during_the_load__still_has_its_bytes(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){.ssd = true});
    for (unsigned block = 1; block <= 20; block++) /* more than one segment of 16 MiB */
        node_put(&node, block);
    node_evict(&node);
    struct kvf_found found;
    assert_true(node_look(&node, 1, &found));
    struct kvf_location at = found.location;
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    kvf_index_reclaim(node.index, at.drive, at.segment, at.sequence, 0, 0);
    assert_false(node_has(&node, 2));
    assert_true(node_has(&node, 20));
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_false(node_find(&node, 1)->on_ssd);
    node_get_release(&ask);
    node_stop(&node);
}

static void get__drive_fails__is_a_miss_and_gone_with_the_third_in_a_row(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        struct node_get ask;
        node_start(&node, &(struct node_options){.ssd = true});
        node_put(&node, 1);
        node_put(&node, 2);
        node_evict(&node);
        if (wrong)
            node_change_segments(&node);
        else
            node_cut_segments(&node);
        const enum kvf_code code = wrong ? KVF_CORRUPT : KVF_IO;
        for (unsigned round = 1; round <= (wrong ? 1 : 3); round++) {
            assert_true(node_has(&node, 1));
            node_get_start(&node, &ask, LIST(1, 2, 1), 3, 10 * SECONDS);
            node_run_until(ask.answered == 1);
            for (int i = 0; i < 3; i++)
                assert_int_equal(ask.codes[i], code);
            assert_int_equal(node.counters.misses[code], 3 * round);
            assert_int_equal(ask.freed, 1);
        }
        assert_int_equal(node.counters.dropped[wrong ? KVF_DROP_CORRUPT : KVF_DROP_READ_ERROR], 2);
        assert_false(node_has(&node, 1));
        node_stop(&node);
    }
}

static void lookup__blocks_here__says_so_and_pins_nothing(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&node, &(struct node_options){0});
    node_put(&node, 1);
    struct put *put = node_begin(&node, 2);
    node_get_prepare(&node, &ask, LIST(1, 2, 3), 3, 10 * SECONDS);
    ask.get->lookup_only = true;
    ask.get->items[0].length = 0;
    get_start(ask.get);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.codes[1], KVF_PENDING);
    assert_int_equal(ask.codes[2], KVF_NOT_FOUND);
    assert_int_equal(ask.freed, 1);
    put_abort(put);
    node_stop(&node);
}

/* ---- a consumer and sources ---- */

static struct node source, source2;

static void start_pair(bool ssd)
{
    node_start(&source, &(struct node_options){.ssd = ssd});
    node_start(&node, &(struct node_options){.peers = {source.address}});
}

static void stop_pair(void)
{
    node_stop(&node);
    node_stop(&source);
}

static void get__at_a_source__is_pulled_by_known_and_unknown_length(void **state)
{
    (void)state;
    struct node_get ask;
    start_pair(true);
    node_put(&source, 1);
    node_evict(&source);
    node_put(&source, 2);
    node_get_prepare(&node, &ask, LIST(1, 2, 3), 3, 10 * SECONDS);
    ask.get->items[1].length = 0;
    get_start(ask.get);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.prefix, 2);
    assert_int_equal(ask.tiers[0], KVF_TIER_SSD);
    assert_int_equal(ask.tiers[1], KVF_TIER_DRAM);
    assert_int_equal(ask.origins[0], KVF_ORIGIN_REMOTE);
    assert_int_equal(ask.codes[2], KVF_NOT_FOUND);
    node_get_release(&ask);
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    assert_int_equal(ask.origins[0], KVF_ORIGIN_LOCAL);
    node_get_release(&ask);
    stop_pair();
}

static void get__interrupted_while_it_pulls__leaves_nothing(void **state)
{
    (void)state;
    for (int end = END_DEADLINE; end <= END_DROP; end++) {
        struct node_get ask;
        start_pair(true);
        node_put(&source, 1);
        node_take_memory(&source); /* the Read waits there */
        /* What nobody waits for any more is taken back at once: the deadline is far behind the test's patience. */
        node_get_start(&node, &ask, LIST(1), 1,
                       end == END_DEADLINE ? 400 : 10 * NODE_WAIT_S * SECONDS);
        node_run_until(!kvf_list_is_empty(&source.admission.queues[KVF_CLASS_SERVE]));
        if (end == END_CANCEL)
            get_cancel(ask.get);
        else if (end == END_DROP)
            node_get_drop(&ask);
        node_run_until(ask.freed == 1);
        assert_int_equal(ask.answered, end != END_DROP);
        node_return_memory(&source);
        stop_pair();
    }
}

static void get__joined_pull_ends_by_the_other_ones_deadline__is_asked_for_again(void **state)
{
    (void)state;
    struct node_get first, second;
    start_pair(true);
    node_put(&source, 1);
    node_take_memory(&source);
    node_get_start(&node, &first, LIST(1), 1, 400);
    node_get_start(&node, &second, LIST(1), 1, 15 * SECONDS);
    node_run_until(first.freed == 1);
    assert_int_equal(first.answered, 1);
    assert_int_not_equal(first.codes[0], KVF_OK);
    assert_int_equal(second.answered, 0);
    node_return_memory(&source);
    node_run_until(second.answered == 1);
    assert_int_equal(second.codes[0], KVF_OK);
    node_get_release(&second);
    stop_pair();
}

static void get__hint_that_cannot_be_used__goes_on_to_the_peers(void **state)
{
    (void)state;
    struct node_get ask;
    start_pair(false);
    node_put(&source, 1);
    for (int known = 0; known < 2; known++) {
        node_get_prepare(&node, &ask, LIST(1), 1, 10 * SECONDS);
        strcpy(ask.get->hint, "192.0.2.1:9470"); /* without TLS only this host is believed */
        ask.get->items[0].length = known ? NODE_BLOCK_BYTES : 0;
        get_start(ask.get);
        node_run_until(ask.answered == 1);
        assert_int_equal(ask.codes[0], KVF_OK);
        node_get_release(&ask);
        node_evict(&node);
    }
    stop_pair();
}

static void get__pending_at_one_source__does_not_keep_others_from_being_asked(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&source, &(struct node_options){0});
    node_start(&source2, &(struct node_options){0});
    node_start(&node, &(struct node_options){.peers = {source.address, source2.address}});
    struct put *put = node_begin(&source, 1);
    node_put(&source2, 2);
    node_get_prepare(&node, &ask, LIST(1, 2), 2, 15 * SECONDS);
    ask.get->items[0].length = ask.get->items[1].length = 0;
    get_start(ask.get);
    node_run_until(ask.get->items[1].state == GET_PLANNED);
    assert_int_equal(ask.get->items[0].state, GET_ASKING);
    node_commit(put, 1);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.prefix, 2);
    node_get_release(&ask);
    node_stop(&node);
    node_stop(&source);
    node_stop(&source2);
}

/* The hint comes first, the wait for our own recovery last. */
static void get__we_recover_and_a_source_has_it__is_pulled_at_once(void **state)
{
    (void)state;
    struct node_get ask;
    start_pair(false);
    node_put(&source, 1);
    kvf_awaited_open(&node.awaited);
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.origins[0], KVF_ORIGIN_REMOTE);
    node_get_release(&ask);
    kvf_awaited_close(&node.awaited);
    stop_pair();
}

/* It waits for our own recovery; meanwhile another Get has pulled it. */
static void get__waits_for_recovery_and_another_pulls_it__is_answered(void **state)
{
    (void)state;
    struct node_get first, second;
    start_pair(false);
    kvf_awaited_open(&node.awaited);
    node_get_start(&node, &first, LIST(1), 1, 10 * SECONDS);
    node_run_until(!kvf_list_is_empty(&node.awaited.all));
    node_put(&source, 1);
    node_get_start(&node, &second, LIST(1), 1, 10 * SECONDS);
    node_run_until(second.answered == 1 && first.answered == 1);
    assert_int_equal(first.codes[0], KVF_OK);
    node_get_release(&first);
    node_get_release(&second);
    kvf_awaited_close(&node.awaited);
    stop_pair();
}

static void get__source_recovers__found_is_pulled_and_the_rest_is_a_miss_at_its_end(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        struct node_get ask;
        start_pair(true);
        node_put(&source, 1);
        struct node_lost lost = node_lose(&source, 1);
        kvf_awaited_open(&source.awaited);
        node_get_prepare(&node, &ask, LIST(1, 2), 2, 10 * NODE_WAIT_S * SECONDS);
        if (!known)
            ask.get->items[0].length = ask.get->items[1].length = 0;
        get_start(ask.get);
        node_run_until(known ? !kvf_list_is_empty(&source.awaited.all) : ask.get->lookup_tries > 0);
        node_recovers(&source, &lost);
        for (int i = 0; i < 10; i++)
            kvf_loop_run_once(node_loop, 20);
        assert_int_equal(ask.answered, 0);
        kvf_awaited_close(&source.awaited);
        node_run_until(ask.answered == 1);
        assert_int_equal(ask.codes[0], KVF_OK);
        assert_int_equal(ask.tiers[0], KVF_TIER_SSD);
        assert_int_equal(ask.codes[1], KVF_NOT_FOUND);
        node_get_release(&ask);
        stop_pair();
    }
}

static uint64_t read_errors(const struct node *n)
{
    struct kvf_drive_stats stats;
    kvf_store_stats(n->store, 0, &stats);
    return stats.read_errors;
}

static void get__drive_fails__goes_on_to_a_source(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&source, &(struct node_options){0});
    node_start(&node, &(struct node_options){.ssd = true, .peers = {source.address}});
    node_put(&source, 1);
    node_put(&node, 1);
    node_evict(&node);
    node_cut_segments(&node);
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.origins[0], KVF_ORIGIN_REMOTE);
    assert_int_equal(read_errors(&node), 1); /* a hit, and yet seen */
    assert_int_equal(node.counters.dropped[KVF_DROP_READ_ERROR], 0);
    node_get_release(&ask);
    struct kvf_found found;
    node_evict(&node); /* what came from the source goes; what lies on SSD was only hidden */
    assert_true(node_look(&node, 1, &found));
    assert_true(found.on_ssd);
    stop_pair();
}

static void get__source_drive_fails__is_a_miss_and_nothing_stays(void **state)
{
    (void)state;
    struct node_get ask;
    start_pair(true);
    node_put(&source, 1);
    node_put(&source, 2);
    node_evict(&source);
    node_cut_segments(&source);
    node_get_start(&node, &ask, LIST(1, 2), 2, 10 * SECONDS);
    node_run_until(ask.answered == 1);
    assert_int_not_equal(ask.codes[0], KVF_OK);
    assert_int_equal(ask.freed, 1);
    assert_true(node_has(&source, 1));
    assert_int_equal(read_errors(&source), 2);
    assert_int_equal(source.counters.dropped[KVF_DROP_READ_ERROR], 0);
    stop_pair();
}

static void get__source_bytes_are_wrong__is_a_miss_and_the_source_drops_its_copy(void **state)
{
    (void)state;
    struct node_get ask;
    start_pair(true);
    node_put(&source, 1);
    node_evict(&source);
    node_change_segments(&source);
    node_get_start(&node, &ask, LIST(1), 1, 10 * SECONDS);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_CORRUPT);
    node_run_until(!node_has(&source, 1));
    assert_int_equal(node.counters.misses[KVF_CORRUPT], 1);
    assert_int_equal(source.counters.dropped[KVF_DROP_CORRUPT], 1);
    stop_pair();
}

static void get__cancelled_while_it_asks__leaves_nothing(void **state)
{
    (void)state;
    struct node_get ask;
    start_pair(false);
    for (int end = END_CANCEL; end <= END_DROP; end++) {
        node_get_prepare(&node, &ask, LIST(1), 1, 10 * SECONDS);
        ask.get->items[0].length = 0;
        get_start(ask.get);
        assert_true(ask.get->lookup_open);
        if (end == END_CANCEL)
            get_cancel(ask.get);
        else
            node_get_drop(&ask);
        node_run_until(ask.freed == 1);
    }
    stop_pair();
}

static void get__source_goes_away__goes_on_to_the_next(void **state)
{
    (void)state;
    struct node_get ask;
    node_start(&source, &(struct node_options){.ssd = true});
    node_start(&source2, &(struct node_options){0});
    node_start(&node, &(struct node_options){.peers = {source.address, source2.address}});
    node_put(&source, 1);
    node_put(&source2, 1);
    node_take_memory(&source);
    node_get_start(&node, &ask, LIST(1), 1, 15 * SECONDS);
    node_run_until(!kvf_list_is_empty(&source.admission.queues[KVF_CLASS_SERVE]));
    node_stop_serving(&source);
    node_run_until(ask.answered == 1);
    assert_int_equal(ask.codes[0], KVF_OK);
    node_get_release(&ask);
    node_return_memory(&source);
    node_stop(&node);
    node_stop(&source);
    node_stop(&source2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(get__resident__is_held_until_released),
        NODE_TEST(get__on_ssd__is_loaded_and_checked),
        NODE_TEST(get__key_that_stands_twice__is_loaded_once_and_held_twice),
        NODE_TEST(get__other_length__is_a_miss),
        NODE_TEST(get__more_than_can_ever_fit__is_too_large),
        NODE_TEST(get__pending__is_waited_for_without_memory),
        NODE_TEST(get__one_key_stays_pending__the_others_come_by_the_deadline),
        NODE_TEST(get__pending_put_aborted__is_a_miss),
        NODE_TEST(get__recovery_finds_it__is_read_without_memory_until_then),
        NODE_TEST(get__recovery_ends_without_it__is_a_miss),
        NODE_TEST(get__put_while_it_waits_for_recovery__has_what_was_put),
        NODE_TEST(lookup__while_recovery_runs__unknown_is_pending),
        NODE_TEST(get__interrupted_in_any_phase__leaves_nothing),
        NODE_TEST(get__dropped_before_start__leaves_nothing),
        NODE_TEST(get__dropped_by_the_answer_of_another_that_shares_its_load__leaves_nothing),
        NODE_TEST(get__dropped_by_its_own_answer__leaves_nothing),
        NODE_TEST(get__block_gone_while_it_waits_for_memory__returns_the_whole_reservation),
        NODE_TEST(get__put_anew_while_it_waits_for_memory__is_a_miss),
        NODE_TEST(get__segment_reclaimed_during_the_load__still_has_its_bytes),
        NODE_TEST(get__drive_fails__is_a_miss_and_gone_with_the_third_in_a_row),
        NODE_TEST(lookup__blocks_here__says_so_and_pins_nothing),
        NODE_TEST(get__at_a_source__is_pulled_by_known_and_unknown_length),
        NODE_TEST(get__interrupted_while_it_pulls__leaves_nothing),
        NODE_TEST(get__joined_pull_ends_by_the_other_ones_deadline__is_asked_for_again),
        NODE_TEST(get__hint_that_cannot_be_used__goes_on_to_the_peers),
        NODE_TEST(get__pending_at_one_source__does_not_keep_others_from_being_asked),
        NODE_TEST(get__we_recover_and_a_source_has_it__is_pulled_at_once),
        NODE_TEST(get__waits_for_recovery_and_another_pulls_it__is_answered),
        NODE_TEST(get__source_recovers__found_is_pulled_and_the_rest_is_a_miss_at_its_end),
        NODE_TEST(get__drive_fails__goes_on_to_a_source),
        NODE_TEST(get__source_drive_fails__is_a_miss_and_nothing_stays),
        NODE_TEST(get__source_bytes_are_wrong__is_a_miss_and_the_source_drops_its_copy),
        NODE_TEST(get__cancelled_while_it_asks__leaves_nothing),
        NODE_TEST(get__source_goes_away__goes_on_to_the_next),
    };
    return cmocka_run_group_tests_name("server/get", tests, NULL, NULL);
}
