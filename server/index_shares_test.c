/* What tenants with shares have in DRAM and on SSD, and what goes: single cases, then random ones beside a count of our
 * own. Blocks and places have 1 MiB; where records lie is made up. */
#include "server/index_state.h"
#include "server/node_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#define SEGMENTS 4u /* of the node's store, 16 MiB each */
#define SSD_MIB 64u

static struct node node;
static struct kvf_index *index_;
static struct kvf_acl *acl;

static void ignore(void *context)
{
    (void)context;
}

/* `shares` stands between the braces of "tenants". */
static void set_shares(const char *shares)
{
    struct kvf_acl *old = acl;
    acl = node_shares(shares);
    index_->tenants.acl = acl;
    kvf_index_reload_shares(index_);
    kvf_acl_close(old);
}

/* MiB of the pool and of the SSD, for "greedy". */
static void set_greedy(unsigned dram_mib, unsigned ssd_mib)
{
    char shares[128];
    (void)snprintf(shares, sizeof(shares), "\"greedy\": {\"dram\": %f, \"ssd\": %f}",
                   (double)(dram_mib * KVF_MIB) / (double)kvf_pool_bytes(node.pool),
                   (double)ssd_mib / SSD_MIB);
    set_shares(shares);
}

static int set_up_pool(uint64_t pool_bytes)
{
    node_set_up();
    node_start(&node, &(struct node_options){.pool_bytes = pool_bytes, .ssd = true});
    struct kvf_index_options how = {
        .pool = node.pool, .store = node.store, .boot_epoch = 7, .freed = ignore};
    return kvf_is_ok(kvf_index_create(&how, &index_)) ? 0 : -1;
}

static int set_up(void **state)
{
    (void)state;
    return set_up_pool(4 * KVF_MIB);
}

static int tear_down(void **state)
{
    (void)state;
    kvf_index_destroy(index_, false);
    node_stop(&node);
    node_tear_down();
    kvf_acl_close(acl);
    acl = NULL;
    return 0;
}

static struct kvf_key key_of(const char *text)
{
    struct kvf_key key;
    assert_true(kvf_key_set(&key, text, strlen(text)));
    return key;
}

/* A READY block of 1 MiB that somebody pins; NULL: no room. */
static struct kvf_entry *try_add(const char *ns, const char *text)
{
    struct kvf_key key = key_of(text);
    struct kvf_extent room;
    struct kvf_tenant *tenant = kvf_tenants_enter(&index_->tenants, ns);
    bool ok = kvf_is_ok(kvf_index_room(index_, tenant, KVF_MIB, &room));
    kvf_tenants_leave(&index_->tenants, tenant);
    if (!ok)
        return NULL;
    struct kvf_entry *entry = kvf_index_add(index_, ns, &key, KVF_MIB, KVF_ENTRY_PENDING);
    kvf_entry_give_extent(index_, entry, &room);
    kvf_entry_ready(index_, entry, 1);
    return entry;
}

static struct kvf_entry *add(const char *ns, const char *text)
{
    struct kvf_entry *entry = try_add(ns, text);
    assert_non_null(entry);
    return entry;
}

static void add_cached(const char *ns, const char *text)
{
    kvf_entry_unpin(index_, add(ns, text));
}

static bool look(const char *ns, const char *text, struct kvf_found *found)
{
    struct kvf_key key = key_of(text);
    return kvf_index_find(index_, ns, &key, found);
}

static bool has(const char *ns, const char *text)
{
    struct kvf_found found;
    return look(ns, text, &found);
}

static void forget(const char *ns, const char *text)
{
    struct kvf_found found;
    assert_true(look(ns, text, &found));
    kvf_index_forget(index_, &found);
}

static void store(struct kvf_entry *entry, uint32_t segment, uint64_t sequence)
{
    kvf_entry_stored(
        index_, entry,
        (struct kvf_location){.segment = segment,
                              .sequence = sequence,
                              .offset = 2 * KVF_PAGE + entry->generation.counter * KVF_PAGE});
}

static void evict(void)
{
    uint64_t blocks = 0, bytes = 0;
    kvf_index_evict_all(index_, &blocks, &bytes);
}

/* Only on SSD, in this filling of a segment. */
static void add_on_ssd(const char *ns, const char *text, uint32_t segment, uint64_t sequence)
{
    struct kvf_entry *entry = add(ns, text);
    store(entry, segment, sequence);
    kvf_entry_unpin(index_, entry);
    evict();
}

