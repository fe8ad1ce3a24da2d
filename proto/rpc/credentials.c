/* TLS: the material of our side, the identity of the other one, and what a failed handshake means. */
#include "proto/rpc/rpc_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Longer than any honest chain or list of authorities. */
#define PEM_MAX_BYTES ((size_t)1 << 20)

/* The three files of one side. */
struct pem {
    char *certificate, *key, *ca;
};

/* What one server has been given. gRPC asks for it at each handshake, as long as it lives. */
struct fetch {
    struct fetch *next;
    struct kvf_rpc_tls *tls;
    uint64_t version;
};

/* `lock` keeps pem, version and the fetches' versions: gRPC's threads read them. */
struct kvf_rpc_tls {
    pthread_mutex_t lock;
    struct pem pem;
    uint64_t version; /* rises with each reload */
    struct fetch *fetches;
    struct rpc_certificate about; /* ours */
    char *certificate_path, *key_path, *ca_path;
};

/* A file as a string, to be freed; NULL with errno when it cannot be read. */
static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = malloc(PEM_MAX_BYTES + 1);
    size_t length = 0;
    ssize_t got = text != NULL ? 1 : -1;
    while (got > 0 && length < PEM_MAX_BYTES) {
        got = read(fd, text + length, PEM_MAX_BYTES - length);
        if (got > 0)
            length += (size_t)got;
    }
    int error = got < 0 ? errno : EFBIG;
    (void)close(fd);
    if (got == 0) {
        text[length] = '\0';
        return text;
    }
    free(text);
    errno = error;
    return NULL;
}

static void pem_release(struct pem *pem)
{
    free(pem->certificate);
    free(pem->ca);
    if (pem->key != NULL)
        explicit_bzero(pem->key, strlen(pem->key));
    free(pem->key);
}

static struct kvf_status read_pem(const char *path, const char *what, char **give,
                                  struct kvf_why *why)
{
    *give = read_file(path);
    if (*give == NULL)
        return kvf_why_set(why, rpc_fail(KVF_INVALID, errno),
                           "cannot read the %s %s: %s: name a file that this user can read", what,
                           path, strerror(errno));
    if (strstr(*give, "-----BEGIN ") == NULL)
        return kvf_why_set(why, rpc_fail(KVF_INVALID, 0),
                           "the %s %s is not a PEM file: give one that begins with -----BEGIN",
                           what, path);
    return kvf_ok();
}

static struct kvf_status pem_read(const struct kvf_rpc_tls_files *files, struct pem *pem,
                                  struct kvf_why *why)
{
    *pem = (struct pem){0};
    struct kvf_status status =
        read_pem(files->certificate_path, "certificate", &pem->certificate, why);
    if (kvf_is_ok(status))
        status = read_pem(files->key_path, "key", &pem->key, why);
    if (kvf_is_ok(status))
        status = read_pem(files->ca_path, "list of authorities", &pem->ca, why);
    if (!kvf_is_ok(status))
        pem_release(pem);
    return status;
}

/* ---- our side ---- */

static grpc_ssl_server_certificate_config *server_config(const struct pem *pem)
{
    grpc_ssl_pem_key_cert_pair pair = {.private_key = pem->key, .cert_chain = pem->certificate};
    return grpc_ssl_server_certificate_config_create(pem->ca, &pair, 1);
}

/* gRPC would find out only when a port is opened, and then say nothing. */
static struct kvf_status read_and_check(const struct kvf_rpc_tls_files *files, struct pem *pem,
                                        struct rpc_certificate *about, struct kvf_why *why)
{
    const char *wrong = NULL, *path = NULL;
    KVF_TRY(pem_read(files, pem, why));
    if (!rpc_certificate_read(pem->certificate, about))
        wrong = "holds no certificate", path = files->certificate_path;
    else if (!rpc_certificate_has_key(pem->certificate, pem->key))
        wrong = "is not the key of the certificate", path = files->key_path;
    else if (!rpc_certificate_read(pem->ca, &(struct rpc_certificate){0}))
        wrong = "holds no certificate", path = files->ca_path;
    if (wrong == NULL)
        return kvf_ok();
    pem_release(pem);
    return kvf_why_set(why, rpc_fail(KVF_INVALID, 0), "%s %s: give files that go together", path,
                       wrong);
}

static bool copy_paths(struct kvf_rpc_tls *tls, const struct kvf_rpc_tls_files *files)
{
    tls->certificate_path = strdup(files->certificate_path);
    tls->key_path = strdup(files->key_path);
    tls->ca_path = strdup(files->ca_path);
    return tls->certificate_path != NULL && tls->key_path != NULL && tls->ca_path != NULL;
}

struct kvf_status kvf_rpc_tls_open(const struct kvf_rpc_tls_files *files, struct kvf_rpc_tls **give,
                                   struct kvf_why *why)
{
    struct kvf_rpc_tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL)
        return rpc_fail(KVF_NO_MEMORY, 0);
    (void)pthread_mutex_init(&tls->lock, NULL);
    struct kvf_status status =
        copy_paths(tls, files) ? kvf_rpc_tls_reload(tls, why) : rpc_fail(KVF_NO_MEMORY, 0);
    if (!kvf_is_ok(status)) {
        kvf_rpc_tls_close(tls);
        return status;
    }
    *give = tls;
    return status;
}

struct kvf_status kvf_rpc_tls_reload(struct kvf_rpc_tls *tls, struct kvf_why *why)
{
    struct kvf_rpc_tls_files files = {tls->certificate_path, tls->key_path, tls->ca_path};
    struct pem pem;
    KVF_TRY(read_and_check(&files, &pem, &tls->about, why));
    (void)pthread_mutex_lock(&tls->lock);
    struct pem old = tls->pem;
    tls->pem = pem;
    tls->version++;
    (void)pthread_mutex_unlock(&tls->lock);
    pem_release(&old);
    return kvf_ok();
}

