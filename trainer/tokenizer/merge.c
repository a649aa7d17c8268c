/* merge.c - joins neighbouring symbols, the pair with the lowest rank first, the leftmost of
 * equals.
 *
 * The symbols of a piece are a linked list, the candidates a binary heap of (rank, position) with
 * stale entries skipped when they surface, so a piece of n symbols always costs O(n log n). Most
 * pieces have few symbols: for them a plain scan of all ranks is faster than a heap. Both give the
 * same symbols. The memory grows to the longest piece so far and is kept. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

#define SCAN_SYMBOLS_MAX 24u
#define NO_RANK UINT32_MAX

struct merger {
    uint32_t *symbols;
    uint32_t *next;     /* index of the symbol to the right; the count at the end */
    uint32_t *previous; /* index of the symbol to the left */
    uint32_t *ranks;    /* of this symbol and its right neighbour, or NO_RANK */
    uint32_t *joined;   /* the symbol that both make together */
    uint64_t *heap;     /* rank << 32 | index */
    size_t heap_count;
    size_t room; /* capacity in symbols */
};

struct merger *merger_new(void)
{
    return calloc(1, sizeof(struct merger));
}

static void free_arrays(struct merger *merger)
{
    free(merger->symbols);
    free(merger->next);
    free(merger->previous);
    free(merger->ranks);
    free(merger->joined);
    free(merger->heap);
    *merger = (struct merger){0};
}

void merger_free(struct merger *merger)
{
    if (merger == NULL)
        return;
    free_arrays(merger);
    free(merger);
}

int merger_reserve(struct merger *merger, size_t symbols)
{
    if (symbols <= merger->room)
        return 0;
    if (symbols >= UINT32_MAX / 2)
        return report_error(ERR_INVALID, "put line breaks or spaces into the text",
                            "a piece of %zu bytes is too long to encode", symbols);
    size_t room = symbols + symbols / 2 + 64;
    free_arrays(merger);
    merger->symbols = malloc(room * sizeof(uint32_t));
    merger->next = malloc(room * sizeof(uint32_t));
    merger->previous = malloc(room * sizeof(uint32_t));
    merger->ranks = malloc(room * sizeof(uint32_t));
    merger->joined = malloc(room * sizeof(uint32_t));
    merger->heap = malloc(3 * room * sizeof(uint64_t)); /* n first pairs, two per merge */
    if (merger->symbols == NULL || merger->next == NULL || merger->previous == NULL ||
        merger->ranks == NULL || merger->joined == NULL || merger->heap == NULL) {
        free_arrays(merger);
        return report_error(ERR_MEMORY, NULL, "no memory to encode a piece of %zu bytes", symbols);
    }
    merger->room = room;
    return 0;
}

uint32_t *merger_symbols(struct merger *merger)
{
    return merger->symbols;
}

/* ---- a short piece: a scan ---- */

static void find_join(struct merger *merger, const struct pairs *pairs, size_t at, size_t count)
{
    const struct pair *pair =
        at + 1 < count ? pairs_find(pairs, merger->symbols[at], merger->symbols[at + 1]) : NULL;
    merger->ranks[at] = pair != NULL ? pair->rank : NO_RANK;
    merger->joined[at] = pair != NULL ? pair->joined : 0;
}

static size_t run_scan(struct merger *merger, const struct pairs *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        find_join(merger, pairs, i, count);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            best = merger->ranks[i] < merger->ranks[best] ? i : best;
        if (merger->ranks[best] == NO_RANK)
            break;
        size_t behind = count - best - 2;
        merger->symbols[best] = merger->joined[best];
        memmove(merger->symbols + best + 1, merger->symbols + best + 2, behind * sizeof(uint32_t));
        memmove(merger->ranks + best + 1, merger->ranks + best + 2, behind * sizeof(uint32_t));
        memmove(merger->joined + best + 1, merger->joined + best + 2, behind * sizeof(uint32_t));
        count--;
        find_join(merger, pairs, best, count);
        if (best > 0)
            find_join(merger, pairs, best - 1, count);
    }
    return count;
}

/* ---- a long piece: a heap ---- */

