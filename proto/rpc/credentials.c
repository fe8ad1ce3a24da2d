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

static void pem_free(struct pem *pem)
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
        return kvf_why_set(why, rpc_fail(KVF_INVALID, errno), "cannot read the %s %s: %s", what,
                           path, strerror(errno));
    if (strstr(*give, "-----BEGIN ") == NULL)
        return kvf_why_set(why, rpc_fail(KVF_INVALID, 0), "the %s %s is not a PEM file", what,
                           path);
    return kvf_ok();
}

static struct kvf_status pem_read(const struct kvf_rpc_tls *tls, struct pem *pem,
                                  struct kvf_why *why)
{
    *pem = (struct pem){0};
    struct kvf_status status =
        read_pem(tls->certificate_path, "certificate", &pem->certificate, why);
    if (kvf_is_ok(status))
        status = read_pem(tls->key_path, "key", &pem->key, why);
    if (kvf_is_ok(status))
        status = read_pem(tls->ca_path, "list of authorities", &pem->ca, why);
    if (!kvf_is_ok(status))
        pem_free(pem);
    return status;
}

struct kvf_status rpc_credentials_client(const struct kvf_rpc_tls *tls,
                                         grpc_channel_credentials **give, struct kvf_why *why)
{
    if (tls == NULL) {
        *give = grpc_insecure_credentials_create();
        return kvf_ok();
    }
    struct pem pem;
    KVF_TRY(pem_read(tls, &pem, why));
    grpc_ssl_pem_key_cert_pair pair = {.private_key = pem.key, .cert_chain = pem.certificate};
    *give = grpc_ssl_credentials_create(pem.ca, &pair, NULL, NULL);
    pem_free(&pem);
    if (*give == NULL)
        return kvf_why_set(why, rpc_fail(KVF_INVALID, 0), "gRPC refuses the key %s", tls->key_path);
    return kvf_ok();
}

struct kvf_status rpc_credentials_server(const struct kvf_rpc_tls *tls,
                                         grpc_server_credentials **give, struct kvf_why *why)
{
    if (tls == NULL) {
        *give = grpc_insecure_server_credentials_create();
        return kvf_ok();
    }
    struct pem pem;
    KVF_TRY(pem_read(tls, &pem, why));
    grpc_ssl_pem_key_cert_pair pair = {.private_key = pem.key, .cert_chain = pem.certificate};
    *give = grpc_ssl_server_credentials_create_ex(
        pem.ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
    pem_free(&pem);
    if (*give == NULL)
        return kvf_why_set(why, rpc_fail(KVF_INVALID, 0), "gRPC refuses the key %s", tls->key_path);
    return kvf_ok();
}

char *rpc_credentials_identity(grpc_call *call)
{
    grpc_auth_context *context = grpc_call_auth_context(call);
    if (context == NULL)
        return NULL;
    char *identity = NULL;
    grpc_auth_property_iterator each =
        grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
    const grpc_auth_property *uri = grpc_auth_property_iterator_next(&each);
    /* A zero byte inside would make another name of it. */
    if (uri != NULL && grpc_auth_property_iterator_next(&each) == NULL &&
        strlen(uri->value) == uri->value_length)
        identity = strdup(uri->value);
    grpc_auth_context_release(context);
    return identity;
}
