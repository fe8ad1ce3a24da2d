/* The table itself, look-up in it with a guess for near misses, and the effective values as text.
 */
#include "server/config_table.h"

#include "base/block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIELD(name) offsetof(struct kvf_config, name)
#define MIB_MOST (UINT64_C(16) << 20) /* 16 TiB */
#define IN_MIB .unit = "MiB", .scale = KVF_MIB, .operand = "N"

const struct kvf_flag kvf_flags[] = {
    {.name = "run-dir",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_NODE,
     .offset = FIELD(run_dir),
     .operand = "DIR",
     .derived = "required",
     .help = "directory for engine.sock (any local user, told apart by uid) and admin.sock (who "
             "can open it is admin)"},
    {.name = "node-id",
     .kind = KVF_FLAG_NAME,
     .group = KVF_FLAG_GROUP_NODE,
     .offset = FIELD(node_id),
     .operand = "NAME",
     .derived = "host name",
     .help = "how the node calls itself"},
    {.name = "config",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_NODE,
     .offset = FIELD(config_file),
     .operand = "FILE",
     .derived = "none",
     .help = "read `flag = value` lines; # starts a comment; a repeatable flag may have several "
             "lines. The environment (KVFERRY_POOL_MIB for --pool-mib) and the command line "
             "override it"},
    {.name = "drain-timeout-s",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_NODE,
     .offset = FIELD(drain_timeout_s),
     .operand = "N",
     .unit = "s",
     .fallback = "30",
     .most = 86400,
     .help =
         "how long a drain waits for engines and Reads before it forces them; our own I/O may take "
         "10 s more"},

    {.name = "listen",
     .kind = KVF_FLAG_ADDRESS,
     .group = KVF_FLAG_GROUP_NETWORK,
     .offset = FIELD(listen),
     .operand = "HOST:PORT",
     .derived = "none",
     .help = "serve peers here (gRPC). Off loopback it needs TLS and an ACL. Without it the daemon "
             "serves unix sockets only"},
    {.name = "data-listen",
     .kind = KVF_FLAG_ADDRESS,
     .group = KVF_FLAG_GROUP_NETWORK,
     .offset = FIELD(data_listen),
     .operand = "HOST:PORT",
     .derived = "listen's host, any port",
     .help = "where lanes, the data connections, are accepted"},
    {.name = "data-advertise",
     .kind = KVF_FLAG_ADDRESS,
     .group = KVF_FLAG_GROUP_NETWORK,
     .offset = FIELD(data_advertise),
     .operand = "HOST:PORT",
     .least = 1,
     .derived = "what the caller dialled",
     .help = "where peers are told to connect their lanes, when that is not where they dialled"},
    {.name = "http",
     .kind = KVF_FLAG_ADDRESS,
     .group = KVF_FLAG_GROUP_NETWORK,
     .offset = FIELD(http),
     .operand = "HOST:PORT",
     .fallback = KVF_CONFIG_DEFAULT_HTTP,
     .help = "/metrics, /healthz, /readyz and a status page, read-only"},
    {.name = "peer",
     .kind = KVF_FLAG_ADDRESS,
     .group = KVF_FLAG_GROUP_NETWORK,
     .repeated = true,
     .offset = FIELD(peers),
     .operand = "HOST:PORT",
     .least = 1,
     .derived = "none",
     .help = "a source to ask when a request has no hint"},
    {.name = "transport",
     .kind = KVF_FLAG_CHOICE,
     .group = KVF_FLAG_GROUP_NETWORK,
     .offset = FIELD(transport),
     .choices = "auto|tcp|verbs|ucx",
     .fallback = "auto",
     .help = "what lanes run on; auto: verbs where both ends have devices with memory windows of "
             "type 2B, else tcp"},
    {.name = "nics",
     .kind = KVF_FLAG_NAME,
     .group = KVF_FLAG_GROUP_NETWORK,
     .split = true,
     .offset = FIELD(nics),
     .operand = "LIST",
     .derived = "all",
     .help =
         "RDMA devices that verbs uses, by name, separated by commas (kvferry transports lists "
         "them); each Get goes by the one with the fewest under way, and the pool lies near them"},
    {.name = "ucx-trust-peers",
     .kind = KVF_FLAG_SWITCH,
     .group = KVF_FLAG_GROUP_NETWORK,
     .offset = FIELD(ucx_trust_peers),
     .fallback = "false",
     .help = "accept that over UCX every peer can reach this process's memory; --transport ucx "
             "needs it"},

    {.name = "tls-cert",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_SECURITY,
     .offset = FIELD(tls_cert),
     .operand = "FILE",
     .derived = "none",
     .help =
         "our certificate chain, PEM; its one URI SAN is our identity. Read again, like key, CA "
         "and ACL, on SIGHUP and when a file changes"},
    {.name = "tls-key",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_SECURITY,
     .offset = FIELD(tls_key),
     .operand = "FILE",
     .derived = "none",
     .help = "its private key, PEM"},
    {.name = "tls-ca",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_SECURITY,
     .offset = FIELD(tls_ca),
     .operand = "FILE",
     .derived = "none",
     .help = "who may have signed the other side's certificate, PEM"},
    {.name = "acl",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_SECURITY,
     .offset = FIELD(acl),
     .operand = "FILE",
     .derived = "none",
     .help = "rights per identity, shares per tenant, JSON (docs/acl-example.json); without it any "
             "tenant name is accepted, and all share one pool and one trust"},
    {.name = "insecure-loopback",
     .kind = KVF_FLAG_SWITCH,
     .group = KVF_FLAG_GROUP_SECURITY,
     .offset = FIELD(insecure_loopback),
     .fallback = "false",
     .help = "serve peers in plaintext on loopback; --peer without TLS needs it too"},

    {.name = "pool-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(pool_bytes),
     IN_MIB,
     .fallback = "1024",
     .least = 1,
     .most = MIB_MOST,
     .help = "all DRAM for blocks"},
    {.name = "hugepages",
     .kind = KVF_FLAG_SWITCH,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(hugepages),
     .fallback = "false",
     .help = "take the pool from the host's reserved 2 MiB pages"},
    {.name = "dirty-limit-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(dirty_limit_bytes),
     IN_MIB,
     .derived = "1/4 of the pool",
     .least = 1,
     .most = MIB_MOST,
     .help = "puts that are not on SSD yet"},
    {.name = "pull-limit-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(pull_limit_bytes),
     IN_MIB,
     .derived = "3/8 of the pool",
     .least = 1,
     .most = MIB_MOST,
     .help = "what pulls and SSD loads of local Gets fill"},
    {.name = "serve-reserve-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(serve_reserve_bytes),
     IN_MIB,
     .derived = "3/8 of the pool",
     .least = 1,
     .most = MIB_MOST,
     .help =
         "what Reads of peers can always hold, from SSD and from DRAM; they may hold more where "
         "dirty and pull limit leave more of the pool"},
    {.name = "query-limit-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(query_limit_bytes),
     IN_MIB,
     .derived = "pull limit + what Reads may hold",
     .least = 1,
     .most = MIB_MOST,
     .help = "bytes of all Gets and Reads together"},
    {.name = "query-limit-per-instance-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(query_limit_per_instance_bytes),
     IN_MIB,
     .derived = "3/4 of the pull limit",
     .least = 1,
     .most = MIB_MOST,
     .help = "bytes of one engine instance"},
    {.name = "query-limit-per-identity-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(query_limit_per_identity_bytes),
     IN_MIB,
     .derived = "3/4 of the serve reserve",
     .least = 1,
     .most = MIB_MOST,
     .help = "bytes of one peer identity"},
    {.name = "max-grant-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(max_grant_bytes),
     IN_MIB,
     .derived = "3/4 of the serve reserve",
     .least = 1,
     .most = MIB_MOST,
     .help = "most bytes of one Read that this source admits"},
    {.name = "max-blocks-per-read",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_MEMORY,
     .offset = FIELD(max_blocks_per_read),
     .operand = "N",
     .fallback = "4096",
     .least = 1,
     .most = 8192,
     .help = "longer Reads are paged"},

    {.name = "ssd-path",
     .kind = KVF_FLAG_TEXT,
     .group = KVF_FLAG_GROUP_SSD,
     .repeated = true,
     .offset = FIELD(ssd_paths),
     .operand = "DIR",
     .derived = "none",
     .help = "one directory a drive; without any there is no SSD tier"},
    {.name = "ssd-capacity-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_capacity_bytes),
     IN_MIB,
     .derived = "required with a path",
     .least = 512,
     .most = UINT64_C(1) << 30,
     .help = "per path, preallocated in whole segments (260 MiB; smaller ones below 780 MiB)"},
    {.name = "ssd-io",
     .kind = KVF_FLAG_CHOICE,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_io),
     .choices = "auto|uring|pread",
     .fallback = "auto",
     .help = "auto: io_uring, or pread where the host forbids it; an explicit choice never falls "
             "back"},
    {.name = "ssd-read-threads",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_read_threads),
     .operand = "N",
     .fallback = "8",
     .least = 1,
     .most = 256,
     .help = "reader threads, each with a ring of its own"},
    {.name = "ssd-queue-depth",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_queue_depth),
     .operand = "N",
     .fallback = "32",
     .least = 1,
     .most = 4096,
     .help = "pieces in flight per drive, shared by all rings"},
    {.name = "ssd-inflight-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_inflight_bytes),
     IN_MIB,
     .fallback = "16",
     .least = 1,
     .most = 65536,
     .help = "bytes in flight per drive, shared by all rings"},
    {.name = "ssd-io-kib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_io_bytes),
     .unit = "KiB",
     .scale = 1024,
     .operand = "N",
     .fallback = "1024",
     .least = 4,
     .most = 16384,
     .step = 4,
     .help = "longest piece of a read"},
    {.name = "ssd-write-policy",
     .kind = KVF_FLAG_CHOICE,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(ssd_write_policy),
     .choices = "all|reuse",
     .fallback = "all",
     .help = "all: every put block goes to SSD; reuse: only those that were asked for again"},
    {.name = "cache-pulled",
     .kind = KVF_FLAG_CHOICE,
     .group = KVF_FLAG_GROUP_SSD,
     .offset = FIELD(cache_pulled),
     .choices = "none|ssd",
     .fallback = "none",
     .help = "whether pulled blocks go to the local SSD too"},

    {.name = "read-batch-mib",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_READS,
     .offset = FIELD(read_batch_bytes),
     IN_MIB,
     .fallback = "0",
     .most = MIB_MOST,
     .help = "most bytes to ask for in one Read; 0: what is demanded now goes in one Read"},
    {.name = "read-batches-in-flight",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_READS,
     .offset = FIELD(read_batches_in_flight),
     .operand = "N",
     .fallback = "2",
     .least = 1,
     .most = 16,
     .help = "Reads of one session that overlap; fewer where batch x in flight is "
             "above the per-instance limit"},
    {.name = "query-timeout-s",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_READS,
     .offset = FIELD(query_timeout_s),
     .operand = "N",
     .unit = "s",
     .fallback = "30",
     .least = 1,
     .most = 86400,
     .help = "longest deadline of a Get"},
    {.name = "max-lease-s",
     .kind = KVF_FLAG_NUMBER,
     .group = KVF_FLAG_GROUP_READS,
     .offset = FIELD(max_lease_s),
     .operand = "N",
     .unit = "s",
     .fallback = "60",
     .least = 1,
     .most = 86400,
     .help = "longest deadline of a peer's Read"},

    {.name = "check-config",
     .kind = KVF_FLAG_ACTION,
     .group = KVF_FLAG_GROUP_ACTIONS,
     .action = KVF_CONFIG_CHECK,
     .help = "check the flags, not the files and ports that they name, and exit"},
    {.name = "verify",
     .kind = KVF_FLAG_ACTION,
     .group = KVF_FLAG_GROUP_ACTIONS,
     .action = KVF_CONFIG_VERIFY,
     .help = "check every record of the --ssd-paths offline and exit: 0 all whole, 5 damaged"},
    {.name = "version",
     .kind = KVF_FLAG_ACTION,
     .group = KVF_FLAG_GROUP_ACTIONS,
     .command_only = true,
     .action = KVF_CONFIG_VERSION,
     .help = "print the version and exit"},
    {.name = "help",
     .kind = KVF_FLAG_ACTION,
     .group = KVF_FLAG_GROUP_ACTIONS,
     .command_only = true,
     .action = KVF_CONFIG_HELP,
     .help = "print this and exit"},
    {.name = "help-markdown",
     .kind = KVF_FLAG_ACTION,
     .group = KVF_FLAG_GROUP_ACTIONS,
     .command_only = true,
     .hidden = true,
     .action = KVF_CONFIG_HELP_MARKDOWN,
     .help = "print this as docs/flags.md and exit"},
};

