#include "server/audit.h"

#include "base/clock.h"
#include "base/test.h"

#include <stdio.h>
#include <string.h>

static struct kvf_loop *loop;
static struct kvf_audit *audit;
static char lines[64][1024];
static unsigned line_count;

static void note(void *context, const char *line)
{
    (void)context;
    assert_true(line_count < 64);
    (void)snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
}

static int set_up(void **state)
{
    (void)state;
    line_count = 0;
    return kvf_is_ok(kvf_loop_create(&loop)) &&
                   kvf_is_ok(kvf_audit_create(loop, note, NULL, &audit))
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvf_audit_destroy(audit);
    kvf_loop_destroy(loop);
    return 0;
}

static struct kvf_key key_of(const char *text)
{
    struct kvf_key key;
    assert_true(kvf_key_set(&key, (const uint8_t *)text, strlen(text)));
    return key;
}

static void read__one__one_line_with_every_field(void **state)
{
    (void)state;
    struct kvf_key key = key_of("kvferry-secret");
    struct kvf_audit_read read = {.identity = "spiffe://x/b",
                                  .tenant = "t",
                                  .id = 7,
                                  .blocks = 12,
                                  .hits = 11,
                                  .sent = 10,
                                  .bytes = 40960,
                                  .outcome = "OK",
                                  .waited_ns = 3000,
                                  .took_ns = 9021999,
                                  .key = &key};
    kvf_audit_read(audit, &read);
    assert_int_equal(line_count, 1);
    assert_string_equal(lines[0],
                        "read identity=spiffe://x/b tenant=t id=7 blocks=12 hits=11 sent=10 "
                        "bytes=40960 outcome=OK waited_us=3 took_us=9021 key=6b766665");
    assert_null(strstr(lines[0], "727279")); /* "rry" */
    struct kvf_key shorter = key_of("k");
    read.key = &shorter;
    kvf_audit_read(audit, &read);
    assert_non_null(strstr(lines[1], " key=6b"));
}

static void read__foreign_text__cannot_forge_a_field(void **state)
{
    (void)state;
    char longer[2000];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    kvf_audit_forced(audit, "b tenant=other\n\"x", "", "overdue");
    assert_string_equal(lines[0],
                        "forced identity=b%20tenant%3Dother%0A%22x tenant=- reason=overdue");
    kvf_audit_forced(audit, longer, "t", "overdue");
    assert_non_null(strstr(lines[1], " tenant=t reason=overdue"));
}

static unsigned denials_told(uint64_t *suppressed)
{
    unsigned told = 0;
    *suppressed = 0;
    for (unsigned i = 0; i < line_count; i++) {
        unsigned long long count;
        if (sscanf(lines[i], "denied suppressed=%llu", &count) == 1)
            *suppressed += count;
        else
            told += strncmp(lines[i], "denied identity=", 16) == 0;
    }
    return told;
}

static void denied__a_flood__told_or_counted_each_once(void **state)
{
    (void)state;
    uint64_t suppressed;
    for (int i = 0; i < 1000; i++)
        kvf_audit_denied(audit, "spiffe://x/c", "t", "lookup", "no_right");
    assert_true(line_count <= 2 * (KVF_AUDIT_DENIALS_PER_SECOND + 1));
    /* The count comes by itself, without another denial. */
    uint64_t until_ns = kvf_clock_now_ns() + 10 * KVF_NS_PER_S;
    while (denials_told(&suppressed) + suppressed < 1000) {
        assert_true(kvf_clock_now_ns() < until_ns);
        kvf_loop_run_once(loop, 100);
    }
    assert_int_equal(denials_told(&suppressed) + suppressed, 1000);
}

static void destroy__with_denials_kept_back__tells_them(void **state)
{
    (void)state;
    uint64_t suppressed;
    for (int i = 0; i < 100; i++)
        kvf_audit_denied(audit, "spiffe://x/c", "t", "lookup", "no_right");
    kvf_audit_destroy(audit);
    audit = NULL;
    assert_int_equal(denials_told(&suppressed) + suppressed, 100);
}

static void nobody_keeps_it__every_event__nothing(void **state)
{
    (void)state;
    kvf_audit_denied(NULL, "a", "t", "get", "no_right");
    kvf_audit_forced(NULL, "a", "t", "overdue");
    kvf_audit_reload(NULL, "acl", kvf_ok());
    kvf_audit_read(NULL, &(struct kvf_audit_read){0});
    assert_int_equal(line_count, 0);
}

static void reload__good_and_bad__one_line_each(void **state)
{
    (void)state;
    kvf_audit_reload(audit, "acl", kvf_ok());
    kvf_audit_reload(audit, "tls", kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0));
    assert_int_equal(line_count, 2);
    assert_string_equal(lines[0], "reload what=acl outcome=OK");
    assert_string_equal(lines[1], "reload what=tls outcome=INVALID");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(read__one__one_line_with_every_field),
        TEST(read__foreign_text__cannot_forge_a_field),
        TEST(denied__a_flood__told_or_counted_each_once),
        TEST(destroy__with_denials_kept_back__tells_them),
        TEST(nobody_keeps_it__every_event__nothing),
        TEST(reload__good_and_bad__one_line_each),
    };
    return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
