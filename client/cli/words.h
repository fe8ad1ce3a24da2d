/* The one place where a status becomes words that say what to do next, and an exit code.
 *
 * A message is one line on stderr: `kvferry: WHAT: WHY (CODE); REMEDY`. Control bytes in foreign text become '?', so that
 * a daemon's message or a file's name cannot forge a line. */
#ifndef KVFERRY_CLIENT_CLI_WORDS_H
#define KVFERRY_CLIENT_CLI_WORDS_H

#include "base/status.h"

#include <stddef.h>

/* What a script sees; the numbers never change. */
enum words_exit {
    WORDS_EXIT_OK = 0,
    WORDS_EXIT_FAILED = 1,  /* no daemon, BUSY, denied */
    WORDS_EXIT_USAGE = 2,   /* the command line, a file it names, or TOO_LARGE */
    WORDS_EXIT_MISSING = 4, /* some blocks are missing, also by deadline */
};

/* What the code means, and what helps. Never NULL, also for a number that is no code. */
const char *words_meaning(unsigned code);
const char *words_remedy(unsigned code);

/* The exit code of a command whose one call ended so. */
enum words_exit words_exit_of_call(unsigned code);
/* What one block of a get adds to the exit code, and the worse of two: TOO_LARGE, then failed, then missing. */
enum words_exit words_exit_of_block(unsigned code);
enum words_exit words_exit_worse(enum words_exit a, enum words_exit b);

/* Write the line (without a newline) for a failed call; why may be NULL or empty. Cut at `room`. */
void words_line(char *line, size_t room, const char *what, struct kvf_status status,
                const char *why);

/* "--dirty-limit-mib 128": what a TOO_LARGE is about. */
#define WORDS_LIMIT_ROOM 80
void words_limit(char text[WORDS_LIMIT_ROOM], const char *flag, uint64_t bytes);

/* Print that line on stderr; returns words_exit_of_call. */
enum words_exit words_say(const char *what, struct kvf_status status, const char *why);

/* Print `kvferry: ...` as one line on stderr and return WORDS_EXIT_USAGE: what is wrong and what is right. */
KVF_PRINTF(1, 2) enum words_exit words_usage(const char *format, ...);
/* Print `kvferry: ...` as one line on stderr. */
KVF_PRINTF(1, 2) void words_note(const char *format, ...);

/* Replace control bytes by '?', in place. */
void words_clean(char *text);

#endif
