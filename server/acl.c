/* The ACL, in three parts: judging a file, questions, life. Once judged, the parsed JSON itself is the ACL: it is small,
 * and nothing is asked twice per message. */
#include "server/acl.h"

#include "base/block.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kvf_acl {
    char *path;
    cJSON *tree; /* judged */
};

static const char *const right_names[KVF_RIGHT_COUNT] = {"read", "write", "serve", "admin"};
static const char *const share_names[KVF_SHARE_COUNT] = {"dram", "ssd"};

#define EVERY_TENANT "*"

/* ---- judging ---- */

/* Where we are in the file, for the one line that says what is wrong. */
struct judge {
    const char *file;
    struct kvf_why *why;
    char place[160];
};

static struct kvf_status invalid(void)
{
    return kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
}

KVF_PRINTF(2, 3)
static struct kvf_status wrong(const struct judge *judge, const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return kvf_why_set(judge->why, invalid(), "--acl %.100s: %s%s%s", judge->file, judge->place,
                       judge->place[0] != '\0' ? ": " : "", text);
}

KVF_PRINTF(2, 3)
static void at(struct judge *judge, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(judge->place, sizeof(judge->place), format, arguments);
    va_end(arguments);
}

/* An object whose names occur once, and not more of them than anybody can mean. */
static struct kvf_status judge_object(const struct judge *judge, const cJSON *object)
{
    size_t count = 0;
    if (!cJSON_IsObject(object))
        return wrong(judge, "write an object, {...}");
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        if (++count > KVF_ACL_MAX_NAMES)
            return wrong(judge, "more than %d names: leave some out", KVF_ACL_MAX_NAMES);
        for (const cJSON *other = object->child; other != item; other = other->next)
            if (strcmp(other->string, item->string) == 0)
                return wrong(judge, "\"%.60s\" is there twice: join the two", item->string);
    }
    return kvf_ok();
}

static struct kvf_status judge_share(struct judge *judge, const char *tenant, const cJSON *share)
{
    at(judge, "tenants.\"%.60s\"", tenant);
    if (strcmp(share->string, share_names[KVF_SHARE_DRAM]) != 0 &&
        strcmp(share->string, share_names[KVF_SHARE_SSD]) != 0)
        return wrong(judge, "\"%.60s\" is no share: write \"dram\" or \"ssd\"", share->string);
    at(judge, "tenants.\"%.60s\".%s", tenant, share->string);
    if (!cJSON_IsNumber(share) || !(share->valuedouble >= 0 && share->valuedouble <= 1))
        return wrong(judge, "write a number from 0 to 1, a part of the node");
    return kvf_ok();
}

static struct kvf_status judge_tenants(struct judge *judge, const cJSON *tenants)
{
    at(judge, "tenants");
    KVF_TRY(judge_object(judge, tenants));
    for (const cJSON *tenant = tenants->child; tenant != NULL; tenant = tenant->next) {
        at(judge, "tenants");
        if (!kvf_tenant_is_valid(tenant->string))
            return wrong(judge,
                         "\"%.60s\" is no tenant: write letters, digits, \".\", \"_\", \"-\"",
                         tenant->string);
        at(judge, "tenants.\"%.60s\"", tenant->string);
        KVF_TRY(judge_object(judge, tenant));
        for (const cJSON *share = tenant->child; share != NULL; share = share->next)
            KVF_TRY(judge_share(judge, tenant->string, share));
    }
    return kvf_ok();
}

static int right_of(const cJSON *name)
{
    for (int right = 0; right < KVF_RIGHT_COUNT && cJSON_IsString(name); right++)
        if (strcmp(name->valuestring, right_names[right]) == 0)
            return right;
    return -1;
}

static struct kvf_status judge_rights(const struct judge *judge, const cJSON *rights,
                                      bool is_every_tenant)
{
    bool given[KVF_RIGHT_COUNT] = {false};
    if (!cJSON_IsArray(rights))
        return wrong(judge, "write a list of rights, [\"read\"]");
    for (const cJSON *name = rights->child; name != NULL; name = name->next) {
        int right = right_of(name);
        if (right < 0)
            return wrong(judge,
                         "%.60s is no right: write \"read\", \"write\", \"serve\" or \"admin\"",
                         cJSON_IsString(name) ? name->valuestring : "what is no string");
        if (given[right])
            return wrong(judge, "\"%s\" is there twice: leave one out", right_names[right]);
        if (is_every_tenant != (right == KVF_RIGHT_ADMIN))
            return wrong(judge,
                         is_every_tenant ? "\"%s\" is a right of one tenant: name the tenant"
                                         : "\"%s\" is a right of the node: put it under \"*\"",
                         right_names[right]);
        given[right] = true;
    }
    return kvf_ok();
}

