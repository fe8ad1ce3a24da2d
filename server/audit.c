#include "server/audit.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define KEY_BYTES 4 /* enough to tell blocks apart, too few to ask for one */

struct kvf_audit {
    struct kvf_loop *loop;
    void (*write)(void *context, const char *line);
    void *context;
    struct kvf_log_limit denials;
    struct kvf_timer timer; /* tells what was kept back when no further denial does */
};

/* A foreign name as one value: nothing in it can pass for another field, and it has an end. */
struct value {
    char text[260];
};

static struct value value_of(const char *foreign)
{
    struct value value;
    size_t used = 0;
    for (const char *at = foreign; *at != '\0' && used + 4 < sizeof(value.text); at++) {
        unsigned char byte = (unsigned char)*at;
        bool plain = byte > 0x20 && byte < 0x7f && byte != '=' && byte != '%' && byte != '"';
        used += (size_t)snprintf(value.text + used, sizeof(value.text) - used,
                                 plain ? "%c" : "%%%02X", byte);
    }
    value.text[used] = '\0';
    if (used == 0)
        (void)snprintf(value.text, sizeof(value.text), "-");
    return value;
}

KVF_PRINTF(2, 3)
static void write_line(struct kvf_audit *audit, const char *format, ...)
{
    char line[900];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (audit->write != NULL)
        audit->write(audit->context, line);
    else
        kvf_log_info("audit", "%s", line);
}

void kvf_audit_read(struct kvf_audit *audit, const struct kvf_audit_read *read)
{
    char key[2 * KEY_BYTES + 1] = "";
    if (audit == NULL)
        return;
    for (size_t i = 0; i < KEY_BYTES && i < read->key->length; i++)
        (void)snprintf(key + 2 * i, 3, "%02x", read->key->bytes[i]);
    write_line(audit,
               "read identity=%s tenant=%s id=%" PRIu64 " blocks=%" PRIu32 " hits=%" PRIu32
               " sent=%" PRIu32 " bytes=%" PRIu64 " outcome=%s waited_us=%" PRIu64
               " took_us=%" PRIu64 " key=%s",
               value_of(read->identity).text, value_of(read->tenant).text, read->id, read->blocks,
               read->hits, read->sent, read->bytes, read->outcome, read->waited_ns / KVF_NS_PER_US,
               read->took_ns / KVF_NS_PER_US, key);
}

void kvf_audit_flush(struct kvf_audit *audit)
{
    kvf_timer_stop(audit->loop, &audit->timer);
    if (audit->denials.suppressed > 0)
        write_line(audit, "denied suppressed=%" PRIu64, audit->denials.suppressed);
    audit->denials.suppressed = 0;
}

static void quiet_is_over(struct kvf_timer *timer)
{
    kvf_audit_flush(kvf_container(timer, struct kvf_audit, timer));
}

void kvf_audit_denied(struct kvf_audit *audit, const char *identity, const char *tenant,
                      const char *what, const char *reason)
{
    uint64_t suppressed;
    if (audit == NULL)
        return;
    uint64_t now_ns = kvf_clock_now_ns();
    if (!kvf_log_may(&audit->denials, KVF_AUDIT_DENIALS_PER_SECOND, now_ns, &suppressed)) {
        if (audit->denials.suppressed == 1)
            kvf_timer_start(audit->loop, &audit->timer, now_ns + KVF_NS_PER_S);
        return;
    }
    kvf_timer_stop(audit->loop, &audit->timer);
    if (suppressed > 0)
        write_line(audit, "denied suppressed=%" PRIu64, suppressed);
    write_line(audit, "denied identity=%s tenant=%s what=%s reason=%s", value_of(identity).text,
               value_of(tenant).text, what, reason);
}

void kvf_audit_forced(struct kvf_audit *audit, const char *identity, const char *tenant,
                      const char *reason)
{
    if (audit != NULL)
        write_line(audit, "forced identity=%s tenant=%s reason=%s", value_of(identity).text,
                   value_of(tenant).text, reason);
}

void kvf_audit_reload(struct kvf_audit *audit, const char *what, struct kvf_status status)
{
    if (audit != NULL)
        write_line(audit, "reload what=%s outcome=%s", what, kvf_code_name(status.code));
}

struct kvf_status kvf_audit_create(struct kvf_loop *loop,
                                   void (*write)(void *context, const char *line), void *context,
                                   struct kvf_audit **give)
{
    struct kvf_audit *audit = calloc(1, sizeof(*audit));
    if (audit == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    audit->loop = loop;
    audit->write = write;
    audit->context = context;
    audit->timer.fire = quiet_is_over;
    *give = audit;
    return kvf_ok();
}

void kvf_audit_destroy(struct kvf_audit *audit)
{
    if (audit == NULL)
        return;
    kvf_audit_flush(audit);
    free(audit);
}
