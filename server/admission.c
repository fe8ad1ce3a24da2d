/* Admission in four parts: budgets, turns, admitting, asking. */
#include "server/admission.h"

#include "base/clock.h"

static void set_state(struct kvf_request *request, enum kvf_request_state to)
{
    static const bool allowed[][KVF_REQUEST_ADMITTED + 1] = {
        [KVF_REQUEST_IDLE] = {[KVF_REQUEST_QUEUED] = true, [KVF_REQUEST_ADMITTED] = true},
        [KVF_REQUEST_QUEUED] = {[KVF_REQUEST_IDLE] = true, [KVF_REQUEST_ADMITTED] = true},
        [KVF_REQUEST_ADMITTED] = {[KVF_REQUEST_QUEUED] = true}, /* its admit was in vain */
    };
    kvf_assert(allowed[request->state][to]);
    request->state = to;
}

static bool is_query(const struct kvf_request *request)
{
    return request->class != KVF_CLASS_DIRTY;
}

static struct kvf_party *party_of(struct kvf_admission *admission,
                                  const struct kvf_request *request)
{
    return request->party != NULL ? request->party : &admission->anybody[request->class];
}

static struct kvf_turns *turns_of(struct kvf_admission *admission,
                                  const struct kvf_request *request, const struct kvf_party *party)
{
    return party->parent != NULL ? &party->parent->turns : &admission->turns[request->class];
}

/* ---- budgets ---- */

#define MAX_BUDGETS 5

/* A budget that the request is charged to, and what it is called when it is short. */
struct charged {
    struct kvf_budget *budget;
    enum kvf_shortage name;
};

/* The narrowest first. */
static unsigned list_budgets(struct kvf_admission *admission, const struct kvf_request *request,
                             struct charged list[MAX_BUDGETS])
{
    unsigned count = 0;
    struct kvf_party *party = party_of(admission, request);
    list[count++] = (struct charged){&party->budget, KVF_SHORT_OF_INSTANCE};
    if (party->parent != NULL)
        list[count++] = (struct charged){&party->parent->budget, KVF_SHORT_OF_IDENTITY};
    if (request->speculative)
        list[count++] = (struct charged){&admission->speculative, KVF_SHORT_OF_SPECULATIVE};
    if (is_query(request))
        list[count++] = (struct charged){&admission->query, KVF_SHORT_OF_QUERY};
    list[count++] = (struct charged){&admission->classes[request->class], KVF_SHORT_OF_CLASS};
    return count;
}

bool kvf_admission_can_ever_fit(struct kvf_admission *admission, struct kvf_request *request)
{
    struct charged list[MAX_BUDGETS];
    for (unsigned i = 0, count = list_budgets(admission, request, list); i < count; i++)
        if (request->bytes > list[i].budget->limit_bytes)
            return false;
    return request->tenant == NULL ||
           request->bytes <= request->tenant->limit_bytes[KVF_SHARE_DRAM];
}

static bool fits(struct kvf_admission *admission, const struct kvf_request *request)
{
    struct charged list[MAX_BUDGETS];
    for (unsigned i = 0, count = list_budgets(admission, request, list); i < count; i++)
        if (!kvf_budget_fits(list[i].budget, request->bytes))
            return false;
    return true;
}

static void note_peak(uint64_t *peak, const struct kvf_budget *budget)
{
    if (budget->used_bytes > *peak)
        *peak = budget->used_bytes;
}

static void charge(struct kvf_admission *admission, const struct kvf_request *request)
{
    struct charged list[MAX_BUDGETS];
    for (unsigned i = 0, count = list_budgets(admission, request, list); i < count; i++)
        kvf_budget_take(list[i].budget, request->bytes);
    if (request->party == NULL)
        return;
    note_peak(&admission->peak_instance_bytes, &request->party->budget);
    if (request->party->parent != NULL)
        note_peak(&admission->peak_identity_bytes, &request->party->parent->budget);
}

static void discharge(struct kvf_admission *admission, const struct kvf_request *request,
                      uint64_t bytes)
{
    struct charged list[MAX_BUDGETS];
    for (unsigned i = 0, count = list_budgets(admission, request, list); i < count; i++)
        kvf_budget_return(list[i].budget, bytes);
}

