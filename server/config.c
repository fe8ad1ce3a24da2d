/* Parts: values (text into a field of the struct), places (command line, environment, file), load,
 * log. */
#include "server/config.h"

#include "base/address.h"
#include "base/log.h"
#include "server/config_table.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MOST ((size_t)1 << 20) /* bytes of a --config file */

/* Where a value was found; a higher one wins. */
enum place {
    PLACE_NOWHERE = 0,
    PLACE_DEFAULT,
    PLACE_FILE,
    PLACE_ENVIRONMENT,
    PLACE_COMMAND_LINE,
};

struct loader {
    struct kvf_config *config;
    struct kvf_why *why;
    enum place places[KVF_FLAG_MAX]; /* per flag: where its value comes from */
    enum place place;                /* being read now */
    unsigned line;                   /* of the file */
    bool stop;                       /* --help or --version was said */
};

static struct kvf_status invalid(void)
{
    return kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
}

static struct kvf_status no_memory(struct kvf_why *why)
{
    return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, ENOMEM),
                       "no memory for the configuration");
}

static void variable_of(const struct kvf_flag *flag, char *text, size_t room)
{
    int used = snprintf(text, room, "KVFERRY_%s", flag->name);
    for (int at = 8; at < used && (size_t)at < room; at++)
        text[at] = text[at] == '-' ? '_' : (char)toupper((unsigned char)text[at]);
}

/* "--pool-mib 0", with where it stood when that is not the command line. */
static const char *said(const struct loader *loader, const struct kvf_flag *flag, const char *value,
                        char text[200])
{
    char variable[64];
    switch (loader->place) {
    case PLACE_FILE:
        (void)snprintf(text, 200, "--%s %.60s (%.60s line %u)", flag->name, value,
                       loader->config->config_file, loader->line);
        break;
    case PLACE_ENVIRONMENT:
        variable_of(flag, variable, sizeof(variable));
        (void)snprintf(text, 200, "--%s %.60s (from %s)", flag->name, value, variable);
        break;
    case PLACE_NOWHERE:
    case PLACE_DEFAULT:
    case PLACE_COMMAND_LINE:
        (void)snprintf(text, 200, "--%s %.60s", flag->name, value);
        break;
    }
    return text;
}

/* The struct's strings are const for everyone but us. */
static void free_text(const char *text)
{
    free((void *)(uintptr_t)text);
}

static void list_clear(struct kvf_config_list *list)
{
    for (size_t at = 0; at < list->count; at++)
        free_text(list->items[at]);
    free(list->items);
    *list = (struct kvf_config_list){0};
}

static bool list_add(struct kvf_config_list *list, const char *text, size_t length)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof(*items));
    if (items == NULL)
        return false;
    list->items = items;
    char *copy = strndup(text, length);
    if (copy == NULL)
        return false;
    list->items[list->count++] = copy;
    return true;
}

static struct kvf_status store_number(struct loader *loader, const struct kvf_flag *flag,
                                      const char *value, uint64_t *field)
{
    char text[200];
    const char *unit = flag->unit != NULL ? flag->unit : "";
    bool all_digits = value[0] != '\0' && strspn(value, "0123456789") == strlen(value);
    if (!all_digits)
        return kvf_why_set(
            loader->why, invalid(), "%s is not a whole number: write digits only%s%s",
            said(loader, flag, value, text), unit[0] != '\0' ? ", the unit is " : "", unit);
    errno = 0;
    unsigned long long number = strtoull(value, NULL, 10);
    if (errno != 0 || number < flag->least || number > flag->most)
        return kvf_why_set(loader->why, invalid(), "%s is out of range: give %llu to %llu%s%s",
                           said(loader, flag, value, text), (unsigned long long)flag->least,
                           (unsigned long long)flag->most, unit[0] != '\0' ? " " : "", unit);
    if (flag->step != 0 && number % flag->step != 0)
        return kvf_why_set(loader->why, invalid(), "%s is not a multiple of %llu: give one",
                           said(loader, flag, value, text), (unsigned long long)flag->step);
    *field = number * (flag->scale != 0 ? flag->scale : 1);
    return kvf_ok();
}

