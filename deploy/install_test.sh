#!/usr/bin/env bash
# What deploy/install puts there is complete: an engine builds against it with pkg-config alone and runs, from C and C++; the library shows what
# the headers declare and nothing else.
#
#   install_test.sh (in a tree that has what deploy/install takes, built, under --bin's layout)
set -euo pipefail
to=$TEST_TMPDIR/root
rm -rf "$to"
deploy/install --prefix /opt/kvferry --destdir "$to" --bin .
fail() {
    echo "install_test: $*" >&2
    exit 1
}

# Without --destdir it is used from there: the loader is told, and if it does not look there, so is whoever installs.
mkdir -p "$TEST_TMPDIR/stub"
printf '#!/bin/sh\n[ "${1:-}" = -p ] && cat "$LISTED" || : >"$LISTED.made"\n' >"$TEST_TMPDIR/stub/ldconfig"
chmod +x "$TEST_TMPDIR/stub/ldconfig"
export LISTED=$TEST_TMPDIR/listed
for line in "" "libkvferry.so.0 => $TEST_TMPDIR/here/lib/libkvferry.so.0"; do
    echo "$line" >"$LISTED"
    said=$(PATH=$TEST_TMPDIR/stub:$PATH deploy/install --prefix "$TEST_TMPDIR/here" --bin . 2>&1)
    [ "$(id -u)" -ne 0 ] || [ -e "$LISTED.made" ] || fail "the loader was not told"
    case "$line:$said" in
    :*"does not look in"*) ;;
    ?*:) ;;
    *) fail "with '$line' in the loader's cache, install said: $said" ;;
    esac
done

root=$to/opt/kvferry
nm -D "$root/lib/libkvferry.so" >"$TEST_TMPDIR/symbols"
if grep -q __.san_ "$TEST_TMPDIR/symbols"; then
    echo "a library under a sanitizer is loaded by programs under the same one only: installed, not tried"
    exit 0
fi
export PKG_CONFIG_PATH=$root/lib/pkgconfig
define="--define-variable=prefix=$root"
cat >"$TEST_TMPDIR/engine.c" <<'C'
#include <kvferry.h>
#include <client/device/device.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    struct kvf_engine_options options;
    struct kvf_device_options host;
    struct kvf_engine *engine = NULL;
    struct kvf_device *device = NULL;
    struct kvf_why why;
    memset(&options, 0, sizeof(options));
    memset(&host, 0, sizeof(host));
    options.socket_path = "/nonexistent/engine.sock";
    if (!kvf_is_ok(kvf_device_open(&host, &device, &why)) || !kvf_is_ok(kvf_engine_open(&options, &engine, &why)))
        return 1;
    printf("%s %s\n", kvf_library_version(), kvf_code_name(kvf_engine_wait_up(engine, 1, &why).code));
    kvf_engine_close(engine);
    kvf_device_close(device);
    return 0;
}
C
cp "$TEST_TMPDIR/engine.c" "$TEST_TMPDIR/engine.cc"
for language in c cc; do
    compiler=$([ $language = c ] && echo "gcc -std=gnu17" || echo "g++ -std=c++17")
    # shellcheck disable=SC2046,SC2086
    $compiler -Wall -Wextra -Werror $(pkg-config "$define" --cflags kvferry) -o "$TEST_TMPDIR/engine-$language" "$TEST_TMPDIR/engine.$language" \
        $(pkg-config "$define" --libs kvferry)
    said=$(LD_LIBRARY_PATH=$root/lib "$TEST_TMPDIR/engine-$language")
    [ "$said" = "$(pkg-config --modversion kvferry) DEADLINE" ] || fail "an engine in $language said: $said"
done

# shellcheck disable=SC2046
gcc -std=c17 -Wall -Wextra -Werror -o "$TEST_TMPDIR/prefill_decode" client/examples/prefill_decode.c \
    $(pkg-config "$define" --cflags --libs kvferry)

objdump -p "$root/lib/libkvferry.so" >"$TEST_TMPDIR/parts"
grep -q 'SONAME.*libkvferry\.so\.0$' "$TEST_TMPDIR/parts" || fail "no soname"
nm -D --defined-only "$root/lib/libkvferry.so" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort >"$TEST_TMPDIR/shown"
# A declaration ends with ");" and is not inline; what stands before "(" last is its name.
cat "$root"/include/kvferry/{base,client,client/device}/*.h | python3 -c '
import re, sys
text = re.sub(r"/\*.*?\*/", "", sys.stdin.read(), flags=re.S)
text = re.sub(r"static inline.*?^}", "", text, flags=re.S | re.M)
text = re.sub(r"^#.*?(?<!\\)$", "", text, flags=re.S | re.M)
print("\n".join(sorted(set(re.findall(r"^(?=\w)[^;{}]*?\b(kvf_\w+)\((?![*])[^;{}]*\);", text, flags=re.M)))))' >"$TEST_TMPDIR/declared"
diff "$TEST_TMPDIR/declared" "$TEST_TMPDIR/shown" || fail "the headers declare (<) something else than the library shows (>)"
[ "$(wc -l <"$TEST_TMPDIR/shown")" -gt 40 ] || fail "the library shows next to nothing"
