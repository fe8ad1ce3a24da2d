/* Parts: batches (what is written between two fdatasyncs); building them; ending them; the thread; the owner's calls.
 *
 * Per drive there are three batches: two of records that take turns (WRITING, then SYNCING, ended in their order) and
 * one for the service of segments: SEAL runs only while no group is under way, so that an index never names a record
 * that is not durable; FREE runs beside anything.
 *
 * Owner of everything here but what core.h puts under the lock: the writer thread. */
#include "storage/writer.h"

#include "base/crc32c.h"

#include "storage/thread.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE_BYTES KVF_MIB
#define PIECES_PER_DRIVE 8 /* in flight */
#define GROUP_BYTES_MAX (16 * KVF_MIB)
#define RETRIES_MAX 32 /* of a piece, without progress */
#define DONE_MAX 64
#define RUNS_MAX 3

enum batch_kind {
    BATCH_RECORDS,
    BATCH_SEAL,
    BATCH_FREE,
};

enum batch_state {
    BATCH_IDLE = 0,
    BATCH_WRITING, /* pieces are given out and come back */
    BATCH_WRITTEN, /* all are back; waits for the fdatasync of the group before */
    BATCH_SYNCING,
};

struct run {
    uint8_t *memory;
    uint64_t offset;
    uint64_t bytes;
};

struct batch {
    struct lane *lane;
    enum batch_kind kind;
    enum batch_state state;
    struct kvf_segment *segment;
    struct run runs[RUNS_MAX]; /* pages that are not payload */
    unsigned run_count;
    unsigned run_next;
    uint64_t run_done;       /* of runs[run_next] */
    struct kvf_list appends; /* of kvf_append.node */
    struct kvf_list *at;     /* the append whose payload is being given out */
    uint64_t at_done;        /* of its bytes */
    unsigned in_flight;
    int error;
    uint8_t *pages;       /* KVF_GROUP_PAGES_MAX_BYTES: group header, or a header or footer page */
    uint8_t *header_page; /* one page, for the header of a segment that is new in this batch */
};

/* One request. */
struct write {
    struct kvf_io io;
    struct batch *batch;
    struct run left;
    unsigned retries;
    struct write *next;
};

/* A drive, as the writer sees it. */
struct lane {
    struct kvf_writer *writer;
    struct kvf_drive *drive;
    struct kvf_list queue; /* of kvf_append.node: not in a batch yet */
    struct kvf_list frees; /* of kvf_segment.node */
    struct batch groups[2];
    unsigned next_group; /* the one to build next; the other one is older */
    struct batch service;
    unsigned pieces_in_flight;
    struct kvf_segment *open; /* NULL: none */
    bool open_is_new;         /* its header is not written yet */
    uint64_t position;        /* where the next group goes */
    uint32_t record_count;    /* in the open segment */
    uint8_t *index;           /* packed headers of the open segment */
    uint64_t index_bytes;
    uint32_t fillings; /* segments taken since open */
};

struct kvf_writer {
    struct kvf_store *store;
    pthread_t thread;
    bool started;
    int wake_fd;
    struct kvf_ring *ring;
    int open_error;
    sem_t ready;
    struct lane *lanes;
    size_t next_lane;
    struct write *writes;
    struct write *idle;
    struct write *again; /* to be given to the ring once more */

    /* under store->lock */
    bool sleeping;
    bool stop;
};

/* ---- telling the owner ---- */

/* On the owner's thread. A post may come before the end, only to ask for segments. */
static void run_post(struct kvf_post *post)
{
    struct kvf_append *append = kvf_container(post, struct kvf_append, post);
    struct kvf_store *store = append->store;
    (void)pthread_mutex_lock(&store->lock);
    for (struct kvf_list *node; (node = kvf_list_pop_front(&store->asks)) != NULL;) {
        struct kvf_segment *segment = kvf_container(node, struct kvf_segment, node);
        uint64_t sequence = segment->sequence;
        uint32_t drive = segment->drive;
        (void)pthread_mutex_unlock(&store->lock);
        store->options.reclaim(store->options.context, drive, segment->number, sequence);
        (void)pthread_mutex_lock(&store->lock);
    }
    append->posted = false;
    bool finished = append->finished;
    if (finished)
        store->drives[append->location.drive].stats.writes_in_flight--;
    (void)pthread_mutex_unlock(&store->lock);
    if (finished)
        append->ended(append, append->status, append->location);
}

