#include "storage/window.h"

#include "base/crc32c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CRC_BYTES (UINT64_C(256) << 10) /* checked at once, so that the bytes come from the cache */

/* All bytes: 0, or an errno. */
static int read_file(const struct kvf_window *window, uint8_t *memory, uint64_t bytes,
                     uint64_t offset)
{
    while (bytes > 0) {
        ssize_t got = pread(window->fd, memory, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0 && !window->cut_is_zeros)
            return EIO;
        if (got == 0) {
            memset(memory, 0, bytes);
            return 0;
        }
        memory += got;
        bytes -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

bool kvf_window_init(struct kvf_window *window)
{
    window->memory = aligned_alloc(KVF_PAGE, window->capacity_bytes);
    return window->memory != NULL;
}

void kvf_window_fini(struct kvf_window *window)
{
    free(window->memory);
}

void kvf_window_aim(struct kvf_window *window, int fd, uint64_t segment_bytes)
{
    window->fd = fd;
    window->end = segment_bytes;
    window->error = 0;
    window->offset = window->bytes = 0;
}

bool kvf_window_is_over(const struct kvf_window *window)
{
    return window->error != 0 || (window->stop != NULL && atomic_load(window->stop));
}

bool kvf_window_read(struct kvf_window *window, uint8_t *memory, uint64_t bytes, uint64_t offset)
{
    if (!kvf_window_is_over(window))
        window->error = read_file(window, memory, bytes, offset);
    return !kvf_window_is_over(window);
}

/* Where it cannot be filled whole, just with what is asked for. */
static void fill(struct kvf_window *window, uint64_t offset, uint64_t bytes)
{
    uint64_t left = window->end - offset;
    window->offset = offset;
    window->bytes = left < window->capacity_bytes ? left : window->capacity_bytes;
    if (read_file(window, window->memory, window->bytes, offset) == 0)
        return;
    window->bytes = bytes;
    window->error = read_file(window, window->memory, bytes, offset);
}

const uint8_t *kvf_window_look(struct kvf_window *window, uint64_t offset, uint64_t bytes)
{
    if (kvf_window_is_over(window))
        return NULL;
    if (offset < window->offset || offset + bytes > window->offset + window->bytes)
        fill(window, offset, bytes);
    return window->error == 0 ? window->memory + (offset - window->offset) : NULL;
}

bool kvf_window_holds(struct kvf_window *window, const struct kvf_record_head *head)
{
    uint32_t crc = 0;
    for (uint64_t done = 0; done < head->record.length;) {
        uint64_t left = head->record.length - done;
        uint64_t bytes = left < CRC_BYTES ? left : CRC_BYTES;
        const uint8_t *at = kvf_window_look(window, head->offset + done, kvf_round_up_page(bytes));
        if (at == NULL)
            return false;
        crc = kvf_crc32c(crc, at, bytes);
        done += bytes;
    }
    return crc == head->record.crc32c;
}
