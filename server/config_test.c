#include "server/config.h"

#include "base/block.h"
#include "base/test.h"
#include "server/config_table.h"
#include "storage/storage.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert((int)KVF_CONFIG_SSD_IO_AUTO == (int)KVF_STORE_IO_AUTO &&
                   (int)KVF_CONFIG_SSD_IO_URING == (int)KVF_STORE_IO_URING &&
                   (int)KVF_CONFIG_SSD_IO_PREAD == (int)KVF_STORE_IO_PREAD,
               "config hands its number to storage");

static struct kvf_config config;
static struct kvf_why why;

#define WORDS 16

/* Load the words of one line, separated by blanks, with these variables (NULL: none). */
static struct kvf_status load_with(const char *line, char *const *environment)
{
    char copy[1024];
    char *argv[WORDS + 2] = {(char[]){"kvferryd"}};
    int argc = 1;
    kvf_config_release(&config);
    assert_true(strlen(line) < sizeof(copy));
    strcpy(copy, line);
    char *rest = NULL;
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        assert_true(argc <= WORDS);
        argv[argc++] = word;
    }
    return kvf_config_load(argc, argv, environment, &config, &why);
}

static struct kvf_status load(const char *line)
{
    return load_with(line, NULL);
}

static void loads(const char *line)
{
    struct kvf_status status = load(line);
    if (!kvf_is_ok(status))
        fail_msg("%s: %s", line, why.text);
}

/* The line is refused and the reason holds each of the parts, separated by bars. */
static void refuses(const char *line, const char *parts)
{
    char copy[256];
    struct kvf_status status = load(line);
    if (status.code != KVF_INVALID)
        fail_msg("%s: accepted", line);
    assert_int_equal(status.module, KVF_MODULE_SERVER);
    assert_null(strchr(why.text, '\n'));
    assert_true(strlen(parts) < sizeof(copy));
    strcpy(copy, parts);
    char *rest = NULL;
    for (char *part = strtok_r(copy, "|", &rest); part != NULL; part = strtok_r(NULL, "|", &rest))
        if (strstr(why.text, part) == NULL)
            fail_msg("%s: the reason lacks \"%s\": %s", line, part, why.text);
}

static char file_path[] = "/tmp/kvfcfg.XXXXXX";