static void post(struct kvf_store *store, struct kvf_append *append, bool finished)
{
    (void)pthread_mutex_lock(&store->lock);
    bool must = !append->posted;
    append->posted = true;
    append->finished = finished;
    (void)pthread_mutex_unlock(&store->lock);
    if (must) /* nobody else ends this append, so it is still there */
        kvf_loop_post(store->loop, &append->post);
}

/* ---- segments ---- */

static struct kvf_segment *oldest_sealed(const struct kvf_drive *drive)
{
    struct kvf_segment *oldest = NULL;
    for (uint32_t i = 0; i < drive->segment_count; i++) {
        struct kvf_segment *segment = &drive->segments[i];
        if (segment->state == KVF_SEGMENT_SEALED && !segment->asked &&
            (oldest == NULL || segment->sequence < oldest->sequence))
            oldest = segment;
    }
    return oldest;
}

/* Keep two segments free, or on their way to be (one, where there are only a few). The message rides on an append that
 * has not ended: one that has would leave a post behind that nobody waits for. */
static void ask_for_segments(struct lane *lane, struct kvf_append *carrier)
{
    struct kvf_store *store = lane->writer->store;
    struct kvf_drive *drive = lane->drive;
    uint32_t wanted = drive->segment_count >= 4 ? 2 : 1;
    bool asked = false;
    (void)pthread_mutex_lock(&store->lock);
    while (store->options.reclaim != NULL && drive->free_count + drive->asked_count < wanted) {
        struct kvf_segment *segment = oldest_sealed(drive);
        if (segment == NULL)
            break;
        segment->asked = true;
        drive->asked_count++;
        kvf_list_push_back(&store->asks, &segment->node);
        asked = true;
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (asked)
        post(store, carrier, false);
}

/* The free segment that becomes the open one; false when there is none. */
static bool take_segment(struct lane *lane)
{
    struct kvf_store *store = lane->writer->store;
    struct kvf_drive *drive = lane->drive;
    (void)pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < drive->segment_count && lane->open == NULL; i++) {
        struct kvf_segment *segment = &drive->segments[i];
        if (segment->state != KVF_SEGMENT_FREE)
            continue;
        segment->state = KVF_SEGMENT_OPEN;
        segment->asked = false;
        segment->used_bytes = 0;
        segment->sequence =
            store->boot_epoch << 32 | ++lane->fillings; /* never used before, on any boot */
        drive->free_count--;
        lane->open = segment;
    }
    (void)pthread_mutex_unlock(&store->lock);
    lane->open_is_new = lane->open != NULL;
    lane->position = KVF_PAGE;
    lane->record_count = 0;
    lane->index_bytes = 0;
    return lane->open != NULL;
}

static void set_segment_state(struct lane *lane, struct kvf_segment *segment,
                              enum kvf_segment_state state)
{
    struct kvf_store *store = lane->writer->store;
    (void)pthread_mutex_lock(&store->lock);
    segment->state = state;
    if (state == KVF_SEGMENT_FREE) {
        lane->drive->free_count++;
        lane->drive->asked_count -= segment->asked;
        segment->asked = false;
    }
    (void)pthread_mutex_unlock(&store->lock);
}

/* ---- building batches ---- */

static void start_batch(struct batch *batch, enum batch_kind kind, struct kvf_segment *segment)
{
    batch->kind = kind;
    batch->state = BATCH_WRITING;
    batch->segment = segment;
    batch->run_count = batch->run_next = 0;
    batch->run_done = batch->at_done = 0;
    batch->at = NULL;
    batch->error = 0;
}

static void add_run(struct batch *batch, uint8_t *memory, uint64_t offset, uint64_t bytes)
{
    batch->runs[batch->run_count++] =
        (struct run){.memory = memory, .offset = offset, .bytes = bytes};
}

static struct kvf_append *append_at(struct kvf_list *node)
{
    return kvf_container(node, struct kvf_append, node);
}

/* What a group has come to while it is being put together. */
struct plan {
    uint64_t header_bytes;
    uint64_t payload_bytes;
    uint32_t count;
};

/* Behind the group the segment must still hold the whole index and the footer. */
static bool plan_takes(const struct lane *lane, const struct plan *plan,
                       const struct kvf_append *append)
{
    uint64_t segment_bytes = lane->drive->segment_bytes;
    uint64_t header = kvf_record_header_bytes(&append->record);
    uint64_t headers = plan->header_bytes + header;
    uint64_t payload = plan->payload_bytes + kvf_round_up_page(append->record.length);
    uint64_t index = lane->index_bytes + headers;
    if (plan->count > 0 && payload > GROUP_BYTES_MAX)
        return false;
    if (KVF_GROUP_PREFIX_BYTES + headers > KVF_GROUP_PAGES_MAX_BYTES ||
        index > kvf_index_max_bytes(segment_bytes))
        return false;
    return lane->position + kvf_round_up_page(KVF_GROUP_PREFIX_BYTES + headers) + payload +
               kvf_round_up_page(index) + KVF_PAGE <=
           segment_bytes;
}

