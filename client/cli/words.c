#include "client/cli/words.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct words {
    const char *meaning;
    const char *remedy;
};

static const struct words words[KVF_CODE_COUNT] = {
    [KVF_OK] = {"done", "nothing to do"},
    [KVF_INVALID] = {"the daemon refuses the request as senseless", "correct the command line"},
    [KVF_TOO_LARGE] = {"larger than a daemon on its way ever holds at once",
                       "the limit is named beside this line or in the daemon's log: raise it, or "
                       "use smaller blocks"},
    [KVF_NOT_FOUND] = {"no such block here or at the source",
                       "check namespace and key, or name a --source that has it"},
    [KVF_EXISTS] = {"the key has content already", "nothing to do: the first content stays"},
    [KVF_PENDING] = {"somebody is putting this key now", "try again when that put has ended"},
    [KVF_STALE] = {"the wanted generation is gone", "ask again without pinning a generation"},
    [KVF_BUSY] = {"no room before the deadline",
                  "try again later, with a longer --timeout-s, or with fewer blocks at a time"},
    [KVF_DRAINING] = {"the daemon, or its source, is draining",
                      "ask another one, or wait for its restart"},
    [KVF_DENIED] = {"not allowed",
                    "see that the ACL here gives this user (uid:N, id -u) read or write "
                    "for the tenant, and each side's names the other (read there, "
                    "serve here); without TLS only sources on 127.0.0.1 are asked"},
    [KVF_DEADLINE] = {"time was up",
                      "give a longer --timeout-s, or see what the daemon waits for with stat"},
    [KVF_CANCELLED] = {"taken back before it ended", "try again"},
    [KVF_UNAVAILABLE] =
        {"the other side is not there",
         "start it, wait until it is ready, check its address, and that both or neither speak TLS"},
    [KVF_PROTOCOL] = {"the daemon's answer makes no sense",
                      "use a kvferry and a kvferryd of the same version"},
    [KVF_CORRUPT] = {"the bytes do not match their checksum",
                     "put the block again; see the daemon's log for the drive or path at fault"},
    [KVF_IO] = {"the kernel or the drive failed", "see the daemon's log"},
    [KVF_NO_SPACE] = {"the drive is full or over quota", "free some space, or write elsewhere"},
    [KVF_NO_MEMORY] = {"no memory left", "free some memory"},
    [KVF_UNSUPPORTED] = {"this daemon cannot do it",
                         "use a kvferry and a kvferryd of the same version"},
};

const char *words_meaning(unsigned code)
{
    return code < KVF_CODE_COUNT ? words[code].meaning : "a code that this kvferry does not know";
}

const char *words_remedy(unsigned code)
{
    return code < KVF_CODE_COUNT ? words[code].remedy
                                 : "use a kvferry and a kvferryd of the same version";
}

enum words_exit words_exit_of_call(unsigned code)
{
    switch (code) {
    case KVF_OK:
    case KVF_EXISTS:
        return WORDS_EXIT_OK;
    case KVF_INVALID:
    case KVF_TOO_LARGE:
        return WORDS_EXIT_USAGE;
    default:
        return WORDS_EXIT_FAILED;
    }
}

enum words_exit words_exit_of_block(unsigned code)
{
    switch (code) {
    case KVF_OK:
        return WORDS_EXIT_OK;
    case KVF_INVALID:
    case KVF_TOO_LARGE:
        return WORDS_EXIT_USAGE;
    case KVF_BUSY:
    case KVF_DENIED:
        return WORDS_EXIT_FAILED;
    default:
        return WORDS_EXIT_MISSING;
    }
}

static int badness(enum words_exit code)
{
    switch (code) {
    case WORDS_EXIT_OK:
        return 0;
    case WORDS_EXIT_MISSING:
        return 1;
    case WORDS_EXIT_FAILED:
        return 2;
    case WORDS_EXIT_USAGE:
        return 3;
    }
    return 2;
}

enum words_exit words_exit_worse(enum words_exit a, enum words_exit b)
{
    return badness(a) >= badness(b) ? a : b;
}

void words_clean(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
    }
}

void words_line(char *line, size_t room, const char *what, struct kvf_status status,
                const char *why)
{
    bool has_why = why != NULL && why[0] != '\0';
    char errno_text[80] = "";
    if (status.detail > 0 && (status.code == KVF_IO || status.code == KVF_NO_SPACE))
        (void)snprintf(errno_text, sizeof(errno_text), " (%s)", strerror(status.detail));
    /* A daemon's own line names the thing and the remedy already; ours is for when it said nothing. */
    if (has_why)
        (void)snprintf(line, room, "kvferry: %s: %s (%s)", what, why, kvf_code_name(status.code));
    else
        (void)snprintf(line, room, "kvferry: %s: %s%s (%s); %s", what, words_meaning(status.code),
                       errno_text, kvf_code_name(status.code), words_remedy(status.code));
    words_clean(line);
}

void words_limit(char text[WORDS_LIMIT_ROOM], const char *flag, uint64_t bytes)
{
    const uint64_t mib = UINT64_C(1) << 20;
    (void)snprintf(text, WORDS_LIMIT_ROOM, "%s %.*f", flag, bytes % mib == 0 ? 0 : 3,
                   (double)bytes / (double)mib);
}

enum words_exit words_say(const char *what, struct kvf_status status, const char *why)
{
    char line[1024];
    words_line(line, sizeof(line), what, status, why);
    (void)fprintf(stderr, "%s\n", line);
    return words_exit_of_call(status.code);
}

KVF_PRINTF(1, 0) static void print_line(const char *format, va_list arguments)
{
    char line[1024];
    (void)vsnprintf(line, sizeof(line), format, arguments);
    words_clean(line);
    (void)fprintf(stderr, "kvferry: %s\n", line);
}

enum words_exit words_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
    return WORDS_EXIT_USAGE;
}

void words_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
}
