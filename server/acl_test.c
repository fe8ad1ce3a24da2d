#include "server/acl.h"

#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char example[] =
    "{\"tenants\": {\"t\": {\"dram\": 0.5, \"ssd\": 0.25}},\n"
    " \"identities\": {\"spiffe://x/b\": {\"t\": [\"read\", \"serve\"], \"u\": [\"serve\"]},\n"
    "                \"uid:1000\": {\"t\": [\"read\", \"write\"]},\n"
    "                \"spiffe://x/idle\": {},\n"
    "                \"spiffe://x/ops\": {\"*\": [\"admin\"]}}}\n";

static struct kvf_acl *parsed(const char *text)
{
    struct kvf_acl *acl = NULL;
    struct kvf_why why = {.text = ""};
    if (!kvf_is_ok(kvf_acl_parse("f", text, strlen(text), &acl, &why)))
        fail_msg("%s: %s", text, why.text);
    return acl;
}

/* words: parts of the one line, divided by '|'. */
static void refuses(const char *text, size_t length, const char *words)
{
    char copy[200], *rest = copy;
    struct kvf_acl *acl = NULL;
    struct kvf_why why = {.text = ""};
    struct kvf_status status = kvf_acl_parse("rights.json", text, length, &acl, &why);
    if (status.code != KVF_INVALID || acl != NULL)
        fail_msg("taken: %s", text);
    assert_non_null(strstr(why.text, "--acl rights.json"));
    assert_null(strchr(why.text, '\n'));
    (void)snprintf(copy, sizeof(copy), "%s", words);
    for (const char *word; (word = strsep(&rest, "|")) != NULL;)
        if (strstr(why.text, word) == NULL)
            fail_msg("\"%s\" does not name \"%s\"", why.text, word);
}

#define REFUSES(text, words) refuses(text, strlen(text), words)

static void may__each_right__only_as_given(void **state)
{
    (void)state;
    struct kvf_acl *acl = parsed(example);
    assert_true(kvf_acl_may(acl, "spiffe://x/b", "t", KVF_RIGHT_READ));
    assert_true(kvf_acl_may(acl, "spiffe://x/b", "t/llama", KVF_RIGHT_READ));
    assert_true(kvf_acl_may(acl, "spiffe://x/b", "u", KVF_RIGHT_SERVE));
    assert_true(kvf_acl_may(acl, "uid:1000", "t", KVF_RIGHT_WRITE));
    assert_true(kvf_acl_may(acl, "spiffe://x/ops", "", KVF_RIGHT_ADMIN));

    assert_false(kvf_acl_may(acl, "spiffe://x/b", "t", KVF_RIGHT_WRITE));
    assert_false(kvf_acl_may(acl, "spiffe://x/b", "u", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://x/b", "tt", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://x/b", "", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://x/b", "*", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://x/bb", "t", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://X/b", "t", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://x/", "t", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "", "t", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "spiffe://x/ops", "t", KVF_RIGHT_READ));
    assert_false(kvf_acl_may(acl, "uid:1000", "t", KVF_RIGHT_ADMIN));
    assert_false(kvf_acl_may(acl, "uid:10000", "t", KVF_RIGHT_READ));
    kvf_acl_close(acl);
}

static void knows__who_is_named_even_without_rights__yes(void **state)
{
    (void)state;
    struct kvf_acl *acl = parsed(example);
    assert_true(kvf_acl_knows(acl, "spiffe://x/idle"));
    assert_false(kvf_acl_may(acl, "spiffe://x/idle", "t", KVF_RIGHT_READ));
    assert_false(kvf_acl_knows(acl, "spiffe://x/nobody"));
    assert_false(kvf_acl_knows(acl, ""));
    assert_false(kvf_acl_knows(acl, "t"));
    kvf_acl_close(acl);
}

static void share__where_nothing_is_said__all(void **state)
{
    (void)state;
    struct kvf_acl *acl = parsed(example);
    assert_true(kvf_acl_share(acl, "t", KVF_SHARE_DRAM) == 0.5);
    assert_true(kvf_acl_share(acl, "t/f", KVF_SHARE_SSD) == 0.25);
    assert_true(kvf_acl_share(acl, "u", KVF_SHARE_DRAM) == 1);
    assert_string_equal(kvf_acl_tenant(acl, 0), "t");
    assert_null(kvf_acl_tenant(acl, 1));
    assert_null(kvf_acl_tenant_of(acl, "spiffe://x/idle", 0));
    assert_null(kvf_acl_tenant_of(acl, "spiffe://x/nobody", 0));
    assert_null(kvf_acl_tenant_of(NULL, "spiffe://x/idle", 0));
    kvf_acl_close(acl);
    acl = parsed("{\"tenants\": {\"t\": {\"dram\": 1}}, \"identities\": {}}");
    assert_true(kvf_acl_share(acl, "t", KVF_SHARE_DRAM) == 1);
    kvf_acl_close(acl);
    assert_null(kvf_acl_tenant(NULL, 0));
    assert_true(kvf_acl_share(NULL, "t", KVF_SHARE_DRAM) == 1);
}

static void has_tenants__one_two_and_none__is_for_two(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool has;
    } cases[] = {
        {"{\"identities\": {}}", false},
        {"{\"identities\": {\"spiffe://x/a\": {\"t\": [\"read\"]}, \"spiffe://x/b\": {\"t\": "
         "[\"serve\"], \"*\": "
         "[\"admin\"]}}}",
         false},
        {"{\"identities\": {\"uid:1\": {\"t\": [\"read\"]}, \"uid:2\": {\"u\": [\"read\"]}}}",
         true},
        {"{\"identities\": {\"uid:1\": {\"t\": [\"read\"], \"tt\": [\"read\"]}}}", true},
    };
    assert_false(kvf_acl_has_tenants(NULL));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvf_acl *acl = parsed(cases[i].text);
        assert_int_equal(kvf_acl_has_tenants(acl), cases[i].has);
        kvf_acl_close(acl);
    }
}