/* Move what belongs together from the queue to the batch. */
static struct plan collect(struct lane *lane, struct batch *batch)
{
    struct plan plan = {0};
    while (!kvf_list_is_empty(&lane->queue)) {
        struct kvf_append *append = append_at(lane->queue.next);
        if (!plan_takes(lane, &plan, append))
            break;
        kvf_list_remove(&append->node);
        kvf_list_push_back(&batch->appends, &append->node);
        plan.header_bytes += kvf_record_header_bytes(&append->record);
        plan.payload_bytes += kvf_round_up_page(append->record.length);
        plan.count++;
    }
    return plan;
}

/* Headers into the group's pages and into the index; every append learns its place. */
static void encode(struct lane *lane, struct batch *batch, const struct plan *plan)
{
    struct kvf_segment *segment = batch->segment;
    struct kvf_place place = kvf_segment_place(lane->drive, segment);
    struct kvf_group group = {
        .offset = lane->position,
        .header_bytes = (uint32_t)plan->header_bytes,
        .record_count = plan->count,
        .first_number = lane->record_count,
    };
    uint64_t payload = group.offset + kvf_group_pages_bytes(&group);
    uint8_t *at = batch->pages + KVF_GROUP_PREFIX_BYTES;
    kvf_list_for_each (node, &batch->appends) {
        struct kvf_append *append = append_at(node);
        append->location = (struct kvf_location){
            .drive = lane->drive->index,
            .segment = segment->number,
            .sequence = segment->sequence,
            .offset = payload,
        };
        size_t bytes =
            kvf_record_header_encode(&place, &append->record, lane->record_count++, payload, at);
        memcpy(lane->index + lane->index_bytes, at, bytes);
        lane->index_bytes += bytes;
        at += bytes;
        payload += kvf_round_up_page(append->record.length);
    }
    kvf_group_encode(&place, &group, batch->pages);
    add_run(batch, batch->pages, group.offset, kvf_group_pages_bytes(&group));
    lane->position = payload;
}

static void start_group(struct lane *lane, struct batch *batch)
{
    start_batch(batch, BATCH_RECORDS, lane->open);
    if (lane->open_is_new) {
        struct kvf_place place = kvf_segment_place(lane->drive, lane->open);
        kvf_segment_header_encode(&place, true, batch->header_page);
        add_run(batch, batch->header_page, 0, KVF_PAGE);
        lane->open_is_new = false;
    }
    struct plan plan = collect(lane, batch);
    encode(lane, batch, &plan);
    batch->at = batch->appends.next;
    lane->next_group = 1 - lane->next_group;
}

static void start_seal(struct lane *lane)
{
    struct batch *batch = &lane->service;
    struct kvf_place place = kvf_segment_place(lane->drive, lane->open);
    uint64_t index_pages = kvf_round_up_page(lane->index_bytes);
    struct kvf_footer footer = {
        .index_offset = lane->position,
        .index_bytes = lane->index_bytes,
        .record_count = lane->record_count,
        .index_crc32c = kvf_crc32c(0, lane->index, lane->index_bytes),
    };
    memset(lane->index + lane->index_bytes, 0, index_pages - lane->index_bytes);
    start_batch(batch, BATCH_SEAL, lane->open);
    kvf_footer_encode(&place, &footer, batch->pages);
    add_run(batch, lane->index, footer.index_offset, index_pages);
    add_run(batch, batch->pages, lane->drive->segment_bytes - KVF_PAGE, KVF_PAGE);
}

static void start_free(struct lane *lane)
{
    struct batch *batch = &lane->service;
    struct kvf_segment *segment =
        kvf_container(kvf_list_pop_front(&lane->frees), struct kvf_segment, node);
    struct kvf_place place = kvf_segment_place(lane->drive, segment);
    start_batch(batch, BATCH_FREE, segment);
    kvf_segment_header_encode(&place, false, batch->pages);
    add_run(batch, batch->pages, 0, KVF_PAGE);
}

/* ---- ending ---- */