/* ---- turns ---- */

static void begin_to_wait(struct kvf_admission *admission, const struct kvf_request *request)
{
    for (struct kvf_party *party = party_of(admission, request); party != NULL;
         party = party->parent) {
        struct kvf_turns *turns = turns_of(admission, request, party);
        if (party->waiting++ > 0)
            continue;
        turns->waiting++;
        if (party->mark_bytes < turns->clock_bytes)
            party->mark_bytes = turns->clock_bytes;
    }
}

static void stop_waiting(struct kvf_admission *admission, const struct kvf_request *request)
{
    for (struct kvf_party *party = party_of(admission, request); party != NULL;
         party = party->parent)
        if (--party->waiting == 0)
            turns_of(admission, request, party)->waiting--;
}

/* It has had its turn; while it waits. */
static void count_turn(struct kvf_admission *admission, const struct kvf_request *request)
{
    for (struct kvf_party *party = party_of(admission, request); party != NULL;
         party = party->parent) {
        struct kvf_turns *turns = turns_of(admission, request, party);
        if (turns->clock_bytes < party->mark_bytes)
            turns->clock_bytes = party->mark_bytes;
        turns->clock_bytes += request->bytes / (turns->waiting + 1);
        party->mark_bytes += request->bytes;
    }
}

static bool is_passed_over(struct kvf_admission *admission, const struct kvf_request *request)
{
    if (request->tenant != NULL && request->tenant->passed_in == admission->round)
        return true;
    for (const struct kvf_party *party = party_of(admission, request); party != NULL;
         party = party->parent)
        if (party->passed_in == admission->round)
            return true;
    return false;
}

/* The party on this request's way up that is just below `above`; NULL: it is not below it. */
static struct kvf_party *below(struct kvf_admission *admission, const struct kvf_request *request,
                               const struct kvf_party *above)
{
    struct kvf_party *party = party_of(admission, request);
    while (party != NULL && party->parent != above)
        party = party->parent;
    return party;
}

/* Of the parties just below `above` that wait with demand (or speculatively) the next one. NULL: none. */
static struct kvf_party *next_below(struct kvf_admission *admission, enum kvf_class class,
                                    bool speculative, const struct kvf_party *above)
{
    struct kvf_party *next = NULL;
    kvf_list_for_each (node, &admission->queues[class]) {
        const struct kvf_request *request = kvf_container(node, struct kvf_request, node);
        struct kvf_party *party = below(admission, request, above);
        if (party != NULL && request->speculative == speculative &&
            !is_passed_over(admission, request) &&
            (next == NULL || party->mark_bytes < next->mark_bytes))
            next = party;
    }
    return next;
}

static struct kvf_request *first_of(struct kvf_admission *admission, enum kvf_class class,
                                    bool speculative, const struct kvf_party *party)
{
    kvf_list_for_each (node, &admission->queues[class]) {
        struct kvf_request *request = kvf_container(node, struct kvf_request, node);
        if (party_of(admission, request) == party && request->speculative == speculative &&
            !is_passed_over(admission, request))
            return request;
    }
    return NULL;
}

/* The next one in turn; NULL: none that is not passed over. */
static struct kvf_request *next_in_turn(struct kvf_admission *admission, enum kvf_class class,
                                        bool speculative)
{
    const struct kvf_party *party = NULL;
    struct kvf_request *request = NULL;
    while (request == NULL) {
        party = next_below(admission, class, speculative, party);
        if (party == NULL)
            return NULL;
        request = first_of(admission, class, speculative, party);
    }
    return request;
}

/* The party of it whose own budget is too small for it now; NULL: none. */
static struct kvf_party *what_holds_back(struct kvf_admission *admission,
                                         const struct kvf_request *request)
{
    for (struct kvf_party *party = party_of(admission, request); party != NULL;
         party = party->parent)
        if (!kvf_budget_fits(&party->budget, request->bytes))
            return party;
    return NULL;
}

static bool demand_waits(const struct kvf_list *queue)
{
    kvf_list_for_each (node, queue)
        if (!kvf_container(node, struct kvf_request, node)->speculative)
            return true;
    return false;
}

