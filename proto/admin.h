/* admin: the methods of admin.proto, as the daemon serves them and the kvferry command calls them. */
#ifndef KVFERRY_PROTO_ADMIN_H
#define KVFERRY_PROTO_ADMIN_H

#define KVF_ADMIN_STAT "/kvferry.Admin/Stat"
#define KVF_ADMIN_SET_READ_BATCH "/kvferry.Admin/SetReadBatch"
#define KVF_ADMIN_EVICT "/kvferry.Admin/Evict"
#define KVF_ADMIN_SYNC "/kvferry.Admin/Sync"
#define KVF_ADMIN_DRAIN "/kvferry.Admin/Drain"

#endif