static void end_append(struct lane *lane, struct kvf_append *append, struct kvf_status status)
{
    struct kvf_store *store = lane->writer->store;
    struct kvf_drive *drive = lane->drive;
    uint64_t bytes = kvf_round_up_page(append->record.length);
    append->status = status;
    append->location.drive = drive->index;
    (void)pthread_mutex_lock(&store->lock);
    drive->queued_bytes -= bytes;
    if (kvf_is_ok(status)) {
        drive->stats.write_payload_bytes += append->record.length;
        drive->stats.used_bytes += bytes;
        drive->segments[append->location.segment].used_bytes += bytes;
    } else {
        drive->stats.dropped++;
    }
    (void)pthread_mutex_unlock(&store->lock);
    post(store, append, true);
}

static int drive_error(struct lane *lane)
{
    struct kvf_store *store = lane->writer->store;
    (void)pthread_mutex_lock(&store->lock);
    int error = lane->drive->error;
    (void)pthread_mutex_unlock(&store->lock);
    return error;
}

/* The drive takes nothing more until the next start. */
static void fail_drive(struct lane *lane, int error)
{
    struct kvf_store *store = lane->writer->store;
    (void)pthread_mutex_lock(&store->lock);
    if (lane->drive->error == 0)
        lane->drive->error = error;
    (void)pthread_mutex_unlock(&store->lock);
}

static void end_batch(struct lane *lane, struct batch *batch)
{
    int error = batch->error;
    if (error != 0)
        fail_drive(lane, error);
    switch (batch->kind) {
    case BATCH_RECORDS:
        for (struct kvf_list *node; (node = kvf_list_pop_front(&batch->appends)) != NULL;)
            end_append(lane, append_at(node), error == 0 ? kvf_ok() : kvf_io_status(error));
        break;
    case BATCH_SEAL:
        if (error == 0) {
            set_segment_state(lane, batch->segment, KVF_SEGMENT_SEALED);
            lane->open = NULL;
        }
        break;
    case BATCH_FREE:
        if (error == 0)
            set_segment_state(lane, batch->segment, KVF_SEGMENT_FREE);
        break;
    }
    batch->state = BATCH_IDLE;
}

/* ---- moving a drive on ---- */

static bool groups_are_idle(const struct lane *lane)
{
    return lane->groups[0].state == BATCH_IDLE && lane->groups[1].state == BATCH_IDLE;
}

/* With other drives the queue goes to them, else it ends. True when something was moved. */
static bool abandon_queue(struct lane *lane, int error)
{
    bool moved = false;
    struct kvf_writer *writer = lane->writer;
    struct kvf_store *store = writer->store;
    while (!kvf_list_is_empty(&lane->queue)) {
        struct kvf_append *append = append_at(kvf_list_pop_front(&lane->queue));
        struct lane *other = NULL;
        uint64_t bytes = kvf_round_up_page(append->record.length);
        (void)pthread_mutex_lock(&store->lock);
        for (size_t i = 0; i < store->drive_count; i++)
            if (store->drives[i].error == 0 &&
                (other == NULL || store->drives[i].queued_bytes < other->drive->queued_bytes))
                other = &writer->lanes[i];
        if (other != NULL) {
            lane->drive->queued_bytes -= bytes;
            lane->drive->stats.writes_in_flight--;
            other->drive->queued_bytes += bytes;
            other->drive->stats.writes_in_flight++;
            append->location.drive = other->drive->index;
            kvf_list_push_back(&other->queue, &append->node);
        }
        (void)pthread_mutex_unlock(&store->lock);
        if (other == NULL)
            end_append(lane, append, kvf_io_status(error));
        else
            moved = true;
    }
    return moved;
}

/* Start the next thing for what is queued, if it may start now. */
static void start_next(struct lane *lane)
{
    struct batch *batch = &lane->groups[lane->next_group];
    if (kvf_list_is_empty(&lane->queue) || batch->state != BATCH_IDLE ||
        lane->groups[1 - lane->next_group].state == BATCH_WRITING)
        return;
    struct kvf_append *first = append_at(lane->queue.next);
    if (lane->open == NULL && !take_segment(lane)) {
        if (lane->writer->store->options.reclaim != NULL) {
            ask_for_segments(lane, first);
            return;
        }
        /* Nobody could give one back. */
        while (!kvf_list_is_empty(&lane->queue))
            end_append(lane, append_at(kvf_list_pop_front(&lane->queue)),
                       kvf_fail(KVF_MODULE_STORAGE, KVF_NO_SPACE, 0));
        return;
    }
    const struct plan empty = {0};
    if (plan_takes(lane, &empty, first)) {
        bool taken = lane->open_is_new;
        start_group(lane, batch);
        if (taken)
            ask_for_segments(lane, append_at(batch->appends.next));
    } else if (groups_are_idle(lane) && lane->service.state == BATCH_IDLE) {
        start_seal(lane);
    }
}