static void heap_push(struct merger *merger, uint64_t entry)
{
    uint64_t *heap = merger->heap;
    size_t at = merger->heap_count++;
    while (at > 0 && heap[(at - 1) / 2] > entry) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static uint64_t heap_pop(struct merger *merger)
{
    uint64_t *heap = merger->heap, top = heap[0], last = heap[--merger->heap_count];
    size_t at = 0, count = merger->heap_count;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Records the join of the symbol at `at` and its right neighbour. */
static void consider(struct merger *merger, const struct pairs *pairs, uint32_t at, size_t count)
{
    uint32_t right = merger->next[at];
    const struct pair *pair =
        right < count ? pairs_find(pairs, merger->symbols[at], merger->symbols[right]) : NULL;
    merger->ranks[at] = NO_RANK;
    if (pair == NULL)
        return;
    merger->ranks[at] = pair->rank;
    merger->joined[at] = pair->joined;
    heap_push(merger, (uint64_t)pair->rank << 32 | at);
}

static void join(struct merger *merger, const struct pairs *pairs, uint32_t at, size_t count)
{
    uint32_t right = merger->next[at], after = merger->next[right];
    merger->symbols[at] = merger->joined[at];
    merger->next[at] = after;
    merger->ranks[right] = NO_RANK; /* heap entries of the removed symbol are stale */
    if (after < count)
        merger->previous[after] = at;
    consider(merger, pairs, at, count);
    if (at > 0)
        consider(merger, pairs, merger->previous[at], count);
}

static size_t run_heap(struct merger *merger, const struct pairs *pairs, size_t count)
{
    merger->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        merger->next[i] = i + 1;
        merger->previous[i] = i - 1; /* never read at 0 */
    }
    for (uint32_t i = 0; i < count; i++)
        consider(merger, pairs, i, count);
    while (merger->heap_count > 0) {
        uint64_t entry = heap_pop(merger);
        uint32_t at = (uint32_t)entry;
        if (merger->ranks[at] == entry >> 32)
            join(merger, pairs, at, count);
    }
    size_t left = 0;
    for (uint32_t at = 0; at < count; at = merger->next[at])
        merger->symbols[left++] = merger->symbols[at];
    return left;
}

size_t merger_run(struct merger *merger, const struct pairs *pairs, size_t count)
{
    return count <= SCAN_SYMBOLS_MAX ? run_scan(merger, pairs, count)
                                     : run_heap(merger, pairs, count);
}

/* ---- pairs ---- */

static uint32_t slot_of(const struct pairs *pairs, uint32_t left, uint32_t right)
{
    uint64_t mixed = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t mask = pairs->num_slots - 1, slot = (uint32_t)(mixed >> 32 ^ mixed) & mask;
    while (pairs->slots[slot].left != PAIR_FREE &&
           (pairs->slots[slot].left != left || pairs->slots[slot].right != right))
        slot = (slot + 1) & mask;
    return slot;
}

const struct pair *pairs_find(const struct pairs *pairs, uint32_t left, uint32_t right)
{
    if (pairs->num_slots == 0)
        return NULL;
    const struct pair *pair = &pairs->slots[slot_of(pairs, left, right)];
    return pair->left != PAIR_FREE ? pair : NULL;
}

static int grow_pairs(struct pairs *pairs)
{
    struct pairs old = *pairs;
    pairs->num_slots = old.num_slots == 0 ? 1024 : 2 * old.num_slots;
    pairs->slots = malloc((size_t)pairs->num_slots * sizeof *pairs->slots);
    if (pairs->slots == NULL) {
        *pairs = old;
        return report_error(ERR_MEMORY, NULL, "no memory for the tokenizer's pairs");
    }
    memset(pairs->slots, 0xff, (size_t)pairs->num_slots * sizeof *pairs->slots);
    for (uint32_t i = 0; i < old.num_slots; i++)
        if (old.slots[i].left != PAIR_FREE)
            pairs->slots[slot_of(pairs, old.slots[i].left, old.slots[i].right)] = old.slots[i];
    free(old.slots);
    return 0;
}

int pairs_add(struct pairs *pairs, struct pair pair)
{
    if (pairs->count >= pairs->num_slots / 4 * 3)
        ERR_TRY(grow_pairs(pairs));
    struct pair *slot = &pairs->slots[slot_of(pairs, pair.left, pair.right)];
    pairs->count += slot->left == PAIR_FREE;
    *slot = pair;
    return 0;
}

int pairs_add_cuts(struct pairs *pairs, const struct vocab *vocab, uint32_t token, uint32_t rank,
                   const bool *joins)
{
    const unsigned char *bytes = vocab->bytes + vocab->start[token];
    size_t length = vocab->start[token + 1] - vocab->start[token];
    for (size_t at = 1; at < length; at++) {
        uint32_t left = vocab_find(vocab, bytes, at), right = VOCAB_NONE;
        if (left != VOCAB_NONE && (joins == NULL || joins[left]))
            right = vocab_find(vocab, bytes + at, length - at);
        if (right != VOCAB_NONE && (joins == NULL || joins[right]))
            ERR_TRY(pairs_add(pairs, (struct pair){left, right, rank, token}));
    }
    return 0;
}

int pairs_add_path(struct pairs *trie, const struct vocab *vocab, uint32_t token)
{
    const unsigned char *bytes = vocab->bytes + vocab->start[token];
    size_t length = vocab->start[token + 1] - vocab->start[token];
    uint32_t node = 0;
    for (size_t at = 0; at < length; at++) {
        const struct pair *known = pairs_find(trie, node, bytes[at]);
        struct pair step =
            known != NULL ? *known : (struct pair){node, bytes[at], VOCAB_NONE, trie->count + 1};
        step.rank = at + 1 == length ? token : step.rank;
        ERR_TRY(pairs_add(trie, step));
        node = step.joined;
    }
    return 0;
}
