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
    "life=2\n"
    "sign() { # NAME AUTHORITY NAMES\n"
    "  openssl $new -subj /CN=$1 -keyout $1.key -out $1.csr\n"
    "  printf 'subjectAltName=%s\\n' \"$3\" > $1.ext\n"
    "  openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -CAcreateserial -days $life \\\n"
    "    -extfile $1.ext -out $1.crt; }\n"
    "authority ca; authority other\n"
    "sign server ca IP:127.0.0.1,DNS:localhost,URI:spiffe://x/a\n"
    "sign client ca URI:spiffe://x/b\n"
    "sign two ca URI:spiffe://x/b,URI:spiffe://x/c\n"
    "sign none ca DNS:b\n"
    "sign stranger other IP:127.0.0.1,URI:spiffe://x/b\n"
    "sign elsewhere ca DNS:elsewhere,URI:spiffe://x/a\n"
    "sign local ca URI:uid:1000\n"
    "sign noname ca IP:127.0.0.1\n"
    "sign again ca IP:127.0.0.1,URI:spiffe://x/later\n"
    "life=-1; sign expired ca IP:127.0.0.1,URI:spiffe://x/b\n"
    "cp server.crt now.crt; cp server.key now.key\n";

/* One side's material; closed when the test's gRPC is gone. */
struct files {
    char certificate[64], key[64], ca[64];
    struct kvf_rpc_tls_files paths;
    struct kvf_rpc_tls *tls;
};

static struct files of_server, of_client;

static const struct kvf_rpc_tls_files *name_files(struct files *files, const char *name,
                                                  const char *ca)
{
    (void)snprintf(files->certificate, sizeof(files->certificate), "%s/%s.crt", folder, name);
    (void)snprintf(files->key, sizeof(files->key), "%s/%s.key", folder, name);
    (void)snprintf(files->ca, sizeof(files->ca), "%s/%s.crt", folder, ca);
    files->paths = (struct kvf_rpc_tls_files){
        .certificate_path = files->certificate, .key_path = files->key, .ca_path = files->ca};
    return &files->paths;
}

static struct kvf_rpc_tls *of(struct files *files, const char *name, const char *ca)
{
    struct kvf_why why = {0};
    if (!kvf_is_ok(kvf_rpc_tls_open(name_files(files, name, ca), &files->tls, &why)))
        fail_msg("%s", why.text);
    return files->tls;
}

static int close_files(void **state)
{
    int result = tear_down(state);
    kvf_rpc_tls_close(of_server.tls);
    kvf_rpc_tls_close(of_client.tls);
    of_server.tls = of_client.tls = NULL;
    return result;
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
    listen_at("127.0.0.1:0", of(&of_server, server_name, "ca"));
    dial_server("127.0.0.1", client != NULL ? of(&of_client, client, client_ca) : NULL);
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

/* Its handshake is fine, but it is nobody: no method hears of the call. */
static void assert_nobody(const struct record *client, const char *reason)
{
    assert_code(client->status, KVF_DENIED);
    assert_int_equal(served_count, 0);
    assert_non_null(strstr(client->text, reason));
}

static void call__client_with_two_uris__refused_with_the_reason(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "two", "ca");
    assert_nobody(&client, "more than one URI SAN");
}

static void call__client_with_a_common_name_only__refused_with_the_reason(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "none", "ca");
    assert_nobody(&client, "no URI SAN");
}

static void call__client_that_calls_itself_a_local_user__refused_with_the_reason(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "local", "ca");
    assert_nobody(&client, "uid:");
}

static void call__server_without_identity__its_answer_is_not_heard(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "noname", "client", "ca");
    assert_code(client.status, KVF_DENIED);
    assert_int_equal(client.messages, 0);
    assert_non_null(strstr(client.text, "no URI SAN"));
}

/* The handshake fails; the client learns what it can know. */
static void assert_refused(const struct record *client, const char *words)
{
    assert_code(client->status, KVF_UNAVAILABLE);
    assert_int_equal(served_count, 0);
    if (strstr(client->text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", client->text, words);
}

static void call__client_of_another_authority__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "stranger", "ca");
    assert_refused(&client, "closed the connection during the TLS handshake");
}

static void call__expired_client__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", "expired", "ca");
    assert_refused(&client, "closed the connection during the TLS handshake");
}

static void call__expired_server__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "expired", "client", "ca");
    assert_refused(&client, "expired");
}

static void call__client_without_tls__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "server", NULL, NULL);
    assert_refused(&client, "it may want TLS");
}

static void call__server_of_another_authority__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "stranger", "client", "ca");
    assert_refused(&client, "none of our authorities");
}

static void call__server_under_another_name__refused(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    call_as(&client, "elsewhere", "client", "ca");
    assert_refused(&client, "name or address that was dialled");
}

static void open__files_that_are_none__say_which(void **state)
{
    (void)state;
    struct kvf_rpc_tls_files files = {
        .certificate_path = "/nonexistent/c", .key_path = "/etc/passwd", .ca_path = "/etc/passwd"};
    struct kvf_why why = {0};
    struct kvf_rpc_tls *none = NULL;
    assert_code(kvf_rpc_tls_open(&files, &none, &why), KVF_INVALID);
    assert_non_null(strstr(why.text, "/nonexistent/c"));
    assert_non_null(strstr(why.text, "name a file"));
    files.certificate_path = "/etc/passwd";
    assert_code(kvf_rpc_tls_open(&files, &none, &why), KVF_INVALID);
    assert_non_null(strstr(why.text, "not a PEM file"));
    assert_null(none);
}