/* All pieces are back: the fdatasync is next, in the order of the groups. */
static bool may_sync(const struct lane *lane, const struct batch *batch)
{
    if (batch->state != BATCH_WRITTEN)
        return false;
    if (batch->kind != BATCH_RECORDS)
        return true;
    const struct batch *other = &lane->groups[batch == &lane->groups[0]];
    return other->state != BATCH_SYNCING;
}

static void settle(struct lane *lane, struct batch *batch)
{
    if (batch->state == BATCH_IDLE || batch->in_flight > 0)
        return;
    if (batch->error == 0 && batch->kind == BATCH_RECORDS)
        batch->error = drive_error(lane); /* the group before it failed */
    if (batch->error != 0)
        end_batch(lane, batch);
}

/* The older group first. True when another drive has got something to do. */
static bool step(struct lane *lane)
{
    settle(lane, &lane->groups[lane->next_group]);
    settle(lane, &lane->groups[1 - lane->next_group]);
    settle(lane, &lane->service);
    int error = drive_error(lane);
    if (error != 0) {
        bool moved = abandon_queue(lane, error);
        for (struct kvf_list *node; (node = kvf_list_pop_front(&lane->frees)) != NULL;)
            set_segment_state(lane, kvf_container(node, struct kvf_segment, node),
                              KVF_SEGMENT_LOST);
        return moved;
    }
    if (lane->service.state == BATCH_IDLE && !kvf_list_is_empty(&lane->frees))
        start_free(lane);
    start_next(lane);
    return false;
}

static void step_all(struct kvf_writer *writer)
{
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < writer->store->drive_count; i++)
            again |= step(&writer->lanes[i]);
    }
}

/* ---- pieces ---- */

/* What the batch wants written next; false when all is given out. */
static bool next_run(struct batch *batch, struct run *piece)
{
    if (batch->error != 0)
        return false;
    if (batch->run_next < batch->run_count) {
        struct run *run = &batch->runs[batch->run_next];
        uint64_t left = run->bytes - batch->run_done;
        uint64_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        *piece = (struct run){run->memory + batch->run_done, run->offset + batch->run_done, bytes};
        batch->run_done += bytes;
        if (batch->run_done == run->bytes) {
            batch->run_next++;
            batch->run_done = 0;
        }
        return true;
    }
    if (batch->kind != BATCH_RECORDS || batch->at == &batch->appends)
        return false;
    struct kvf_append *append = append_at(batch->at);
    uint64_t left = kvf_round_up_page(append->record.length) - batch->at_done;
    uint64_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    *piece = (struct run){kvf_extent_at(append->extent) + batch->at_done,
                          append->location.offset + batch->at_done, bytes};
    batch->at_done += bytes;
    if (bytes == left) {
        batch->at = batch->at->next;
        batch->at_done = 0;
    }
    return true;
}

static struct write *take_write(struct lane *lane, struct batch *batch)
{
    struct write *write = lane->writer->idle;
    lane->writer->idle = write->next;
    *write = (struct write){.batch = batch, .io = {.fd = batch->segment->fd, .buffer = -1}};
    batch->in_flight++;
    lane->pieces_in_flight++;
    return write;
}

static void aim(struct write *write)
{
    write->io.kind = KVF_IO_WRITE;
    write->io.memory = write->left.memory;
    write->io.offset = write->left.offset;
    write->io.bytes = write->left.bytes;
}

/* Give out one piece or one fdatasync of this batch. */
static bool give_out(struct lane *lane, struct batch *batch)
{
    struct kvf_writer *writer = lane->writer;
    if (batch->state != BATCH_WRITING && batch->state != BATCH_WRITTEN)
        return false;
    if (lane->pieces_in_flight >= PIECES_PER_DRIVE || writer->idle == NULL ||
        writer->ring->engine->room(writer->ring) == 0)
        return false;
    struct run piece;
    if (batch->state == BATCH_WRITING && next_run(batch, &piece)) {
        struct write *write = take_write(lane, batch);
        write->left = piece;
        aim(write);
        writer->ring->engine->add(writer->ring, &write->io);
        return true;
    }
    if (!may_sync(lane, batch) || batch->error != 0)
        return false;
    struct write *write = take_write(lane, batch);
    write->io.kind = KVF_IO_SYNC;
    batch->state = BATCH_SYNCING;
    writer->ring->engine->add(writer->ring, &write->io);
    return true;
}

