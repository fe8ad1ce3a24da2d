/* Certificates and keys as PEM texts. gRPC reads them, too, but tells nobody what it thinks of them. */
#include "proto/rpc/rpc_internal.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static X509 *first_certificate(const char *pem)
{
    BIO *text = BIO_new_mem_buf(pem, -1);
    X509 *certificate = text != NULL ? PEM_read_bio_X509(text, NULL, NULL, NULL) : NULL;
    BIO_free(text);
    return certificate;
}

static void read_names(X509 *certificate, struct rpc_certificate *give)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_URI)
            continue;
        const ASN1_IA5STRING *uri = name->d.uniformResourceIdentifier;
        if (give->uri_count++ == 0)
            (void)snprintf(give->uri, sizeof(give->uri), "%.*s", ASN1_STRING_length(uri),
                           (const char *)ASN1_STRING_get0_data(uri));
    }
    GENERAL_NAMES_free(names);
}

static void read_end(const X509 *certificate, struct rpc_certificate *give)
{
    struct tm end;
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1)
        return;
    give->seconds_left = (int64_t)timegm(&end) - (int64_t)time(NULL);
    (void)strftime(give->until, sizeof(give->until), "%Y-%m-%dT%H:%M:%SZ", &end);
}

bool rpc_certificate_read(const char *pem, struct rpc_certificate *give)
{
    X509 *certificate = first_certificate(pem);
    if (certificate == NULL)
        return false;
    *give = (struct rpc_certificate){0};
    read_names(certificate, give);
    read_end(certificate, give);
    X509_free(certificate);
    return true;
}

/* Without it OpenSSL would ask the terminal for the pass phrase of an encrypted key. */
static int no_phrase(char *buffer, int room, int writing, void *user)
{
    (void)buffer;
    (void)room;
    (void)writing;
    (void)user;
    return 0;
}

bool rpc_certificate_has_key(const char *pem, const char *key_pem)
{
    X509 *certificate = first_certificate(pem);
    BIO *text = BIO_new_mem_buf(key_pem, -1);
    EVP_PKEY *key = text != NULL ? PEM_read_bio_PrivateKey(text, NULL, no_phrase, NULL) : NULL;
    bool fits = certificate != NULL && key != NULL && X509_check_private_key(certificate, key) == 1;
    EVP_PKEY_free(key);
    BIO_free(text);
    X509_free(certificate);
    return fits;
}