static void open__key_of_another_certificate__says_so(void **state)
{
    (void)state;
    need_openssl();
    struct files files, other;
    struct kvf_rpc_tls_files paths = *name_files(&files, "server", "ca");
    paths.key_path = name_files(&other, "client", "ca")->key_path;
    struct kvf_why why = {0};
    struct kvf_rpc_tls *none = NULL;
    assert_code(kvf_rpc_tls_open(&paths, &none, &why), KVF_INVALID);
    assert_non_null(strstr(why.text, "client.key"));
}

static void assert_describes(const char *name, const char *words)
{
    struct kvf_why text = {0};
    bool good = kvf_rpc_tls_describe(of(&of_client, name, "ca"), &text);
    assert_int_equal(good, strcmp(name, "client") == 0);
    kvf_rpc_tls_close(of_client.tls);
    of_client.tls = NULL;
    if (strstr(text.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text.text, words);
}

static void describe__each_certificate__says_whether_peers_will_take_it(void **state)
{
    (void)state;
    need_openssl();
    assert_describes("client", "identity spiffe://x/b, good until 20");
    assert_describes("two", "more than one URI SAN");
    assert_describes("none", "no URI SAN");
    assert_describes("none", "every peer will refuse it");
    assert_describes("expired", "expired");
    assert_describes("expired", "every peer will refuse it");
}

/* ---- reload ---- */

static void copy(const char *what, const char *to)
{
    char script_text[200];
    (void)snprintf(script_text, sizeof(script_text), "cp \"$1\"/%s \"$1\"/%s", what, to);
    assert_int_equal(run_shell(script_text), 0);
}

/* Who the server of a fresh connection is. */
static void assert_server_is(const char *identity)
{
    struct record client;
    kvf_rpc_channel_close(channel);
    channel = NULL;
    dial_server("127.0.0.1", of_client.tls);
    start_call(&client, "/kvferry.Test/Call", 10000);
    say(&client, "who");
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1);
    run_until(served_closed == served_count);
    assert_code(client.status, KVF_OK);
    assert_string_equal(client.identity, identity);
}

static void reload__other_certificate__next_connections_see_it(void **state)
{
    (void)state;
    need_openssl();
    struct record before;
    copy("server.crt", "now.crt");
    copy("server.key", "now.key");
    call_as(&before, "now", "client", "ca");
    assert_code(before.status, KVF_OK);
    assert_string_equal(before.identity, "spiffe://x/a");
    copy("again.crt", "now.crt");
    assert_server_is("spiffe://x/a");
    /* Half of a change does not count. */
    struct kvf_why why = {0};
    assert_code(kvf_rpc_tls_reload(of_server.tls, &why), KVF_INVALID);
    assert_non_null(strstr(why.text, "now.key"));
    assert_server_is("spiffe://x/a");
    copy("again.key", "now.key");
    assert_code(kvf_rpc_tls_reload(of_server.tls, &why), KVF_OK);
    assert_server_is("spiffe://x/later");
}

static void reload__under_an_open_call__it_goes_on(void **state)
{
    (void)state;
    need_openssl();
    struct record client;
    listen_at("127.0.0.1:0", of(&of_server, "server", "ca"));
    dial_server("127.0.0.1", of(&of_client, "client", "ca"));
    script = (struct script){.echo = true, .finish_on_half_close = true};
    start_call(&client, "/kvferry.Test/Call", 10000);
    say(&client, "one");
    run_until(client.messages == 1);
    assert_code(kvf_rpc_tls_reload(of_server.tls, NULL), KVF_OK);
    assert_code(kvf_rpc_tls_reload(of_client.tls, NULL), KVF_OK);
    say(&client, "two");
    run_until(client.messages == 2);
    kvf_rpc_call_half_close(client.call);
    run_until(client.closes == 1);
    run_until(served_closed == served_count);
    assert_code(client.status, KVF_OK);
}

#define TLS_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_bare, close_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TLS_TEST(call__both_certified__each_knows_the_other),
        TLS_TEST(call__client_with_two_uris__refused_with_the_reason),
        TLS_TEST(call__client_with_a_common_name_only__refused_with_the_reason),
        TLS_TEST(call__client_that_calls_itself_a_local_user__refused_with_the_reason),
        TLS_TEST(call__server_without_identity__its_answer_is_not_heard),
        TLS_TEST(call__client_of_another_authority__refused),
        TLS_TEST(call__expired_client__refused),
        TLS_TEST(call__expired_server__refused),
        TLS_TEST(call__client_without_tls__refused),
        TLS_TEST(call__server_of_another_authority__refused),
        TLS_TEST(call__server_under_another_name__refused),
        TLS_TEST(open__files_that_are_none__say_which),
        TLS_TEST(open__key_of_another_certificate__says_so),
        TLS_TEST(describe__each_certificate__says_whether_peers_will_take_it),
        TLS_TEST(reload__other_certificate__next_connections_see_it),
        TLS_TEST(reload__under_an_open_call__it_goes_on),
    };
    return cmocka_run_group_tests_name("rpc_credentials", tests, make_files, remove_files);
}