static void write_file(const char *text, size_t length)
{
    FILE *file = fopen(file_path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static struct kvf_status load_file(const char *text, const char *more, char *const *environment)
{
    char line[512];
    write_file(text, strlen(text));
    (void)snprintf(line, sizeof(line), "--run-dir /r --config %s %s", file_path, more);
    return load_with(line, environment);
}

static void load__nothing_but_run_dir__has_the_documented_defaults(void **state)
{
    (void)state;
    loads("--run-dir /r");
    assert_int_equal(config.action, KVF_CONFIG_RUN);
    assert_string_equal(config.run_dir, "/r");
    assert_non_null(config.node_id);
    assert_true(config.node_id[0] != '\0');
    assert_null(config.listen);
    assert_null(config.data_listen);
    assert_null(config.data_advertise);
    assert_string_equal(config.http, "127.0.0.1:9471");
    assert_int_equal(config.transport, KVF_CONFIG_TRANSPORT_AUTO);
    assert_int_equal(config.peers.count, 0);
    assert_int_equal(config.nics.count, 0);
    assert_false(config.ucx_trust_peers);
    assert_false(config.insecure_loopback);
    assert_false(config.hugepages);
    assert_int_equal(config.pool_bytes, 1024 * KVF_MIB);
    assert_int_equal(config.max_blocks_per_read, 4096);
    assert_int_equal(config.ssd_paths.count, 0);
    assert_int_equal(config.ssd_io, KVF_CONFIG_SSD_IO_AUTO);
    assert_int_equal(config.ssd_read_threads, 8);
    assert_int_equal(config.ssd_queue_depth, 32);
    assert_int_equal(config.ssd_inflight_bytes, 16 * KVF_MIB);
    assert_int_equal(config.ssd_io_bytes, KVF_MIB);
    assert_int_equal(config.ssd_write_policy, KVF_CONFIG_WRITE_ALL);
    assert_int_equal(config.cache_pulled, KVF_CONFIG_CACHE_PULLED_NONE);
    assert_int_equal(config.read_batch_bytes, 0);
    assert_int_equal(config.read_batches_in_flight, 2);
    assert_int_equal(config.query_timeout_s, 30);
    assert_int_equal(config.max_lease_s, 60);
    assert_int_equal(config.drain_timeout_s, 30);
    assert_int_equal(config.note_count, 0);
}

static void load__pool_of_512__has_the_documented_shares(void **state)
{
    (void)state;
    loads("--run-dir /r --pool-mib 512");
    assert_int_equal(config.dirty_limit_bytes, 128 * KVF_MIB);
    assert_int_equal(config.pull_limit_bytes, 192 * KVF_MIB);
    assert_int_equal(config.serve_reserve_bytes, 192 * KVF_MIB);
    assert_int_equal(config.query_limit_bytes, 384 * KVF_MIB);
    assert_int_equal(config.query_limit_per_instance_bytes, 144 * KVF_MIB);
    assert_int_equal(config.query_limit_per_identity_bytes, 144 * KVF_MIB);
    assert_int_equal(config.max_grant_bytes, 144 * KVF_MIB);
}

static void load__any_small_pool__has_shares_of_whole_pages(void **state)
{
    (void)state;
    for (unsigned mib = 1; mib <= 64; mib++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "--run-dir /r --pool-mib %u", mib);
        loads(line);
        const uint64_t shares[] = {config.dirty_limit_bytes,
                                   config.pull_limit_bytes,
                                   config.serve_reserve_bytes,
                                   config.query_limit_bytes,
                                   config.query_limit_per_instance_bytes,
                                   config.query_limit_per_identity_bytes,
                                   config.max_grant_bytes};
        for (size_t at = 0; at < sizeof(shares) / sizeof(shares[0]); at++) {
            assert_true(shares[at] > 0);
            assert_int_equal(shares[at] % KVF_PAGE, 0);
        }
    }
}

static void load__explicit_limits__are_the_operators_word(void **state)
{
    (void)state;
    loads("--run-dir /r --pool-mib 512 --query-limit-per-instance-mib 192 --max-grant-mib 192 "
          "--query-limit-per-identity-mib=200");
    assert_int_equal(config.query_limit_per_instance_bytes, 192 * KVF_MIB);
    assert_int_equal(config.query_limit_per_identity_bytes, 200 * KVF_MIB);
    assert_int_equal(config.max_grant_bytes, 192 * KVF_MIB);

    loads("--run-dir /r --pool-mib 512 --query-limit-mib 100");
    assert_int_equal(config.query_limit_per_instance_bytes, 100 * KVF_MIB);
    assert_int_equal(config.max_grant_bytes, 100 * KVF_MIB);

    loads("--run-dir /r --pool-mib 512 --pull-limit-mib 400");
    assert_int_equal(config.query_limit_per_instance_bytes, 300 * KVF_MIB);
    assert_int_equal(config.note_count, 1); /* the classes are more than the pool */
}

/* The reserve, and what of pool and query limit no put and no Get can ask for. */
static void load__limits_leave_some_of_the_pool__reads_may_hold_it(void **state)
{
    (void)state;
    const struct {
        const char *flags;
        uint64_t serve_mib, query_mib;
    } cases[] = {
        {"", 192, 384}, /* 128 + 192 + 192 is the pool */
        {"--serve-reserve-mib 64", 192, 384},
        {"--dirty-limit-mib 64", 256, 448},
        {"--pull-limit-mib 64", 320, 384},
        {"--pull-limit-mib 400", 192, 592}, /* more than the pool together: the reserve */
        {"--dirty-limit-mib 512 --pull-limit-mib 512", 192, 704},
        {"--dirty-limit-mib 64 --query-limit-mib 400", 208, 400},
        {"--dirty-limit-mib 64 --query-limit-mib 200", 192, 200},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char line[160];
        (void)snprintf(line, sizeof(line), "--run-dir /r --pool-mib 512 %s", cases[i].flags);
        loads(line);
        assert_int_equal(config.serve_limit_bytes, cases[i].serve_mib * KVF_MIB);
        assert_int_equal(config.query_limit_bytes, cases[i].query_mib * KVF_MIB);
        assert_true(config.serve_limit_bytes == config.serve_reserve_bytes ||
                    config.dirty_limit_bytes + config.pull_limit_bytes + config.serve_limit_bytes <=
                        config.pool_bytes);
    }
}

static void load__network_flags__land_in_their_fields(void **state)
{
    (void)state;
    char *const environment[] = {
        (char[]){"KVFERRY_RUN_DIR=/r"},        (char[]){"KVFERRY_TLS_CERT=c"},
        (char[]){"KVFERRY_TLS_KEY=k"},         (char[]){"KVFERRY_TLS_CA=a"},
        (char[]){"KVFERRY_ACL=acl.json"},      (char[]){"KVFERRY_NICS=mlx5_0,mlx5_1"},
        (char[]){"KVFERRY_TRANSPORT=tcp"},     (char[]){"KVFERRY_UCX_TRUST_PEERS=true"},
        (char[]){"KVFERRY_SSD_PATH=/a,/b,/c"}, NULL};
    assert_true(
        kvf_is_ok(load_with("--listen 10.0.0.1:9470 --data-listen 10.0.0.1:9472 --data-advertise "
                            "10.1.0.1:9472 --node-id n1 --ssd-capacity-mib 512 --ssd-io=uring",
                            environment)));
    assert_string_equal(config.run_dir, "/r");
    assert_string_equal(config.node_id, "n1");
    assert_string_equal(config.listen, "10.0.0.1:9470");
    assert_string_equal(config.data_listen, "10.0.0.1:9472");
    assert_string_equal(config.data_advertise, "10.1.0.1:9472");
    assert_string_equal(config.tls_cert, "c");
    assert_string_equal(config.tls_key, "k");
    assert_string_equal(config.tls_ca, "a");
    assert_string_equal(config.acl, "acl.json");
    assert_int_equal(config.nics.count, 2);
    assert_string_equal(config.nics.items[1], "mlx5_1");
    assert_int_equal(config.transport, KVF_CONFIG_TRANSPORT_TCP);
    assert_true(config.ucx_trust_peers);
    assert_int_equal(config.ssd_paths.count, 3);
    assert_string_equal(config.ssd_paths.items[2], "/c");
    assert_int_equal(config.ssd_capacity_bytes, 512 * KVF_MIB);
    assert_int_equal(config.ssd_io, KVF_CONFIG_SSD_IO_URING);
}

static void load__choices__follow_the_table(void **state)
{
    (void)state;
    loads("--run-dir /r --ssd-io pread --ssd-write-policy reuse --cache-pulled ssd --transport "
          "tcp");
    assert_int_equal(config.ssd_io, KVF_CONFIG_SSD_IO_PREAD);
    assert_int_equal(config.ssd_write_policy, KVF_CONFIG_WRITE_REUSE);
    assert_int_equal(config.cache_pulled, KVF_CONFIG_CACHE_PULLED_SSD);
    assert_int_equal(config.transport, KVF_CONFIG_TRANSPORT_TCP);
    loads("--run-dir /r --transport auto");
    assert_int_equal(config.transport, KVF_CONFIG_TRANSPORT_AUTO);
    refuses("--run-dir /r --transport rdma", "--transport rdma|auto|tcp|verbs|ucx");
    refuses("--run-dir /r --transport tc", "--transport tc ");
    refuses("--run-dir /r --transport tcp|verbs", "--transport");
    refuses("--run-dir /r --ssd-io=", "--ssd-io");
}

static void load__numbers__are_plain_digits_within_range(void **state)
{
    (void)state;
    refuses("--run-dir /r --pool-mib 0", "--pool-mib 0|1 to");
    refuses("--run-dir /r --pool-mib -1", "--pool-mib -1|digits");
    refuses("--run-dir /r --pool-mib +1", "digits");
    refuses("--run-dir /r --pool-mib 0x10", "digits");
    refuses("--run-dir /r --pool-mib 512MiB", "--pool-mib 512MiB|digits|MiB");
    refuses("--run-dir /r --pool-mib 1e3", "digits");
    refuses("--run-dir /r --pool-mib=", "digits");
    refuses("--run-dir /r --pool-mib 18446744073709551616", "range");
    refuses("--run-dir /r --pool-mib 99999999999999999999999999", "range");
    refuses("--run-dir /r --pool-mib 16777217", "range|16777216");
    refuses("--run-dir /r --dirty-limit-mib 0", "--dirty-limit-mib 0");
    refuses("--run-dir /r --ssd-path /s --ssd-capacity-mib 511", "--ssd-capacity-mib 511|512");
    refuses("--run-dir /r --ssd-queue-depth 4097", "4096");
    refuses("--run-dir /r --ssd-io-kib 6", "multiple of 4");
    refuses("--run-dir /r --read-batches-in-flight 0", "--read-batches-in-flight 0");
    refuses("--run-dir /r --query-timeout-s 0", "--query-timeout-s 0");
    loads("--run-dir /r --pool-mib 16777216");
    assert_int_equal(config.pool_bytes, UINT64_C(1) << 44);
    loads("--run-dir /r --drain-timeout-s 0 --ssd-io-kib 128");
    assert_int_equal(config.drain_timeout_s, 0);
    assert_int_equal(config.ssd_io_bytes, 128 * 1024);
}

static void load__switches__stand_alone_or_say_true_or_false(void **state)
{
    (void)state;
    loads("--run-dir /r --hugepages --insecure-loopback=false");
    assert_true(config.hugepages);
    assert_false(config.insecure_loopback);
    refuses("--run-dir /r --hugepages=maybe", "--hugepages maybe|true");
    refuses("--run-dir /r --hugepages true", "\"true\" is no flag");
}

static void load__last_of_a_flag_given_twice__wins(void **state)
{
    (void)state;
    loads("--run-dir /a --run-dir /r --pool-mib 1 --pool-mib=64 --nics a,b --nics c");
    assert_string_equal(config.run_dir, "/r");
    assert_int_equal(config.pool_bytes, 64 * KVF_MIB);
    assert_int_equal(config.nics.count, 1);
    assert_string_equal(config.nics.items[0], "c");
}

static void load__unknown_words__are_refused_with_a_guess(void **state)
{
    (void)state;
    refuses("--run-dir /r --pool-mb 3", "--pool-mb|did you mean --pool-mib");
    refuses("--run-dir /r --ssd-pth=/x", "--ssd-path");
    refuses("--run-dir /r --query-limit-per-inst 3", "--query-limit-per-instance-mib");
    refuses("--run-dir /r --frobnicate", "--frobnicate|--help");
    refuses("--run-dir /r stray", "\"stray\"");
    refuses("--run-dir /r -x", "\"-x\"");
    refuses("--run-dir /r --", "\"--\"");
    refuses("--run-dir /r --=x", "no flag --");
    refuses("--run-dir", "--run-dir|DIR");
    refuses("--run-dir --hugepages", "--run-dir needs a value");
    refuses("--run-dir /r --transport", "--transport|auto|ucx");
    char longest[900] = "--run-dir /r --";
    memset(longest + strlen(longest), 'x', 800);
    refuses(longest, "no flag --xxxx");
}

static void load__run_dir__is_required_where_the_daemon_runs(void **state)
{
    (void)state;
    refuses("", "--run-dir");
    refuses("--check-config", "--run-dir");
    refuses("--run-dir=", "--run-dir|empty");
    char line[200] = "--run-dir /";
    memset(line + strlen(line), 'd', 94); /* 95 bytes + /engine.sock + 0 = 108 */
    loads(line);
    strcat(line, "d");
    refuses(line, "--run-dir|unix socket");
    loads("--version");
    assert_int_equal(config.action, KVF_CONFIG_VERSION);
    loads("--help");
    assert_int_equal(config.action, KVF_CONFIG_HELP);
    loads("-h");
    assert_int_equal(config.action, KVF_CONFIG_HELP);
    loads("--help-markdown");
    assert_int_equal(config.action, KVF_CONFIG_HELP_MARKDOWN);
    loads("--pool-mib 3 --version --no-such-flag");
    assert_int_equal(config.action, KVF_CONFIG_VERSION);
    loads("--verify --ssd-path /s");
    assert_int_equal(config.action, KVF_CONFIG_VERIFY);
    refuses("--verify", "--verify|--ssd-path");
    loads("--check-config --run-dir /r");
    assert_int_equal(config.action, KVF_CONFIG_CHECK);
    refuses("--check-config --verify --run-dir /r", "--check-config|--verify");
}

static void load__addresses__are_host_and_port(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1:0", "localhost:9470", "[::1]:65535",
                                       "127.1.2.3:1", "LOCALHOST:1"};
    static const char *const bad[] = {
        "127.0.0.1",    ":9470",       "127.0.0.1:",   "127.0.0.1:65536",  "127.0.0.1:-1",
        "127.0.0.1:1x", "::1:9470",    "[::1]",        "[::1]9470",        "[::1:9470",
        "[]:9470",      "[1.2.3.4]:1", "1.2.3:9470",   "999.1.1.1:1",      "a b:1",
        "-a:1",         "a/b:1",       "[fe80::1%]:1", "127.0.0.1:0000001"};
    for (size_t at = 0; at < sizeof(good) / sizeof(good[0]); at++) {
        char line[128];
        (void)snprintf(line, sizeof(line), "--run-dir /r --insecure-loopback --listen %s",
                       good[at]);
        loads(line);
        assert_string_equal(config.listen, good[at]);
    }
    kvf_config_release(&config);
    for (size_t at = 0; at < sizeof(bad) / sizeof(bad[0]); at++) {
        char *argv[] = {(char[]){"kvferryd"}, (char[]){"--run-dir=/r"}, (char[]){"--http"},
                        (char *)(uintptr_t)bad[at]};
        struct kvf_status status = kvf_config_load(4, argv, NULL, &config, &why);
        if (status.code != KVF_INVALID)
            fail_msg("accepted %s", bad[at]);
        assert_non_null(strstr(why.text, "--http"));
    }
    refuses("--run-dir /r --insecure-loopback --peer 127.0.0.1:0", "--peer 127.0.0.1:0|port 0");
    loads("--run-dir /r --http [fe80::1%eth0]:80");
    assert_int_equal(config.note_count, 1); /* off loopback */
}