const size_t kvf_flag_count = sizeof(kvf_flags) / sizeof(kvf_flags[0]);
_Static_assert(sizeof(kvf_flags) / sizeof(kvf_flags[0]) <= KVF_FLAG_MAX, "raise KVF_FLAG_MAX");

const struct kvf_flag *kvf_flag_find(const char *name, size_t length)
{
    for (size_t at = 0; at < kvf_flag_count; at++)
        if (strlen(kvf_flags[at].name) == length && memcmp(kvf_flags[at].name, name, length) == 0)
            return &kvf_flags[at];
    return NULL;
}

bool kvf_flag_is_list(const struct kvf_flag *flag)
{
    return flag->repeated || flag->split;
}

#define NAME_MOST 40 /* longer words resemble nothing */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein: how many letters must be changed, added or left out. */
static size_t distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t row[NAME_MOST + 1];
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            row[j] = smaller(change, smaller(above, row[j - 1]) + 1);
            diagonal = above;
        }
    }
    return row[b_length];
}

const struct kvf_flag *kvf_flag_suggest(const char *name, size_t length)
{
    const struct kvf_flag *best = NULL;
    size_t best_distance = smaller(3, length / 3 + 1); /* at most 2 slips, fewer in short words */
    if (length == 0 || length > NAME_MOST)
        return NULL;
    for (size_t at = 0; at < kvf_flag_count; at++) {
        const struct kvf_flag *flag = &kvf_flags[at];
        if (flag->hidden || strlen(flag->name) > NAME_MOST)
            continue;
        size_t far = distance(name, length, flag->name, strlen(flag->name));
        if (far < best_distance) {
            best = flag;
            best_distance = far;
        }
    }
    /* No slip explains it: perhaps the end is missing, --pool for --pool-mib. */
    for (size_t at = 0; best == NULL && length >= 3 && at < kvf_flag_count; at++)
        if (!kvf_flags[at].hidden && strncmp(kvf_flags[at].name, name, length) == 0)
            best = &kvf_flags[at];
    return best;
}

