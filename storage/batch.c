#include "storage/batch.h"

#include "base/crc32c.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GROUP_BYTES (16 * KVF_MIB) /* of payload: then it takes no more */

/* ---- building ---- */

static void start_batch(struct kvf_batch *batch, enum kvf_batch_kind kind,
                        struct kvf_segment *segment)
{
    batch->kind = kind;
    batch->state = KVF_BATCH_WRITING;
    batch->segment = segment;
    batch->run_count = batch->run_next = 0;
    batch->run_done = batch->at_done = 0;
    batch->at = NULL;
    batch->error = 0;
}

static void add_run(struct kvf_batch *batch, uint8_t *memory, uint64_t offset, uint64_t bytes)
{
    batch->runs[batch->run_count++] =
        (struct kvf_run){.memory = memory, .offset = offset, .bytes = bytes};
}

/* What a group has come to while it is being put together. */
struct plan {
    uint64_t header_bytes;
    uint64_t payload_bytes;
    uint32_t count;
};

/* Behind the group the segment must still hold the whole index and the footer. */
static bool plan_takes(const struct kvf_filling *filling, const struct plan *plan,
                       const struct kvf_append *append)
{
    uint64_t segment_bytes = filling->drive->segment_bytes;
    uint64_t kept = kvf_append_is_carried(append) ? 0 : filling->kept_bytes;
    uint64_t header = kvf_record_header_bytes(&append->record);
    uint64_t headers = plan->header_bytes + header;
    uint64_t payload = plan->payload_bytes + kvf_round_up_page(append->record.length);
    uint64_t index = filling->index_bytes + headers;
    if (plan->payload_bytes >= GROUP_BYTES)
        return false;
    if (KVF_GROUP_PREFIX_BYTES + headers > KVF_GROUP_PAGES_MAX_BYTES ||
        index > kvf_index_max_bytes(segment_bytes))
        return false;
    return filling->position + kvf_round_up_page(KVF_GROUP_PREFIX_BYTES + headers) + payload +
               kvf_round_up_page(index) + KVF_PAGE + kept <=
           segment_bytes;
}

/* Move what belongs together from the queue to the batch. */
static void collect(struct kvf_filling *filling, struct kvf_batch *batch, struct plan *plan,
                    struct kvf_list *queue)
{
    while (!kvf_list_is_empty(queue)) {
        struct kvf_append *append = kvf_append_at(queue->next);
        if (!plan_takes(filling, plan, append))
            break;
        kvf_list_remove(&append->node);
        kvf_list_push_back(&batch->appends, &append->node);
        plan->header_bytes += kvf_record_header_bytes(&append->record);
        plan->payload_bytes += kvf_round_up_page(append->record.length);
        plan->count++;
    }
}

/* Headers into the group's pages and into the index; every append learns its place. */
static void encode(struct kvf_filling *filling, struct kvf_batch *batch, const struct plan *plan)
{
    struct kvf_segment *segment = batch->segment;
    struct kvf_place place = kvf_segment_place(filling->drive, segment);
    struct kvf_group group = {
        .offset = filling->position,
        .header_bytes = (uint32_t)plan->header_bytes,
        .record_count = plan->count,
        .first_number = filling->record_count,
    };
    uint64_t payload = group.offset + kvf_group_pages_bytes(&group);
    uint8_t *at = batch->pages + KVF_GROUP_PREFIX_BYTES;
    kvf_list_for_each (node, &batch->appends) {
        struct kvf_append *append = kvf_append_at(node);
        append->location = (struct kvf_location){
            .drive = filling->drive->index,
            .segment = segment->number,
            .sequence = segment->sequence,
            .offset = payload,
        };
        size_t bytes =
            kvf_record_header_encode(&place, &append->record, filling->record_count++, payload, at);
        memcpy(filling->index + filling->index_bytes, at, bytes);
        filling->index_bytes += bytes;
        at += bytes;
        payload += kvf_round_up_page(append->record.length);
    }
    kvf_group_encode(&place, &group, batch->pages);
    add_run(batch, batch->pages, group.offset, kvf_group_pages_bytes(&group));
    filling->position = payload;
}

void kvf_batch_start_group(struct kvf_filling *filling, struct kvf_batch *batch,
                           struct kvf_list *carries, struct kvf_list *queue)
{
    struct plan plan = {0};
    start_batch(batch, KVF_BATCH_RECORDS, filling->segment);
    batch->before_position = filling->position;
    batch->before_index_bytes = filling->index_bytes;
    batch->before_record_count = filling->record_count;
    if (filling->is_new) {
        struct kvf_place place = kvf_segment_place(filling->drive, filling->segment);
        kvf_segment_header_encode(&place, true, batch->header_page);
        add_run(batch, batch->header_page, 0, KVF_PAGE);
        filling->is_new = false;
    }
    collect(filling, batch, &plan, carries);
    collect(filling, batch, &plan, queue);
    encode(filling, batch, &plan);
    batch->at = batch->appends.next;
}