static const struct kvf_tenant *tenant(const char *name)
{
    const struct kvf_tenant *one = NULL;
    while ((one = kvf_tenants_next(&index_->tenants, one)) != NULL && strcmp(one->name, name) != 0)
        continue;
    return one;
}

static uint64_t used_mib(const char *name, enum kvf_share share)
{
    const struct kvf_tenant *one = tenant(name);
    return one != NULL ? one->used_bytes[share] / KVF_MIB : 0;
}

/* ---- DRAM ---- */

static void room__above_the_share__its_own_coldest_go(void **state)
{
    (void)state;
    set_greedy(2, 64);
    add_cached("other/f", "coldest");
    add_cached("greedy/f", "1");
    add_cached("greedy/g", "2"); /* another namespace, the same tenant */
    add_cached("greedy/f", "3");
    assert_false(has("greedy/f", "1"));
    add_cached("greedy/f", "4");
    assert_false(has("greedy/g", "2"));
    assert_true(has("greedy/f", "3") && has("greedy/f", "4") && has("other/f", "coldest"));
    assert_int_equal(used_mib("greedy", KVF_SHARE_DRAM), 2);
}

static void room__pulled_and_put_of_one_tenant__pulled_go_first(void **state)
{
    (void)state;
    set_greedy(2, 64);
    add_cached("greedy/f", "put");
    struct kvf_entry *pulled = add("greedy/f", "pulled");
    pulled->pulled = true;
    kvf_entry_unpin(index_, pulled);
    add_cached("greedy/f", "new");
    assert_true(has("greedy/f", "put"));
    assert_false(has("greedy/f", "pulled"));
}

static void room__all_of_the_share_is_pinned__is_busy_and_costs_nothing(void **state)
{
    (void)state;
    set_greedy(2, 64);
    add_cached("other/f", "k");
    add_cached("greedy/f", "cached");
    struct kvf_entry *pinned = add("greedy/f", "pinned");
    struct kvf_extent room;
    assert_int_equal(kvf_index_room(index_, pinned->space->tenant, 2 * KVF_MIB, &room).code,
                     KVF_BUSY);
    assert_true(has("other/f", "k") && has("greedy/f", "cached"));
    assert_true(kvf_is_ok(kvf_index_room(index_, NULL, KVF_MIB, &room))); /* nobody's */
    kvf_index_return_room(index_, &room);
    kvf_entry_unpin(index_, pinned);
}

/* The others may fill what greedy leaves, and give it back. */
static void room__share_is_not_used_up__others_who_have_more_than_the_rest_give_way(void **state)
{
    (void)state;
    set_greedy(2, 64);
    for (int i = 0; i < 4; i++)
        add_cached("other/f", (const char *[]){"a", "b", "c", "d"}[i]);
    assert_int_equal(used_mib("other", KVF_SHARE_DRAM), 4);
    for (int i = 0; i < 4; i++)
        add_cached("greedy/f", (const char *[]){"1", "2", "3", "4"}[i]);
    assert_int_equal(used_mib("greedy", KVF_SHARE_DRAM), 2);
    assert_true(has("other/f", "c") && has("other/f", "d"));
    add_cached("other/f", "e"); /* has what is safe for it: its own goes */
    assert_true(has("greedy/f", "3") && has("greedy/f", "4") && has("other/f", "e"));
    assert_false(has("other/f", "c"));
}

/* Two pinned ones leave two places that do not touch: 2 MiB would be there, but not in one piece. */
static void room__only_pieces_are_left__at_the_expense_of_who_asks(void **state)
{
    (void)state;
    set_greedy(3, 64);
    struct kvf_entry *first = add("greedy/f", "first");
    add_cached("modest/f", "k");
    struct kvf_entry *third = add("greedy/f", "third");
    add_cached("greedy/f", "4");
    kvf_entry_unpin(index_, third);
    forget("greedy/f", "4");
    forget("greedy/f", "third");
    add_cached("greedy/f", "third again");
    struct kvf_extent room = {0};
    assert_true(kvf_is_ok(kvf_index_room(index_, first->space->tenant, 2 * KVF_MIB, &room)));
    assert_false(has("greedy/f", "third again"));
    assert_true(has("modest/f", "k"));
    kvf_index_return_room(index_, &room);
    kvf_entry_unpin(index_, first);
}

