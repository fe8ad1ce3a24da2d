#include "client/cli/table.h"

#include "client/cli/words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_WIDTH 17 /* with the space behind it */

void table_bytes_text(double bytes, char text[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(text, 24, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

/* In the pool's object the classes are bytes as well, though their names do not say so. */
static bool is_bytes(const char *section, const char *name)
{
    const char *end = strrchr(name, '_');
    return strcmp(end == NULL ? name : end + 1, "bytes") == 0 || strcmp(section, "pool") == 0;
}

/* Names and texts are the daemon's: what could move the cursor must not reach the terminal. */
static void print_text(FILE *out, const char *text, int width)
{
    char clean[256];
    (void)snprintf(clean, sizeof(clean), "%s", text);
    words_clean(clean);
    (void)fprintf(out, "%-*s", width, clean);
}

static void print_value(FILE *out, const char *section, const char *name, const cJSON *value)
{
    if (cJSON_IsString(value)) {
        print_text(out, value->valuestring, 0);
        return;
    }
    if (!cJSON_IsNumber(value)) {
        (void)fputs(cJSON_IsTrue(value) ? "yes" : cJSON_IsFalse(value) ? "no" : "-", out);
        return;
    }
    double number = value->valuedouble;
    /* Whole numbers with every digit, as far as a double has them. */
    (void)fprintf(out, number == floor(number) && number < 0x1p53 ? "%.0f" : "%.15g", number);
    if (is_bytes(section, name) && number >= 1024) {
        char text[24];
        table_bytes_text(number, text);
        (void)fprintf(out, " (%s)", text);
    }
}

static void print_members(FILE *out, const char *section, const cJSON *object)
{
    const cJSON *member;
    const char *separator = "";
    cJSON_ArrayForEach(member, object)
    {
        (void)fputs(separator, out);
        print_text(out, member->string == NULL ? "" : member->string, 0);
        (void)fputc(' ', out);
        print_value(out, section, member->string == NULL ? "" : member->string, member);
        separator = ", ";
    }
    (void)fputc('\n', out);
}

void table_print(FILE *out, const cJSON *object)
{
    const cJSON *member, *element;
    cJSON_ArrayForEach(member, object)
    {
        const char *name = member->string == NULL ? "" : member->string;
        if (cJSON_IsArray(member)) {
            cJSON_ArrayForEach(element, member)
            {
                print_text(out, name, NAME_WIDTH);
                print_members(out, name, element);
            }
            continue;
        }
        print_text(out, name, NAME_WIDTH);
        if (cJSON_IsObject(member)) {
            print_members(out, name, member);
        } else {
            print_value(out, "", name, member);
            (void)fputc('\n', out);
        }
    }
}
