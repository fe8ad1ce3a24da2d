#include "server/trust.h"

#include "base/log.h"

static void log_certificate(const struct kvf_trust *trust, const char *prefix)
{
    struct kvf_why text;
    bool good = kvf_rpc_tls_describe(trust->tls, &text);
    kvf_log(good ? KVF_LOG_INFO : KVF_LOG_WARNING, "trust", "%s%s", prefix, text.text);
}

/* The host kept us from reading, whatever the files say: there is an errno, or no memory. */
static bool could_not_read(struct kvf_status status)
{
    return !kvf_is_ok(status) && (status.detail != 0 || status.code == KVF_NO_MEMORY);
}

/* False: it could not be read for the same reason as before, which has been told. */
static bool is_news(struct kvf_status status, struct kvf_status *said,
                    struct kvf_files_watch *watch)
{
    bool same =
        could_not_read(status) && status.code == said->code && status.detail == said->detail;
    *said = status;
    if (could_not_read(status))
        kvf_files_watch_again(watch);
    return !same;
}

static void reload_tls(struct kvf_trust *trust, const char *reason)
{
    struct kvf_why why = {.text = ""};
    if (trust->tls == NULL)
        return;
    struct kvf_status status = kvf_rpc_tls_reload(trust->tls, &why);
    if (!is_news(status, &trust->tls_said, &trust->tls_watch))
        return;
    kvf_audit_reload(trust->audit, "tls", status);
    if (!kvf_is_ok(status)) {
        kvf_log_error("trust", "TLS stays as it was (%s): %s", reason, why.text);
        return;
    }
    (void)kvf_why_set(&why, status, "TLS read again (%s), for connections from now on: ", reason);
    log_certificate(trust, why.text);
}

static void reload_acl(struct kvf_trust *trust, const char *reason)
{
    struct kvf_why why = {.text = ""};
    if (trust->acl == NULL)
        return;
    struct kvf_status status = kvf_acl_reload(trust->acl, &why);
    if (!is_news(status, &trust->acl_said, &trust->acl_watch))
        return;
    kvf_audit_reload(trust->audit, "acl", status);
    if (!kvf_is_ok(status)) {
        kvf_log_error("trust", "rights stay as they were (%s): %s", reason, why.text);
        return;
    }
    kvf_log_info("trust", "ACL read again (%s)", reason);
    trust->options.rights_changed(trust->options.context);
}

static void tls_changed(void *context)
{
    reload_tls(context, "a file has changed");
}

static void acl_changed(void *context)
{
    reload_acl(context, "the file has changed");
}

void kvf_trust_reload(struct kvf_trust *trust, const char *reason)
{
    if (trust->tls == NULL && trust->acl == NULL)
        kvf_log_info("trust", "%s: there is neither TLS nor an ACL to read again", reason);
    trust->tls_said = trust->acl_said = kvf_ok(); /* who asks is told */
    reload_tls(trust, reason);
    reload_acl(trust, reason);
}

/* The watch first: what changes while we read is read again. */
static struct kvf_status open_tls(struct kvf_trust *trust, struct kvf_why *why)
{
    const struct kvf_rpc_tls_files *files = &trust->options.tls;
    if (files->certificate_path == NULL)
        return kvf_ok();
    trust->tls_watch = (struct kvf_files_watch){
        .loop = trust->options.loop,
        .paths = {files->certificate_path, files->key_path, files->ca_path},
        .changed = tls_changed,
        .context = trust,
    };
    kvf_files_watch_start(&trust->tls_watch);
    return kvf_rpc_tls_open(files, &trust->tls, why);
}

static struct kvf_status open_acl(struct kvf_trust *trust, struct kvf_why *why)
{
    if (trust->options.acl == NULL)
        return kvf_ok();
    trust->acl_watch = (struct kvf_files_watch){
        .loop = trust->options.loop,
        .paths = {trust->options.acl},
        .changed = acl_changed,
        .context = trust,
    };
    kvf_files_watch_start(&trust->acl_watch);
    return kvf_acl_open(trust->options.acl, &trust->acl, why);
}

struct kvf_status kvf_trust_open(struct kvf_trust *trust, const struct kvf_trust_options *options,
                                 struct kvf_why *why)
{
    trust->options = *options;
    KVF_TRY(kvf_audit_create(options->loop, NULL, NULL, &trust->audit));
    KVF_TRY(open_tls(trust, why));
    return open_acl(trust, why);
}

void kvf_trust_log(const struct kvf_trust *trust)
{
    if (trust->tls != NULL)
        log_certificate(trust, "");
    if (trust->acl == NULL)
        kvf_log_warning("trust", "no ACL: any tenant name is accepted, and all who reach this node "
                                 "share one pool and one trust");
}

void kvf_trust_close(struct kvf_trust *trust)
{
    kvf_files_watch_stop(&trust->tls_watch);
    kvf_files_watch_stop(&trust->acl_watch);
    kvf_audit_destroy(trust->audit);
    kvf_acl_close(trust->acl);
    kvf_rpc_tls_close(trust->tls);
}