/* 3/4 and 3/4: the one cannot keep the other from what is its part of that. */
static void room__more_shares_than_there_is__who_has_more_than_its_part_gives_way(void **state)
{
    (void)state;
    set_shares("\"greedy\": {\"dram\": 0.75}, \"late\": {\"dram\": 0.75}");
    for (int i = 0; i < 3; i++)
        add_cached("greedy/f", (const char *[]){"1", "2", "3"}[i]);
    add_cached("late/f", "a");
    add_cached("late/f", "b");
    assert_true(has("late/f", "a") && has("late/f", "b"));
    assert_false(has("greedy/f", "1"));
    add_cached("late/f", "c"); /* each has its half */
    assert_true(has("greedy/f", "2") && has("greedy/f", "3"));
    assert_false(has("late/f", "a"));
}

static void reload__less_dram__cached_go_now_and_pinned_when_they_are_not(void **state)
{
    (void)state;
    set_greedy(2, 64);
    add_cached("other/f", "k");
    add_cached("greedy/f", "cached");
    struct kvf_entry *pinned = add("greedy/f", "pinned");
    set_greedy(1, 64);
    assert_false(has("greedy/f", "cached"));
    assert_null(try_add("greedy/f", "more"));
    set_greedy(0, 64);
    assert_true(has("greedy/f", "pinned"));
    kvf_entry_unpin(index_, pinned);
    assert_false(has("greedy/f", "pinned"));
    assert_true(has("other/f", "k"));
    assert_int_equal(used_mib("greedy", KVF_SHARE_DRAM), 0);
    set_greedy(2, 64);
    add_cached("greedy/f", "again");
    assert_true(has("greedy/f", "again"));
}

/* Its blocks are among all, among its own, and among all again, in the order of their use. */
static void reload__share_is_given_and_taken__order_of_eviction_stays(void **state)
{
    (void)state;
    add_cached("greedy/f", "1");
    add_cached("other/f", "a");
    add_cached("greedy/f", "2");
    add_cached("greedy/f", "3");
    set_greedy(2, 64); /* more than that is there: the coldest goes */
    assert_false(has("greedy/f", "1"));
    add_cached("greedy/f", "4");
    assert_false(has("greedy/f", "2"));
    set_shares("");
    assert_false(index_->tenants.has_shares[KVF_SHARE_DRAM]);
    add_cached("other/f", "b");
    add_cached("other/f", "c");
    assert_false(has("other/f", "a"));
    assert_true(has("greedy/f", "3") && has("greedy/f", "4"));
    evict();
    assert_int_equal(used_mib("greedy", KVF_SHARE_DRAM) + used_mib("other", KVF_SHARE_DRAM), 0);
}

/* ---- SSD ---- */

static void stored__above_the_share__its_oldest_go_and_nobody_elses(void **state)
{
    (void)state;
    set_greedy(4, 3);
    add_on_ssd("greedy/f", "1", 2, 1); /* segments are filled in the order of their sequence */
    add_on_ssd("other/f", "a", 2, 1);
    add_on_ssd("greedy/f", "2", 2, 1);
    add_on_ssd("greedy/g", "3", 0, 2);
    assert_int_equal(used_mib("greedy", KVF_SHARE_SSD), 3);
    add_on_ssd("greedy/f", "4", 0, 2);
    assert_false(has("greedy/f", "1"));
    add_on_ssd("greedy/f", "5", 1, 3);
    assert_false(has("greedy/f", "2"));
    add_on_ssd("greedy/f", "6", 1, 3);
    assert_false(has("greedy/g", "3"));
    assert_true(has("greedy/f", "4") && has("greedy/f", "5") && has("greedy/f", "6"));
    assert_true(has("other/f", "a"));
    assert_int_equal(used_mib("greedy", KVF_SHARE_SSD), 3);
    assert_int_equal(tenant("greedy")->shed_blocks, 3);
}

/* What is in DRAM loses only its copy, and what is read from there is read to the end. */
static void stored__oldest_is_in_use__loses_its_copy_on_ssd_alone(void **state)
{
    (void)state;
    set_greedy(4, 1);
    struct kvf_entry *resident = add("greedy/f", "resident");
    store(resident, 0, 1);
    add_on_ssd("greedy/f", "next", 0, 1);
    assert_false(resident->on_ssd);
    assert_true(has("greedy/f", "resident"));
    assert_int_equal(used_mib("greedy", KVF_SHARE_SSD), 1);
    kvf_entry_unpin(index_, resident);
    struct kvf_found found;
    assert_true(look("greedy/f", "next", &found));
    struct kvf_entry *pinned = kvf_index_pin(index_, &found); /* as a load does */
    add_on_ssd("greedy/f", "last", 0, 1);
    assert_false(has("greedy/f", "next"));
    assert_true(!pinned->linked && pinned->pins == 1);
    kvf_entry_unpin(index_, pinned);
    assert_int_equal(used_mib("greedy", KVF_SHARE_SSD), 1);
}