static struct kvf_status store_choice(struct loader *loader, const struct kvf_flag *flag,
                                      const char *value, unsigned *field)
{
    char text[200];
    unsigned number = 0;
    size_t length = strlen(value);
    for (const char *choice = flag->choices; choice != NULL; number++) {
        size_t choice_length = strcspn(choice, "|");
        if (choice_length == length && memcmp(choice, value, length) == 0) {
            *field = number;
            return kvf_ok();
        }
        choice = choice[choice_length] == '|' ? choice + choice_length + 1 : NULL;
    }
    return kvf_why_set(loader->why, invalid(), "%s is unknown: give one of %s",
                       said(loader, flag, value, text), flag->choices);
}

static struct kvf_status parse_switch(struct loader *loader, const struct kvf_flag *flag,
                                      const char *value, bool *on)
{
    static const char *const yes[] = {"true", "1", "yes", "on"};
    static const char *const no[] = {"false", "0", "no", "off"};
    char text[200];
    for (size_t at = 0; at < sizeof(yes) / sizeof(yes[0]); at++) {
        if (strcmp(value, yes[at]) == 0 || strcmp(value, no[at]) == 0) {
            *on = strcmp(value, yes[at]) == 0;
            return kvf_ok();
        }
    }
    return kvf_why_set(loader->why, invalid(), "%s is neither true nor false: give one of them",
                       said(loader, flag, value, text));
}

static struct kvf_status check_text(struct loader *loader, const struct kvf_flag *flag,
                                    const char *value)
{
    char text[200];
    struct kvf_address address;
    if (value[0] == '\0')
        return kvf_why_set(loader->why, invalid(), "%s has an empty value: give %s",
                           said(loader, flag, "", text), flag->operand);
    if (flag->kind == KVF_FLAG_NAME) {
        for (const char *at = value; *at != '\0'; at++)
            if (!isalnum((unsigned char)*at) && strchr("._:-", *at) == NULL)
                return kvf_why_set(loader->why, invalid(),
                                   "%s is no name: use letters, digits and . _ : - only",
                                   said(loader, flag, value, text));
        if (strlen(value) > 64)
            return kvf_why_set(loader->why, invalid(), "%s is too long: give at most 64 bytes",
                               said(loader, flag, value, text));
    }
    if (flag->kind == KVF_FLAG_ADDRESS) {
        if (!kvf_address_parse(value, &address))
            return kvf_why_set(
                loader->why, invalid(),
                "%s is no HOST:PORT: write 10.0.0.2:9470, [fd00::2]:9470 or name:9470",
                said(loader, flag, value, text));
        if (address.port < flag->least)
            return kvf_why_set(loader->why, invalid(),
                               "%s: others cannot connect to port 0: give the real one",
                               said(loader, flag, value, text));
    }
    return kvf_ok();
}

static struct kvf_status store_text(struct loader *loader, const struct kvf_flag *flag,
                                    const char *value, void *field)
{
    KVF_TRY(check_text(loader, flag, value));
    if (kvf_flag_is_list(flag))
        return list_add(field, value, strlen(value)) ? kvf_ok() : no_memory(loader->why);
    char *copy = strdup(value);
    if (copy == NULL)
        return no_memory(loader->why);
    const char **owned = field;
    free_text(*owned);
    *owned = copy;
    return kvf_ok();
}

static struct kvf_status store_action(struct loader *loader, const struct kvf_flag *flag,
                                      const char *value)
{
    char text[200];
    bool on = false;
    KVF_TRY(parse_switch(loader, flag, value, &on));
    if (!on)
        return kvf_ok();
    enum kvf_config_action *action = &loader->config->action;
    if (*action != KVF_CONFIG_RUN && *action != flag->action)
        return kvf_why_set(loader->why, invalid(),
                           "%s: --check-config and --verify exclude each other: give one",
                           said(loader, flag, value, text));
    *action = flag->action;
    loader->stop = flag->command_only;
    return kvf_ok();
}