void kvf_batch_start_seal(struct kvf_filling *filling, struct kvf_batch *batch)
{
    struct kvf_place place = kvf_segment_place(filling->drive, filling->segment);
    uint64_t index_pages = kvf_round_up_page(filling->index_bytes);
    struct kvf_footer footer = {
        .index_offset = filling->position,
        .index_bytes = filling->index_bytes,
        .record_count = filling->record_count,
        .index_crc32c = kvf_crc32c(0, filling->index, filling->index_bytes),
    };
    memset(filling->index + filling->index_bytes, 0, index_pages - filling->index_bytes);
    start_batch(batch, KVF_BATCH_SEAL, filling->segment);
    filling->is_full = true;
    kvf_footer_encode(&place, &footer, batch->pages);
    add_run(batch, filling->index, footer.index_offset, index_pages);
    add_run(batch, batch->pages, filling->drive->segment_bytes - KVF_PAGE, KVF_PAGE);
}

void kvf_batch_start_free(const struct kvf_drive *drive, struct kvf_segment *segment,
                          struct kvf_batch *batch)
{
    struct kvf_place place = kvf_segment_place(drive, segment);
    start_batch(batch, KVF_BATCH_FREE, segment);
    kvf_segment_header_encode(&place, false, batch->pages);
    add_run(batch, batch->pages, 0, KVF_PAGE);
}

void kvf_batch_start_resume(const struct kvf_filling *filling, struct kvf_batch *batch)
{
    struct kvf_place place = kvf_segment_place(filling->drive, filling->segment);
    uint64_t offset = filling->position - KVF_PAGE;
    start_batch(batch, KVF_BATCH_RESUME, filling->segment);
    kvf_mark_encode(&place, offset, batch->pages);
    if (filling->resume == KVF_RESUME_UNSEAL) {
        offset = place.segment_bytes - KVF_PAGE;
        memset(batch->pages, 0, KVF_PAGE);
    }
    add_run(batch, batch->pages, offset, KVF_PAGE);
}

void kvf_batch_start_void(const struct kvf_filling *filling, struct kvf_batch *batch)
{
    start_batch(batch, KVF_BATCH_VOID, filling->segment);
    memset(batch->pages, 0, KVF_PAGE);
    for (unsigned i = 0; i < filling->void_count; i++)
        add_run(batch, batch->pages, filling->voids[i], KVF_PAGE);
}

void kvf_batch_start_probe(const struct kvf_drive *drive, struct kvf_segment *segment,
                           struct kvf_batch *batch)
{
    if (segment != NULL) {
        kvf_batch_start_free(drive, segment, batch);
    } else {
        start_batch(batch, KVF_BATCH_FREE, &drive->segments[0]);
        batch->state = KVF_BATCH_WRITTEN;
    }
    batch->kind = KVF_BATCH_PROBE;
}

/* The older of two failed groups began further in front. */
void kvf_batch_roll_back(struct kvf_filling *filling, const struct kvf_batch *batch)
{
    kvf_assert(filling->void_count < KVF_GROUPS_UNDER_WAY);
    filling->voids[filling->void_count++] = batch->before_position;
    if (batch->before_position >= filling->position)
        return;
    filling->position = batch->before_position;
    filling->index_bytes = batch->before_index_bytes;
    filling->record_count = batch->before_record_count;
}

/* ---- giving out ---- */

/* The rest of the run or payload that is next: in memory, or in a file. */
struct part {
    uint64_t offset;
    uint64_t bytes;
    uint8_t *memory;
    int from_fd; /* -1: in memory */
    uint64_t from_offset;
};

static struct part part_of_run(const struct kvf_run *run, uint64_t done)
{
    return (struct part){
        .offset = run->offset + done,
        .bytes = run->bytes - done,
        .memory = run->memory + done,
        .from_fd = -1,
    };
}

static struct part part_of_payload(const struct kvf_append *append, uint64_t done)
{
    struct part part = {
        .offset = append->location.offset + done,
        .bytes = kvf_round_up_page(append->record.length) - done,
        .from_fd = -1,
    };
    if (kvf_append_is_carried(append)) {
        const struct kvf_location *from = &append->from;
        part.from_fd = append->store->drives[from->drive].segments[from->segment].fd;
        part.from_offset = from->offset + done;
    } else {
        part.memory = kvf_extent_at(append->extent) + done;
    }
    return part;
}

bool kvf_batch_is_out(const struct kvf_batch *batch)
{
    return batch->run_next == batch->run_count &&
           (batch->kind != KVF_BATCH_RECORDS || batch->at == &batch->appends);
}

static struct part front(const struct kvf_batch *batch)
{
    if (batch->run_next < batch->run_count)
        return part_of_run(&batch->runs[batch->run_next], batch->run_done);
    return part_of_payload(kvf_append_at(batch->at), batch->at_done);
}