bool kvf_rpc_tls_describe(const struct kvf_rpc_tls *tls, struct kvf_why *text)
{
    const struct rpc_certificate *about = &tls->about;
    bool good = about->uri_count == 1 && about->seconds_left > 0;
    const char *names = about->uri_count == 0   ? "no URI SAN"
                        : about->uri_count == 1 ? "identity "
                                                : "more than one URI SAN, first ";
    (void)kvf_why_set(text, kvf_ok(), "our certificate has %s%s, %s %s%s", names, about->uri,
                      about->seconds_left > 0 ? "good until" : "expired", about->until,
                      good ? "" : ": every peer will refuse it");
    return good;
}

void kvf_rpc_tls_close(struct kvf_rpc_tls *tls)
{
    if (tls == NULL)
        return;
    while (tls->fetches != NULL) {
        struct fetch *fetch = tls->fetches;
        tls->fetches = fetch->next;
        free(fetch);
    }
    pem_release(&tls->pem);
    free(tls->certificate_path);
    free(tls->key_path);
    free(tls->ca_path);
    (void)pthread_mutex_destroy(&tls->lock);
    free(tls);
}

/* At each handshake, on any thread of gRPC. */
static grpc_ssl_certificate_config_reload_status
fetch_config(void *user_data, grpc_ssl_server_certificate_config **config)
{
    struct fetch *fetch = user_data;
    struct kvf_rpc_tls *tls = fetch->tls;
    (void)pthread_mutex_lock(&tls->lock);
    bool fresh = fetch->version != tls->version;
    if (fresh)
        *config = server_config(&tls->pem);
    fetch->version = tls->version;
    (void)pthread_mutex_unlock(&tls->lock);
    return fresh ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                 : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
}

grpc_channel_credentials *rpc_credentials_client(struct kvf_rpc_tls *tls)
{
    if (tls == NULL)
        return grpc_insecure_credentials_create();
    grpc_ssl_pem_key_cert_pair pair = {.private_key = tls->pem.key,
                                       .cert_chain = tls->pem.certificate};
    return grpc_ssl_credentials_create(tls->pem.ca, &pair, NULL, NULL);
}

grpc_server_credentials *rpc_credentials_server(struct kvf_rpc_tls *tls)
{
    if (tls == NULL)
        return grpc_insecure_server_credentials_create();
    struct fetch *fetch = calloc(1, sizeof(*fetch));
    if (fetch == NULL)
        return NULL;
    *fetch = (struct fetch){.next = tls->fetches, .tls = tls};
    tls->fetches = fetch;
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, fetch_config, fetch));
}

/* ---- the other side ---- */

/* Of processes on this host, by their user id: a certificate must not pass for one. */
#define LOCAL_PREFIX "uid:"

/* NULL: it is one. A byte beside those that are printed would make two names look like one. */
static const char *fault_of(const grpc_auth_property *uri)
{
    for (size_t i = 0; i < uri->value_length; i++)
        if (uri->value[i] < 0x21 || uri->value[i] > 0x7e)
            return "the URI SAN of its certificate has a byte that no URI has";
    if (uri->value_length == 0)
        return "the URI SAN of its certificate is empty";
    if (strncmp(uri->value, LOCAL_PREFIX, strlen(LOCAL_PREFIX)) == 0)
        return "the URI SAN of its certificate begins with uid:, which only local processes have";
    return NULL;
}

char *rpc_credentials_identity(grpc_call *call, const char **fault)
{
    *fault =
        "its certificate has no URI SAN: an identity is the one URI SAN, a common name is none";
    grpc_auth_context *context = grpc_call_auth_context(call);
    if (context == NULL)
        return NULL;
    char *identity = NULL;
    grpc_auth_property_iterator each =
        grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
    const grpc_auth_property *uri = grpc_auth_property_iterator_next(&each);
    if (uri != NULL && grpc_auth_property_iterator_next(&each) != NULL)
        *fault = "its certificate has more than one URI SAN: an identity is the only one";
    else if (uri != NULL)
        *fault = fault_of(uri);
    if (*fault == NULL)
        identity = strndup(uri->value, uri->value_length);
    if (*fault == NULL && identity == NULL)
        *fault = "out of memory";
    grpc_auth_context_release(context);
    return identity;
}

/* ---- words ---- */

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

const char *rpc_credentials_explain(const char *text, bool tls, bool heard)
{
    if (has(text, "certificate verify failed"))
        return "we refused the other side's certificate: it is expired or not valid yet, or none "
               "of our authorities "
               "has signed it";
    if (has(text, "peer did not return a certificate"))
        return "we refused the other side: it showed no certificate";
    if (has(text, "wrong version number") || has(text, "http request") ||
        has(text, "packet length too long") || has(text, "unexpected message"))
        return "we refused the other side: it does not speak TLS";
    if (has(text, "Peer name") && has(text, "is not in peer certificate"))
        return "we refused the other side: its certificate does not carry the name or address that "
               "was dialled";
    if (heard ||
        !(has(text, "Socket closed") || has(text, "reset by peer") || has(text, "Broken pipe") ||
          has(text, "SETTINGS") || has(text, "Ssl handshake failed")))
        return NULL;
    if (!tls)
        return "the peer closed the connection at once: it may want TLS where we speak plaintext";
    return "the peer closed the connection during the TLS handshake: our certificate may be "
           "expired, or signed by an "
           "authority that the peer does not know, or the peer speaks no TLS; its log says which";
}
