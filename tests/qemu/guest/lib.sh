# What a guest's script needs. Source it first: . /host/lib.sh
#
# ROLE is a or b, BOOT 1 at the first power-on, HOSTS 1 or 2. PEER, ADDRESS and PEER_ADDRESS follow from them.
# Whatever goes wrong ends the script by fail; a script that gets to its end has passed.

PATH=/host/bin:$PATH
case $ROLE in
a) PEER=b ADDRESS=10.77.0.1 PEER_ADDRESS=10.77.0.2 ;;
b) PEER=a ADDRESS=10.77.0.2 PEER_ADDRESS=10.77.0.1 ;;
esac
export PATH PEER ADDRESS PEER_ADDRESS

# ---- saying ----

passed() { echo "ok      $*"; }
skipped() { echo "skipped $*"; } # with the reason
fail() {
    echo "FAILED  $*"
    exit 1
}
must() { # COMMAND...: it must end with 0
    "$@" || fail "\`$*\` ended with $?"
}
eventually() { # SECONDS COMMAND...: try until it ends with 0
    local left=$(($1 * 10))
    shift
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 0.1
    done
}

# ---- network ----

network_up() { # eth0 with MTU 9000
    must modprobe virtio_net
    must eventually 10 test -e /sys/class/net/eth0
    must ip link set eth0 mtu 9000 up
    must ip address add "$ADDRESS/24" dev eth0
}
rdma_up() { # rxe0, soft-RoCE on eth0
    for module in crc32_generic rdma_rxe ib_uverbs rdma_ucm; do must modprobe $module; done
    must rdma link add rxe0 type rxe netdev eth0
    eventually 10 grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state || fail "rxe0 does not come up"
}