/* So many bytes of what front() told are given out. */
static void consume(struct kvf_batch *batch, const struct part *part, uint64_t bytes)
{
    bool all = bytes == part->bytes;
    if (batch->run_next < batch->run_count) {
        batch->run_done = all ? 0 : batch->run_done + bytes;
        batch->run_next += all;
        return;
    }
    batch->at_done = all ? 0 : batch->at_done + bytes;
    if (all)
        batch->at = batch->at->next;
}

/* Does it go on where the piece ends, here and where it is copied from? */
static bool follows(const struct kvf_piece *piece, const struct part *part)
{
    if (piece->bytes == 0)
        return true;
    return piece->bytes < KVF_PIECE_BYTES && part->offset == piece->offset + piece->bytes &&
           part->from_fd == piece->from_fd &&
           (part->from_fd < 0 || part->from_offset == piece->from_offset + piece->bytes);
}

static void add_part(struct kvf_piece *piece, const struct part *part, uint64_t bytes)
{
    if (piece->bytes == 0) {
        piece->offset = part->offset;
        piece->from_fd = part->from_fd;
        piece->from_offset = part->from_offset;
    }
    piece->bytes += bytes;
    if (part->from_fd >= 0)
        return;
    struct iovec *last = piece->part_count > 0 ? &piece->parts[piece->part_count - 1] : NULL;
    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == part->memory)
        last->iov_len += bytes;
    else
        piece->parts[piece->part_count++] =
            (struct iovec){.iov_base = part->memory, .iov_len = bytes};
}

bool kvf_batch_next_piece(struct kvf_batch *batch, struct kvf_piece *piece)
{
    piece->bytes = 0;
    piece->part_count = 0;
    while (batch->error == 0 && !kvf_batch_is_out(batch)) {
        struct part part = front(batch);
        uint64_t room = KVF_PIECE_BYTES - piece->bytes;
        uint64_t bytes = part.bytes < room ? part.bytes : room;
        if (!follows(piece, &part))
            break;
        add_part(piece, &part, bytes);
        consume(batch, &part, bytes);
    }
    return piece->bytes > 0;
}

void kvf_batch_spoil(struct kvf_batch *batch, const struct kvf_piece *piece, int error)
{
    kvf_list_for_each (node, &batch->appends) {
        struct kvf_append *append = kvf_append_at(node);
        uint64_t start = append->location.offset;
        uint64_t end = start + kvf_round_up_page(append->record.length);
        if (start < piece->offset + piece->bytes && piece->offset < end)
            append->status = kvf_io_status(error);
    }
}

/* ---- the segment being filled ---- */

bool kvf_filling_init(struct kvf_filling *filling, struct kvf_drive *drive)
{
    filling->drive = drive;
    /* Mapped, not allocated: its pages are taken as headers come. */
    void *index = mmap(NULL, kvf_index_max_bytes(drive->segment_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    filling->index = index != MAP_FAILED ? index : NULL;
    return filling->index != NULL;
}

void kvf_filling_fini(struct kvf_filling *filling)
{
    if (filling->index != NULL)
        (void)munmap(filling->index, kvf_index_max_bytes(filling->drive->segment_bytes));
}

void kvf_filling_start(struct kvf_filling *filling, struct kvf_segment *segment)
{
    filling->segment = segment;
    filling->is_new = true;
    filling->is_full = filling->is_sealed = false;
    filling->resume = KVF_RESUME_DONE;
    filling->void_count = 0;
    filling->position = KVF_PAGE;
    filling->record_count = 0;
    filling->index_bytes = 0;
}

void kvf_filling_go_on(struct kvf_filling *filling, struct kvf_rest *rest)
{
    kvf_filling_start(filling, rest->segment);
    filling->is_new = false;
    filling->is_sealed = rest->is_sealed;
    filling->resume = KVF_RESUME_MARK;
    filling->position = rest->position;
    filling->record_count = rest->record_count;
    filling->index_bytes = rest->index_bytes;
    memcpy(filling->index, rest->index, rest->index_bytes);
    free(rest->index);
    *rest = (struct kvf_rest){0};
}

bool kvf_filling_takes(const struct kvf_filling *filling, const struct kvf_append *append)
{
    const struct plan empty = {0};
    return plan_takes(filling, &empty, append);
}

/* ---- memory ---- */

bool kvf_batch_init(struct kvf_batch *batch)
{
    kvf_list_init(&batch->appends);
    batch->pages = aligned_alloc(KVF_PAGE, KVF_GROUP_PAGES_MAX_BYTES + KVF_PAGE);
    batch->header_page = batch->pages + KVF_GROUP_PAGES_MAX_BYTES;
    return batch->pages != NULL;
}

void kvf_batch_fini(struct kvf_batch *batch)
{
    free(batch->pages);
}
