#include "client/cli/table.h"

#include "client/cli/words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_WIDTH 17 /* with the space behind it */
#define LINE_WIDTH 100
#define TEXT_ROOM 256 /* of a name or value; longer ones are cut */

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
static void clean_text(char text[TEXT_ROOM], const char *foreign)
{
    (void)snprintf(text, TEXT_ROOM, "%s", foreign);
    words_clean(text);
}

static void number_text(char text[TEXT_ROOM], const char *section, const char *name, double number)
{
    /* Whole numbers with every digit, as far as a double has them. */
    bool whole = number == floor(number) && number < 0x1p53;
    int length = snprintf(text, TEXT_ROOM, whole ? "%.0f" : "%.15g", number);
    if (is_bytes(section, name) && number >= 1024) {
        char bytes[24];
        table_bytes_text(number, bytes);
        (void)snprintf(text + length, TEXT_ROOM - (size_t)length, " (%s)", bytes);
    }
}

static void value_text(char text[TEXT_ROOM], const char *section, const char *name,
                       const cJSON *value)
{
    if (cJSON_IsString(value))
        clean_text(text, value->valuestring);
    else if (cJSON_IsNumber(value))
        number_text(text, section, name, value->valuedouble);
    else
        clean_text(text, cJSON_IsTrue(value) ? "yes" : cJSON_IsFalse(value) ? "no" : "-");
}

static void print_name(FILE *out, const char *name)
{
    char text[TEXT_ROOM];
    clean_text(text, name);
    (void)fprintf(out, "%-*s", NAME_WIDTH, text);
}

/* As many to a line as fit it. */
static void print_members(FILE *out, const char *section, const cJSON *object)
{
    const cJSON *member;
    size_t column = NAME_WIDTH;
    cJSON_ArrayForEach(member, object)
    {
        char name[TEXT_ROOM], value[TEXT_ROOM];
        clean_text(name, member->string == NULL ? "" : member->string);
        value_text(value, section, name, member);
        size_t width = strlen(name) + 1 + strlen(value);
        if (member != object->child && column + 2 + width >= LINE_WIDTH) {
            (void)fprintf(out, ",\n%*s", NAME_WIDTH, "");
            column = NAME_WIDTH;
        } else if (member != object->child) {
            (void)fputs(", ", out);
            column += 2;
        }
        (void)fprintf(out, "%s %s", name, value);
        column += width;
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
                print_name(out, name);
                print_members(out, name, element);
            }
            continue;
        }
        print_name(out, name);
        if (cJSON_IsObject(member)) {
            print_members(out, name, member);
        } else {
            char value[TEXT_ROOM];
            value_text(value, "", name, member);
            (void)fprintf(out, "%s\n", value);
        }
    }
}