static void recovered__above_the_share__the_newest_stay(void **state)
{
    (void)state;
    set_greedy(4, 4);
    for (unsigned i = 0; i < 12; i++) { /* the newest segment is told first */
        struct kvf_record record = {.namespace = i % 2 == 0 ? "greedy/f" : "other/f",
                                    .generation = {1, i},
                                    .length = KVF_MIB};
        char text[8];
        (void)snprintf(text, sizeof(text), "%u", i);
        record.key = key_of(text);
        kvf_index_recovered(index_, &record,
                            (struct kvf_location){.segment = i / 4,
                                                  .sequence = 10 - i / 4,
                                                  .offset = (1 + i % 4) * KVF_MIB});
    }
    assert_int_equal(used_mib("greedy", KVF_SHARE_SSD), 4);
    assert_int_equal(used_mib("other", KVF_SHARE_SSD), 6);
    assert_true(has("greedy/f", "0") && has("greedy/f", "2") && has("greedy/f", "4") &&
                has("greedy/f", "6"));
    assert_false(has("greedy/f", "8") || has("greedy/f", "10"));
}

static void reload__less_ssd__the_oldest_go_whoever_had_no_share_before(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) { /* segment 3 has the oldest filling */
        const char *name = (const char *[]){"4", "3", "2", "1"}[i];
        add_on_ssd("greedy/f", name, i, 10 - i);
        add_on_ssd("other/f", name, i, 10 - i);
    }
    set_greedy(4, 2);
    assert_true(has("greedy/f", "4") && has("greedy/f", "3"));
    assert_false(has("greedy/f", "2") || has("greedy/f", "1"));
    set_greedy(4, 0);
    assert_int_equal(used_mib("greedy", KVF_SHARE_SSD), 0);
    assert_non_null(tenant("greedy"));
    assert_int_equal(used_mib("other", KVF_SHARE_SSD), 4);
    set_shares("");
    assert_null(tenant("greedy"));
}

/* ---- giving segments back ---- */

/* Up to 20 MiB of the store's 64 can be promised: 10 of each segment, but for two. */
static void reclaim__with_shares__what_is_safe_stays_to_be_moved(void **state)
{
    (void)state;
    struct kvf_kept kept[8];
    struct kvf_found found;
    set_shares("\"greedy\": {\"ssd\": 0.15625}, \"modest\": {\"ssd\": 0.078125}"); /* 10, 5 */
    add_on_ssd("greedy/f", "1", 0, 1);
    add_on_ssd("modest/f", "a", 0, 1);
    add_on_ssd("other/f", "x", 0, 1); /* of the others' 5 */
    assert_int_equal(kvf_index_cost(index_, 0, 0).bytes, 3 * KVF_MIB);
    for (unsigned i = 0; i < 5; i++) {
        char text[8];
        (void)snprintf(text, sizeof(text), "y%u", i);
        add_on_ssd("other/f", text, 1, 2); /* now they have 6 */
    }
    assert_int_equal(kvf_index_cost(index_, 0, 0).bytes, 2 * KVF_MIB);
    assert_int_equal(kvf_index_cost(index_, 0, 1).bytes, 4 * KVF_MIB);
    kvf_index_reclaim(index_, 0, 0, 1, 0, 10 * KVF_MIB);
    assert_true(has("greedy/f", "1") && has("modest/f", "a"));
    assert_false(has("other/f", "x"));
    assert_int_equal(kvf_index_kept(index_, 0, kept, 8), 2);
    for (unsigned i = 0; i < 2; i++) {
        struct kvf_location to = {.segment = 2, .sequence = 3, .offset = (i + 1) * KVF_MIB};
        kvf_index_move(index_, &kept[i].record, kept[i].location, &to);
    }
    assert_true(look("modest/f", "a", &found) && found.location.segment == 2);
    assert_int_equal(used_mib("modest", KVF_SHARE_SSD), 1);
    assert_int_equal(kvf_index_kept(index_, 0, kept, 8), 0);
    assert_int_equal(index_segment_of(index_, 0, 0)->reclaimed, 0);
    kvf_index_reclaim(index_, 0, 1, 2, 0, 10 * KVF_MIB); /* the others have what is safe */
    assert_int_equal(used_mib("other", KVF_SHARE_SSD), 5);
}