static void no_acl__everybody__may(void **state)
{
    (void)state;
    assert_true(kvf_acl_may(NULL, "", "t", KVF_RIGHT_WRITE));
    assert_true(kvf_acl_knows(NULL, ""));
}

static void parse__smallest__taken(void **state)
{
    (void)state;
    kvf_acl_close(parsed(" {\"identities\":{}} \n"));
    kvf_acl_close(parsed("{\"tenants\":{\"t\":{}},\"identities\":{\"urn:x:y\":{\"t\":[]}}}"));
}

static void parse__what_cannot_be__one_line_with_place_and_remedy(void **state)
{
    (void)state;
    REFUSES("", "line 1|no JSON");
    REFUSES("{\n\n\"identities\": {},}", "line 3|no JSON");
    REFUSES("{\"identities\": {}} x", "no JSON");
    REFUSES("[]", "write an object");
    REFUSES("{}", "\"identities\" is missing");
    REFUSES("{\"identities\": {}, \"identity\": {}}", "\"identity\" is no part");
    REFUSES("{\"identities\": {}, \"identities\": {}}", "\"identities\" is there twice");
    REFUSES("{\"identities\": []}", "identities: write an object");
    REFUSES("{\"identities\": {\"b\": {}}}", "\"b\" is no identity|uid:N");
    REFUSES("{\"identities\": {\"\": {}}}", "no identity");
    REFUSES("{\"identities\": {\"spiffe://x/b \": {}}}", "no identity");
    REFUSES("{\"identities\": {\"spiffe://x/\\u00e9\": {}}}", "no identity");
    REFUSES("{\"identities\": {\"uid:\": {}}}", "no identity");
    REFUSES("{\"identities\": {\"uid:01\": {}}}", "no identity");
    REFUSES("{\"identities\": {\"uid:root\": {}}}", "no identity");
    REFUSES("{\"identities\": {\"uid:1\": {}, \"uid:1\": {}}}", "\"uid:1\" is there twice");
    REFUSES("{\"identities\": {\"uid:1\": []}}", "identities.\"uid:1\": write an object");
    REFUSES("{\"identities\": {\"uid:1\": {\"t/f\": []}}}", "\"t/f\" is no tenant");
    REFUSES("{\"identities\": {\"uid:1\": {\"\": []}}}", "\"\" is no tenant");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": [], \"t\": []}}}", "\"t\" is there twice");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": \"read\"}}}", "\"uid:1\".\"t\"|list of rights");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": [\"reed\"]}}}", "\"uid:1\".\"t\"|reed|\"read\"");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": [\"Read\"]}}}", "Read is no right");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": [1]}}}", "no right");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": [\"read\", \"read\"]}}}", "\"read\"|twice");
    REFUSES("{\"identities\": {\"uid:1\": {\"t\": [\"admin\"]}}}", "admin|under \"*\"");
    REFUSES("{\"identities\": {\"uid:1\": {\"*\": [\"read\"]}}}", "read|name the tenant");
    REFUSES("{\"tenants\": [], \"identities\": {}}", "tenants: write an object");
    REFUSES("{\"tenants\": {\"*\": {}}, \"identities\": {}}", "\"*\" is no tenant");
    REFUSES("{\"tenants\": {\"t\": 1}, \"identities\": {}}", "tenants.\"t\": write an object");
    REFUSES("{\"tenants\": {\"t\": {\"disk\": 1}}, \"identities\": {}}", "\"disk\" is no share");
    REFUSES("{\"tenants\": {\"t\": {\"dram\": 1.01}}, \"identities\": {}}", "\"t\".dram|0 to 1");
    REFUSES("{\"tenants\": {\"t\": {\"ssd\": -0.1}}, \"identities\": {}}", "\"t\".ssd|0 to 1");
    REFUSES("{\"tenants\": {\"t\": {\"ssd\": \"1\"}}, \"identities\": {}}", "0 to 1");
    REFUSES("{\"tenants\": {\"t\": {\"ssd\": 1e999}}, \"identities\": {}}", "0 to 1");
    REFUSES("{\"tenants\": {\"t\": {\"ssd\": 1, \"ssd\": 1}}, \"identities\": {}}", "twice");
}