/* NULL: nobody's. */
static struct kvf_request *whose_turn(struct kvf_admission *admission, enum kvf_class class)
{
    bool speculative = !demand_waits(&admission->queues[class]);
    admission->round++;
    for (;;) {
        struct kvf_request *request = next_in_turn(admission, class, speculative);
        if (request == NULL)
            return NULL;
        struct kvf_party *narrow = what_holds_back(admission, request);
        if (narrow == NULL && kvf_tenant_may_hold(request->tenant, request->bytes))
            return request;
        if (narrow == NULL) {
            request->tenant->passed_in = admission->round;
            continue;
        }
        narrow->passed_in = admission->round;
        uint64_t clock_bytes = turns_of(admission, request, narrow)->clock_bytes;
        if (narrow->mark_bytes < clock_bytes)
            narrow->mark_bytes = clock_bytes; /* what it could not use is no claim later */
    }
}

struct kvf_refusal kvf_admission_explain(struct kvf_admission *admission,
                                         struct kvf_request *request, enum kvf_code code)
{
    bool waits = request->state == KVF_REQUEST_QUEUED;
    struct kvf_refusal refusal = {
        .code = code,
        .shortage = KVF_SHORT_OF_TURN,
        .waited_ns = waits ? kvf_clock_now_ns() - request->since_ns : 0,
    };
    struct charged list[MAX_BUDGETS + 1];
    unsigned count = list_budgets(admission, request, list);
    struct kvf_budget memory;
    if (request->tenant != NULL) {
        memory.limit_bytes = request->tenant->limit_bytes[KVF_SHARE_DRAM];
        memory.used_bytes = kvf_tenant_held_bytes(request->tenant);
        list[count++] = (struct charged){&memory, KVF_SHORT_OF_TENANT};
    }
    for (unsigned i = 0; i < count; i++) {
        const struct kvf_budget *budget = list[i].budget;
        uint64_t held = waits ? budget->used_bytes : 0;
        uint64_t room = budget->limit_bytes > held ? budget->limit_bytes - held : 0;
        if (request->bytes > room)
            return (struct kvf_refusal){code, list[i].name, refusal.waited_ns,
                                        request->bytes - room};
    }
    if (waits && whose_turn(admission, request->class) == request)
        refusal.shortage = KVF_SHORT_OF_MEMORY; /* there is enough, but not in one piece */
    return refusal;
}

/* ---- admitting ---- */

/* What a try changes beside the charges, for when it was in vain: a party has its budget's peak, its
 * mark and a clock; peaks are those of admitted requests. */
struct before {
    uint64_t peaks[MAX_BUDGETS], largest_instance, largest_identity;
    uint64_t marks[2], clocks[2];
};

static void note_before(struct kvf_admission *a, const struct kvf_request *request,
                        struct before *before)
{
    struct charged list[MAX_BUDGETS];
    for (unsigned i = 0, count = list_budgets(a, request, list); i < count; i++)
        before->peaks[i] = list[i].budget->peak_bytes;
    before->largest_instance = a->peak_instance_bytes;
    before->largest_identity = a->peak_identity_bytes;
    unsigned level = 0;
    for (struct kvf_party *party = party_of(a, request); party != NULL; party = party->parent) {
        kvf_assert(level < 2);
        before->marks[level] = party->mark_bytes;
        before->clocks[level++] = turns_of(a, request, party)->clock_bytes;
    }
}

static void restore(struct kvf_admission *a, const struct kvf_request *request,
                    const struct before *before)
{
    struct charged list[MAX_BUDGETS];
    for (unsigned i = 0, count = list_budgets(a, request, list); i < count; i++)
        list[i].budget->peak_bytes = before->peaks[i];
    a->peak_instance_bytes = before->largest_instance;
    a->peak_identity_bytes = before->largest_identity;
    unsigned level = 0;
    for (struct kvf_party *party = party_of(a, request); party != NULL; party = party->parent) {
        party->mark_bytes = before->marks[level];
        turns_of(a, request, party)->clock_bytes = before->clocks[level++];
    }
}

/* What an admit in vain gives back is only what it had found: trying again for that would never
 * end. */