static bool give_out_lane(struct lane *lane)
{
    return give_out(lane, &lane->service) || give_out(lane, &lane->groups[lane->next_group]) ||
           give_out(lane, &lane->groups[1 - lane->next_group]);
}

/* What has to be asked once more; then in turns over the drives, one piece each. */
static void give_out_all(struct kvf_writer *writer)
{
    while (writer->again != NULL && writer->ring->engine->room(writer->ring) > 0) {
        struct write *write = writer->again;
        writer->again = write->next;
        writer->ring->engine->add(writer->ring, &write->io);
    }
    size_t without = 0, count = writer->store->drive_count;
    while (without < count) {
        struct lane *lane = &writer->lanes[writer->next_lane];
        writer->next_lane = (writer->next_lane + 1) % count;
        without = give_out_lane(lane) ? 0 : without + 1;
    }
}

/* True when the request is over: *error 0 or an errno. */
static bool judge(struct write *write, int *error)
{
    int result = write->io.result;
    *error = 0;
    bool passing = result == -EAGAIN || result == -EINTR || result == -EBUSY;
    if (result < 0 && !passing) {
        *error = -result;
        return true;
    }
    if (write->io.kind == KVF_IO_SYNC && result >= 0)
        return true;
    uint64_t put = result > 0 ? (uint64_t)result & ~(KVF_PAGE - 1) : 0;
    write->left.memory += put;
    write->left.offset += put;
    write->left.bytes -= put;
    write->retries = put > 0 ? 0 : write->retries + 1;
    if (write->io.kind == KVF_IO_WRITE && write->left.bytes == 0)
        return true;
    if (write->retries <= RETRIES_MAX)
        return false;
    *error = result < 0 ? -result : EIO;
    return true;
}

static void finish_write(struct lane *lane, struct write *write, int error)
{
    struct kvf_writer *writer = lane->writer;
    struct batch *batch = write->batch;
    bool synced = write->io.kind == KVF_IO_SYNC;
    batch->in_flight--;
    lane->pieces_in_flight--;
    write->next = writer->idle;
    writer->idle = write;
    if (error != 0 && batch->error == 0)
        batch->error = error;
    if (batch->error != 0 || batch->in_flight > 0)
        return; /* step() ends it once everything is back */
    bool all_out = batch->run_next == batch->run_count &&
                   (batch->kind != BATCH_RECORDS || batch->at == &batch->appends);
    if (synced)
        end_batch(lane, batch);
    else if (all_out)
        batch->state = BATCH_WRITTEN;
}

static void handle(struct kvf_writer *writer, struct kvf_io *io)
{
    struct write *write = kvf_container(io, struct write, io);
    struct lane *lane = write->batch->lane;
    int error;
    if (io->kind == KVF_IO_WRITE && io->result > 0) {
        (void)pthread_mutex_lock(&writer->store->lock);
        lane->drive->stats.write_device_bytes += (uint64_t)io->result;
        (void)pthread_mutex_unlock(&writer->store->lock);
    }
    if (judge(write, &error)) {
        finish_write(lane, write, error);
    } else {
        if (io->kind == KVF_IO_WRITE)
            aim(write);
        write->next = writer->again;
        writer->again = write;
    }
}

/* ---- the thread ---- */

static bool writer_is_idle(const struct kvf_writer *writer)
{
    for (size_t i = 0; i < writer->store->drive_count; i++) {
        const struct lane *lane = &writer->lanes[i];
        if (!groups_are_idle(lane) || lane->service.state != BATCH_IDLE ||
            !kvf_list_is_empty(&lane->frees))
            return false;
    }
    return true;
}

/* What the owner has queued since the last round. */
static void take_incoming(struct kvf_writer *writer)
{
    struct kvf_store *store = writer->store;
    (void)pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->drive_count; i++) {
        kvf_list_splice_back(&writer->lanes[i].queue, &store->drives[i].incoming);
        kvf_list_splice_back(&writer->lanes[i].frees, &store->drives[i].frees);
    }
    (void)pthread_mutex_unlock(&store->lock);
}

/* May it sleep in the ring now? Not when the owner has queued something since take_incoming. */
static bool prepare_sleep(struct kvf_writer *writer, bool *end)
{
    struct kvf_store *store = writer->store;
    (void)pthread_mutex_lock(&store->lock);
    bool news = false;
    for (size_t i = 0; i < store->drive_count; i++)
        news |= !kvf_list_is_empty(&store->drives[i].incoming) ||
                !kvf_list_is_empty(&store->drives[i].frees);
    *end = writer->stop && !news && writer_is_idle(writer);
    writer->sleeping = !news && !*end;
    (void)pthread_mutex_unlock(&store->lock);
    return !news;
}