static void parse__zero_byte__refused(void **state)
{
    (void)state;
    static const char raw[] = "{\"identities\": {\"uid:1\0\": {}}}";
    refuses(raw, sizeof(raw) - 1, "zero byte");
    REFUSES("{\"identities\": {\"spiffe://x/b\\u0000evil\": {}}}", "zero byte");
}

static void parse__longer_than_any_honest_one__refused(void **state)
{
    static const char smallest[] = "{\"identities\":{}}";
    (void)state;
    char *text = malloc(KVF_ACL_MAX_BYTES + 1);
    assert_non_null(text);
    memset(text, ' ', KVF_ACL_MAX_BYTES + 1);
    memcpy(text, smallest, sizeof(smallest) - 1);
    refuses(text, KVF_ACL_MAX_BYTES + 1, "longer than");
    struct kvf_acl *acl = NULL;
    assert_true(kvf_is_ok(kvf_acl_parse("f", text, KVF_ACL_MAX_BYTES, &acl, NULL)));
    kvf_acl_close(acl);
    memset(text, '[', KVF_ACL_MAX_BYTES);
    refuses(text, KVF_ACL_MAX_BYTES, "no JSON");
    free(text);
}

static void parse__more_names_than_are_allowed__refused(void **state)
{
    (void)state;
    char *text = malloc(KVF_ACL_MAX_BYTES);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "{\"identities\":{\"uid:0\":{}");
    for (int i = 1; i <= KVF_ACL_MAX_NAMES; i++)
        used += (size_t)sprintf(text + used, ",\"uid:%d\":{}", i);
    used += (size_t)sprintf(text + used, "}}");
    refuses(text, used, "more than 4096 names");
    free(text);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void reload__bad_file__the_old_rights_stay(void **state)
{
    (void)state;
    char path[] = "/tmp/kvf-acl-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    struct kvf_acl *acl = NULL;
    struct kvf_why why = {.text = ""};
    write_file(path, example);
    assert_true(kvf_is_ok(kvf_acl_open(path, &acl, &why)));

    write_file(path, "{\"identities\": {\"spiffe://x/b\": {\"t\": [\"raed\"]}}}");
    assert_int_equal(kvf_acl_reload(acl, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, path));
    assert_non_null(strstr(why.text, "raed"));
    assert_true(kvf_acl_may(acl, "spiffe://x/b", "t", KVF_RIGHT_READ));

    assert_int_equal(unlink(path), 0);
    assert_int_equal(kvf_acl_reload(acl, &why).code, KVF_INVALID);
    assert_true(kvf_acl_may(acl, "spiffe://x/b", "t", KVF_RIGHT_READ));

    write_file(path, "{\"identities\": {\"uid:7\": {\"t\": [\"read\"]}}}");
    assert_true(kvf_is_ok(kvf_acl_reload(acl, &why)));
    assert_false(kvf_acl_knows(acl, "spiffe://x/b"));
    assert_true(kvf_acl_may(acl, "uid:7", "t", KVF_RIGHT_READ));
    kvf_acl_close(acl);
    (void)unlink(path);
}

static void open__the_example_of_the_docs__taken(void **state)
{
    (void)state;
    struct kvf_acl *acl = NULL;
    struct kvf_why why = {.text = ""};
    if (!kvf_is_ok(kvf_acl_open("docs/acl-example.json", &acl, &why)))
        fail_msg("%s", why.text);
    assert_true(kvf_acl_may(acl, "spiffe://kvferry/node-b", "chat/llama", KVF_RIGHT_SERVE));
    assert_false(kvf_acl_may(acl, "spiffe://kvferry/node-c", "chat", KVF_RIGHT_READ));
    assert_true(kvf_acl_may(acl, "spiffe://kvferry/ops", "", KVF_RIGHT_ADMIN));
    kvf_acl_close(acl);
}

static void open__no_such_file__says_which(void **state)
{
    (void)state;
    struct kvf_acl *acl = NULL;
    struct kvf_why why = {.text = ""};
    assert_int_equal(kvf_acl_open("/nonexistent/acl.json", &acl, &why).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "/nonexistent/acl.json"));
    assert_int_equal(kvf_acl_open("/", &acl, &why).code, KVF_INVALID);
    assert_null(acl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(may__each_right__only_as_given),
        cmocka_unit_test(knows__who_is_named_even_without_rights__yes),
        cmocka_unit_test(share__where_nothing_is_said__all),
        cmocka_unit_test(has_tenants__one_two_and_none__is_for_two),
        cmocka_unit_test(no_acl__everybody__may),
        cmocka_unit_test(parse__smallest__taken),
        cmocka_unit_test(parse__what_cannot_be__one_line_with_place_and_remedy),
        cmocka_unit_test(parse__zero_byte__refused),
        cmocka_unit_test(parse__longer_than_any_honest_one__refused),
        cmocka_unit_test(parse__more_names_than_are_allowed__refused),
        cmocka_unit_test(reload__bad_file__the_old_rights_stay),
        cmocka_unit_test(open__the_example_of_the_docs__taken),
        cmocka_unit_test(open__no_such_file__says_which),
    };
    return cmocka_run_group_tests_name("acl", tests, NULL, NULL);
}