static bool run_admit(struct kvf_admission *admission, struct kvf_request *request)
{
    bool wanted = admission->retry_wanted;
    admission->retry_wanted = false;
    admission->admitting++;
    bool admitted = request->admit(request); /* and is perhaps gone */
    admission->admitting--;
    admission->retry_wanted = wanted || (admitted && admission->retry_wanted);
    if (admission->admitting == 0 && admission->retry_wanted) {
        admission->retry_wanted = false;
        kvf_admission_retry(admission);
    }
    return admitted;
}

static bool try_admit(struct kvf_admission *admission, struct kvf_request *request)
{
    struct before before;
    if (!fits(admission, request))
        return false;
    note_before(admission, request, &before);
    count_turn(admission, request);
    stop_waiting(admission, request);
    struct kvf_list *behind = request->node.next;
    kvf_list_remove(&request->node);
    charge(admission, request);
    set_state(request, KVF_REQUEST_ADMITTED);
    if (run_admit(admission, request))
        return true;
    set_state(request, KVF_REQUEST_QUEUED);
    discharge(admission, request, request->bytes);
    kvf_list_insert_before(&request->node, behind);
    begin_to_wait(admission, request);
    restore(admission, request, &before);
    return false;
}

static void retry(struct kvf_post *post)
{
    struct kvf_admission *admission = kvf_container(post, struct kvf_admission, retry);
    admission->retry_posted = false;
    for (int class = 0; class < KVF_CLASS_COUNT; class ++) {
        struct kvf_request *next;
        do {
            next = whose_turn(admission, (enum kvf_class) class);
        } while (next != NULL && try_admit(admission, next));
    }
}

/* ---- asking ---- */

void kvf_admission_init(struct kvf_admission *admission)
{
    for (int class = 0; class < KVF_CLASS_COUNT; class ++) {
        kvf_list_init(&admission->queues[class]);
        admission->anybody[class].budget.limit_bytes = UINT64_MAX;
    }
    admission->speculative.limit_bytes = admission->classes[KVF_CLASS_SERVE].limit_bytes / 4;
    admission->retry.run = retry;
}

void kvf_admission_retry(struct kvf_admission *admission)
{
    if (admission->retry_posted)
        return;
    if (admission->admitting > 0) {
        admission->retry_wanted = true;
        return;
    }
    bool waiting = false;
    for (int class = 0; class < KVF_CLASS_COUNT; class ++)
        waiting = waiting || !kvf_list_is_empty(&admission->queues[class]);
    if (!waiting)
        return;
    admission->retry_posted = true;
    kvf_loop_post(admission->loop, &admission->retry);
}

void kvf_admission_submit(struct kvf_admission *admission, struct kvf_request *request)
{
    struct kvf_list *queue = &admission->queues[request->class];
    kvf_assert(request->state == KVF_REQUEST_IDLE);
    request->since_ns = kvf_clock_now_ns();
    set_state(request, KVF_REQUEST_QUEUED);
    kvf_list_push_back(queue, &request->node);
    begin_to_wait(admission, request);
    bool query = is_query(request);
    if (whose_turn(admission, request->class) == request && try_admit(admission, request))
        return; /* it may be gone */
    if (query)
        admission->waited++;
}

void kvf_admission_take(struct kvf_admission *admission, struct kvf_request *request)
{
    charge(admission, request);
    set_state(request, KVF_REQUEST_ADMITTED);
}

void kvf_admission_withdraw(struct kvf_admission *admission, struct kvf_request *request)
{
    if (request->state != KVF_REQUEST_QUEUED)
        return;
    set_state(request, KVF_REQUEST_IDLE);
    kvf_list_remove(&request->node);
    stop_waiting(admission, request);
    kvf_admission_retry(admission); /* it may have been the one in the way */
}

void kvf_admission_raise(struct kvf_admission *admission, struct kvf_request *request,
                         uint64_t held_bytes)
{
    if (!request->speculative)
        return;
    kvf_assert(held_bytes == 0 || request->state == KVF_REQUEST_ADMITTED);
    kvf_budget_return(&admission->speculative, held_bytes);
    request->speculative = false;
    kvf_admission_retry(admission);
}

void kvf_admission_return(struct kvf_admission *admission, struct kvf_request *request,
                          uint64_t bytes)
{
    discharge(admission, request, bytes);
    kvf_admission_retry(admission);
}