/* `uid:N` as the kernel's number is written, or something with a scheme, in bytes that are seen. */
static bool is_identity(const char *name)
{
    const char *digits = name + strlen("uid:");
    for (const char *byte = name; *byte != '\0'; byte++)
        if (*byte < 0x21 || *byte > 0x7e)
            return false;
    if (strncmp(name, "uid:", strlen("uid:")) != 0)
        return strchr(name, ':') != NULL && name[0] != ':';
    return digits[0] != '\0' && strspn(digits, "0123456789") == strlen(digits) &&
           strlen(digits) <= 10 && (digits[0] != '0' || digits[1] == '\0');
}

static struct kvf_status judge_identity(struct judge *judge, const cJSON *identity)
{
    at(judge, "identities");
    if (!is_identity(identity->string))
        return wrong(judge, "\"%.60s\" is no identity: write a URI, or uid:N", identity->string);
    at(judge, "identities.\"%.60s\"", identity->string);
    KVF_TRY(judge_object(judge, identity));
    for (const cJSON *tenant = identity->child; tenant != NULL; tenant = tenant->next) {
        bool is_every_tenant = strcmp(tenant->string, EVERY_TENANT) == 0;
        at(judge, "identities.\"%.60s\"", identity->string);
        if (!is_every_tenant && !kvf_tenant_is_valid(tenant->string))
            return wrong(judge,
                         "\"%.60s\" is no tenant: write letters, digits, \".\", \"_\", \"-\"",
                         tenant->string);
        at(judge, "identities.\"%.60s\".\"%.60s\"", identity->string, tenant->string);
        KVF_TRY(judge_rights(judge, tenant, is_every_tenant));
    }
    return kvf_ok();
}

static struct kvf_status judge_tree(struct judge *judge, const cJSON *tree)
{
    bool identities = false;
    KVF_TRY(judge_object(judge, tree));
    for (const cJSON *part = tree->child; part != NULL; part = part->next) {
        at(judge, "%s", "");
        if (strcmp(part->string, "tenants") == 0) {
            KVF_TRY(judge_tenants(judge, part));
            continue;
        }
        if (strcmp(part->string, "identities") != 0)
            return wrong(judge, "\"%.60s\" is no part: write \"tenants\" and \"identities\"",
                         part->string);
        identities = true;
        at(judge, "identities");
        KVF_TRY(judge_object(judge, part));
        for (const cJSON *identity = part->child; identity != NULL; identity = identity->next)
            KVF_TRY(judge_identity(judge, identity));
    }
    at(judge, "%s", "");
    return identities ? kvf_ok()
                      : wrong(judge, "\"identities\" is missing: nobody could do anything");
}

/* From 1. */
static unsigned line_of(const char *text, const char *place)
{
    unsigned line = 1;
    for (; text < place; text++)
        line += *text == '\n';
    return line;
}

static struct kvf_status parse(const char *name, const char *text, size_t length, cJSON **give,
                               struct kvf_why *why)
{
    struct judge judge = {.file = name, .why = why};
    const char *end = text;
    if (length > KVF_ACL_MAX_BYTES)
        return wrong(&judge, "longer than %zu bytes: leave something out", KVF_ACL_MAX_BYTES);
    /* A zero byte in a name would make another name of it: cJSON's strings end there. */
    if (memchr(text, '\0', length) != NULL || memmem(text, length, "\\u0000", 6) != NULL)
        return wrong(&judge, "there is a zero byte in it: take it out");
    cJSON *tree = cJSON_ParseWithLengthOpts(text, length, &end, false);
    size_t used = (size_t)(end - text);
    while (tree != NULL && used < length && strchr(" \t\r\n", text[used]) != NULL)
        used++;
    if (tree == NULL || used < length) {
        cJSON_Delete(tree);
        return wrong(&judge, "line %u: that is no JSON: mend it there", line_of(text, text + used));
    }
    struct kvf_status status = judge_tree(&judge, tree);
    if (kvf_is_ok(status))
        *give = tree;
    else
        cJSON_Delete(tree);
    return status;
}

/* ---- questions ---- */

static const cJSON *find(const cJSON *object, const char *name, size_t bytes)
{
    for (const cJSON *item = object != NULL ? object->child : NULL; item != NULL; item = item->next)
        if (strncmp(item->string, name, bytes) == 0 && item->string[bytes] == '\0')
            return item;
    return NULL;
}

static const cJSON *find_identity(const struct kvf_acl *acl, const char *identity)
{
    const cJSON *identities = find(acl->tree, "identities", strlen("identities"));
    return find(identities, identity, strlen(identity));
}

