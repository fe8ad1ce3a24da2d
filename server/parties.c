#include "server/parties.h"

#include <stdlib.h>
#include <string.h>

struct member {
    struct kvf_list node;
    struct kvf_party party;
    uint64_t joined;
    struct kvf_list instances; /* of an identity */
    uint64_t process, instance;
    char identity[]; /* of an identity */
};

static struct member *member_of(struct kvf_party *party)
{
    return kvf_container(party, struct member, party);
}

static struct member *make(struct kvf_list *list, const char *identity, uint64_t limit_bytes)
{
    struct member *member = calloc(1, sizeof(*member) + strlen(identity) + 1);
    if (member == NULL)
        return NULL;
    strcpy(member->identity, identity);
    kvf_list_init(&member->instances);
    member->party.budget.limit_bytes = limit_bytes;
    kvf_list_push_back(list, &member->node);
    return member;
}

void kvf_parties_init(struct kvf_parties *parties, uint64_t per_identity_limit_bytes)
{
    kvf_list_init(&parties->identities);
    parties->per_identity_limit_bytes = per_identity_limit_bytes;
}

struct kvf_party *kvf_parties_join(struct kvf_parties *parties, const char *identity)
{
    struct member *member = NULL;
    kvf_list_for_each (node, &parties->identities) {
        struct member *known = kvf_container(node, struct member, node);
        if (strcmp(known->identity, identity) == 0)
            member = known;
    }
    if (member == NULL)
        member = make(&parties->identities, identity, parties->per_identity_limit_bytes);
    if (member == NULL)
        return NULL;
    member->joined++;
    return &member->party;
}

struct kvf_party *kvf_parties_join_instance(struct kvf_party *identity, uint64_t process,
                                            uint64_t instance)
{
    struct member *above = member_of(identity), *member = NULL;
    kvf_list_for_each (node, &above->instances) {
        struct member *known = kvf_container(node, struct member, node);
        if (known->process == process && known->instance == instance)
            member = known;
    }
    if (member == NULL) {
        /* What an identity may hold each of its instances may: others of it wait their turn. */
        member = make(&above->instances, "", identity->budget.limit_bytes);
        if (member == NULL)
            return NULL;
        member->process = process;
        member->instance = instance;
        member->party.parent = identity;
        above->joined++;
    }
    member->joined++;
    return &member->party;
}

void kvf_parties_leave(struct kvf_party *party)
{
    struct member *member = member_of(party);
    struct kvf_party *identity = party->parent;
    if (--member->joined > 0)
        return;
    kvf_assert(party->budget.used_bytes == 0 && party->waiting == 0);
    kvf_list_remove(&member->node);
    free(member);
    if (identity != NULL)
        kvf_parties_leave(identity);
}