static void reclaim__more_is_safe_than_finds_room__the_rest_goes(void **state)
{
    (void)state;
    set_shares("\"modest\": {\"ssd\": 0.1}");
    add_on_ssd("modest/f", "a", 0, 1);
    add_on_ssd("modest/f", "b", 0, 1);
    kvf_index_reclaim(index_, 0, 0, 1, 0, KVF_MIB);
    assert_int_equal(used_mib("modest", KVF_SHARE_SSD), 1);
}

static void reclaim__without_shares__only_what_is_hot_stays(void **state)
{
    (void)state;
    struct kvf_found found;
    add_on_ssd("t/f", "a", 0, 1);
    add_on_ssd("t/f", "hot", 0, 1);
    assert_false(kvf_index_shares_ssd(index_));
    assert_true(look("t/f", "hot", &found));
    kvf_entry_unpin(index_, kvf_index_pin(index_, &found));
    kvf_index_reclaim(index_, 0, 0, 1, KVF_MIB, 10 * KVF_MIB);
    assert_true(has("t/f", "hot"));
    assert_false(has("t/f", "a"));
}

/* ---- at random ---- */

#define KEYS 40u
#define PLACES 12u

static struct kvf_entry *held[PLACES];

static const char *space_at(unsigned n)
{
    static const char *const spaces[] = {"greedy/f", "modest/f", "other/f", "greedy/g"};
    return spaces[n % 4];
}

static void count_one(void *context, struct kvf_entry *entry)
{
    uint64_t(*sums)[2] = context;
    unsigned of = entry->space->text[0] == 'g' ? 0 : entry->space->text[0] == 'm' ? 1 : 2;
    sums[of][KVF_SHARE_DRAM] += entry->extent.bytes;
}

/* What each has is what is found, and within its share. */
static void check(const uint64_t limits_mib[2][2])
{
    static const char *const names[] = {"greedy", "modest", "other"};
    uint64_t sums[3][2] = {{0}}, ssd = 0, dram = 0;
    kvf_index_each(index_, count_one, sums);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        const struct segment *segment = index_segment_of(index_, 0, s);
        kvf_list_for_each (node_, &segment->stakes) {
            const struct kvf_stake *stake = kvf_container(node_, struct kvf_stake, in_segment);
            unsigned of = stake->tenant->name[0] == 'g' ? 0 : stake->tenant->name[0] == 'm' ? 1 : 2;
            uint64_t bytes = 0;
            kvf_list_for_each (entry, &stake->entries)
                bytes += KVF_MIB;
            for (uint32_t link = stake->records.first; link != KVF_COLD_NONE;
                 link = kvf_cold_next_in_list(index_->cold, link))
                bytes += KVF_MIB;
            assert_true(bytes > 0 && bytes == stake->bytes);
            sums[of][KVF_SHARE_SSD] += bytes;
        }
    }
    for (unsigned of = 0; of < 3; of++) {
        assert_int_equal(used_mib(names[of], KVF_SHARE_DRAM), sums[of][KVF_SHARE_DRAM] / KVF_MIB);
        assert_int_equal(used_mib(names[of], KVF_SHARE_SSD), sums[of][KVF_SHARE_SSD] / KVF_MIB);
        ssd += sums[of][KVF_SHARE_SSD];
        dram += sums[of][KVF_SHARE_DRAM];
        for (int share = 0; share < 2 && of < 2; share++)
            assert_true(used_mib(names[of], (enum kvf_share)share) <= limits_mib[of][share]);
    }
    assert_int_equal(kvf_pool_bytes(node.pool) - kvf_pool_free_bytes(node.pool), dram);
    for (int share = 0; share < 2; share++) {
        uint64_t others = share == KVF_SHARE_DRAM ? dram : ssd;
        for (unsigned of = 0; of < 2; of++)
            if (tenant(names[of]) != NULL &&
                kvf_tenant_has_share(tenant(names[of]), (enum kvf_share)share))
                others -= sums[of][share];
        assert_int_equal(index_->tenants.others_bytes[share], others);
    }
}

