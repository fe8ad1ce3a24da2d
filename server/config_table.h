/* The one table of flags. Parsing, the effective configuration in the log, --help and docs/flags.md
 * all read it; a new flag is a line there and a field in struct kvf_config. */
#ifndef KVFERRY_SERVER_CONFIG_TABLE_H
#define KVFERRY_SERVER_CONFIG_TABLE_H

#include "server/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvf_flag_kind {
    KVF_FLAG_TEXT,    /* const char *, or with `repeated` or `split` a struct kvf_config_list */
    KVF_FLAG_NAME,    /* likewise, only [A-Za-z0-9._:-] */
    KVF_FLAG_ADDRESS, /* likewise, HOST:PORT; port 0 only where `least` is 0 */
    KVF_FLAG_NUMBER,  /* uint64_t */
    KVF_FLAG_CHOICE,  /* an enum, its values in the order of `choices` */
    KVF_FLAG_SWITCH,  /* bool */
    KVF_FLAG_ACTION,  /* sets config->action */
};

enum kvf_flag_group {
    KVF_FLAG_GROUP_NODE = 0,
    KVF_FLAG_GROUP_NETWORK,
    KVF_FLAG_GROUP_SECURITY,
    KVF_FLAG_GROUP_MEMORY,
    KVF_FLAG_GROUP_SSD,
    KVF_FLAG_GROUP_READS,
    KVF_FLAG_GROUP_ACTIONS,
    KVF_FLAG_GROUP_COUNT
};

struct kvf_flag {
    const char *name; /* without the dashes */
    enum kvf_flag_kind kind;
    enum kvf_flag_group group;
    bool repeated;     /* may be given more than once; in the environment separated by commas */
    bool split;        /* one value is a list separated by commas */
    bool command_only; /* means nothing in the environment or a file */
    bool hidden;       /* not in --help */
    enum kvf_config_action action;
    size_t offset;        /* of the field in struct kvf_config */
    uint64_t least, most; /* in the flag's unit */
    uint64_t step;        /* value must be a multiple; 0: any */
    uint64_t scale;       /* bytes of one unit; 0: the number is stored as it is */
    const char *unit;     /* "MiB", "KiB", "s" or NULL */
    const char *choices;  /* "auto|tcp" */
    const char *operand;  /* what --help calls the value */
    const char *fallback; /* default, as if it had been said */
    const char *derived;  /* what --help says where the default is no constant */
    const char *help;
};

#define KVF_FLAG_MAX 64

extern const struct kvf_flag kvf_flags[];
extern const size_t kvf_flag_count; /* at most KVF_FLAG_MAX */

/* NULL when there is none of that name. */
const struct kvf_flag *kvf_flag_find(const char *name, size_t length);
/* The flag that somebody who wrote this probably meant, or NULL. */
const struct kvf_flag *kvf_flag_suggest(const char *name, size_t length);
/* A field that holds a list. */
bool kvf_flag_is_list(const struct kvf_flag *flag);
/* The effective value as text: "1024", "auto", "a,b", "none". Cut to `room`. */
void kvf_flag_value_text(const struct kvf_flag *flag, const struct kvf_config *config, char *text,
                         size_t room);

/* config_rules.c: compute the defaults that depend on other flags, then refuse what cannot work. */
KVF_MUST_USE struct kvf_status kvf_config_derive_and_check(struct kvf_config *config,
                                                           struct kvf_why *why);
/* Keep one line for the log. */
KVF_PRINTF(2, 3) void kvf_config_note(struct kvf_config *config, const char *format, ...);

#endif
