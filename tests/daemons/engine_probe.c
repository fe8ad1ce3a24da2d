/* An engine that does what its stdin says: one command a line, one answer a line, which begins with
 * OK or the name of a code. tests/daemons drives it, and kills it where an engine is to die.
 *
 * Block i has the key "bI" and a content that follows from i (client/cli/pattern.h), so that any two
 * probes agree on it. What get, begin and put take is held until release, commit, abort or close. */
#include "base/block.h"
#include "base/clock.h"
#include "client/cli/pattern.h"
#include "client/kvferry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define WORDS_MAX 8
#define BLOCKS_MAX ((size_t)4096)

struct probe {
    struct kvf_client *client;
    struct kvf_put puts[BLOCKS_MAX];
    size_t put_count;
    struct kvf_get_block blocks[BLOCKS_MAX];
    size_t block_count;
    uint64_t bytes; /* of each block that is held */
    uint64_t first; /* its number */
};

/* Which blocks a command is about. */
struct range {
    uint64_t bytes;
    uint64_t first;
    uint64_t count;
};

static uint64_t number(const char *word)
{
    return word != NULL ? strtoull(word, NULL, 10) : 0;
}

static struct kvf_key key_of(uint64_t id)
{
    struct kvf_key key = {0};
    char text[32];
    int length = snprintf(text, sizeof(text), "b%" PRIu64, id);
    (void)kvf_key_set(&key, text, (size_t)length);
    return key;
}

static void answer(struct kvf_status status, const char *text)
{
    (void)printf("%s%s%s\n", kvf_code_name(status.code), text[0] != '\0' ? " " : "", text);
}

static void refuse(const char *text)
{
    answer(kvf_fail(KVF_MODULE_CLIENT, KVF_INVALID, 0), text);
}

/* "NOT_FOUND=2 BUSY=1": how many blocks have each code. */
struct codes {
    uint64_t counts[KVF_CODE_COUNT];
};

static void print_codes(const struct codes *codes)
{
    for (unsigned code = 0; code < KVF_CODE_COUNT; code++)
        if (codes->counts[code] > 0)
            (void)printf(" %s=%" PRIu64, kvf_code_name(code), codes->counts[code]);
}

/* ---- life ---- */

static void do_open(struct probe *probe, char **words)
{
    struct kvf_why why = {.text = ""};
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/engine.sock", words[1]);
    struct kvf_client_options options = {.socket_path = path, .name = words[2]};
    struct kvf_status status = kvf_client_open(&options, &probe->client, &why);
    if (!kvf_is_ok(status)) {
        answer(status, why.text);
        return;
    }
    (void)printf("OK max_get=%" PRIu64 " max_put=%" PRIu64 "\n",
                 kvf_client_max_get_bytes(probe->client), kvf_client_max_put_bytes(probe->client));
}

static void do_close(struct probe *probe)
{
    struct kvf_status status = kvf_client_close(probe->client);
    char text[32];
    probe->client = NULL;
    probe->put_count = probe->block_count = 0;
    (void)snprintf(text, sizeof(text), "detail=%d", (int)status.detail);
    answer(status, text);
}

/* ---- put ---- */

static struct kvf_status begin(struct probe *probe, const char *ns, struct range range,
                               uint64_t timeout_ms)
{
    probe->put_count = (size_t)range.count;
    probe->bytes = range.bytes;
    probe->first = range.first;
    for (size_t i = 0; i < probe->put_count; i++)
        probe->puts[i] = (struct kvf_put){.key = key_of(range.first + i), .length = range.bytes};
    return kvf_put_begin(probe->client, ns, probe->puts, probe->put_count, timeout_ms);
}

static struct kvf_status commit(struct probe *probe)
{
    for (size_t i = 0; i < probe->put_count; i++)
        if (probe->puts[i].code == KVF_OK)
            pattern_fill(pattern_of(0, probe->first + i), probe->puts[i].data,
                         (size_t)probe->bytes);
    return kvf_put_commit(probe->client, probe->puts, probe->put_count);
}

static void count_puts(const struct probe *probe, struct codes *codes)
{
    for (size_t i = 0; i < probe->put_count; i++)
        codes->counts[probe->puts[i].code]++;
}