static void replace_ring(struct kvf_writer *writer)
{
    struct kvf_ring *fresh = NULL;
    unsigned entries = (unsigned)(PIECES_PER_DRIVE * writer->store->drive_count);
    writer->ring->engine->close(writer->ring);
    if (writer->store->engine->open(entries, writer->wake_fd, &fresh) != 0)
        kvf_assert(kvf_engine_pread.open(1, writer->wake_fd, &fresh) == 0);
    writer->ring = fresh;
}

static void serve(struct kvf_writer *writer)
{
    struct kvf_io *done[DONE_MAX];
    for (bool end = false; !end;) {
        take_incoming(writer);
        step_all(writer);
        give_out_all(writer);
        bool sleep = prepare_sleep(writer, &end);
        if (end)
            return;
        unsigned count = writer->ring->engine->turn(writer->ring, done, DONE_MAX, sleep);
        for (unsigned i = 0; i < count; i++)
            handle(writer, done[i]);
        if (writer->ring->engine->is_broken(writer->ring))
            replace_ring(writer);
    }
}

static void *run_writer(void *context)
{
    struct kvf_writer *writer = context;
    unsigned entries = (unsigned)(PIECES_PER_DRIVE * writer->store->drive_count);
    writer->open_error = writer->store->engine->open(entries, writer->wake_fd, &writer->ring);
    bool failed = writer->open_error != 0;
    (void)sem_post(&writer->ready);
    if (failed)
        return NULL;
    serve(writer);
    writer->ring->engine->close(writer->ring);
    return NULL;
}

static bool batch_init(struct batch *batch, struct lane *lane)
{
    batch->lane = lane;
    kvf_list_init(&batch->appends);
    batch->pages = aligned_alloc(KVF_PAGE, KVF_GROUP_PAGES_MAX_BYTES + KVF_PAGE);
    batch->header_page = batch->pages + KVF_GROUP_PAGES_MAX_BYTES;
    return batch->pages != NULL;
}

static bool lane_init(struct lane *lane, struct kvf_writer *writer, struct kvf_drive *drive)
{
    lane->writer = writer;
    lane->drive = drive;
    kvf_list_init(&lane->queue);
    kvf_list_init(&lane->frees);
    /* Mapped, not allocated: its pages are taken as headers come. */
    void *index = mmap(NULL, kvf_index_max_bytes(drive->segment_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    lane->index = index != MAP_FAILED ? index : NULL;
    return batch_init(&lane->groups[0], lane) && batch_init(&lane->groups[1], lane) &&
           batch_init(&lane->service, lane) && lane->index != NULL;
}

static bool writer_init(struct kvf_writer *writer)
{
    size_t drives = writer->store->drive_count;
    writer->lanes = calloc(drives, sizeof(*writer->lanes));
    writer->writes = calloc(PIECES_PER_DRIVE * drives, sizeof(*writer->writes));
    writer->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (writer->lanes == NULL || writer->writes == NULL || writer->wake_fd < 0)
        return false;
    for (size_t i = 0; i < PIECES_PER_DRIVE * drives; i++) {
        writer->writes[i].next = writer->idle;
        writer->idle = &writer->writes[i];
    }
    for (size_t i = 0; i < drives; i++)
        if (!lane_init(&writer->lanes[i], writer, &writer->store->drives[i]))
            return false;
    return true;
}

struct kvf_status kvf_writer_start(struct kvf_store *store, struct kvf_why *why)
{
    struct kvf_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, 0);
    store->writer = writer;
    writer->store = store;
    writer->wake_fd = -1;
    if (!writer_init(writer))
        return kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, errno);
    kvf_assert(sem_init(&writer->ready, 0, 0) == 0);
    int error = kvf_thread_start(&writer->thread, "kvf-write", run_writer, writer);
    if (error == 0) {
        writer->started = true;
        while (sem_wait(&writer->ready) != 0)
            continue;
        error = -writer->open_error;
    }
    if (error != 0)
        return kvf_why_set(why, kvf_fail(KVF_MODULE_STORAGE, KVF_NO_MEMORY, error),
                           "cannot start the writer: %s", strerror(error));
    return kvf_ok();
}