static void load__listen__is_never_plaintext_by_accident(void **state)
{
    (void)state;
    refuses("--run-dir /r --listen 0.0.0.0:9470", "--listen 0.0.0.0:9470|TLS|ACL|--acl");
    refuses("--run-dir /r --listen 0.0.0.0:9470 --insecure-loopback", "TLS");
    refuses("--run-dir /r --listen [::]:9470 --insecure-loopback", "TLS");
    refuses("--run-dir /r --listen node1:9470 --insecure-loopback", "TLS");
    refuses("--run-dir /r --listen 128.0.0.1:9470 --insecure-loopback", "TLS");
    refuses("--run-dir /r --listen [::ffff:127.0.0.1]:9470 --insecure-loopback", "TLS");
    refuses("--run-dir /r --listen 10.0.0.1:1 --acl a", "TLS");
    refuses("--run-dir /r --listen 10.0.0.1:1 --tls-cert c --tls-key k --tls-ca a", "--acl");
    refuses("--run-dir /r --listen 127.0.0.1:1", "--listen 127.0.0.1:1|--insecure-loopback");
    refuses("--run-dir /r --tls-cert c --tls-key k", "--tls-ca");
    refuses("--run-dir /r --tls-ca c --tls-key k", "--tls-cert");
    refuses("--run-dir /r --tls-cert c", "--tls-key");
    loads("--run-dir /r --listen 10.0.0.1:1 --tls-cert c --tls-key k --tls-ca a --acl f");
    assert_string_equal(config.data_listen, "10.0.0.1:0");
    loads("--run-dir /r --listen 127.0.0.1:1 --tls-cert c --tls-key k --tls-ca a");
    loads("--run-dir /r --listen [::1]:9470 --insecure-loopback");
    assert_string_equal(config.data_listen, "[::1]:0");
    loads("--run-dir /r --acl f");
    loads("--run-dir /r --acl f --insecure-loopback");
    loads("--run-dir /r --acl f --listen 127.0.0.1:1 --tls-cert c --tls-key k --tls-ca a");
    refuses("--run-dir /r --acl f --insecure-loopback --listen 127.0.0.1:1",
            "--acl f|--listen|--tls-cert");
    refuses("--run-dir /r --acl f --insecure-loopback --peer 127.0.0.1:1",
            "--acl f|--peer|--tls-cert");
    refuses("--run-dir /r --data-listen 127.0.0.1:1", "--data-listen|--listen");
    refuses("--run-dir /r --insecure-loopback --listen 127.0.0.1:7 --data-listen 127.0.0.1:7",
            "--data-listen 127.0.0.1:7|--listen|its own");
    refuses("--run-dir /r --insecure-loopback --listen 127.0.0.1:9471",
            "--listen 127.0.0.1:9471|--http|its own"); /* the default of --http */
    refuses("--run-dir /r --insecure-loopback --listen 127.0.0.1:7 --data-listen 127.0.0.1:8 "
            "--http 127.0.0.1:8",
            "--data-listen 127.0.0.1:8|--http|its own");
    refuses("--run-dir /r --data-advertise 127.0.0.1:1", "--data-advertise|--listen");
}

