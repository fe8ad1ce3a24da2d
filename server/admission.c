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

bool kvf_admission_can_ever_fit(const struct kvf_admission *admission,
                                const struct kvf_request *request)
{
    return request->bytes <= admission->classes[request->class].limit_bytes &&
           (!is_query(request) || request->bytes <= admission->query.limit_bytes) &&
           (request->instance == NULL || request->bytes <= request->instance->limit_bytes);
}

static bool fits(const struct kvf_admission *admission, const struct kvf_request *request)
{
    return kvf_budget_fits(&admission->classes[request->class], request->bytes) &&
           (!is_query(request) || kvf_budget_fits(&admission->query, request->bytes)) &&
           (request->instance == NULL || kvf_budget_fits(request->instance, request->bytes));
}

static void charge(struct kvf_admission *admission, struct kvf_request *request)
{
    kvf_budget_take(&admission->classes[request->class], request->bytes);
    if (is_query(request))
        kvf_budget_take(&admission->query, request->bytes);
    if (request->instance == NULL)
        return;
    kvf_budget_take(request->instance, request->bytes);
    if (request->instance->used_bytes > admission->peak_instance_bytes)
        admission->peak_instance_bytes = request->instance->used_bytes;
}

static void discharge(struct kvf_admission *admission, const struct kvf_request *request,
                      uint64_t bytes)
{
    kvf_budget_return(&admission->classes[request->class], bytes);
    if (is_query(request))
        kvf_budget_return(&admission->query, bytes);
    if (request->instance != NULL)
        kvf_budget_return(request->instance, bytes);
}

/* The budgets' peaks are those of admitted requests: a try that finds no memory must not count. */
struct peaks {
    uint64_t class, query, instance, largest;
};

static struct peaks note_peaks(const struct kvf_admission *a, const struct kvf_request *request)
{
    return (struct peaks){a->classes[request->class].peak_bytes, a->query.peak_bytes,
                          request->instance != NULL ? request->instance->peak_bytes : 0,
                          a->peak_instance_bytes};
}

static void restore_peaks(struct kvf_admission *a, struct kvf_request *request, struct peaks peaks)
{
    a->classes[request->class].peak_bytes = peaks.class;
    a->query.peak_bytes = peaks.query;
    if (request->instance != NULL)
        request->instance->peak_bytes = peaks.instance;
    a->peak_instance_bytes = peaks.largest;
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
    if (!fits(admission, request))
        return false;
    struct peaks before = note_peaks(admission, request);
    struct kvf_list *behind = request->node.next;
    kvf_list_remove(&request->node);
    charge(admission, request);
    set_state(request, KVF_REQUEST_ADMITTED);
    if (run_admit(admission, request))
        return true;
    set_state(request, KVF_REQUEST_QUEUED);
    discharge(admission, request, request->bytes);
    restore_peaks(admission, request, before);
    kvf_list_insert_before(&request->node, behind);
    return false;
}

static bool waits_for_its_own(const struct kvf_request *request)
{
    return request->instance != NULL && !kvf_budget_fits(request->instance, request->bytes);
}

/* Somebody of the same instance waits before it. */
static bool stands_behind_its_own(const struct kvf_list *queue, const struct kvf_request *request)
{
    for (const struct kvf_list *node = queue->next; node != &request->node; node = node->next)
        if (kvf_container(node, struct kvf_request, node)->instance == request->instance)
            return true;
    return false;
}

/* Whose turn it is: the first that waits for more than its own instance. NULL: nobody's. */
static struct kvf_request *whose_turn(const struct kvf_list *queue)
{
    kvf_list_for_each (node, queue) {
        struct kvf_request *request = kvf_container(node, struct kvf_request, node);
        if (!waits_for_its_own(request) &&
            (request->instance == NULL || !stands_behind_its_own(queue, request)))
            return request;
    }
    return NULL;
}

static void retry(struct kvf_post *post)
{
    struct kvf_admission *admission = kvf_container(post, struct kvf_admission, retry);
    admission->retry_posted = false;
    for (int class = 0; class < KVF_CLASS_COUNT; class ++) {
        struct kvf_request *next;
        do {
            next = whose_turn(&admission->queues[class]);
        } while (next != NULL && try_admit(admission, next));
    }
}

void kvf_admission_init(struct kvf_admission *admission)
{
    for (int class = 0; class < KVF_CLASS_COUNT; class ++)
        kvf_list_init(&admission->queues[class]);
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
    request->since_ns = kvf_clock_now_ns();
    set_state(request, KVF_REQUEST_QUEUED);
    kvf_list_push_back(queue, &request->node);
    bool query = is_query(request);
    if (whose_turn(queue) == request && try_admit(admission, request))
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
    kvf_admission_retry(admission); /* it may have been the one in the way */
}

void kvf_admission_return(struct kvf_admission *admission, const struct kvf_request *request,
                          uint64_t bytes)
{
    discharge(admission, request, bytes);
    kvf_admission_retry(admission);
}
