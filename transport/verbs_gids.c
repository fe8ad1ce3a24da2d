/* The addresses that verbs devices have: the table of them for people, which of its own a lane leaves from, and where
 * others can reach us. */
#include "transport/verbs.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GIDS 256
#define TABLE_ROWS 6 /* in an error */

static const char *kind_of(uint32_t gid_type)
{
    return gid_type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
           : gid_type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
                                              : "IB";
}

static struct in6_addr address_of(const union ibv_gid *gid)
{
    struct in6_addr address;
    memcpy(&address, gid->raw, sizeof(address));
    return address;
}

static void address_text(const union ibv_gid *gid, char text[static INET6_ADDRSTRLEN])
{
    struct in6_addr address = address_of(gid);
    if (IN6_IS_ADDR_V4MAPPED(&address))
        (void)inet_ntop(AF_INET, gid->raw + 12, text, INET6_ADDRSTRLEN);
    else
        (void)inet_ntop(AF_INET6, &address, text, INET6_ADDRSTRLEN);
}

static bool port_is_active(struct ibv_context *context, unsigned port)
{
    struct ibv_port_attr attributes;
    return ibv_query_port(context, (uint8_t)port, &attributes) == 0 &&
           attributes.state == IBV_PORT_ACTIVE;
}

/* All of a device's; *entries is to be freed. */
static size_t query_gids(struct ibv_context *context, struct ibv_gid_entry **entries)
{
    *entries = calloc(MAX_GIDS, sizeof(**entries));
    ssize_t count = *entries != NULL ? ibv_query_gid_table(context, *entries, MAX_GIDS, 0) : 0;
    return count > 0 ? (size_t)count : 0;
}

/* ---- near which memory ---- */

static bool read_line(const char *path, char *text, int room)
{
    FILE *file = fopen(path, "re");
    bool ok = file != NULL && fgets(text, room, file) != NULL;
    if (file != NULL)
        (void)fclose(file);
    text[ok ? strcspn(text, "\n") : 0] = '\0';
    return ok;
}

static int node_at(const char *path)
{
    char text[16];
    return read_line(path, text, sizeof(text)) ? atoi(text) : -1;
}

/* The device's own, or that of the network device that soft-RoCE stands on, which may have a bus of its own in between
 * (virtio). */
static int node_of(const char *device)
{
    char path[256], netdev[64];
    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%.60s/device/numa_node", device);
    int node = node_at(path);
    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%.60s/parent", device);
    if (node >= 0 || !read_line(path, netdev, sizeof(netdev)))
        return node;
    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/device/numa_node", netdev);
    node = node_at(path);
    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/device/../numa_node", netdev);
    return node >= 0 ? node : node_at(path);
}

/* ---- the table ---- */

/* How many there are; at most `room` are written. */
static size_t list_device(struct ibv_context *context, struct kvf_nic *nics, size_t room)
{
    struct ibv_gid_entry *entries;
    const char *name = ibv_get_device_name(context->device);
    size_t count = query_gids(context, &entries);
    int node = node_of(name);
    for (size_t i = 0; i < count && i < room; i++) {
        struct kvf_nic *nic = &nics[i];
        *nic = (struct kvf_nic){.port = entries[i].port_num,
                                .gid_index = entries[i].gid_index,
                                .numa_node = node,
                                .is_active = port_is_active(context, entries[i].port_num)};
        (void)snprintf(nic->device, sizeof(nic->device), "%s", name);
        (void)snprintf(nic->kind, sizeof(nic->kind), "%s", kind_of(entries[i].gid_type));
        address_text(&entries[i].gid, nic->address);
    }
    free(entries);
    return count;
}

size_t verbs_nics(struct kvf_nic *nics, size_t room)
{
    int device_count = 0;
    size_t count = 0;
    struct ibv_device **devices = ibv_get_device_list(&device_count);
    for (int i = 0; devices != NULL && i < device_count; i++) {
        struct ibv_context *context = ibv_open_device(devices[i]);
        if (context == NULL)
            continue;
        size_t used = count < room ? count : room;
        count += list_device(context, nics + used, room - used);
        (void)ibv_close_device(context);
    }
    if (devices != NULL)
        ibv_free_device_list(devices);
    return count;
}

void verbs_table_text(char *text, size_t room)
{
    struct kvf_nic nics[TABLE_ROWS];
    size_t count = verbs_nics(nics, TABLE_ROWS), used = 0;
    (void)snprintf(text, room, "none that can be opened");
    for (size_t i = 0; i < count && i < TABLE_ROWS && used < room; i++) {
        int more = snprintf(text + used, room - used, "%s%s port %u gid %u %s %s%s",
                            i > 0 ? "; " : "", nics[i].device, nics[i].port, nics[i].gid_index,
                            nics[i].kind, nics[i].address, nics[i].is_active ? "" : " (down)");
        used += more > 0 ? (size_t)more : 0;
    }
    if (count > TABLE_ROWS && used < room)
        (void)snprintf(text + used, room - used, "; and %zu more", count - TABLE_ROWS);
}