static void load__peers__need_tls_or_leave_on_loopback(void **state)
{
    (void)state;
    refuses("--run-dir /r --peer 10.0.0.2:9470", "--peer 10.0.0.2:9470|TLS");
    refuses("--run-dir /r --peer 10.0.0.2:9470 --insecure-loopback", "TLS");
    refuses("--run-dir /r --peer 127.0.0.1:9470", "--insecure-loopback");
    refuses("--run-dir /r --peer 127.0.0.1:1 --peer 127.0.0.1:1 --insecure-loopback", "twice");
    loads("--run-dir /r --peer 127.0.0.1:1 --peer=127.0.0.1:2 --insecure-loopback");
    assert_int_equal(config.peers.count, 2);
    assert_string_equal(config.peers.items[1], "127.0.0.1:2");
    loads("--run-dir /r --peer 10.0.0.2:9470 --tls-cert c --tls-key k --tls-ca a");
}

static void load__impossible_combinations__are_refused(void **state)
{
    (void)state;
    refuses("--run-dir /r --ssd-path /s", "--ssd-path /s|--ssd-capacity-mib|512");
    refuses("--run-dir /r --ssd-capacity-mib 512", "--ssd-capacity-mib 512|--ssd-path");
    refuses("--run-dir /r --ssd-path /s --ssd-path /s --ssd-capacity-mib 512", "/s|twice");
    refuses("--run-dir /r --ssd-path /s --ssd-capacity-mib 512 --ssd-io-kib 2048 "
            "--ssd-inflight-mib 1",
            "--ssd-io-kib 2048|--ssd-inflight-mib");
    refuses("--run-dir /r --transport ucx", "--ucx-trust-peers");
    if (!kvf_transport_is_built_in("verbs"))
        refuses("--run-dir /r --transport verbs", "--transport verbs|this build|tcp");
    if (!kvf_transport_is_built_in("ucx"))
        refuses("--run-dir /r --transport ucx --ucx-trust-peers", "--transport ucx|this build");
    refuses("--run-dir /r --pool-mib 3 --hugepages", "--pool-mib 3|even");
    refuses("--run-dir /r --pool-mib 64 --pull-limit-mib 65", "--pull-limit-mib 65|64 MiB");
    refuses("--run-dir /r --pool-mib 64 --max-grant-mib 65", "--max-grant-mib 65|--pool-mib");
    refuses("--run-dir /r --node-id a/b", "--node-id a/b");
}

