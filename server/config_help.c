/* --help and docs/flags.md, from the table. */
#include "base/version.h"
#include "server/config_table.h"

#include <inttypes.h>
#include <string.h>

#define HELP_COLUMN 34 /* where explanations start */
#define HELP_WIDTH 100

static const char *const group_names[KVF_FLAG_GROUP_COUNT] = {
    [KVF_FLAG_GROUP_NODE] = "Node",         [KVF_FLAG_GROUP_NETWORK] = "Network",
    [KVF_FLAG_GROUP_SECURITY] = "Security", [KVF_FLAG_GROUP_MEMORY] = "Memory",
    [KVF_FLAG_GROUP_SSD] = "SSD",           [KVF_FLAG_GROUP_READS] = "Reads",
    [KVF_FLAG_GROUP_ACTIONS] = "Actions",
};

struct text {
    char text[640];
};

static struct text default_text(const struct kvf_flag *flag)
{
    struct text text = {""};
    const char *fallback = flag->kind == KVF_FLAG_SWITCH ? "off" : flag->fallback;
    if (flag->kind != KVF_FLAG_ACTION)
        (void)snprintf(text.text, sizeof(text.text), "%s",
                       fallback != NULL ? fallback : flag->derived);
    return text;
}

static struct text range_text(const struct kvf_flag *flag)
{
    struct text text = {""};
    if (flag->kind == KVF_FLAG_NUMBER)
        (void)snprintf(text.text, sizeof(text.text), "%" PRIu64 " to %" PRIu64, flag->least,
                       flag->most);
    return text;
}

static const char *operand_of(const struct kvf_flag *flag)
{
    if (flag->kind == KVF_FLAG_CHOICE)
        return flag->choices;
    return flag->operand != NULL ? flag->operand : "";
}

/* `text` from the help column on, broken between words. The cursor is already at `column`. */
static void print_wrapped(FILE *out, const char *text, size_t column)
{
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (column + 1 + length > HELP_WIDTH || column < HELP_COLUMN) {
            if (column >= HELP_COLUMN) {
                (void)fputc('\n', out);
                column = 0;
            }
            (void)fprintf(out, "%*s", (int)(HELP_COLUMN - column), "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            (void)fputc(' ', out);
            column++;
        }
        (void)fprintf(out, "%.*s", (int)length, text);
        column += length;
        text += length;
        text += strspn(text, " ");
    }
    (void)fputc('\n', out);
}

static void print_flag(FILE *out, const struct kvf_flag *flag)
{
    struct text help;
    char head[128];
    struct text fallback = default_text(flag);
    (void)snprintf(head, sizeof(head), "  --%s %s", flag->name, operand_of(flag));
    size_t column = (size_t)fprintf(out, "%s", head);
    if (column >= HELP_COLUMN - 1) {
        (void)fputc('\n', out);
        column = 0;
    }
    int used = snprintf(help.text, sizeof(help.text), "%s", flag->help);
    used += snprintf(help.text + used, sizeof(help.text) - (size_t)used, "%s",
                     flag->repeated ? "; may be repeated" : "");
    if (fallback.text[0] != '\0')
        (void)snprintf(help.text + used, sizeof(help.text) - (size_t)used, " (%s%s)",
                       strcmp(fallback.text, "required") == 0 ? "" : "default: ", fallback.text);
    print_wrapped(out, help.text, column);
}

void kvf_config_print_help(FILE *out)
{
    (void)fprintf(
        out,
        "kvferryd %s: moves LLM KV-cache blocks between hosts and keeps cold ones on SSD\n\n"
        "usage: kvferryd --run-dir DIR [--flag value | --flag=value]...\n\n"
        "A flag on the command line wins over the environment (KVFERRY_POOL_MIB for\n"
        "--pool-mib), that over --config FILE, that over the default.\n",
        KVF_VERSION);
    for (int group = 0; group < KVF_FLAG_GROUP_COUNT; group++) {
        (void)fprintf(out, "\n%s\n", group_names[group]);
        for (size_t at = 0; at < kvf_flag_count; at++)
            if ((int)kvf_flags[at].group == group && !kvf_flags[at].hidden)
                print_flag(out, &kvf_flags[at]);
    }
    (void)fprintf(out, "\nExit: 0 drained, 1 failed, 2 usage or impossible setting, 3 forced, "
                       "5 damaged (--verify)\n");
}

/* A cell of a table: a bar would end it. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        (void)fprintf(out, "%s%c", *text == '|' ? "\\" : "", *text);
}

static void print_row(FILE *out, const struct kvf_flag *flag)
{
    const char *operand = operand_of(flag);
    (void)fprintf(out, "| `--%s%s", flag->name, operand[0] != '\0' ? " " : "");
    print_cell(out, operand);
    (void)fprintf(out, "`%s | ", flag->repeated ? " *" : "");
    print_cell(out, default_text(flag).text);
    (void)fprintf(out, " | %s | ", range_text(flag).text);
    print_cell(out, flag->help);
    (void)fprintf(out, " |\n");
}

void kvf_config_print_markdown(FILE *out)
{
    (void)fprintf(
        out, "# kvferryd's flags\n\n"
             "Made by `kvferryd --help-markdown` from the table in server/config_table.c: change "
             "it there.\n\n"
             "The command line wins over the environment (`KVFERRY_POOL_MIB` for `--pool-mib`), "
             "that over\n"
             "`--config FILE`, that over the default. `--flag value` and `--flag=value` mean the "
             "same; a switch\n"
             "takes `true` or `false`, on the command line it may stand alone. `*`: may be "
             "repeated; in the\n"
             "environment the values are separated by commas, in a file each has its own line. A "
             "list at a higher\n"
             "place replaces the whole list of a lower one. An empty variable says nothing.\n");
    for (int group = 0; group < KVF_FLAG_GROUP_COUNT; group++) {
        (void)fprintf(out, "\n## %s\n\n| flag | default | range | meaning |\n|---|---|---|---|\n",
                      group_names[group]);
        for (size_t at = 0; at < kvf_flag_count; at++)
            if ((int)kvf_flags[at].group == group && !kvf_flags[at].hidden)
                print_row(out, &kvf_flags[at]);
    }
}