/* ---- where lanes leave from, and where they go ---- */

/* IPv4 as it looks among GIDs. */
static struct in6_addr mapped(const struct sockaddr *address)
{
    struct in6_addr v6 = {0};
    if (address->sa_family == AF_INET6) {
        v6 = ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    } else {
        v6.s6_addr[10] = v6.s6_addr[11] = 0xff;
        memcpy(&v6.s6_addr[12], &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    }
    return v6;
}

static unsigned common_bits(const struct in6_addr *a, const struct in6_addr *b)
{
    unsigned bits = 0;
    while (bits < 128 && ((a->s6_addr[bits / 8] ^ b->s6_addr[bits / 8]) & (0x80 >> bits % 8)) == 0)
        bits++;
    return bits;
}

static bool may_leave_from(struct ibv_context *context, const struct ibv_gid_entry *entry,
                           bool wants_v4)
{
    struct in6_addr address = address_of(&entry->gid);
    return entry->gid_type != IBV_GID_TYPE_IB && !IN6_IS_ADDR_LINKLOCAL(&address) &&
           (IN6_IS_ADDR_V4MAPPED(&address) != 0) == wants_v4 &&
           port_is_active(context, entry->port_num);
}

static void write_address(const struct in6_addr *address, bool is_v4, struct sockaddr_storage *from)
{
    *from = (struct sockaddr_storage){0};
    if (is_v4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)from;
        v4->sin_family = AF_INET;
        memcpy(&v4->sin_addr, &address->s6_addr[12], 4);
    } else {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)from;
        v6->sin6_family = AF_INET6;
        v6->sin6_addr = *address;
    }
}

/* The bits that `to` has in common with the nearest address of the device, which *from becomes; 0: it has none of that
 * family. */
static unsigned nearest(const struct verbs_device *device, const struct sockaddr *to,
                        struct sockaddr_storage *from)
{
    struct ibv_gid_entry *entries;
    struct in6_addr wanted = mapped(to);
    bool is_v4 = to->sa_family == AF_INET, found = false;
    unsigned best = 0;
    size_t count = query_gids(device->context, &entries);
    for (size_t i = 0; i < count; i++) {
        struct in6_addr address = address_of(&entries[i].gid);
        if (!may_leave_from(device->context, &entries[i], is_v4) ||
            (found && common_bits(&address, &wanted) <= best))
            continue;
        found = true;
        best = common_bits(&address, &wanted);
        write_address(&address, is_v4, from);
    }
    free(entries);
    return best;
}

bool verbs_address_towards(const struct verbs_device *device, const struct sockaddr *to,
                           struct sockaddr_storage *from)
{
    return nearest(device, to, from) > 0;
}

unsigned verbs_nearness(const struct kvf_transport *base, size_t device, const char *address)
{
    struct lane_addresses there;
    struct sockaddr_storage from;
    if (!kvf_is_ok(lane_address_resolve(address, false, &there)))
        return 0;
    return nearest(&verbs_transport_of(base)->devices[device], (struct sockaddr *)&there.at[0],
                   &from);
}

static void address_write(const struct in6_addr *address, int port,
                          char text[KVF_TRANSPORT_ADDRESS_BYTES])
{
    char number[INET6_ADDRSTRLEN];
    union ibv_gid gid;
    memcpy(gid.raw, address, sizeof(gid.raw));
    address_text(&gid, number);
    (void)snprintf(text, KVF_TRANSPORT_ADDRESS_BYTES,
                   IN6_IS_ADDR_V4MAPPED(address) ? "%s:%d" : "[%s]:%d", number, port);
}

/* One that it was told, or all that its devices have. */
size_t verbs_addresses(const struct kvf_transport *base,
                       char (*addresses)[KVF_TRANSPORT_ADDRESS_BYTES], size_t room)
{
    const struct verbs_transport *transport = verbs_transport_of(base);
    struct sockaddr *at = rdma_get_local_addr(transport->listener);
    struct in6_addr local = mapped(at), any_v4 = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    size_t written = 0;
    if (!IN6_IS_ADDR_UNSPECIFIED(&local) && !IN6_ARE_ADDR_EQUAL(&local, &any_v4)) {
        address_write(&local, transport->port, addresses[0]);
        return 1;
    }
    for (size_t i = 0; i < transport->device_count; i++) {
        struct ibv_context *context = transport->devices[i].context;
        struct ibv_gid_entry *entries;
        size_t count = query_gids(context, &entries);
        for (size_t j = 0; j < count && written < room; j++) {
            struct in6_addr address = address_of(&entries[j].gid);
            if (may_leave_from(context, &entries[j], at->sa_family == AF_INET))
                address_write(&address, transport->port, addresses[written++]);
        }
        free(entries);
    }
    return written;
}