static struct kvf_status store(struct loader *loader, const struct kvf_flag *flag,
                               const char *value)
{
    void *field = (char *)loader->config + flag->offset;
    switch (flag->kind) {
    case KVF_FLAG_TEXT:
    case KVF_FLAG_NAME:
    case KVF_FLAG_ADDRESS:
        return store_text(loader, flag, value, field);
    case KVF_FLAG_NUMBER:
        return store_number(loader, flag, value, field);
    case KVF_FLAG_CHOICE:
        return store_choice(loader, flag, value, field);
    case KVF_FLAG_SWITCH:
        return parse_switch(loader, flag, value, field);
    case KVF_FLAG_ACTION:
        return store_action(loader, flag, value);
    }
    return invalid();
}

/* Store each part of a value that is separated by commas. */
static struct kvf_status store_parts(struct loader *loader, const struct kvf_flag *flag,
                                     const char *value)
{
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, ",");
        char *part = strndup(at, length);
        if (part == NULL)
            return no_memory(loader->why);
        struct kvf_status status = store(loader, flag, part);
        free(part);
        KVF_TRY(status);
        at += length;
        if (*at == '\0')
            return kvf_ok();
    }
}

/* A value was read at loader->place. Places are read from the highest down, so one that is there
 * already stays. */
static struct kvf_status take(struct loader *loader, const struct kvf_flag *flag, const char *value)
{
    char text[200];
    enum place *before = &loader->places[flag - kvf_flags];
    if (*before > loader->place)
        return kvf_ok();
    if (*before == PLACE_FILE && !flag->repeated)
        return kvf_why_set(loader->why, invalid(), "%s is there twice: leave one of them",
                           said(loader, flag, value, text));
    *before = loader->place;
    if (flag->split) /* the last one wins, as a whole */
        list_clear((struct kvf_config_list *)((char *)loader->config + flag->offset));
    if (flag->split || (flag->repeated && loader->place == PLACE_ENVIRONMENT))
        return store_parts(loader, flag, value);
    return store(loader, flag, value);
}

static bool takes_no_value(const struct kvf_flag *flag)
{
    return flag->kind == KVF_FLAG_SWITCH || flag->kind == KVF_FLAG_ACTION;
}

static struct kvf_status unknown(const struct loader *loader, const char *where, const char *name,
                                 size_t length)
{
    const struct kvf_flag *guess = kvf_flag_suggest(name, length);
    if (guess != NULL)
        return kvf_why_set(loader->why, invalid(), "%sthere is no flag --%.*s: did you mean --%s?",
                           where, (int)(length < 80 ? length : 80), name, guess->name);
    return kvf_why_set(loader->why, invalid(), "%sthere is no flag --%.*s: see --help", where,
                       (int)(length < 80 ? length : 80), name);
}

static struct kvf_status read_command_line(struct loader *loader, int argc, char *const *argv)
{
    loader->place = PLACE_COMMAND_LINE;
    for (int at = 1; at < argc && !loader->stop; at++) {
        const char *word = strcmp(argv[at], "-h") == 0 ? "--help" : argv[at];
        if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
            return kvf_why_set(loader->why, invalid(),
                               "\"%.80s\" is no flag: kvferryd takes --flag value only, see --help",
                               word);
        size_t length = strcspn(word + 2, "=");
        const struct kvf_flag *flag = kvf_flag_find(word + 2, length);
        if (flag == NULL)
            return unknown(loader, "", word + 2, length);
        const char *value = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
        if (value == NULL && takes_no_value(flag))
            value = "true";
        if (value == NULL && at + 1 < argc && strncmp(argv[at + 1], "--", 2) != 0)
            value = argv[++at];
        if (value == NULL)
            return kvf_why_set(loader->why, invalid(), "--%s needs a value: --%s %s", flag->name,
                               flag->name, flag->operand != NULL ? flag->operand : flag->choices);
        KVF_TRY(take(loader, flag, value));
    }
    return kvf_ok();
}

/* A variable of our prefix that is no flag is left alone, for orchestrators make such names
 * themselves (KVFERRY_SERVICE_HOST, KVFERRY_PORT); one that looks like a slip is worth a note. */