static void answer_puts(struct probe *probe, struct kvf_status status)
{
    struct codes codes = {0};
    count_puts(probe, &codes);
    (void)printf("%s", kvf_code_name(status.code));
    print_codes(&codes);
    (void)printf("\n");
}

/* Any number of blocks, a few at a time, as an engine does that produces them one layer after the other. */
static void put_all(struct probe *probe, const char *ns, struct range range, uint64_t timeout_ms)
{
    uint64_t most = kvf_client_max_put_bytes(probe->client) / 2 / kvf_round_up_page(range.bytes);
    struct kvf_status status = kvf_ok();
    struct codes codes = {0};
    most = most == 0 ? 1 : most < BLOCKS_MAX ? most : BLOCKS_MAX;
    while (range.count > 0 && kvf_is_ok(status)) {
        struct range some = range;
        some.count = range.count < most ? range.count : most;
        status = begin(probe, ns, some, timeout_ms);
        if (kvf_is_ok(status))
            status = commit(probe);
        count_puts(probe, &codes);
        range.first += some.count;
        range.count -= some.count;
    }
    probe->put_count = 0;
    (void)printf("%s", kvf_code_name(status.code));
    print_codes(&codes);
    (void)printf("\n");
}

/* ---- get ---- */

struct found {
    struct codes codes;
    uint64_t dram, ssd, remote_dram, remote_ssd, wrong;
};

static struct kvf_status get(struct probe *probe, const struct kvf_get_options *options,
                             struct range range)
{
    probe->block_count = (size_t)range.count;
    probe->bytes = range.bytes;
    probe->first = range.first;
    for (size_t i = 0; i < probe->block_count; i++)
        probe->blocks[i] =
            (struct kvf_get_block){.key = key_of(range.first + i), .length = range.bytes};
    return kvf_get(probe->client, options, probe->blocks, probe->block_count, NULL);
}

static void compare(const struct probe *probe, struct found *found)
{
    for (size_t i = 0; i < probe->block_count; i++) {
        const struct kvf_get_block *block = &probe->blocks[i];
        bool ssd = block->tier == KVF_TIER_SSD;
        found->codes.counts[block->code]++;
        if (block->code != KVF_OK)
            continue;
        if (block->origin == KVF_ORIGIN_REMOTE)
            *(ssd ? &found->remote_ssd : &found->remote_dram) += 1;
        else
            *(ssd ? &found->ssd : &found->dram) += 1;
        found->wrong += block->length != probe->bytes ||
                        pattern_compare(pattern_of(0, probe->first + i), block->data,
                                        (size_t)probe->bytes) != probe->bytes;
    }
}

static void answer_found(struct kvf_status status, const struct found *found)
{
    (void)printf("%s dram=%" PRIu64 " ssd=%" PRIu64 " remote_dram=%" PRIu64 " remote_ssd=%" PRIu64
                 " wrong=%" PRIu64,
                 kvf_code_name(status.code), found->dram, found->ssd, found->remote_dram,
                 found->remote_ssd, found->wrong);
    print_codes(&found->codes);
    (void)printf("\n");
}

static void get_and_hold(struct probe *probe, const struct kvf_get_options *options,
                         struct range range)
{
    struct found found = {0};
    struct kvf_status status = get(probe, options, range);
    compare(probe, &found);
    answer_found(status, &found);
}

/* What is held, once more: it must not have changed. */
static void check_held(struct probe *probe)
{
    struct found found = {0};
    compare(probe, &found);
    answer_found(kvf_ok(), &found);
}