bool kvf_acl_may(const struct kvf_acl *acl, const char *identity, const char *tenant,
                 enum kvf_right right)
{
    if (acl == NULL)
        return true;
    if (right == KVF_RIGHT_ADMIN)
        tenant = EVERY_TENANT;
    const cJSON *rights = find(find_identity(acl, identity), tenant, strcspn(tenant, "/"));
    for (const cJSON *name = rights != NULL ? rights->child : NULL; name != NULL; name = name->next)
        if (strcmp(name->valuestring, right_names[right]) == 0)
            return true;
    return false;
}

bool kvf_acl_knows(const struct kvf_acl *acl, const char *identity)
{
    return acl == NULL || find_identity(acl, identity) != NULL;
}

double kvf_acl_share(const struct kvf_acl *acl, const char *tenant, enum kvf_share share)
{
    if (acl == NULL)
        return 1;
    const cJSON *tenants = find(acl->tree, "tenants", strlen("tenants"));
    const cJSON *number = find(find(tenants, tenant, strcspn(tenant, "/")), share_names[share],
                               strlen(share_names[share]));
    return number != NULL ? number->valuedouble : 1;
}

bool kvf_acl_has_tenants(const struct kvf_acl *acl)
{
    const char *first = NULL;
    const cJSON *identities =
        acl != NULL ? find(acl->tree, "identities", strlen("identities")) : NULL;
    for (const cJSON *identity = identities != NULL ? identities->child : NULL; identity != NULL;
         identity = identity->next)
        for (const cJSON *tenant = identity->child; tenant != NULL; tenant = tenant->next) {
            if (strcmp(tenant->string, EVERY_TENANT) == 0)
                continue;
            if (first != NULL && strcmp(tenant->string, first) != 0)
                return true;
            first = tenant->string;
        }
    return false;
}

static const char *nth_name(const cJSON *object, size_t n)
{
    const cJSON *item = object != NULL ? object->child : NULL;
    while (item != NULL && n-- > 0)
        item = item->next;
    return item != NULL ? item->string : NULL;
}

const char *kvf_acl_tenant_of(const struct kvf_acl *acl, const char *identity, size_t n)
{
    return acl != NULL ? nth_name(find_identity(acl, identity), n) : NULL;
}

const char *kvf_acl_tenant(const struct kvf_acl *acl, size_t n)
{
    return acl != NULL ? nth_name(find(acl->tree, "tenants", strlen("tenants")), n) : NULL;
}

/* ---- life ---- */

/* At most one byte more than is allowed, so that a longer file is seen to be one. */
static struct kvf_status read_file(const char *path, char *text, size_t *length,
                                   struct kvf_why *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : 1;
    *length = 0;
    while (got > 0 && *length <= KVF_ACL_MAX_BYTES) {
        got = read(fd, text + *length, KVF_ACL_MAX_BYTES + 1 - *length);
        *length += got > 0 ? (size_t)got : 0;
    }
    int error = errno;
    if (fd >= 0)
        (void)close(fd);
    if (got >= 0)
        return kvf_ok();
    return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, error),
                       "--acl %.160s: %s: name a file that this user can read", path,
                       strerror(error));
}

static struct kvf_status load(const char *path, cJSON **give, struct kvf_why *why)
{
    size_t length;
    char *text = malloc(KVF_ACL_MAX_BYTES + 1);
    if (text == NULL)
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    struct kvf_status status = read_file(path, text, &length, why);
    if (kvf_is_ok(status))
        status = parse(path, text, length, give, why);
    free(text);
    return status;
}

static struct kvf_status make(const char *path, cJSON *tree, struct kvf_acl **give)
{
    struct kvf_acl *acl = calloc(1, sizeof(*acl));
    char *copy = strdup(path);
    if (acl == NULL || copy == NULL) {
        free(acl);
        free(copy);
        cJSON_Delete(tree);
        return kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0);
    }
    *acl = (struct kvf_acl){.path = copy, .tree = tree};
    *give = acl;
    return kvf_ok();
}

struct kvf_status kvf_acl_open(const char *path, struct kvf_acl **give, struct kvf_why *why)
{
    cJSON *tree = NULL;
    KVF_TRY(load(path, &tree, why));
    return make(path, tree, give);
}

struct kvf_status kvf_acl_parse(const char *name, const char *text, size_t length,
                                struct kvf_acl **give, struct kvf_why *why)
{
    cJSON *tree = NULL;
    KVF_TRY(parse(name, text, length, &tree, why));
    return make(name, tree, give);
}

struct kvf_status kvf_acl_reload(struct kvf_acl *acl, struct kvf_why *why)
{
    cJSON *tree = NULL;
    KVF_TRY(load(acl->path, &tree, why));
    cJSON_Delete(acl->tree);
    acl->tree = tree;
    return kvf_ok();
}

void kvf_acl_close(struct kvf_acl *acl)
{
    if (acl == NULL)
        return;
    cJSON_Delete(acl->tree);
    free(acl->path);
    free(acl);
}