static void note_unknown_variable(struct loader *loader, const char *name, size_t length)
{
    char flag_name[64];
    if (length <= 8 || length - 8 >= sizeof(flag_name) || strncmp(name + 8, "PORT", 4) == 0 ||
        strncmp(name + 8, "SERVICE", 7) == 0)
        return;
    for (size_t at = 8; at < length; at++)
        flag_name[at - 8] = name[at] == '_' ? '-' : (char)tolower((unsigned char)name[at]);
    const struct kvf_flag *guess = kvf_flag_suggest(flag_name, length - 8);
    if (guess != NULL && !guess->command_only)
        kvf_config_note(loader->config,
                        "the variable %.*s is no flag of ours and is ignored; --%s?", (int)length,
                        name, guess->name);
}

static struct kvf_status read_environment(struct loader *loader, char *const *environment)
{
    loader->place = PLACE_ENVIRONMENT;
    for (; environment != NULL && *environment != NULL; environment++) {
        const char *entry = *environment;
        size_t length = strcspn(entry, "=");
        if (strncmp(entry, "KVFERRY_", 8) != 0 || entry[length] != '=')
            continue;
        const struct kvf_flag *flag = NULL;
        for (size_t at = 0; flag == NULL && at < kvf_flag_count; at++) {
            char variable[64];
            variable_of(&kvf_flags[at], variable, sizeof(variable));
            if (strlen(variable) == length && memcmp(variable, entry, length) == 0)
                flag = &kvf_flags[at];
        }
        if (flag == NULL)
            note_unknown_variable(loader, entry, length);
        else if (!flag->command_only && entry[length + 1] != '\0') /* an empty one says nothing */
            KVF_TRY(take(loader, flag, entry + length + 1));
    }
    return kvf_ok();
}

/* Cut white space off both ends, in place. */
static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1]) != NULL)
        text[--length] = '\0';
    return text;
}

/* From a # at the front or after white space to the end. */
static void cut_comment(char *line)
{
    for (char *at = line; *at != '\0'; at++)
        if (*at == '#' && (at == line || at[-1] == ' ' || at[-1] == '\t')) {
            *at = '\0';
            return;
        }
}

static struct kvf_status read_line(struct loader *loader, char *line)
{
    char where[100];
    cut_comment(line);
    line = trim(line);
    if (line[0] == '\0')
        return kvf_ok();
    (void)snprintf(where, sizeof(where), "%.70s line %u: ", loader->config->config_file,
                   loader->line);
    char *equals = strchr(line, '=');
    if (equals == NULL)
        return kvf_why_set(loader->why, invalid(), "%s\"%.60s\" is no `flag = value`: write it so",
                           where, line);
    *equals = '\0';
    const char *name = trim(line);
    const char *value = trim(equals + 1);
    const struct kvf_flag *flag = kvf_flag_find(name, strlen(name));
    if (flag == NULL)
        return unknown(loader, where, name, strlen(name));
    if (flag->command_only || flag->offset == offsetof(struct kvf_config, config_file))
        return kvf_why_set(loader->why, invalid(),
                           "%s--%s belongs on the command line: take it out of the file", where,
                           flag->name);
    return take(loader, flag, value);
}

static struct kvf_status read_lines(struct loader *loader, char *text, size_t length)
{
    if (memchr(text, '\0', length) != NULL)
        return kvf_why_set(loader->why, invalid(),
                           "--config %.120s holds zero bytes: it is no text file",
                           loader->config->config_file);
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end = '\0';
        loader->line++;
        KVF_TRY(read_line(loader, line));
        line = end != NULL ? end + 1 : NULL;
    }
    return kvf_ok();
}

