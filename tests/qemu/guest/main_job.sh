# The main job between two hosts, for main_job_tcp and main_job_verbs: a puts blocks and keeps them on its drive, b pulls
# them and compares every byte. Source it behind lib.sh. COUNTER is what each of them counts its Reads by.

NINE_MIB=9437184
ODD="1 4095 4097 1124352"
# Reads of 128 MiB from a small pool, which touches its pages sooner.
LIMITS="--pool-mib 256 --pull-limit-mib 160 --serve-reserve-mib 160 --max-grant-mib 144
    --query-limit-per-instance-mib 144 --query-limit-per-identity-mib 144"
case $ROLE in a) COUNTER=serve.reads ;; b) COUNTER=pull.reads ;; esac

logged() { grep -q "$1" "/sync/$ROLE.log"; }
over() { # TRANSPORT sent|received: bytes of blocks, by the rows of `lanes` in kvferry stat --json
    ferry stat --json | tr -d ' \n' | sed -n "s/.*\"transport\":\"$1\"[^}]*\"$2_bytes\":\([0-9]*\).*/\1/p"
}

# ---- the source ----

source_start() { # FLAGS...
    daemon_start $LIMITS --ssd-path /drive --ssd-capacity-mib 800 --ssd-read-threads 2 --listen "$ADDRESS:$PORT" $TRUST "$@"
}
source_put() { # b0 to b15 of 9 MiB, and odd.SIZE: on the drive, and nowhere else
    put_blocks $NINE_MIB 0 16
    for size in $ODD; do
        head -c "$size" /dev/urandom >"/sync/odd.$size"
        must ferry put t/f "odd.$size" "/sync/odd.$size"
    done
    must ferry sync --durable
    must ferry evict --dram
}

# ---- the consumer ----

consumer_start() { daemon_start $LIMITS $TRUST "$@"; } # FLAGS...
# The first contact: a session must be there within a second, which an emulated CPU may miss.
get_odd_sizes() {
    must eventually 30 ferry get t/f $(for size in $ODD; do echo "odd.$size"; done) -o /tmp/out --source "$PEER_ADDRESS:$PORT" >/tmp/got 2>&1
    for size in $ODD; do
        grep -q "^odd.$size $size bytes ssd remote$" /tmp/got || fail "odd sizes: $(cat /tmp/got)"
        cmp "/sync/odd.$size" "/tmp/out/odd.$size" || fail "a block of $size bytes has other bytes"
    done
    passed "odd sizes by put and get: $ODD"
}
# A lane that is late is one over tcp, for some seconds: what follows is to go over this one.
lanes_go_over() { # TRANSPORT KEY
    must eventually 90 comes_over_it "$1" "$2"
}
comes_over_it() {
    ferry evict --dram >/dev/null
    before=$(over "$1" received)
    ferry get t/f "$2" -o /tmp/out --source "$PEER_ADDRESS:$PORT" >/dev/null 2>&1
    [ "$(over "$1" received)" -gt "$before" ]
}
pull() { # BLOCKS BATCH_MIB
    must ferry set read-batch-mib "$2" >/dev/null
    found=$(check_blocks "$PEER_ADDRESS:$PORT" $NINE_MIB 0 "$1")
    echo "$found" | grep -q " remote_ssd=$1 wrong=0 OK=$1$" || fail "$1 blocks at $2 MiB: $found"
}

# ---- both ----

round() { # NAME BLOCKS BATCH_MIB READS: so many, by both counts
    must ferry evict --dram >/dev/null
    before=$(stat_of $COUNTER)
    barrier "$1-begins"
    [ "$ROLE" = a ] || pull "$2" "$3"
    barrier "$1-ends"
    got=$(($(stat_of $COUNTER) - before))
    [ "$got" -eq "$4" ] || fail "$1: $COUNTER counted $got Reads, not $4"
    [ "$ROLE" = a ] || passed "$1: $2 blocks of 9 MiB from the other host's SSD in $4 Reads of at most $3 MiB"
}
four_rounds() {
    round one 8 32 3
    round two 8 128 1
    round three 16 32 6
    round four 16 128 2
}
