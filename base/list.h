/* An intrusive doubly linked ring. The head is a node of its own; a node that is in no list points at itself, so that
 * removing twice is harmless. */
#ifndef KVFERRY_BASE_LIST_H
#define KVFERRY_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct kvf_list {
    struct kvf_list *next;
    struct kvf_list *previous;
};

/* The struct of type `type` whose member `member` is at `pointer`. */
#define kvf_container(pointer, type, member)                                                       \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void kvf_list_init(struct kvf_list *node)
{
    node->next = node;
    node->previous = node;
}

static inline bool kvf_list_is_empty(const struct kvf_list *head)
{
    return head->next == head;
}

static inline void kvf_list_insert_before(struct kvf_list *node, struct kvf_list *next)
{
    node->next = next;
    node->previous = next->previous;
    next->previous->next = node;
    next->previous = node;
}

static inline void kvf_list_push_back(struct kvf_list *head, struct kvf_list *node)
{
    kvf_list_insert_before(node, head);
}

static inline void kvf_list_push_front(struct kvf_list *head, struct kvf_list *node)
{
    kvf_list_insert_before(node, head->next);
}

static inline void kvf_list_remove(struct kvf_list *node)
{
    node->previous->next = node->next;
    node->next->previous = node->previous;
    kvf_list_init(node);
}

/* The first node, taken out; NULL when the list is empty. */
static inline struct kvf_list *kvf_list_pop_front(struct kvf_list *head)
{
    struct kvf_list *node = head->next;
    if (node == head)
        return NULL;
    kvf_list_remove(node);
    return node;
}

/* Move everything from `from` to the end of `to`. */
static inline void kvf_list_splice_back(struct kvf_list *to, struct kvf_list *from)
{
    if (kvf_list_is_empty(from))
        return;
    from->next->previous = to->previous;
    to->previous->next = from->next;
    from->previous->next = to;
    to->previous = from->previous;
    kvf_list_init(from);
}

#define kvf_list_for_each(node, head)                                                              \
    for (struct kvf_list *node = (head)->next; node != (head); node = node->next)

/* The body may remove `node` (but not the one after it). */
#define kvf_list_for_each_safe(node, head)                                                         \
    for (struct kvf_list *node = (head)->next, *node##_next = node->next; node != (head);          \
         node = node##_next, node##_next = node->next)

#endif