static struct kvf_status read_file(struct loader *loader)
{
    const char *path = loader->config->config_file;
    if (path == NULL)
        return kvf_ok();
    loader->place = PLACE_FILE;
    char *text = malloc(FILE_MOST + 1);
    if (text == NULL)
        return no_memory(loader->why);
    FILE *file = fopen(path, "re");
    errno = file != NULL ? 0 : errno;
    size_t length = file != NULL ? fread(text, 1, FILE_MOST + 1, file) : 0;
    int error = file == NULL || ferror(file) ? errno : 0;
    if (file != NULL)
        (void)fclose(file);
    struct kvf_status status;
    if (error != 0)
        status = kvf_why_set(loader->why, kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, error),
                             "--config %.120s cannot be read (%s): name a readable file", path,
                             strerror(error));
    else if (length > FILE_MOST)
        status = kvf_why_set(loader->why, invalid(),
                             "--config %.120s is longer than 1 MiB: it is no configuration", path);
    else {
        text[length] = '\0';
        status = read_lines(loader, text, length);
    }
    free(text);
    return status;
}

static struct kvf_status fill_defaults(struct loader *loader)
{
    loader->place = PLACE_DEFAULT;
    for (size_t at = 0; at < kvf_flag_count; at++)
        if (loader->places[at] == PLACE_NOWHERE && kvf_flags[at].fallback != NULL)
            KVF_TRY(take(loader, &kvf_flags[at], kvf_flags[at].fallback));
    return kvf_ok();
}

static struct kvf_status load(struct loader *loader, int argc, char *const *argv,
                              char *const *environment)
{
    KVF_TRY(read_command_line(loader, argc, argv));
    if (loader->stop)
        return kvf_ok();
    KVF_TRY(read_environment(loader, environment));
    KVF_TRY(read_file(loader));
    KVF_TRY(fill_defaults(loader));
    return kvf_config_derive_and_check(loader->config, loader->why);
}

struct kvf_status kvf_config_load(int argc, char *const *argv, char *const *environment,
                                  struct kvf_config *config, struct kvf_why *why)
{
    struct kvf_why nobody;
    struct loader loader = {.config = config, .why = why != NULL ? why : &nobody};
    *config = (struct kvf_config){0};
    loader.why->text[0] = '\0';
    struct kvf_status status = load(&loader, argc, argv, environment);
    if (!kvf_is_ok(status)) {
        for (char *at = loader.why->text; *at != '\0'; at++)
            if (iscntrl((unsigned char)*at))
                *at = '?'; /* one line, whatever the value held */
        kvf_config_release(config);
    }
    return status;
}

void kvf_config_release(struct kvf_config *config)
{
    for (size_t at = 0; at < kvf_flag_count; at++) {
        const struct kvf_flag *flag = &kvf_flags[at];
        void *field = (char *)config + flag->offset;
        if (flag->kind != KVF_FLAG_TEXT && flag->kind != KVF_FLAG_NAME &&
            flag->kind != KVF_FLAG_ADDRESS)
            continue;
        if (kvf_flag_is_list(flag))
            list_clear(field);
        else
            free_text(*(const char **)field);
    }
    *config = (struct kvf_config){0};
}

/* The flags of one group as "pool-mib=1024 ...", in more than one line where the log would cut it.
 */
static void log_group(const struct kvf_config *config, enum kvf_flag_group group)
{
    static const size_t line_most = 700;
    char line[1024] = "";
    size_t used = 0;
    for (size_t at = 0; at < kvf_flag_count; at++) {
        char value[700];
        if (kvf_flags[at].group != group || kvf_flags[at].kind == KVF_FLAG_ACTION)
            continue;
        kvf_flag_value_text(&kvf_flags[at], config, value, sizeof(value));
        size_t more = strlen(kvf_flags[at].name) + strlen(value) + 2;
        if (used > 0 && used + more > line_most) {
            kvf_log_info("config", "%s", line);
            used = 0;
        }
        used += (size_t)snprintf(line + used, sizeof(line) - used, "%s%s=%s", used > 0 ? " " : "",
                                 kvf_flags[at].name, value);
    }
    if (used > 0)
        kvf_log_info("config", "%s", line);
}

void kvf_config_log(const struct kvf_config *config)
{
    for (int group = 0; group < KVF_FLAG_GROUP_COUNT; group++)
        log_group(config, (enum kvf_flag_group)group);
    for (size_t at = 0; at < config->note_count; at++)
        kvf_log_warning("config", "%s", config->notes[at]);
}
