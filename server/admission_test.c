#include "server/admission.h"

#include "base/block.h"
#include "base/test.h"

#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };

static struct kvf_admission admission;
static struct kvf_party instance;

struct asker {
    struct kvf_request request;
    bool memory; /* what its admit finds */
    int admitted, tried;
};

static bool admit(struct kvf_request *request)
{
    struct asker *asker = kvf_container(request, struct asker, request);
    asker->tried++;
    asker->admitted += asker->memory;
    return asker->memory;
}

static struct asker asks(enum kvf_class class, uint64_t bytes)
{
    return (struct asker){
        .request = {.class = class, .bytes = bytes, .admit = admit, .party = &instance},
        .memory = true};
}

static int set_up(void **state)
{
    (void)state;
    admission = (struct kvf_admission){.query.limit_bytes = 16 * MIB};
    admission.classes[KVF_CLASS_DIRTY].limit_bytes = 4 * MIB;
    admission.classes[KVF_CLASS_PULL].limit_bytes = 10 * MIB;
    admission.classes[KVF_CLASS_SERVE].limit_bytes = 10 * MIB;
    instance = (struct kvf_party){.budget.limit_bytes = 12 * MIB};
    kvf_admission_init(&admission);
    return kvf_is_ok(kvf_loop_create(&admission.loop)) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_loop_run_once(admission.loop, 0);
    kvf_loop_destroy(admission.loop);
    return 0;
}