static void batch_rule__above_the_per_instance_limit__is_refused(void **state)
{
    (void)state;
    refuses("--run-dir /r --pool-mib 512 --read-batch-mib 200",
            "--read-batch-mib 200 is above the per-instance limit of 144 MiB "
            "(--query-limit-per-instance-mib): lower the batch or raise the limit");
    refuses("--run-dir /r --pool-mib 512 --read-batch-mib 145", "144 MiB");
    loads("--run-dir /r --pool-mib 512 --read-batch-mib 144");
    assert_int_equal(config.read_batches_in_flight, 1);
    refuses("--run-dir /r --pool-mib 512 --query-limit-per-instance-mib 300 --read-batch-mib 193",
            "pull limit of 192 MiB|--pull-limit-mib");
    refuses("--run-dir /r --pool-mib 512 --query-limit-per-instance-mib 300 --query-limit-mib 150 "
            "--read-batch-mib 151",
            "query limit of 150 MiB|--query-limit-mib");
}

static void batch_rule__batch_times_in_flight_above__lowers_the_number(void **state)
{
    (void)state;
    loads("--run-dir /r --pool-mib 512 --read-batch-mib 128");
    assert_int_equal(config.read_batch_bytes, 128 * KVF_MIB);
    assert_int_equal(config.read_batches_in_flight, 1);
    assert_int_equal(config.note_count, 1);
    assert_non_null(strstr(config.notes[0], "1 in flight"));

    loads("--run-dir /r --pool-mib 512 --read-batch-mib 32 --read-batches-in-flight 16");
    assert_int_equal(config.read_batches_in_flight, 4);
    loads("--run-dir /r --pool-mib 512 --read-batch-mib 72 --read-batches-in-flight 2");
    assert_int_equal(config.read_batches_in_flight, 2);
    assert_int_equal(config.note_count, 0);
    loads("--run-dir /r --pool-mib 512 --read-batches-in-flight 16");
    assert_int_equal(config.read_batches_in_flight, 16);
}

