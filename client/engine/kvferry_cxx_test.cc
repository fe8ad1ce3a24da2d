// kvferry.h from C++: it compiles, and its functions link under their C names.
#include "client/kvferry.h"

#include <cstdio>

int main()
{
    kvf_client_options options = {};
    options.socket_path = "/nonexistent/engine.sock";
    kvf_client *client = nullptr;
    kvf_why why = {};
    kvf_key key = {};
    kvf_status status = kvf_client_open(&options, &client, &why);
    if (status.code != KVF_UNAVAILABLE || client != nullptr || !kvf_key_set(&key, "k", 1) ||
        !kvf_namespace_is_valid("tenant/fingerprint")) {
        std::fprintf(stderr, "%s: %s\n", kvf_code_name(status.code), why.text);
        return 1;
    }
    return kvf_is_ok(kvf_client_close(client)) ? 0 : 1;
}
