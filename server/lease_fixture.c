#include "server/lease_fixture.h"

struct node node;
struct kvf_lane *lane;
struct kvf_lease_lane shared;
struct kvf_party party;

static void granted(struct kvf_lease *lease)
{
    struct lease_read *read = lease->user;
    read->granted++;
    for (uint32_t i = 0; i < lease->block_count; i++)
        read->codes[i] = lease->blocks[i].code;
    if (read->release_when_granted)
        kvf_lease_release(lease);
}

static void refused(struct kvf_lease *lease, const struct kvf_refusal *refusal)
{
    struct lease_read *read = lease->user;
    read->refused++;
    read->refusal = *refusal;
}

static void fault(struct kvf_lease *lease, uint32_t block, enum kvf_code code)
{
    (void)block;
    (void)code;
    ((struct lease_read *)lease->user)->faults++;
}

static void committed(struct kvf_lease *lease, uint32_t block, uint64_t length)
{
    (void)block;
    assert_int_equal(length, NODE_BLOCK_BYTES);
    ((struct lease_read *)lease->user)->committed++;
}

static void overdue(struct kvf_lease *lease)
{
    ((struct lease_read *)lease->user)->overdue++;
    kvf_lease_release(lease);
}

static void freed(void *user, const struct kvf_lease *lease)
{
    struct lease_read *read = user;
    assert_ptr_equal(lease->party, &party);
    read->freed++;
    read->lease = NULL;
}

static const struct kvf_lease_events events = {.granted = granted,
                                               .refused = refused,
                                               .fault = fault,
                                               .committed = committed,
                                               .overdue = overdue};

static void lane_closed(struct kvf_lane *closed, void *user, struct kvf_status status)
{
    (void)closed;
    (void)user;
    (void)status;
    lane = NULL;
}

static void lane_opened(struct kvf_lane *opened, void *user)
{
    (void)opened;
    (void)user;
}

static const struct kvf_lane_events lane_events = {.opened = lane_opened, .closed = lane_closed};
static uint64_t next_id;

void lease_start_with(const struct node_options *options)
{
    struct kvf_lane_nonces nonces;
    node_start(&node, options);
    party = (struct kvf_party){.budget.limit_bytes = 12 * KVF_MIB};
    next_id = 0;
    assert_true(
        kvf_is_ok(kvf_lane_invite(node.transport, kvf_clock_now_ns() + NODE_WAIT_S * KVF_NS_PER_S,
                                  &lane_events, NULL, &nonces, &lane)));
    kvf_lease_lane_init(&shared, lane, kvf_transport_traits(node.transport));
}

void lease_start(bool ssd)
{
    lease_start_with(&(struct node_options){.ssd = ssd});
}

void lease_close_lane(void)
{
    if (lane != NULL)
        kvf_lane_close(lane);
    node_run_until(lane == NULL);
}

void lease_stop(void)
{
    lease_close_lane();
    node_run_until(node.leases.open == 0);
    assert_int_equal(party.budget.used_bytes, 0);
    node_stop(&node);
}

void lease_prepare(struct lease_read *read, const unsigned *blocks, uint32_t count,
                   uint64_t timeout_ms)
{
    *read = (struct lease_read){.lease = kvf_lease_create(&node.leases, count)};
    struct kvf_lease *lease = read->lease;
    assert_non_null(lease);
    lease->id = ++next_id;
    lease->deadline_ns = kvf_clock_now_ns() + timeout_ms * KVF_NS_PER_MS;
    strcpy(lease->ns, NODE_SPACE);
    lease->lane = &shared;
    lease->party = &party;
    lease->events = &events;
    lease->freed = freed;
    lease->user = read;
    for (uint32_t i = 0; i < count; i++) {
        lease->blocks[i].key = node_key(blocks[i]);
        lease->blocks[i].length = NODE_BLOCK_BYTES;
    }
}

void lease_ask(struct lease_read *read, const unsigned *blocks, uint32_t count, uint64_t timeout_ms)
{
    lease_prepare(read, blocks, count, timeout_ms);
    kvf_lease_start(read->lease);
}

void lease_guess(struct lease_read *read, const unsigned *blocks, uint32_t count)
{
    lease_prepare(read, blocks, count, 10000);
    read->lease->speculative = true;
    kvf_lease_start(read->lease);
}

uint64_t lease_served_bytes(void)
{
    return node.admission.classes[KVF_CLASS_SERVE].used_bytes;
}