static void batch_rule__set_later__starts_from_what_was_asked(void **state)
{
    (void)state;
    struct kvf_why note;
    uint64_t in_flight = 99;
    loads("--run-dir /r --pool-mib 512 --read-batch-mib 128");
    assert_true(kvf_is_ok(kvf_config_batch_rule(&config, 32 * KVF_MIB, &in_flight, &note, &why)));
    assert_int_equal(in_flight, 2);
    assert_string_equal(note.text, "");
    assert_true(kvf_is_ok(kvf_config_batch_rule(&config, 0, &in_flight, NULL, NULL)));
    assert_int_equal(in_flight, 2);
    assert_true(kvf_is_ok(kvf_config_batch_rule(&config, 100 * KVF_MIB, &in_flight, &note, &why)));
    assert_int_equal(in_flight, 1);
    assert_non_null(strstr(note.text, "100"));
    in_flight = 99;
    assert_int_equal(kvf_config_batch_rule(&config, 145 * KVF_MIB, &in_flight, &note, &why).code,
                     KVF_INVALID);
    assert_int_equal(in_flight, 99);
    assert_int_equal(kvf_config_batch_rule(&config, UINT64_MAX, &in_flight, &note, &why).code,
                     KVF_INVALID);
}

static void precedence__each_place__yields_to_the_one_above(void **state)
{
    (void)state;
    char *const environment[] = {(char[]){"KVFERRY_POOL_MIB=200"},
                                 (char[]){"KVFERRY_MAX_LEASE_S=20"}, NULL};
    const char *text = "pool-mib = 300\nmax-lease-s = 30\nquery-timeout-s = 3\n";
    assert_true(kvf_is_ok(load_file(text, "--pool-mib 100", environment)));
    assert_int_equal(config.pool_bytes, 100 * KVF_MIB);
    assert_int_equal(config.max_lease_s, 20);
    assert_int_equal(config.query_timeout_s, 3);
    assert_int_equal(config.drain_timeout_s, 30);
}

static void precedence__lists__are_replaced_as_a_whole(void **state)
{
    (void)state;
    char *const environment[] = {(char[]){"KVFERRY_PEER=127.0.0.1:2,127.0.0.1:3"}, NULL};
    const char *text = "peer = 127.0.0.1:4\npeer = 127.0.0.1:5\npeer = 127.0.0.1:6\n"
                       "insecure-loopback = true\n";
    assert_true(kvf_is_ok(load_file(text, "", NULL)));
    assert_int_equal(config.peers.count, 3);
    assert_true(kvf_is_ok(load_file(text, "", environment)));
    assert_int_equal(config.peers.count, 2);
    assert_string_equal(config.peers.items[0], "127.0.0.1:2");
    assert_true(kvf_is_ok(load_file(text, "--peer 127.0.0.1:1", environment)));
    assert_int_equal(config.peers.count, 1);
    assert_string_equal(config.peers.items[0], "127.0.0.1:1");
}

static void environment__of_others__is_left_alone(void **state)
{
    (void)state;
    char *const environment[] = {(char[]){"PATH=/bin"},
                                 (char[]){"KVFERRY_SERVICE_HOST=10.0.0.1"},
                                 (char[]){"KVFERRY_PORT=tcp://10.0.0.1:9471"},
                                 (char[]){"KVFERRY_VERSION=3"},
                                 (char[]){"KVFERRY_HELP=1"},
                                 (char[]){"KVFERRY_POOL_MIB="}, /* says nothing */
                                 (char[]){"KVFERRY_"},
                                 (char[]){"KVFERRY_SOMETHING_ELSE_ALTOGETHER=1"},
                                 NULL};
    assert_true(kvf_is_ok(load_with("--run-dir /r", environment)));
    assert_int_equal(config.action, KVF_CONFIG_RUN);
    assert_int_equal(config.pool_bytes, 1024 * KVF_MIB);
    assert_int_equal(config.note_count, 0);
}