static void submit__waiting__is_served_in_order_when_bytes_return(void **state)
{
    (void)state;
    struct asker first = asks(KVF_CLASS_PULL, 8 * MIB), large = asks(KVF_CLASS_PULL, 6 * MIB),
                 small = asks(KVF_CLASS_PULL, MIB);
    kvf_admission_submit(&admission, &first.request);
    kvf_admission_submit(&admission, &large.request);
    kvf_admission_submit(&admission, &small.request);
    assert_int_equal(first.admitted, 1);
    assert_int_equal(large.admitted, 0);
    assert_int_equal(small.admitted, 0); /* it would fit, but does not pass the one before it */
    assert_int_equal(admission.waited, 2);
    kvf_admission_return(&admission, &first.request, 8 * MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(large.admitted, 1);
    assert_int_equal(small.admitted, 1);
    assert_int_equal(admission.query.used_bytes, 7 * MIB);
    assert_int_equal(admission.query.peak_bytes, 8 * MIB);
    kvf_admission_return(&admission, &large.request, 6 * MIB);
    kvf_admission_return(&admission, &small.request, MIB);
    assert_int_equal(admission.query.used_bytes, 0);
    assert_int_equal(instance.budget.used_bytes, 0);
    assert_int_equal(admission.peak_instance_bytes, 8 * MIB);
}

static void submit__a_full_class__does_not_hold_up_another(void **state)
{
    (void)state;
    struct asker get = asks(KVF_CLASS_PULL, 10 * MIB), waits = asks(KVF_CLASS_PULL, MIB),
                 put = asks(KVF_CLASS_DIRTY, 4 * MIB);
    put.request.party = NULL;
    kvf_admission_submit(&admission, &get.request);
    kvf_admission_submit(&admission, &waits.request);
    kvf_admission_submit(&admission, &put.request);
    assert_int_equal(waits.admitted, 0);
    assert_int_equal(put.admitted, 1);
    kvf_admission_withdraw(&admission, &waits.request);
    assert_int_equal(waits.request.state, KVF_REQUEST_IDLE);
    kvf_admission_return(&admission, &get.request, 10 * MIB);
    kvf_loop_run_once(admission.loop, 0);
    assert_int_equal(waits.admitted, 0);
    kvf_admission_return(&admission, &put.request, 4 * MIB);
}

static void submit__no_memory_now__takes_nothing_and_is_tried_again(void **state)
{
    (void)state;
    struct asker asker = asks(KVF_CLASS_SERVE, 5 * MIB);
    asker.memory = false;
    kvf_admission_submit(&admission, &asker.request);
    assert_int_equal(asker.tried, 1);
    assert_int_equal(asker.request.state, KVF_REQUEST_QUEUED);
    assert_int_equal(admission.query.used_bytes, 0);
    assert_int_equal(admission.query.peak_bytes, 0);
    assert_int_equal(admission.peak_instance_bytes, 0);
    asker.memory = true;
    kvf_admission_retry(&admission);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(asker.admitted, 1);
    kvf_admission_return(&admission, &asker.request, 5 * MIB);
}

/* Finds no memory, and gives back what it had pinned. */
static bool admit_in_vain(struct kvf_request *request)
{
    kvf_container(request, struct asker, request)->tried++;
    kvf_admission_retry(&admission);
    return false;
}

static void retry__try_in_vain_frees_what_it_had_taken__is_not_repeated_for_that(void **state)
{
    (void)state;
    struct asker vain = asks(KVF_CLASS_PULL, MIB), waits = asks(KVF_CLASS_PULL, MIB);
    vain.request.admit = admit_in_vain;
    kvf_admission_submit(&admission, &vain.request);
    kvf_admission_submit(&admission, &waits.request);
    kvf_admission_retry(&admission);
    for (int i = 0; i < 5; i++)
        kvf_loop_run_once(admission.loop, 0);
    assert_int_equal(vain.tried, 2);
    assert_int_equal(waits.tried, 0);
    kvf_admission_withdraw(&admission, &vain.request);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(waits.admitted, 1);
    kvf_admission_return(&admission, &waits.request, MIB);
}

static void submit__instance_at_its_own_limit__lets_others_pass_but_not_its_own(void **state)
{
    (void)state;
    struct kvf_party other = {.budget.limit_bytes = 4 * MIB};
    instance.budget.limit_bytes = 6 * MIB;
    struct asker holds = asks(KVF_CLASS_PULL, 5 * MIB), large = asks(KVF_CLASS_PULL, 4 * MIB),
                 small = asks(KVF_CLASS_PULL, MIB), passes = asks(KVF_CLASS_PULL, 4 * MIB),
                 behind = asks(KVF_CLASS_PULL, MIB);
    passes.request.party = behind.request.party = &other;
    kvf_admission_submit(&admission, &holds.request);
    kvf_admission_submit(&admission, &large.request);
    kvf_admission_submit(&admission, &small.request); /* fits, but is of the same instance */
    kvf_admission_submit(&admission, &passes.request);
    kvf_admission_submit(&admission, &behind.request);
    assert_int_equal(large.admitted + small.admitted + behind.admitted, 0);
    assert_int_equal(passes.admitted, 1);
    kvf_admission_return(&admission, &passes.request, 4 * MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(behind.admitted, 1);
    assert_int_equal(large.admitted + small.admitted, 0);
    kvf_admission_return(&admission, &holds.request, 5 * MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(large.admitted + small.admitted, 2);
    kvf_admission_return(&admission, &large.request, 4 * MIB);
    kvf_admission_return(&admission, &small.request, MIB);
    kvf_admission_return(&admission, &behind.request, MIB);
    assert_int_equal(
        admission.query.used_bytes + other.budget.used_bytes + instance.budget.used_bytes, 0);
}

static void can_ever_fit__each_bound__is_looked_at(void **state)
{
    (void)state;
    struct asker asker = asks(KVF_CLASS_PULL, 10 * MIB);
    assert_true(kvf_admission_can_ever_fit(&admission, &asker.request));
    asker.request.bytes++;
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
    asker.request.bytes = 9 * MIB;
    instance.budget.limit_bytes = 8 * MIB;
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
    instance.budget.limit_bytes = 12 * MIB;
    admission.query.limit_bytes = 8 * MIB;
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
}

/* ---- turns ---- */

enum { MANY = 64 };

struct client {
    struct kvf_party party;
    struct asker asks[8];
    unsigned submitted, served; /* in their order */
};

static struct kvf_party identities[3];
static struct client clients[MANY];

static void start_turns(void)
{
    memset(identities, 0, sizeof(identities));
    memset(clients, 0, sizeof(clients));
    for (unsigned i = 0; i < 3; i++)
        identities[i].budget.limit_bytes = 10 * MIB;
}

static struct asker *client_asks(struct client *client, struct kvf_party *identity, uint64_t bytes)
{
    struct asker *asker = &client->asks[client->submitted++];
    client->party.parent = identity;
    client->party.budget.limit_bytes = 10 * MIB;
    *asker = asks(KVF_CLASS_SERVE, bytes);
    asker->request.party = &client->party;
    kvf_admission_submit(&admission, &asker->request);
    return asker;
}

/* Gives back what one asker holds and lets the next come in. */
static void end_of(struct asker *asker)
{
    assert_int_equal(asker->admitted, 1);
    kvf_admission_return(&admission, &asker->request, asker->request.bytes);
    kvf_loop_run_once(admission.loop, 0);
}

static unsigned admitted_of(const struct client *client)
{
    unsigned count = 0;
    for (unsigned i = 0; i < client->submitted; i++)
        count += (unsigned)client->asks[i].admitted;
    return count;
}

static void turns__sixty_four_instances_of_one_identity__do_not_keep_another_waiting(void **state)
{
    (void)state;
    struct asker *last = NULL;
    start_turns();
    for (unsigned i = 0; i < MANY - 1; i++) /* each wants the whole class; one has it */
        last = client_asks(&clients[i], &identities[0], 10 * MIB);
    struct client *modest = &clients[MANY - 1];
    struct asker *asker = client_asks(modest, &identities[1], MIB);
    assert_int_equal(asker->admitted, 0);
    end_of(&clients[0].asks[0]);
    assert_int_equal(asker->admitted, 1); /* before the 62 that came before it */
    assert_int_equal(last->admitted, 0);
    end_of(asker);
    for (unsigned i = 1; i < MANY - 1; i++) /* the others in their order */
        end_of(&clients[i].asks[0]);
    assert_int_equal(admission.query.used_bytes + identities[0].budget.used_bytes, 0);
    assert_int_equal(identities[0].waiting + identities[1].waiting, 0);
    assert_int_equal(admission.turns[KVF_CLASS_SERVE].waiting, 0);
    assert_int_equal(admission.peak_identity_bytes, 10 * MIB);
}

static void turns__between_identities__go_by_bytes_not_by_requests(void **state)
{
    (void)state;
    struct asker *large[4], *small[8];
    start_turns();
    struct asker *first = client_asks(&clients[2], &identities[2], 10 * MIB);
    for (unsigned i = 0; i < 4; i++)
        large[i] = client_asks(&clients[0], &identities[0], 8 * MIB);
    for (unsigned i = 0; i < 8; i++)
        small[i] = client_asks(&clients[1], &identities[1], 4 * MIB);
    end_of(first);
    unsigned larges = 0, smalls = 0;
    while (larges < 4 && smalls < 8) { /* whoever is in leaves; two small ones to one large one */
        if (large[larges]->admitted == 1)
            end_of(large[larges++]);
        else
            end_of(small[smalls++]);
        assert_true(smalls <= 2 * larges + 3 && 2 * larges <= smalls + 3);
    }
    while (larges < 4)
        end_of(large[larges++]);
    while (smalls < 8)
        end_of(small[smalls++]);
    assert_int_equal(admission.query.used_bytes, 0);
}

static void
turns__between_instances_of_an_identity__alternate_and_keep_each_ones_order(void **state)
{
    (void)state;
    start_turns();
    struct asker *first = client_asks(&clients[2], &identities[1], 10 * MIB);
    for (unsigned i = 0; i < 4; i++)
        (void)client_asks(&clients[0], &identities[0], 10 * MIB);
    for (unsigned i = 0; i < 4; i++)
        (void)client_asks(&clients[1], &identities[0], 10 * MIB);
    end_of(first);
    for (unsigned turn = 0; turn < 4; turn++)
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(admitted_of(&clients[i]), turn + 1);
            end_of(&clients[i].asks[turn]);
        }
    assert_int_equal(admission.query.used_bytes, 0);
}

static void turns__idle_for_long__is_no_claim_to_many_turns(void **state)
{
    (void)state;
    start_turns();
    for (unsigned i = 0; i < 8; i++) /* the busy one has had 80 MiB */
        end_of(client_asks(&clients[0], &identities[0], 10 * MIB));
    struct asker *first = client_asks(&clients[2], &identities[2], 10 * MIB);
    clients[0].submitted = 0;
    for (unsigned i = 0; i < 4; i++)
        (void)client_asks(&clients[1], &identities[1], 10 * MIB);
    for (unsigned i = 0; i < 4; i++)
        (void)client_asks(&clients[0], &identities[0], 10 * MIB);
    end_of(first);
    end_of(&clients[1].asks[0]);
    assert_int_equal(admitted_of(&clients[0]), 1); /* not after all four of the idle one */
    for (unsigned i = 1; i < 4; i++) {
        end_of(&clients[0].asks[i - 1]);
        end_of(&clients[1].asks[i]);
    }
    end_of(&clients[0].asks[3]);
}

static void turns__the_one_whose_turn_it_is__collects_what_is_freed(void **state)
{
    (void)state;
    struct asker *holds[5];
    start_turns();
    for (unsigned i = 0; i < 5; i++)
        holds[i] = client_asks(&clients[i], &identities[0], 2 * MIB);
    struct asker *large = client_asks(&clients[5], &identities[1], 9 * MIB);
    struct asker *small = client_asks(&clients[6], &identities[2], MIB);
    for (unsigned i = 0; i < 4; i++) {
        end_of(holds[i]);
        assert_int_equal(large->admitted + small->admitted, 0);
    }
    end_of(holds[4]);
    assert_int_equal(large->admitted, 1);
    assert_int_equal(small->admitted, 1); /* it fits beside it */
    end_of(large);
    end_of(small);
}

static void turns__identity_at_its_own_limit__lets_others_pass(void **state)
{
    (void)state;
    start_turns();
    identities[0].budget.limit_bytes = 7 * MIB;
    struct asker *holds = client_asks(&clients[0], &identities[0], 6 * MIB);
    struct asker *waits = client_asks(&clients[1], &identities[0], 4 * MIB);
    struct asker *small = client_asks(&clients[2], &identities[0], MIB); /* of the same identity */
    struct asker *other = client_asks(&clients[3], &identities[1], 2 * MIB);
    assert_int_equal(waits->admitted + small->admitted, 0);
    assert_int_equal(other->admitted, 1);
    struct kvf_refusal why = kvf_admission_explain(&admission, &waits->request, KVF_BUSY);
    assert_int_equal(why.shortage, KVF_SHORT_OF_IDENTITY);
    assert_int_equal(why.short_bytes, 3 * MIB);
    end_of(holds);
    assert_int_equal(waits->admitted + small->admitted, 2);
    end_of(waits);
    end_of(small);
    end_of(other);
}

/* ---- speculative ---- */

static struct asker *guesses(struct client *client, struct kvf_party *identity, uint64_t bytes)
{
    struct asker *asker = &client->asks[client->submitted++];
    client->party.parent = identity;
    client->party.budget.limit_bytes = 10 * MIB;
    *asker = asks(KVF_CLASS_SERVE, bytes);
    asker->request.party = &client->party;
    asker->request.speculative = true;
    if (kvf_admission_can_ever_fit(&admission, &asker->request))
        kvf_admission_submit(&admission, &asker->request);
    return asker;
}

static void speculative__a_quarter__is_all_it_may_hold(void **state)
{
    (void)state;
    start_turns();
    struct asker *holds = guesses(&clients[0], &identities[0], 2 * MIB);
    struct asker *waits = guesses(&clients[1], &identities[1], MIB);
    struct asker *never = guesses(&clients[2], &identities[2], 3 * MIB);
    assert_int_equal(holds->admitted, 1);
    assert_int_equal(waits->admitted, 0); /* 2.5 MiB of the 10 */
    assert_int_equal(never->request.state, KVF_REQUEST_IDLE);
    assert_int_equal(kvf_admission_explain(&admission, &waits->request, KVF_BUSY).shortage,
                     KVF_SHORT_OF_SPECULATIVE);
    assert_int_equal(kvf_admission_explain(&admission, &never->request, KVF_TOO_LARGE).short_bytes,
                     MIB / 2);
    end_of(holds);
    end_of(waits);
    assert_int_equal(admission.speculative.used_bytes, 0);
    assert_int_equal(admission.speculative.peak_bytes, 2 * MIB);
}

static void speculative__demand_waits__it_waits_behind(void **state)
{
    (void)state;
    start_turns();
    struct asker *holds = client_asks(&clients[0], &identities[0], 9 * MIB);
    struct asker *guess = guesses(&clients[1], &identities[1], 2 * MIB);
    struct asker *demand = client_asks(&clients[2], &identities[2], 8 * MIB);
    struct asker *fits = guesses(&clients[3], &identities[1], MIB);
    assert_int_equal(guess->admitted + demand->admitted + fits->admitted, 0);
    end_of(holds);
    assert_int_equal(demand->admitted, 1);
    assert_int_equal(guess->admitted, 1);
    assert_int_equal(fits->admitted, 0);
    end_of(guess);
    end_of(fits);
    end_of(demand);
}

static void raise__while_it_waits__is_demand_from_then_on(void **state)
{
    (void)state;
    start_turns();
    struct asker *holds = guesses(&clients[0], &identities[0], 2 * MIB);
    struct asker *guess = guesses(&clients[1], &identities[1], 2 * MIB);
    assert_int_equal(guess->admitted, 0);
    kvf_admission_raise(&admission, &guess->request, 0);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(guess->admitted, 1);
    assert_int_equal(admission.speculative.used_bytes, 2 * MIB);
    end_of(guess);
    end_of(holds);
    assert_int_equal(admission.speculative.used_bytes, 0);
}

static void raise__admitted__gives_its_speculative_share_to_others(void **state)
{
    (void)state;
    start_turns();
    struct asker *holds = guesses(&clients[0], &identities[0], 2 * MIB);
    struct asker *guess = guesses(&clients[1], &identities[1], 2 * MIB);
    kvf_admission_return(&admission, &holds->request, MIB);
    kvf_admission_raise(&admission, &holds->request, MIB);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(guess->admitted, 1);
    assert_int_equal(admission.speculative.used_bytes, 2 * MIB);
    kvf_admission_return(&admission, &holds->request, MIB);
    end_of(guess);
    assert_int_equal(admission.speculative.used_bytes, 0);
    assert_int_equal(admission.query.used_bytes, 0);
}

static void explain__what_is_short__is_named(void **state)
{
    (void)state;
    start_turns();
    struct asker *holds = client_asks(&clients[0], &identities[0], 8 * MIB);
    struct asker *large = client_asks(&clients[1], &identities[1], 5 * MIB);
    struct asker *behind = client_asks(&clients[2], &identities[2], MIB);
    struct kvf_refusal why = kvf_admission_explain(&admission, &large->request, KVF_BUSY);
    assert_int_equal(why.code, KVF_BUSY);
    assert_int_equal(why.shortage, KVF_SHORT_OF_CLASS);
    assert_int_equal(why.short_bytes, 3 * MIB);
    why = kvf_admission_explain(&admission, &behind->request, KVF_BUSY);
    assert_int_equal(why.shortage, KVF_SHORT_OF_TURN);
    assert_int_equal(why.short_bytes, 0);
    large->memory = false;
    end_of(holds);
    why = kvf_admission_explain(&admission, &large->request, KVF_BUSY);
    assert_int_equal(why.shortage, KVF_SHORT_OF_MEMORY);
    kvf_admission_withdraw(&admission, &large->request);
    kvf_loop_run_once(admission.loop, 100);
    end_of(behind);
}

/* Random requests of random parties: nobody exceeds anything, everybody is served, nothing stays. */
static void turns__at_random__everybody_is_served_within_the_limits(void **state)
{
    (void)state;
    static struct client crowd[12];
    unsigned seed = 1, open = 0, served = 0;
    start_turns();
    memset(crowd, 0, sizeof(crowd));
    for (unsigned step = 0; step < 19000; step++) {
        struct client *client = &crowd[(unsigned)rand_r(&seed) % 12];
        unsigned slot = (unsigned)rand_r(&seed) % 8;
        struct asker *asker = &client->asks[slot];
        if (asker->request.bytes == 0) {
            client->submitted = slot;
            uint64_t bytes = (1 + (uint64_t)rand_r(&seed) % 10) * MIB / 4;
            struct kvf_party *identity = &identities[(client - crowd) % 3];
            identity->budget.limit_bytes = 7 * MIB;
            (void)(rand_r(&seed) % 4 == 0 ? guesses(client, identity, bytes)
                                          : client_asks(client, identity, bytes));
            open++;
        } else if (asker->admitted == 1) {
            end_of(asker);
            *asker = (struct asker){0};
            served++;
            open--;
        } else if (rand_r(&seed) % 16 == 0 && asker->request.bytes != 0) {
            kvf_admission_raise(&admission, &asker->request, 0);
            kvf_loop_run_once(admission.loop, 0);
        }
        assert_true(admission.classes[KVF_CLASS_SERVE].used_bytes <= 10 * MIB);
        assert_true(admission.speculative.used_bytes <= 5 * MIB / 2);
    }
    for (unsigned sweep = 0; sweep < 96 && open > 0; sweep++)
        for (unsigned i = 0; i < 96; i++) {
            struct asker *asker = &crowd[i / 8].asks[i % 8];
            if (asker->admitted != 1)
                continue;
            end_of(asker);
            *asker = (struct asker){0};
            open--;
        }
    assert_true(served > 500);
    assert_int_equal(open, 0); /* whatever was asked has its turn when the others leave */
    assert_int_equal(admission.query.used_bytes, 0);
    assert_int_equal(admission.peak_identity_bytes <= 7 * MIB, 1);
}

/* ---- tenants ---- */

/* What it may have in memory, and what nobody may evict of it now. */
static struct kvf_tenant *tenant_with(uint64_t limit_bytes, uint64_t held_bytes)
{
    static struct kvf_tenant tenants[2];
    static unsigned next;
    struct kvf_tenant *tenant = &tenants[next++ % 2];
    *tenant = (struct kvf_tenant){.limit_bytes = {limit_bytes, UINT64_MAX},
                                  .used_bytes = {held_bytes, 0}};
    return tenant;
}

static void tenant__share_is_held__its_requests_wait_and_others_pass(void **state)
{
    (void)state;
    struct kvf_tenant *full = tenant_with(5 * MIB, 4 * MIB);
    struct asker waits = asks(KVF_CLASS_PULL, 2 * MIB), small = asks(KVF_CLASS_PULL, MIB),
                 other = asks(KVF_CLASS_PULL, 2 * MIB), nobodys = asks(KVF_CLASS_PULL, MIB);
    waits.request.tenant = small.request.tenant = full;
    other.request.tenant = tenant_with(5 * MIB, 0);
    kvf_admission_submit(&admission, &waits.request);
    kvf_admission_submit(&admission, &small.request); /* it would fit, but waits behind the first */
    kvf_admission_submit(&admission, &other.request);
    kvf_admission_submit(&admission, &nobodys.request);
    assert_int_equal(waits.admitted + small.admitted, 0);
    assert_int_equal(other.admitted + nobodys.admitted, 2); /* of the same instance */
    struct kvf_refusal why = kvf_admission_explain(&admission, &waits.request, KVF_BUSY);
    assert_int_equal(why.shortage, KVF_SHORT_OF_TENANT);
    assert_int_equal(why.short_bytes, MIB);
    full->used_bytes[KVF_SHARE_DRAM] = 2 * MIB;
    kvf_admission_retry(&admission);
    kvf_loop_run_once(admission.loop, 100);
    assert_int_equal(waits.admitted + small.admitted, 2);
    kvf_admission_return(&admission, &waits.request, 2 * MIB);
    kvf_admission_return(&admission, &small.request, MIB);
    kvf_admission_return(&admission, &other.request, 2 * MIB);
    kvf_admission_return(&admission, &nobodys.request, MIB);
    assert_int_equal(admission.query.used_bytes, 0);
}

static void tenant__what_is_cached__does_not_count(void **state)
{
    (void)state;
    struct kvf_tenant *tenant = tenant_with(5 * MIB, 5 * MIB);
    struct asker asker = asks(KVF_CLASS_SERVE, 3 * MIB);
    asker.request.tenant = tenant;
    tenant->cached_bytes = 3 * MIB;
    kvf_admission_submit(&admission, &asker.request);
    assert_int_equal(asker.admitted, 1);
    kvf_admission_return(&admission, &asker.request, 3 * MIB);
}

static void tenant__more_than_its_share__never_fits(void **state)
{
    (void)state;
    struct asker asker = asks(KVF_CLASS_PULL, 3 * MIB);
    asker.request.tenant = tenant_with(3 * MIB - 4096, 0);
    assert_false(kvf_admission_can_ever_fit(&admission, &asker.request));
    struct kvf_refusal why = kvf_admission_explain(&admission, &asker.request, KVF_TOO_LARGE);
    assert_int_equal(why.shortage, KVF_SHORT_OF_TENANT);
    assert_int_equal(why.short_bytes, 4096);
    asker.request.tenant->limit_bytes[KVF_SHARE_DRAM] = 3 * MIB;
    assert_true(kvf_admission_can_ever_fit(&admission, &asker.request));
}

/* ---- states ---- */

static void set_state__what_is_not_allowed__is_an_assert(void **state)
{
    (void)state;
    struct asker asker = asks(KVF_CLASS_PULL, MIB);
    kvf_admission_submit(&admission, &asker.request);
    assert_aborts(kvf_admission_submit(&admission, &asker.request)); /* a second time */
    kvf_admission_return(&admission, &asker.request, MIB);
    assert_aborts(kvf_admission_return(&admission, &asker.request, MIB)); /* more than it has */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(submit__waiting__is_served_in_order_when_bytes_return),
        TEST(submit__a_full_class__does_not_hold_up_another),
        TEST(submit__no_memory_now__takes_nothing_and_is_tried_again),
        TEST(retry__try_in_vain_frees_what_it_had_taken__is_not_repeated_for_that),
        TEST(submit__instance_at_its_own_limit__lets_others_pass_but_not_its_own),
        TEST(can_ever_fit__each_bound__is_looked_at),
        TEST(turns__sixty_four_instances_of_one_identity__do_not_keep_another_waiting),
        TEST(turns__between_identities__go_by_bytes_not_by_requests),
        TEST(turns__between_instances_of_an_identity__alternate_and_keep_each_ones_order),
        TEST(turns__idle_for_long__is_no_claim_to_many_turns),
        TEST(turns__the_one_whose_turn_it_is__collects_what_is_freed),
        TEST(turns__identity_at_its_own_limit__lets_others_pass),
        TEST(speculative__a_quarter__is_all_it_may_hold),
        TEST(speculative__demand_waits__it_waits_behind),
        TEST(raise__while_it_waits__is_demand_from_then_on),
        TEST(raise__admitted__gives_its_speculative_share_to_others),
        TEST(explain__what_is_short__is_named),
        TEST(turns__at_random__everybody_is_served_within_the_limits),
        TEST(tenant__share_is_held__its_requests_wait_and_others_pass),
        TEST(tenant__what_is_cached__does_not_count),
        TEST(tenant__more_than_its_share__never_fits),
        TEST(set_state__what_is_not_allowed__is_an_assert),
    };
    return cmocka_run_group_tests_name("server/admission", tests, NULL, NULL);
}
