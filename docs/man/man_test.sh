#!/usr/bin/env bash
# The pages are sound roff and complete: every flag, command and main function is in its page, and the version is the one there is.
set -uo pipefail
wrong=0
complain() {
    echo "man_test: $*" >&2
    wrong=1
}
export LC_ALL=C.UTF-8 MANWIDTH=100
declare -A text
version=$(sed -n 's/^#define KVF_VERSION "\(.*\)"$/\1/p' base/version.h)
for page in docs/man/kvferry.1 docs/man/kvferry.3 docs/man/kvferryd.8; do
    said=$(groff -ww -man -Tutf8 -z "$page" 2>&1) && [ -z "$said" ] || complain "$page: groff says: $said"
    # Without hyphenation, and each run of blanks as one.
    text[$page]=$(groff -man -Tascii -P-c -rHY=0 -rLL=100n "$page" | sed 's/.\x08//g' | tr -s ' ')
    grep -q "kvferry $version" "$page" || complain "$page does not name version $version"
done
names() { # page, word...: they must be there
    local page=$1 word
    shift
    [ $# -gt 5 ] || complain "$page: only $# words to look for"
    for word in "$@"; do
        grep -qF -- "$word" <<<"${text[$page]}" || complain "$page does not name $word"
    done
}
# shellcheck disable=SC2046
names docs/man/kvferryd.8 $(grep -o '^| `--[a-z-]*' docs/flags.md | cut -c4-)
# shellcheck disable=SC2046
names docs/man/kvferry.1 $(client/cli/kvferry --help 2>&1 | awk '/^  [a-z]/ { print $1 }')
# shellcheck disable=SC2046
names docs/man/kvferry.3 $(grep -oh '^kvf_[a-z_]*(\|kvf_\(client\|put\|get\|engine\|copy\|device\)_\(open\|close\|begin\|commit\|abort\|release\|submit\|run\|cancel\|next\|start\|wait\|pin\)\b' \
    client/kvferry.h client/device/device.h | tr -d '(' | sort -u)
exit $wrong