void kvf_writer_stop(struct kvf_writer *writer)
{
    if (writer == NULL)
        return;
    (void)pthread_mutex_lock(&writer->store->lock);
    writer->stop = true;
    (void)pthread_mutex_unlock(&writer->store->lock);
    if (writer->started) {
        (void)eventfd_write(writer->wake_fd, 1);
        (void)pthread_join(writer->thread, NULL);
        (void)sem_destroy(&writer->ready);
    }
    for (size_t i = 0; writer->lanes != NULL && i < writer->store->drive_count; i++) {
        struct lane *lane = &writer->lanes[i];
        free(lane->groups[0].pages);
        free(lane->groups[1].pages);
        free(lane->service.pages);
        if (lane->index != NULL)
            (void)munmap(lane->index, kvf_index_max_bytes(lane->drive->segment_bytes));
    }
    if (writer->wake_fd >= 0)
        (void)close(writer->wake_fd);
    free(writer->lanes);
    free(writer->writes);
    free(writer);
}

/* ---- the owner's calls ---- */

static struct kvf_status check_append(const struct kvf_store *store,
                                      const struct kvf_append *append)
{
    const struct kvf_record *record = &append->record;
    uint64_t bytes = kvf_round_up_page(record->length);
    if (record->length == 0 || record->length > KVF_BLOCK_MAX_BYTES || record->key.length == 0 ||
        record->key.length > KVF_KEY_MAX_BYTES || record->namespace == NULL ||
        !kvf_namespace_is_valid(record->namespace) || append->extent.arena == NULL ||
        append->extent.offset % KVF_PAGE != 0 || append->extent.bytes < bytes)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_INVALID, 0);
    /* Header, one group, index and footer: each at least a page. */
    if (bytes + 4 * KVF_PAGE > store->drives[0].segment_bytes)
        return kvf_fail(KVF_MODULE_STORAGE, KVF_TOO_LARGE, 0);
    return kvf_ok();
}

static bool has_less_to_do(const struct kvf_drive *a, const struct kvf_drive *b)
{
    return a->queued_bytes != b->queued_bytes ? a->queued_bytes < b->queued_bytes
                                              : a->stats.used_bytes < b->stats.used_bytes;
}

/* The one with the least to do (then: the emptiest) that still takes writes; NULL: none does. Under the lock. */
static struct kvf_drive *choose_drive(struct kvf_store *store)
{
    struct kvf_drive *best = NULL;
    for (size_t i = 0; i < store->drive_count; i++) {
        struct kvf_drive *drive = &store->drives[i];
        if (drive->error == 0 && (best == NULL || has_less_to_do(drive, best)))
            best = drive;
    }
    return best;
}

void kvf_store_append(struct kvf_store *store, struct kvf_append *append)
{
    kvf_assert(store->recovered);
    append->store = store;
    append->post.run = run_post;
    append->posted = append->finished = false;
    append->location = (struct kvf_location){0};
    append->status = check_append(store, append);
    kvf_list_init(&append->node);

    bool wake = false;
    (void)pthread_mutex_lock(&store->lock);
    struct kvf_drive *drive = choose_drive(store);
    if (drive == NULL) {
        drive = &store->drives[0];
        if (kvf_is_ok(append->status))
            append->status = kvf_io_status(drive->error);
    }
    drive->stats.writes_in_flight++;
    append->location.drive = drive->index;
    if (kvf_is_ok(append->status)) {
        drive->queued_bytes += kvf_round_up_page(append->record.length);
        kvf_list_push_back(&drive->incoming, &append->node);
        wake = store->writer->sleeping;
        store->writer->sleeping = false;
    } else {
        drive->stats.dropped++;
        append->posted = append->finished = true;
        kvf_loop_post(store->loop, &append->post);
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (wake)
        (void)eventfd_write(store->writer->wake_fd, 1);
}

void kvf_store_free(struct kvf_store *store, uint32_t drive_index, uint32_t segment_number,
                    uint64_t sequence)
{
    kvf_assert(drive_index < store->drive_count &&
               segment_number < store->drives[drive_index].segment_count);
    struct kvf_drive *drive = &store->drives[drive_index];
    struct kvf_segment *segment = &drive->segments[segment_number];
    bool wake = false;
    (void)pthread_mutex_lock(&store->lock);
    if (segment->state == KVF_SEGMENT_SEALED && segment->sequence == sequence) {
        segment->state = KVF_SEGMENT_FREEING;
        drive->stats.used_bytes -= segment->used_bytes;
        segment->used_bytes = 0;
        kvf_list_remove(&segment->node); /* it may be about to be asked for */
        kvf_list_push_back(&drive->frees, &segment->node);
        wake = store->writer->sleeping;
        store->writer->sleeping = false;
    }
    (void)pthread_mutex_unlock(&store->lock);
    if (wake)
        (void)eventfd_write(store->writer->wake_fd, 1);
}
