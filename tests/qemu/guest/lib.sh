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

barrier() { # NAME: wait for the other guest to come here too; each name once
    touch "/sync/at.$1.$ROLE"
    eventually 300 test -e "/sync/at.$1.$PEER" || fail "$PEER did not come to $1"
}

# ---- power ----

power() { # cut|on|cycle ROLE: this host does it; who cuts itself does not return. The drive keeps what it had
    echo "$1 $2" >"/sync/asking.$ROLE"
    mv "/sync/asking.$ROLE" "/sync/ask.$ROLE"
    eventually 20 test ! -e "/sync/ask.$ROLE" || fail "power $1 $2 was not heard"
}

# ---- network ----

# busybox's shell prefers applets of its own, whatever PATH says.
ip() { /usr/bin/ip "$@"; }
tc() { /usr/bin/tc "$@"; }

network_up() { # eth0 with MTU 9000
    must modprobe virtio_net
    must eventually 10 test -e /sys/class/net/eth0
    must ip link set eth0 mtu 9000 up
    must ip address add "$ADDRESS/24" dev eth0
}
network_up_1() { # eth1, in a network of its own: 10.78.0.1 and 10.78.0.2
    must ip link set eth1 mtu 9000 up
    must ip address add "10.78${ADDRESS#10.77}/24" dev eth1
}
rdma_up() { # rxe0, soft-RoCE on eth0
    for module in crc32_generic rdma_rxe ib_uverbs rdma_ucm; do must modprobe $module; done
    must rdma link add rxe0 type rxe netdev eth0
    eventually 10 grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state || fail "rxe0 does not come up"
}
netem() { # WORDS...: what this guest sends is delayed, lost, ...: netem delay 5ms loss 1%
    modprobe sch_netem
    must tc qdisc replace dev eth0 root netem limit 10000 "$@"
}
netem_off() { must tc qdisc del dev eth0 root; }

# ---- the way in: `#: ssh` ----

ssh_up() { # this host's key lets it in as root, over a network of its own
    local way=$(ls /sys/class/net | grep eth | tail -n 1)
    must ip link set "$way" up
    must ip address add 10.0.2.15/24 dev "$way"
    mkdir -p -m 700 /root /root/.ssh
    echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
    must cp /host/key.pub /root/.ssh/authorized_keys
    chmod 600 /root/.ssh/authorized_keys
    must dropbearkey -t ed25519 -f /root/host.key >/dev/null
    must dropbear -E -r /root/host.key -s -j -k -p 22
}

# ---- the drive: NVMe, below a device mapper's table so that it can be made to fail, with ext4 at /drive ----

export DM_DISABLE_UDEV=1

drive_up() { # [WORDS FOR mkfs.ext4...]
    for module in crc32c_generic ext4 nvme dm-mod; do must modprobe $module; done
    eventually 10 test -b /dev/nvme0n1 || fail "no NVMe drive: the script needs a line '#: drive $ROLE MIB'"
    DRIVE_SECTORS=$(($(cat /sys/block/nvme0n1/size) - 8)) # the rest is for `misdirecting`
    must dmsetup create drive --table "$(drive_table linear)"
    [ "$BOOT" -gt 1 ] || must mkfs.ext4 -q "$@" /dev/mapper/drive # a later boot finds what the power cut left
    must mount -t ext4 /dev/mapper/drive /drive
}
drive_table() { # what drive_becomes takes
    local whole="0 $DRIVE_SECTORS" drive="/dev/nvme0n1 0" ahead="/dev/nvme0n1 8"
    case $1 in
    linear) echo "$whole linear $drive" ;;
    delayed) echo "$whole delay $drive $2 $drive $3" ;;
    failing) echo "$whole error" ;;
    failing-writes) echo "$whole flakey $drive 0 3600 1 error_writes" ;;
    flakey) echo "$whole flakey $drive $2 $3 1 error_writes" ;;
    misdirecting) echo "$whole flakey $ahead 0 3600 1 error_writes" ;;
    esac
}
# linear                    as it is
# delayed READ_MS WRITE_MS  slow
# failing                   every read and write fails
# failing-writes            every write fails
# flakey GOOD_S BAD_S       writes fail for BAD_S seconds out of GOOD_S + BAD_S
# misdirecting              every read brings what lies 4 KiB further on, every write fails
drive_becomes() {
    dmesg -n 2 # the kernel's errors are expected from now on
    case $1 in delayed) modprobe dm-delay ;; flakey | failing-writes | misdirecting) modprobe dm-flakey ;; esac
    must dmsetup suspend --noflush --nolockfs drive
    must dmsetup load drive --table "$(drive_table "$@")"
    must dmsetup resume drive
}

# ---- kvferryd: one a guest ----

RUN=/tmp/run
PORT=9470

ferry() { kvferry --run-dir $RUN "$@"; }

# Between hosts daemons need TLS and an ACL: the script says `#: certificates`, and each daemon trusts the other one.
TRUST="--tls-cert /host/tls/$ROLE.crt --tls-key /host/tls/$ROLE.key --tls-ca /host/tls/ca.crt --acl /host/acl.json"

daemon_start() { # FLAGS...: READY when this returns. Its log is sync/ROLE.log
    mkdir -p $RUN
    GAUGES="query_bytes leases pinned_bytes dirty_bytes quarantine_bytes"
    case $* in *--ssd-path*) GAUGES="$GAUGES ssd_reads ssd_writes" ;; esac
    echo "== boot $BOOT" >>"/sync/$ROLE.log"
    kvferryd --node-id "$ROLE" --run-dir $RUN --http 127.0.0.1:0 "$@" 2>>"/sync/$ROLE.log" &
    DAEMON=$!
    eventually 120 daemon_spoke || fail "kvferryd did not become READY: $(tail -n 1 "/sync/$ROLE.log")"
}
daemon_spoke() {
    kill -0 $DAEMON 2>/dev/null || fail "kvferryd ended: $(tail -n 1 "/sync/$ROLE.log")"
    ferry stat >/dev/null 2>&1
}
daemon_stop() { # by SIGTERM: it must end with 0, and its last line must say every gauge, and 0
    kill -TERM $DAEMON
    wait $DAEMON || fail "kvferryd ended with $?: $(tail -n 1 "/sync/$ROLE.log")"
    local last=$(tail -n 1 "/sync/$ROLE.log") gauge
    for gauge in $GAUGES; do
        case "$last " in *" $gauge=0 "*) ;; *) fail "$gauge is not 0: $last" ;; esac
    done
}
daemon_kill() {
    kill -KILL $DAEMON
    wait $DAEMON
}
stat_of() { # SECTION.NAME of `kvferry stat --json`: the number behind it
    ferry stat --json | tr -d ' \n' | sed -n "s/.*\"${1%.*}\":[[{]*[^]}]*\"${1#*.}\":\([0-9a-z]*\).*/\1/p"
}

# Blocks are made and compared by tests/daemons/engine_probe.c: block N of a length has one content only.

put_blocks() { # BYTES FIRST COUNT: all of them, or it fails
    engine put t/f 30000 "$@" | grep -q "^OK OK=$3$" || fail "put of $3 blocks from $2 on"
}
check_blocks() { # SOURCE|- BYTES FIRST COUNT: prints `wrong=0 remote_ssd=N NOT_FOUND=N ...`
    local source=$1
    shift
    engine check t/f "$source" 30000 "$@"
}
engine() {
    printf 'open %s engine\n%s\nclose\n' $RUN "$*" | engine_probe | sed -n 2p
}
