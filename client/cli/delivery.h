/* What came of the wanted blocks, for get and pull alike: each into a file of its own, whole or not at all, one line on
 * stdout (or one object for --json); what did not come on stderr. `-o -` gives one block's bytes to stdout, and its line to
 * stderr. */
#ifndef KVFERRY_CLIENT_CLI_DELIVERY_H
#define KVFERRY_CLIENT_CLI_DELIVERY_H

#include "base/block.h"
#include "client/cli/words.h"

#include <cjson/cJSON.h>

struct delivery {
    const char *what;      /* the command, for messages; borrowed like all strings here */
    const char *directory; /* where the files go; "-": one block to stdout */
    const char *source;    /* that was named; NULL: none */
    cJSON *list;           /* --json: one object a block; NULL: lines */
    enum words_exit code;  /* so far */
    uint64_t found, missing, bytes;
    uint64_t unreachable; /* of the missing ones: nobody answers at the source */
};

struct delivered {
    struct kvf_key key;
    unsigned code;     /* enum kvf_code; not OK: it did not come, the rest is unset */
    const char *limit; /* TOO_LARGE: the limit that says so, by its flag; NULL: the source's */
    const void *data;  /* borrowed */
    uint64_t length;
    enum kvf_tier tier;
    enum kvf_origin origin;
};

/* Is this -o possible for so many blocks? If not, it is said. */
enum words_exit delivery_judge(const char *what, const char *output, bool json, size_t blocks);
/* Makes the directory. On a failure it is said already and nothing is to be finished. */
enum words_exit delivery_begin(struct delivery *delivery, const char *what, const char *directory,
                               const char *source, bool json);
/* Write it, or say why it is missing. */
void delivery_take(struct delivery *delivery, const struct delivered *block);
/* Print what --json wants and return the exit code. */
enum words_exit delivery_finish(struct delivery *delivery, const char *ns);
/* The same without printing: the command failed as a whole, and has said so. */
enum words_exit delivery_abandon(struct delivery *delivery);

#endif