static void environment__a_slip__is_noted_and_a_bad_value_refused(void **state)
{
    (void)state;
    char *const slip[] = {(char[]){"KVFERRY_POOL_MB=3"}, NULL};
    assert_true(kvf_is_ok(load_with("--run-dir /r", slip)));
    assert_int_equal(config.note_count, 1);
    assert_non_null(strstr(config.notes[0], "KVFERRY_POOL_MB"));
    assert_non_null(strstr(config.notes[0], "--pool-mib"));

    char *const bad[] = {(char[]){"KVFERRY_POOL_MIB=many"}, NULL};
    assert_int_equal(load_with("--run-dir /r", bad).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "--pool-mib many"));
    assert_non_null(strstr(why.text, "KVFERRY_POOL_MIB"));
    assert_true(kvf_is_ok(load_with("--run-dir /r --pool-mib 3", bad))); /* overridden: not read */
}

static void file__comments_blanks_and_repeats__are_read(void **state)
{
    (void)state;
    const char *text = "# a comment\r\n"
                       "\n"
                       "  pool-mib=64   # of the small host\r\n"
                       "\tssd-path = /mnt/a#1\n"
                       "ssd-path =/mnt/b\n"
                       "ssd-capacity-mib = 1024\n"
                       "hugepages = true\n"
                       "insecure-loopback = false\n"
                       "transport = tcp";
    assert_true(kvf_is_ok(load_file(text, "", NULL)));
    assert_int_equal(config.pool_bytes, 64 * KVF_MIB);
    assert_int_equal(config.ssd_paths.count, 2);
    assert_string_equal(config.ssd_paths.items[0], "/mnt/a#1");
    assert_string_equal(config.ssd_paths.items[1], "/mnt/b");
    assert_true(config.hugepages);
    assert_int_equal(config.transport, KVF_CONFIG_TRANSPORT_TCP);
    assert_true(kvf_is_ok(load_file("", "", NULL)));
}

static void file__bad_lines__are_refused_with_their_number(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"\npool-mib 64\n", "line 2"},
        {"pool-mib = x\n", "line 1"},
        {"pool-mib =\n", "--pool-mib"},
        {"= 3\n", "line 1"},
        {"\n\npool-mb = 3\n", "did you mean --pool-mib"},
        {"pool-mib = 3\npool-mib = 4\n", "twice"},
        {"hugepages\n", "hugepages"},
        {"hugepages = 2\n", "--hugepages 2"},
        {"config = /other\n", "command line"},
        {"help = true\n", "command line"},
        {"peer =\n", "empty"},
    };
    for (size_t at = 0; at < sizeof(cases) / sizeof(cases[0]); at++) {
        struct kvf_status status = load_file(cases[at].text, "", NULL);
        if (status.code != KVF_INVALID || strstr(why.text, cases[at].part) == NULL)
            fail_msg("\"%s\": code %u, %s", cases[at].text, status.code, why.text);
    }
}

static void file__that_is_no_text_or_no_file__is_refused(void **state)
{
    (void)state;
    char line[128];
    (void)snprintf(line, sizeof(line), "--run-dir /r --config %s", file_path);
    write_file("pool-mib = 3\0hugepages = true\n", 30);
    assert_int_equal(load(line).code, KVF_INVALID);
    assert_non_null(strstr(why.text, "zero bytes"));
    refuses("--run-dir /r --config /nonexistent/file", "--config /nonexistent/file|No such file");
    refuses("--run-dir /r --config /tmp", "--config /tmp");
    refuses("--run-dir /r --config /dev/zero", "1 MiB");
}

static void file__any_bytes__never_break_the_parser(void **state)
{
    (void)state;
    static const char letters[] = "\n\n==# -\t\rpool-mib1ssd-path,\xff\x01\"%sn[]:";
    uint32_t random = 12345;
    for (unsigned round = 0; round < 500; round++) {
        char text[200];
        size_t length = 0;
        for (; length < sizeof(text) - 1; length++) {
            random = random * 1664525 + 1013904223;
            text[length] = letters[(random >> 16) % (sizeof(letters) - 1)];
        }
        text[length] = '\0';
        if (!kvf_is_ok(load_file(text, "", NULL))) {
            assert_true(why.text[0] != '\0');
            assert_null(strchr(why.text, '\n'));
        }
    }
}