/* One bit of each held block flips in its arena, as memory that rots. */
static void flip(struct probe *probe, uint64_t seed)
{
    for (size_t i = 0; i < probe->block_count; i++) {
        uint8_t *data = (uint8_t *)(uintptr_t)probe->blocks[i].data;
        uint64_t bit = (seed + i + 1) * UINT64_C(0x9e3779b97f4a7c15) % (8 * probe->bytes);
        if (data != NULL)
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    answer(kvf_ok(), "");
}

static void release(struct probe *probe)
{
    kvf_get_release(probe->client, probe->blocks, probe->block_count);
    probe->block_count = 0;
}

/* Any number of blocks, as many at a time as one Get may hold. */
static void check_all(struct probe *probe, const struct kvf_get_options *options,
                      struct range range)
{
    uint64_t most = kvf_client_max_get_bytes(probe->client) / kvf_round_up_page(range.bytes);
    struct kvf_status status = kvf_ok();
    struct found found = {0};
    most = most == 0 ? 1 : most < 256 ? most : 256;
    while (range.count > 0 && kvf_is_ok(status)) {
        struct range some = range;
        some.count = range.count < most ? range.count : most;
        status = get(probe, options, some);
        compare(probe, &found);
        release(probe);
        range.first += some.count;
        range.count -= some.count;
    }
    answer_found(status, &found);
}

/* ---- commands ---- */

/* NS MS BYTES FIRST COUNT */
static void do_put_command(struct probe *probe, char **words)
{
    struct range range = {number(words[3]), number(words[4]), number(words[5])};
    if (strcmp(words[0], "begin") == 0 && range.count > BLOCKS_MAX)
        refuse("too many blocks at once");
    else if (strcmp(words[0], "put") == 0)
        put_all(probe, words[1], range, number(words[2]));
    else
        answer_puts(probe, begin(probe, words[1], range, number(words[2])));
}

/* NS SOURCE MS BYTES FIRST COUNT; SOURCE `-`: none */
static void do_get_command(struct probe *probe, char **words)
{
    struct range range = {number(words[4]), number(words[5]), number(words[6])};
    struct kvf_get_options options = {
        .ns = words[1],
        .source = strcmp(words[2], "-") != 0 ? words[2] : NULL,
        .timeout_ms = number(words[3]),
        .flags = KVF_GET_VERIFY,
    };
    if (strcmp(words[0], "get") == 0 && range.count > BLOCKS_MAX)
        refuse("too many blocks at once");
    else if (strcmp(words[0], "get") == 0)
        get_and_hold(probe, &options, range);
    else
        check_all(probe, &options, range);
}

static const struct command {
    const char *name;
    size_t words;
} commands[] = {
    {"open", 3},  {"close", 1},   {"poll", 1},  {"break", 1}, {"put", 6},
    {"begin", 6}, {"commit", 1},  {"abort", 1}, {"get", 7},   {"check", 7},
    {"held", 1},  {"release", 1}, {"flip", 2},
};

static bool is_complete(const struct probe *probe, char **words, size_t count)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, words[0]) == 0)
            return commands[i].words == count &&
                   (probe->client != NULL) != (strcmp(words[0], "open") == 0);
    return false;
}

static void do_simple_command(struct probe *probe, const char *name)
{
    if (strcmp(name, "close") == 0) {
        do_close(probe);
    } else if (strcmp(name, "poll") == 0) {
        answer(kvf_client_poll(probe->client), "");
    } else if (strcmp(name, "break") == 0) {
        (void)shutdown(kvf_client_fd(probe->client), SHUT_RDWR);
        answer(kvf_ok(), "");
    } else if (strcmp(name, "commit") == 0) {
        answer_puts(probe, commit(probe));
    } else if (strcmp(name, "abort") == 0) {
        kvf_put_abort(probe->client, probe->puts, probe->put_count);
        answer(kvf_ok(), "");
    } else if (strcmp(name, "held") == 0) {
        check_held(probe);
    } else {
        release(probe);
        answer(kvf_ok(), "");
    }
}

static void obey(struct probe *probe, char **words, size_t count)
{
    if (!is_complete(probe, words, count))
        refuse("no such command, wrong number of words, or not the time for it");
    else if (strcmp(words[0], "open") == 0)
        do_open(probe, words);
    else if (strcmp(words[0], "flip") == 0)
        flip(probe, number(words[1]));
    else if (count == 6)
        do_put_command(probe, words);
    else if (count == 7)
        do_get_command(probe, words);
    else
        do_simple_command(probe, words[0]);
}

int main(void)
{
    struct probe *probe = calloc(1, sizeof(*probe));
    char line[1024];
    if (probe == NULL)
        return 1;
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *words[WORDS_MAX] = {0}, *rest = NULL;
        size_t count = 0;
        for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < WORDS_MAX;
             word = strtok_r(NULL, " \n", &rest))
            words[count++] = word;
        if (count > 0)
            obey(probe, words, count);
        (void)fflush(stdout);
    }
    (void)kvf_client_close(probe->client);
    free(probe);
    return 0;
}
