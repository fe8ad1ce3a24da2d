/* Mutual TLS with a throw-away authority. Where there is no openssl command the tests skip. */
#include "proto/rpc/rpc.h"
#include "proto/rpc/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/kvf-tls-XXXXXX";
static bool has_openssl;

/* One key and certificate each; what they are called says who signed them and which names they
 * carry. */
static const char make_all[] =
    "cd \"$1\" || exit 1; exec >make.log 2>&1; set -e\n"
    "new=\"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes\"\n"
    "authority() { openssl $new -x509 -days 2 -subj /CN=$1 -keyout $1.key -out $1.crt; }\n"
    "sign() { # NAME AUTHORITY NAMES\n"
    "  openssl $new -subj /CN=$1 -keyout $1.key -out $1.csr\n"
    "  printf 'subjectAltName=%s\\n' \"$3\" > $1.ext\n"
    "  openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -CAcreateserial -days 2 \\\n"
    "    -extfile $1.ext -out $1.crt; }\n"
    "authority ca; authority other\n"
    "sign server ca IP:127.0.0.1,DNS:localhost,URI:spiffe://x/a\n"
    "sign client ca URI:spiffe://x/b\n"
    "sign two ca URI:spiffe://x/b,URI:spiffe://x/c\n"
    "sign none ca DNS:b\n"
    "sign stranger other IP:127.0.0.1,URI:spiffe://x/b\n"
    "sign elsewhere ca DNS:elsewhere,URI:spiffe://x/a\n";

struct files {
    char certificate[64], key[64], ca[64];
    struct kvf_rpc_tls tls;
};

static const struct kvf_rpc_tls *of(struct files *files, const char *name, const char *ca)
{
    (void)snprintf(files->certificate, sizeof(files->certificate), "%s/%s.crt", folder, name);
    (void)snprintf(files->key, sizeof(files->key), "%s/%s.key", folder, name);
    (void)snprintf(files->ca, sizeof(files->ca), "%s/%s.crt", folder, ca);
    files->tls = (struct kvf_rpc_tls){
        .certificate_path = files->certificate, .key_path = files->key, .ca_path = files->ca};
    return &files->tls;
}

static int run_shell(const char *script_text)
{
    char command[4096];
    (void)snprintf(command, sizeof(command), "set -- %s\n%s", folder, script_text);
    return system(command);
}

static int make_files(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    has_openssl = system("command -v openssl >/dev/null") == 0;
    return has_openssl ? run_shell(make_all) : 0;
}

static int remove_files(void **state)
{
    (void)state;
    return run_shell("rm -rf \"$1\"");
}

static void need_openssl(void)
{
    if (!has_openssl)
        skip();
}

/* A call of `client` (NULL: plaintext) to a server that is `server_name`; ends when both sides have
 * ended. */
static void call_as(struct record *record, const char *server_name, const char *client,
                    const char *client_ca)
{
    struct files server_files, client_files;
    listen_at("127.0.0.1:0", of(&server_files, server_name, "ca"));
    dial_server("127.0.0.1", client != NULL ? of(&client_files, client, client_ca) : NULL);
    script = (struct script){.echo = true, .finish_on_half_close = true};
    start_call(record, "/kvferry.Test/Call", 10000);
    say(record, "secret");
    kvf_rpc_call_half_close(record->call);
    run_until(record->closes == 1);
    run_until(served_closed == served_count);
}

static void call__both_certified__each_knows_the_other(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "client", "ca");
    assert_code(client.status, KVF_OK);
    assert_string_equal(client.last, "secret");
    assert_string_equal(client.identity, "spiffe://x/a");
    assert_int_equal(served_count, 1);
    assert_string_equal(served[0].identity, "spiffe://x/b");
}

static void call__two_uris__no_identity(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "two", "ca");
    assert_code(client.status, KVF_OK);
    assert_string_equal(served[0].identity, "");
}

static void call__no_uri__no_identity(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "none", "ca");
    assert_code(client.status, KVF_OK);
    assert_string_equal(served[0].identity, "");
}

static void assert_refused(const struct record *client)
{
    assert_code(client->status, KVF_UNAVAILABLE);
    assert_int_equal(served_count, 0);
}

static void call__client_of_another_authority__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "stranger", "ca");
    assert_refused(&client);
}

static void call__client_without_tls__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", NULL, NULL);
    assert_refused(&client);
}

static void call__server_of_another_authority__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "stranger", "client", "ca");
    assert_refused(&client);
}

static void call__server_under_another_name__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "elsewhere", "client", "ca");
    assert_refused(&client);
}

static void start__files_that_are_none__say_which(void **state)
{
    (void)state;
    struct kvf_rpc_tls tls = {
        .certificate_path = "/nonexistent/c", .key_path = "/etc/passwd", .ca_path = "/etc/passwd"};
    struct kvf_why why = {0};
    struct kvf_rpc_server *no_server = NULL;
    struct kvf_rpc_channel *no_channel = NULL;
    assert_code(kvf_rpc_server_start(rpc, "127.0.0.1:0", &tls, methods, 2, &no_server, &why),
                KVF_INVALID);
    assert_non_null(strstr(why.text, "/nonexistent/c"));
    assert_code(kvf_rpc_channel_open(rpc, "127.0.0.1:1", &tls, &no_channel, &why), KVF_INVALID);
    tls.certificate_path = "/etc/passwd";
    assert_code(kvf_rpc_server_start(rpc, "127.0.0.1:0", &tls, methods, 2, &no_server, &why),
                KVF_INVALID);
    assert_non_null(strstr(why.text, "not a PEM file"));
}

static void start__key_of_another_certificate__says_so(void **state)
{
    (void)state;
    need_openssl();
    struct files files, other;
    struct kvf_rpc_tls tls = *of(&files, "server", "ca");
    tls.key_path = of(&other, "client", "ca")->key_path;
    struct kvf_why why = {0};
    struct kvf_rpc_server *no_server = NULL;
    assert_code(kvf_rpc_server_start(rpc, "127.0.0.1:0", &tls, methods, 2, &no_server, &why),
                KVF_INVALID);
    assert_non_null(strstr(why.text, "client.key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BARE_TEST(call__both_certified__each_knows_the_other),
        BARE_TEST(call__two_uris__no_identity),
        BARE_TEST(call__no_uri__no_identity),
        BARE_TEST(call__client_of_another_authority__refused),
        BARE_TEST(call__client_without_tls__refused),
        BARE_TEST(call__server_of_another_authority__refused),
        BARE_TEST(call__server_under_another_name__refused),
        BARE_TEST(start__files_that_are_none__say_which),
        BARE_TEST(start__key_of_another_certificate__says_so),
    };
    return cmocka_run_group_tests_name("rpc_credentials", tests, make_files, remove_files);
}