static void load__control_bytes_in_a_value__do_not_reach_the_reason(void **state)
{
    (void)state;
    kvf_config_release(&config);
    char *argv[] = {(char[]){"kvferryd"}, (char[]){"--pool-mib"}, (char[]){"1\n\033[31mforged"}};
    assert_int_equal(kvf_config_load(3, argv, NULL, &config, &why).code, KVF_INVALID);
    assert_null(strchr(why.text, '\n'));
    assert_null(strchr(why.text, '\033'));
    assert_int_equal(kvf_config_load(3, argv, NULL, &config, NULL).code, KVF_INVALID);
}

/* What a print function writes, to be freed. */
static char *printed(void (*print)(FILE *))
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    print(out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void print_help__every_flag__is_there_in_lines_that_fit(void **state)
{
    (void)state;
    char *text = printed(kvf_config_print_help);
    for (size_t at = 0; at < kvf_flag_count; at++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "\n  --%s ", kvf_flags[at].name);
        assert_int_equal(strstr(text, name) != NULL, !kvf_flags[at].hidden);
    }
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    free(text);
}

static void table__every_flag__is_whole_and_unlike_the_others(void **state)
{
    (void)state;
    for (size_t at = 0; at < kvf_flag_count; at++) {
        const struct kvf_flag *flag = &kvf_flags[at];
        assert_ptr_equal(kvf_flag_find(flag->name, strlen(flag->name)), flag);
        assert_true(strlen(flag->help) > 0);
        assert_true(flag->kind == KVF_FLAG_ACTION || flag->fallback != NULL ||
                    flag->derived != NULL);
        assert_true(flag->kind != KVF_FLAG_NUMBER || flag->most > flag->least);
        assert_int_equal(flag->kind == KVF_FLAG_CHOICE, flag->choices != NULL);
        for (size_t other = 0; other < at; other++)
            assert_true(flag->kind == KVF_FLAG_ACTION || kvf_flags[other].kind == KVF_FLAG_ACTION ||
                        flag->offset != kvf_flags[other].offset);
    }
}

static void print_markdown__the_page_in_docs__is_what_it_prints(void **state)
{
    (void)state;
    static char page[1 << 16];
    FILE *file = fopen("docs/flags.md", "r");
    assert_non_null(file);
    size_t length = fread(page, 1, sizeof(page) - 1, file);
    (void)fclose(file);
    page[length] = '\0';
    char *text = printed(kvf_config_print_markdown);
    assert_string_equal(page, text);
    free(text);
}

static int open_file(void **state)
{
    (void)state;
    int fd = mkstemp(file_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    kvf_config_release(&config);
    kvf_config_release(&config); /* twice is fine */
    return unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load__nothing_but_run_dir__has_the_documented_defaults),
        cmocka_unit_test(load__pool_of_512__has_the_documented_shares),
        cmocka_unit_test(load__any_small_pool__has_shares_of_whole_pages),
        cmocka_unit_test(load__explicit_limits__are_the_operators_word),
        cmocka_unit_test(load__limits_leave_some_of_the_pool__reads_may_hold_it),
        cmocka_unit_test(load__network_flags__land_in_their_fields),
        cmocka_unit_test(load__choices__follow_the_table),
        cmocka_unit_test(load__numbers__are_plain_digits_within_range),
        cmocka_unit_test(load__switches__stand_alone_or_say_true_or_false),
        cmocka_unit_test(load__last_of_a_flag_given_twice__wins),
        cmocka_unit_test(load__unknown_words__are_refused_with_a_guess),
        cmocka_unit_test(load__run_dir__is_required_where_the_daemon_runs),
        cmocka_unit_test(load__addresses__are_host_and_port),
        cmocka_unit_test(load__listen__is_never_plaintext_by_accident),
        cmocka_unit_test(load__peers__need_tls_or_leave_on_loopback),
        cmocka_unit_test(load__impossible_combinations__are_refused),
        cmocka_unit_test(batch_rule__above_the_per_instance_limit__is_refused),
        cmocka_unit_test(batch_rule__batch_times_in_flight_above__lowers_the_number),
        cmocka_unit_test(batch_rule__set_later__starts_from_what_was_asked),
        cmocka_unit_test(precedence__each_place__yields_to_the_one_above),
        cmocka_unit_test(precedence__lists__are_replaced_as_a_whole),
        cmocka_unit_test(environment__of_others__is_left_alone),
        cmocka_unit_test(environment__a_slip__is_noted_and_a_bad_value_refused),
        cmocka_unit_test(file__comments_blanks_and_repeats__are_read),
        cmocka_unit_test(file__bad_lines__are_refused_with_their_number),
        cmocka_unit_test(file__that_is_no_text_or_no_file__is_refused),
        cmocka_unit_test(file__any_bytes__never_break_the_parser),
        cmocka_unit_test(load__control_bytes_in_a_value__do_not_reach_the_reason),
        cmocka_unit_test(print_help__every_flag__is_there_in_lines_that_fit),
        cmocka_unit_test(table__every_flag__is_whole_and_unlike_the_others),
        cmocka_unit_test(print_markdown__the_page_in_docs__is_what_it_prints),
    };
    return cmocka_run_group_tests_name("server/config", tests, open_file, remove_file);
}