static void release_all(void)
{
    for (unsigned i = 0; i < PLACES; i++) {
        if (held[i] != NULL)
            kvf_entry_unpin(index_, held[i]);
        held[i] = NULL;
    }
}

static void step(unsigned *seed, uint64_t *sequences)
{
    unsigned n = (unsigned)rand_r(seed), at = n / 256 % PLACES;
    uint32_t segment = n / 4096 % SEGMENTS;
    struct kvf_found found;
    char text[8];
    const char *ns = space_at((unsigned)rand_r(seed));
    (void)snprintf(text, sizeof(text), "%u", (unsigned)rand_r(seed) % KEYS);
    if (n % 16 < 6 && held[at] == NULL) {
        held[at] = look(ns, text, &found) ? kvf_index_pin(index_, &found) : try_add(ns, text);
    } else if (n % 16 < 9 && held[at] != NULL && held[at]->resident && !held[at]->on_ssd &&
               held[at]->linked) {
        store(held[at], segment, sequences[segment]);
    } else if (n % 16 < 14 && held[at] != NULL) {
        kvf_entry_unpin(index_, held[at]);
        held[at] = NULL;
    } else if (n % 16 == 14 && look(ns, text, &found) && found.entry == NULL) {
        kvf_index_forget(index_, &found);
    } else if (n % 256 == 15) {
        kvf_index_reclaim(index_, 0, segment, sequences[segment], KVF_MIB, 4 * KVF_MIB);
        struct kvf_kept kept[16];
        for (size_t count; (count = kvf_index_kept(index_, 0, kept, 16)) > 0;)
            for (size_t i = 0; i < count; i++)
                kvf_index_move(index_, &kept[i].record, kept[i].location, NULL);
        static uint64_t filling = 1000;
        sequences[segment] = ++filling;
    }
}

static void shares__random_operations__sums_are_right_and_limits_kept(void **state)
{
    (void)state;
    uint64_t sequences[SEGMENTS] = {1, 2, 3, 4};
    const uint64_t none[2][2] = {{UINT64_MAX, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
    const uint64_t some[2][2] = {{5, 6}, {4, 9}};
    unsigned seed = 7, shed = 0;
    for (unsigned round = 0; round < 40; round++) {
        release_all();
        bool shares = round % 4 != 0;
        if (shares)
            set_shares("\"greedy\": {\"dram\": 0.41666, \"ssd\": 0.09375}, "
                       "\"modest\": {\"dram\": 0.33334, \"ssd\": 0.140625}");
        else
            set_shares("");
        for (unsigned i = 0; i < 2000; i++) {
            step(&seed, sequences);
            check(shares ? some : none);
        }
        shed += shares && tenant("greedy")->shed_blocks > 0;
    }
    assert_true(shed > 0);
    release_all();
}

static int set_up_random(void **state)
{
    (void)state;
    return set_up_pool(PLACES * KVF_MIB);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(room__above_the_share__its_own_coldest_go),
        TEST(room__pulled_and_put_of_one_tenant__pulled_go_first),
        TEST(room__all_of_the_share_is_pinned__is_busy_and_costs_nothing),
        TEST(room__share_is_not_used_up__others_who_have_more_than_the_rest_give_way),
        TEST(room__only_pieces_are_left__at_the_expense_of_who_asks),
        TEST(room__more_shares_than_there_is__who_has_more_than_its_part_gives_way),
        TEST(reload__less_dram__cached_go_now_and_pinned_when_they_are_not),
        TEST(reload__share_is_given_and_taken__order_of_eviction_stays),
        TEST(stored__above_the_share__its_oldest_go_and_nobody_elses),
        TEST(stored__oldest_is_in_use__loses_its_copy_on_ssd_alone),
        TEST(recovered__above_the_share__the_newest_stay),
        TEST(reload__less_ssd__the_oldest_go_whoever_had_no_share_before),
        TEST(reclaim__with_shares__what_is_safe_stays_to_be_moved),
        TEST(reclaim__more_is_safe_than_finds_room__the_rest_goes),
        TEST(reclaim__without_shares__only_what_is_hot_stays),
        cmocka_unit_test_setup_teardown(shares__random_operations__sums_are_right_and_limits_kept,
                                        set_up_random, tear_down),
    };
    return cmocka_run_group_tests_name("server/index, shares", tests, NULL, NULL);
}
