/* What follows from other flags, and what cannot work together. Every refusal is one line: flags,
 * values, remedy. */
#include "base/address.h"
#include "base/block.h"
#include "server/config_table.h"
#include "transport/transport.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

static struct kvf_status invalid(void)
{
    return kvf_fail(KVF_MODULE_SERVER, KVF_INVALID, 0);
}

static struct kvf_status no_memory(struct kvf_why *why)
{
    return kvf_why_set(why, kvf_fail(KVF_MODULE_SERVER, KVF_NO_MEMORY, 0),
                       "no memory for the configuration");
}

void kvf_config_note(struct kvf_config *config, const char *format, ...)
{
    if (config->note_count == KVF_CONFIG_NOTES)
        return;
    char *note = config->notes[config->note_count++];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(note, sizeof(config->notes[0]), format, arguments);
    va_end(arguments);
}

/* "144 MiB"; "288 KiB" where a share is no whole number of MiB. */
struct size_text {
    char text[32];
};

static struct size_text size_text(uint64_t bytes)
{
    struct size_text size;
    if (bytes % KVF_MIB == 0)
        (void)snprintf(size.text, sizeof(size.text), "%" PRIu64 " MiB", bytes / KVF_MIB);
    else
        (void)snprintf(size.text, sizeof(size.text), "%" PRIu64 " KiB", bytes / 1024);
    return size;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

static void set_if_absent(uint64_t *field, uint64_t bytes)
{
    if (*field == 0)
        *field = bytes;
}

/* Reads may hold more than their reserve, but what they hold is pinned until the peer releases it: puts and Gets, which
 * never wait for Reads, could not have it back. So it is what their limits leave, of the pool and of the query limit. */
static void derive_serve_limit(struct kvf_config *config)
{
    uint64_t of_pool =
        less(config->pool_bytes, config->dirty_limit_bytes + config->pull_limit_bytes);
    config->serve_limit_bytes = most_of(config->serve_reserve_bytes, of_pool);
    set_if_absent(&config->query_limit_bytes, config->pull_limit_bytes + config->serve_limit_bytes);
    uint64_t of_query = less(config->query_limit_bytes, config->pull_limit_bytes);
    config->serve_limit_bytes =
        most_of(config->serve_reserve_bytes, least_of(config->serve_limit_bytes, of_query));
}

/* A share is whole pages; 0 is never said, so it means "not given". A limit that the operator
 * lowered pulls down the shares below it, so that what is derived can never contradict what was
 * said. */
static void derive_memory(struct kvf_config *config)
{
    set_if_absent(&config->dirty_limit_bytes, config->pool_bytes / 4);
    set_if_absent(&config->pull_limit_bytes, config->pool_bytes / 8 * 3);
    set_if_absent(&config->serve_reserve_bytes, config->pool_bytes / 8 * 3);
    uint64_t of_pull = config->pull_limit_bytes / 4 * 3;
    uint64_t of_serve = config->serve_reserve_bytes / 4 * 3;
    derive_serve_limit(config);
    set_if_absent(&config->query_limit_per_instance_bytes,
                  least_of(of_pull, config->query_limit_bytes));
    set_if_absent(&config->query_limit_per_identity_bytes,
                  least_of(of_serve, config->query_limit_bytes));
    set_if_absent(&config->max_grant_bytes,
                  least_of(of_serve, least_of(config->query_limit_bytes,
                                              config->query_limit_per_identity_bytes)));
}

static struct kvf_status derive_node_id(struct kvf_config *config, struct kvf_why *why)
{
    char name[65] = "";
    if (config->node_id != NULL)
        return kvf_ok();
    if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0')
        strcpy(name, "kvferryd");
    for (char *at = name; *at != '\0'; at++)
        if (!isalnum((unsigned char)*at) && strchr("._-", *at) == NULL)
            *at = '-';
    config->node_id = strdup(name);
    return config->node_id != NULL ? kvf_ok() : no_memory(why);
}

static struct kvf_status derive_data_listen(struct kvf_config *config, struct kvf_why *why)
{
    if (config->data_listen != NULL || config->listen == NULL)
        return kvf_ok();
    struct kvf_address address;
    char text[KVF_ADDRESS_TEXT_BYTES];
    kvf_assert(kvf_address_parse(config->listen, &address)); /* its own flag was looked at first */
    address.port = 0;
    kvf_address_format(&address, text);
    config->data_listen = strdup(text);
    if (config->data_listen == NULL)
        return no_memory(why);
    return kvf_ok();
}

static struct kvf_status check_run_dir(const struct kvf_config *config, struct kvf_why *why)
{
    const size_t room = sizeof(((struct sockaddr_un *)NULL)->sun_path) - sizeof("/engine.sock");
    if (config->action == KVF_CONFIG_VERIFY)
        return kvf_ok();
    if (config->run_dir == NULL)
        return kvf_why_set(
            why, invalid(),
            "--run-dir is required: name a directory for engine.sock and admin.sock");
    if (strlen(config->run_dir) > room)
        return kvf_why_set(why, invalid(),
                           "--run-dir %.80s... is longer than the %zu bytes that fit a unix "
                           "socket's path: choose a shorter one",
                           config->run_dir, room);
    return kvf_ok();
}

static struct kvf_status check_unique(const char *flag, const struct kvf_config_list *list,
                                      struct kvf_why *why)
{
    for (size_t at = 0; at < list->count; at++)
        for (size_t other = 0; other < at; other++)
            if (strcmp(list->items[at], list->items[other]) == 0)
                return kvf_why_set(why, invalid(), "--%s %.160s is there twice: leave one of them",
                                   flag, list->items[at]);
    return kvf_ok();
}

static struct kvf_status check_tls_set(const struct kvf_config *config, struct kvf_why *why)
{
    int given = (config->tls_cert != NULL) + (config->tls_key != NULL) + (config->tls_ca != NULL);
    if (given == 0 || given == 3)
        return kvf_ok();
    const char *missing = config->tls_cert == NULL  ? "--tls-cert"
                          : config->tls_key == NULL ? "--tls-key"
                                                    : "--tls-ca";
    return kvf_why_set(
        why, invalid(),
        "TLS needs --tls-cert, --tls-key and --tls-ca together: add %s, or leave out "
        "what is there",
        missing);
}

static bool has_tls(const struct kvf_config *config)
{
    return config->tls_cert != NULL;
}

static bool is_loopback(const char *text)
{
    struct kvf_address address;
    return kvf_address_parse(text, &address) && kvf_address_is_loopback(&address);
}

static struct kvf_status check_listen(const struct kvf_config *config, struct kvf_why *why)
{
    if (config->listen == NULL) {
        const char *orphan = config->data_listen != NULL ? "data-listen" : "data-advertise";
        if (config->data_listen == NULL && config->data_advertise == NULL)
            return kvf_ok();
        return kvf_why_set(why, invalid(),
                           "--%s without --listen serves nobody: add --listen or leave it out",
                           orphan);
    }
    if (is_loopback(config->listen)) {
        if (has_tls(config) || config->insecure_loopback)
            return kvf_ok();
        return kvf_why_set(
            why, invalid(),
            "--listen %.80s without TLS: give --tls-cert, --tls-key and --tls-ca, or "
            "--insecure-loopback to allow plaintext on loopback",
            config->listen);
    }
    if (!has_tls(config))
        return kvf_why_set(why, invalid(),
                           "--listen %.80s is off loopback and needs TLS and an ACL: give "
                           "--tls-cert, --tls-key, --tls-ca and --acl, or listen on 127.0.0.1",
                           config->listen);
    if (config->acl == NULL)
        return kvf_why_set(why, invalid(),
                           "--listen %.80s is off loopback and needs an ACL: give --acl, or listen "
                           "on 127.0.0.1",
                           config->listen);
    return kvf_ok();
}

/* Two servers of ours on one port: the second would only hear that it is taken. */
static struct kvf_status check_apart(const char *flag_a, const char *a, const char *flag_b,
                                     const char *b, struct kvf_why *why)
{
    struct kvf_address left, right;
    if (a == NULL || b == NULL || !kvf_address_parse(a, &left) || !kvf_address_parse(b, &right))
        return kvf_ok();
    if (left.port == 0 || left.port != right.port || strcmp(left.host, right.host) != 0)
        return kvf_ok();
    return kvf_why_set(why, invalid(), "%s %.80s is the port of %s as well: give each its own",
                       flag_a, a, flag_b);
}

static struct kvf_status check_ports(const struct kvf_config *config, struct kvf_why *why)
{
    KVF_TRY(check_apart("--data-listen", config->data_listen, "--listen", config->listen, why));
    KVF_TRY(check_apart("--listen", config->listen, "--http", config->http, why));
    return check_apart("--data-listen", config->data_listen, "--http", config->http, why);
}

static struct kvf_status check_peers(const struct kvf_config *config, struct kvf_why *why)
{
    KVF_TRY(check_unique("peer", &config->peers, why));
    for (size_t at = 0; at < config->peers.count && !has_tls(config); at++) {
        const char *peer = config->peers.items[at];
        if (!is_loopback(peer))
            return kvf_why_set(why, invalid(),
                               "--peer %.80s is off loopback and needs TLS: give --tls-cert, "
                               "--tls-key and --tls-ca",
                               peer);
        if (!config->insecure_loopback)
            return kvf_why_set(why, invalid(),
                               "--peer %.80s without TLS: give --tls-cert, --tls-key and --tls-ca, "
                               "or --insecure-loopback to allow plaintext on loopback",
                               peer);
    }
    return kvf_ok();
}

/* Who has no certificate is nobody: no right could ever be his. */
static struct kvf_status check_acl(const struct kvf_config *config, struct kvf_why *why)
{
    if (config->acl == NULL || has_tls(config) ||
        (config->listen == NULL && config->peers.count == 0))
        return kvf_ok();
    return kvf_why_set(why, invalid(),
                       "--acl %.160s with plaintext %s gives rights to nobody: give --tls-cert, "
                       "--tls-key and --tls-ca, or leave out --acl",
                       config->acl, config->listen != NULL ? "--listen" : "--peer");
}

const char *kvf_config_transport_name(enum kvf_config_transport transport)
{
    static const char *const names[] = {
        [KVF_CONFIG_TRANSPORT_AUTO] = "tcp", /* every build has it */
        [KVF_CONFIG_TRANSPORT_TCP] = "tcp",
        [KVF_CONFIG_TRANSPORT_VERBS] = "verbs",
        [KVF_CONFIG_TRANSPORT_UCX] = "ucx",
    };
    return names[transport];
}

static struct kvf_status check_network(struct kvf_config *config, struct kvf_why *why)
{
    KVF_TRY(check_tls_set(config, why));
    KVF_TRY(check_listen(config, why));
    KVF_TRY(check_ports(config, why));
    KVF_TRY(check_peers(config, why));
    KVF_TRY(check_acl(config, why));
    KVF_TRY(check_unique("nics", &config->nics, why));
    if (config->transport == KVF_CONFIG_TRANSPORT_UCX && !config->ucx_trust_peers)
        return kvf_why_set(why, invalid(),
                           "--transport ucx lets every peer reach this process's memory: give "
                           "--ucx-trust-peers too, or use --transport tcp");
    const char *transport = kvf_config_transport_name(config->transport);
    if (!kvf_transport_is_built_in(transport))
        return kvf_why_set(why, invalid(),
                           "--transport %s: this build has no such transport: use --transport tcp",
                           transport);
    if (!is_loopback(config->http))
        kvf_config_note(config,
                        "--http %.80s is off loopback: whoever reaches it reads the metrics",
                        config->http);
    return kvf_ok();
}

static struct kvf_status check_class(const char *flag, uint64_t bytes,
                                     const struct kvf_config *config, struct kvf_why *why)
{
    if (bytes <= config->pool_bytes)
        return kvf_ok();
    return kvf_why_set(why, invalid(),
                       "--%s %" PRIu64 " is above the pool of %s (--pool-mib): lower it or raise "
                       "the pool",
                       flag, bytes / KVF_MIB, size_text(config->pool_bytes).text);
}

static struct kvf_status check_memory(struct kvf_config *config, struct kvf_why *why)
{
    if (config->hugepages && config->pool_bytes % (2 * KVF_MIB) != 0)
        return kvf_why_set(why, invalid(),
                           "--pool-mib %" PRIu64 " with --hugepages must be even (pages of 2 MiB): "
                           "give %" PRIu64,
                           config->pool_bytes / KVF_MIB, config->pool_bytes / KVF_MIB + 1);
    KVF_TRY(check_class("dirty-limit-mib", config->dirty_limit_bytes, config, why));
    KVF_TRY(check_class("pull-limit-mib", config->pull_limit_bytes, config, why));
    KVF_TRY(check_class("serve-reserve-mib", config->serve_reserve_bytes, config, why));
    KVF_TRY(check_class("max-grant-mib", config->max_grant_bytes, config, why));
    uint64_t classes =
        config->dirty_limit_bytes + config->pull_limit_bytes + config->serve_reserve_bytes;
    if (classes > config->pool_bytes)
        kvf_config_note(config,
                        "dirty limit + pull limit + serve reserve are %s, more than the pool of "
                        "%s: under load they take room from each other",
                        size_text(classes).text, size_text(config->pool_bytes).text);
    if (config->max_grant_bytes >
        least_of(config->query_limit_bytes, config->query_limit_per_identity_bytes))
        kvf_config_note(
            config,
            "--max-grant-mib %" PRIu64 " is above what one identity may hold: Reads "
            "above %s are refused",
            config->max_grant_bytes / KVF_MIB,
            size_text(least_of(config->query_limit_bytes, config->query_limit_per_identity_bytes))
                .text);
    return kvf_ok();
}

static struct kvf_status check_ssd(const struct kvf_config *config, struct kvf_why *why)
{
    KVF_TRY(check_unique("ssd-path", &config->ssd_paths, why));
    if (config->ssd_paths.count == 0) {
        if (config->action == KVF_CONFIG_VERIFY)
            return kvf_why_set(why, invalid(),
                               "--verify without --ssd-path has nothing to check: name the paths");
        if (config->ssd_capacity_bytes != 0)
            return kvf_why_set(why, invalid(),
                               "--ssd-capacity-mib %" PRIu64 " without --ssd-path makes no SSD "
                               "tier: name a path or leave it out",
                               config->ssd_capacity_bytes / KVF_MIB);
        return kvf_ok();
    }
    if (config->ssd_capacity_bytes == 0 && config->action != KVF_CONFIG_VERIFY)
        return kvf_why_set(why, invalid(),
                           "--ssd-path %.120s needs --ssd-capacity-mib: give the MiB to "
                           "preallocate per path, at least 512",
                           config->ssd_paths.items[0]);
    if (config->ssd_io_bytes > config->ssd_inflight_bytes)
        return kvf_why_set(why, invalid(),
                           "--ssd-io-kib %" PRIu64 " is above the %s in flight "
                           "(--ssd-inflight-mib): lower the piece or raise the bytes in flight",
                           config->ssd_io_bytes / 1024, size_text(config->ssd_inflight_bytes).text);
    return kvf_ok();
}

static struct kvf_status batch_above(uint64_t batch_bytes, const char *name, const char *flag,
                                     uint64_t limit_bytes, struct kvf_why *why)
{
    return kvf_why_set(why, invalid(),
                       "--read-batch-mib %" PRIu64 " is above the %s of %s (--%s): lower the batch "
                       "or raise the limit",
                       batch_bytes / KVF_MIB, name, size_text(limit_bytes).text, flag);
}

struct kvf_status kvf_config_batch_rule(const struct kvf_config *config, uint64_t batch_bytes,
                                        uint64_t *in_flight, struct kvf_why *note,
                                        struct kvf_why *why)
{
    uint64_t limit = config->query_limit_per_instance_bytes;
    uint64_t asked = config->read_batches_in_flight_asked;
    if (note != NULL)
        note->text[0] = '\0';
    if (batch_bytes > limit)
        return batch_above(batch_bytes, "per-instance limit", "query-limit-per-instance-mib", limit,
                           why);
    if (batch_bytes > config->query_limit_bytes)
        return batch_above(batch_bytes, "query limit", "query-limit-mib", config->query_limit_bytes,
                           why);
    if (batch_bytes > config->pull_limit_bytes)
        return batch_above(batch_bytes, "pull limit", "pull-limit-mib", config->pull_limit_bytes,
                           why);
    *in_flight = batch_bytes != 0 ? least_of(asked, limit / batch_bytes) : asked;
    if (*in_flight < asked && note != NULL)
        (void)snprintf(note->text, sizeof(note->text),
                       "--read-batches-in-flight %" PRIu64 " x --read-batch-mib %" PRIu64
                       " is above the per-instance limit of %s: %" PRIu64 " in flight",
                       asked, batch_bytes / KVF_MIB, size_text(limit).text, *in_flight);
    return kvf_ok();
}

static struct kvf_status check_reads(struct kvf_config *config, struct kvf_why *why)
{
    struct kvf_why note;
    config->read_batches_in_flight_asked = config->read_batches_in_flight;
    KVF_TRY(kvf_config_batch_rule(config, config->read_batch_bytes, &config->read_batches_in_flight,
                                  &note, why));
    if (note.text[0] != '\0')
        kvf_config_note(config, "%.230s", note.text);
    return kvf_ok();
}

struct kvf_status kvf_config_derive_and_check(struct kvf_config *config, struct kvf_why *why)
{
    KVF_TRY(check_run_dir(config, why));
    KVF_TRY(derive_node_id(config, why));
    KVF_TRY(check_network(config, why));
    KVF_TRY(derive_data_listen(config, why));
    derive_memory(config);
    KVF_TRY(check_memory(config, why));
    KVF_TRY(check_ssd(config, why));
    return check_reads(config, why);
}