static void list_text(const struct kvf_flag *flag, const struct kvf_config_list *list, char *text,
                      size_t room)
{
    size_t used = 0;
    if (list->count == 0)
        (void)snprintf(text, room, "%s", flag->derived);
    for (size_t at = 0; at < list->count && used < room; at++) {
        int wrote = snprintf(text + used, room - used, "%s%s", at == 0 ? "" : ",", list->items[at]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static void number_text(const struct kvf_flag *flag, uint64_t value, char *text, size_t room)
{
    uint64_t scale = flag->scale != 0 ? flag->scale : 1;
    if (value % scale == 0)
        (void)snprintf(text, room, "%" PRIu64, value / scale);
    else /* a share of a small pool */
        (void)snprintf(text, room, "%.3f", (double)value / (double)scale);
}

static void choice_text(const struct kvf_flag *flag, unsigned value, char *text, size_t room)
{
    const char *choice = flag->choices;
    for (; value > 0; value--)
        choice = strchr(choice, '|') + 1;
    (void)snprintf(text, room, "%.*s", (int)strcspn(choice, "|"), choice);
}

void kvf_flag_value_text(const struct kvf_flag *flag, const struct kvf_config *config, char *text,
                         size_t room)
{
    const void *field = (const char *)config + flag->offset;
    switch (flag->kind) {
    case KVF_FLAG_TEXT:
    case KVF_FLAG_NAME:
    case KVF_FLAG_ADDRESS:
        if (kvf_flag_is_list(flag)) {
            list_text(flag, field, text, room);
        } else {
            const char *value = *(const char *const *)field;
            (void)snprintf(text, room, "%s", value != NULL ? value : "none");
        }
        return;
    case KVF_FLAG_NUMBER:
        number_text(flag, *(const uint64_t *)field, text, room);
        return;
    case KVF_FLAG_CHOICE:
        choice_text(flag, *(const unsigned *)field, text, room);
        return;
    case KVF_FLAG_SWITCH:
        (void)snprintf(text, room, "%s", *(const bool *)field ? "true" : "false");
        return;
    case KVF_FLAG_ACTION:
        (void)snprintf(text, room, "%s", config->action == flag->action ? "true" : "false");
        return;
    }
}
