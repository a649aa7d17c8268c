/* context.c - sequences that are cut among ranks.
 *
 * Each sequence is cut in 2 P chunks of as many positions, P = cp_blocks. Block p is chunk p with
 * chunk 2 P - 1 - p, of all sequences: a query attends to all positions before it, so all blocks
 * cost the same. Without balancing, block p is chunks 2 p and 2 p + 1. A rank of context parallel
 * has row_blocks blocks, one after the other. Its rows lie as [block][chunk of the
 * block][sequence][position]; with one block as [sequence][position].
 *
 * Queries stay on their rank, unless ranks share the heads (heads.c). Keys and values are sent to
 * them, so a query's softmax runs over its keys in the order of their positions: its bits are those
 * of one rank. They are sent at once (all-gather, in this file), or in a ring, an operation of the
 * program. In each of cp - 1 rounds a rank sends the last received rows to the next rank, and
 * copies them to their place meanwhile. They arrive in a different order on each rank; their
 * places, and so the order of sums, are the same. A ring holds rows of two ranks in transit, an
 * all-gather those of cp ranks. Both hold a layer's keys and values in the order of positions, and
 * a ring beside compute also those of the next layer. A block's queries contribute a partial result
 * to the gradients of keys and values, added as products.c says: the queries of the block's two
 * chunks in order, then the tree over the blocks, rounded once. It is sent to the rank that has the
 * rows. Bytes per layer and rank: forward (cp - 1) / cp x the keys and values of a micro-batch,
 * backward the same, and as many numbers in float. Keys and values that a ring sent for a
 * recomputation are kept for the backward that follows. */
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/model/private.h"

/* ---- chunks ---- */

uint32_t model_num_chunks(const struct model_cut *cut)
{
    return cut->cp_blocks > 1 ? 2 * (cut->cp_blocks / cut->cp) : 1;
}

uint32_t model_chunk_length(const struct model_cut *cut, uint32_t seq)
{
    return cut->cp_blocks > 1 ? seq / (2 * cut->cp_blocks) : seq;
}

uint32_t model_chunk_first(const struct model_cut *cut, uint32_t seq, uint32_t place,
                           uint32_t index)
{
    uint32_t block = place * (cut->cp_blocks / cut->cp) + index / 2;
    uint32_t chunk = index % 2 == 0 ? block : 2 * cut->cp_blocks - 1 - block;
    if (cut->is_in_order)
        chunk = 2 * block + index % 2;
    return chunk * model_chunk_length(cut, seq);
}

/* ---- rows of all ranks in the order of their sequences, and back ---- */

/* The rows of one chunk of one sequence. */
static void move_chunk(const struct model *m, const struct context_rows *a, size_t at_rank,
                       size_t at_full, bool to_full)
{
    struct kernel_unpack unpack = {.full = a->full,
                                   .packed = a->by_rank,
                                   .first_row = at_full,
                                   .rows = model_chunk_length(&m->cut, m->seq),
                                   .columns = a->width,
                                   .width = a->width,
                                   .dtype = a->dtype};
    unpack.packed = at_byte(a->by_rank, at_rank * a->width * kernel_dtype_bytes(a->dtype));
    if (to_full) {
        kernel_unpack(m->kernels, a->lane, &unpack);
        return;
    }
    kernel_pack(m->kernels, a->lane,
                &(struct kernel_pack){.packed = (void *)(uintptr_t)unpack.packed,
                                      .full = a->full,
                                      .first_row = at_full,
                                      .rows = unpack.rows,
                                      .columns = a->width,
                                      .width = a->width,
                                      .dtype = a->dtype});
}

/* All chunks of one block of rank r's rows. In `by_rank` they lie at their own place. */
static void move_block(const struct model *m, const struct context_rows *a, uint32_t r, uint32_t at,
                       uint32_t block, bool to_full)
{
    uint32_t chunks = model_num_chunks(&m->cut), length = model_chunk_length(&m->cut, m->seq);
    size_t of_rank = ((size_t)at * a->blocks + block) * m->rows;
    for (uint32_t i = 0; i < chunks * m->batch; i++) {
        uint32_t first = model_chunk_first(&m->cut, m->seq, r, i / m->batch);
        size_t of_full = ((size_t)block * m->batch + i % m->batch) * m->seq;
        move_chunk(m, a, of_rank + (size_t)i * length, of_full + first, to_full);
    }
}

void context_move_rows(const struct model *m, const struct context_rows *a, bool to_full)
{
    for (uint32_t r = 0; r < m->cut.cp; r++)
        for (uint32_t block = 0; block < a->blocks; block++)
            move_block(m, a, r, r, block, to_full);
}

int context_gather(struct model *m, void *full, const void *own, const struct context_width *of,
                   bool is_active)
{
    uint32_t cp = m->cut.cp;
    size_t mine = (size_t)of->blocks * m->rows * of->width * kernel_dtype_bytes(of->dtype);
    struct context_rows rows = {.lane = m->lane,
                                .full = full,
                                .by_rank = (void *)(uintptr_t)own,
                                .blocks = of->blocks,
                                .width = of->width,
                                .dtype = of->dtype};
    if (cp > 1)
        rows.by_rank = model_take_bytes(m, of->name, 0, cp * mine);
    if (is_active && cp > 1) {
        model_set_lists(m, cp, mine);
        ERR_TRY(
            comm_all_gather_v(m->cut.cp_group, own, mine, rows.by_rank, m->lists, m->lists + cp));
    }
    if (is_active)
        context_move_rows(m, &rows, true);
    if (cp > 1)
        model_give(m, of->name, 0);
    return 0;
}

/* ---- keys and values of other ranks ---- */

static const char *const full_names[] = {"keys of all rows", "values of all rows"};
static const char *const passing_name = "keys or values by rank";

bool model_has_ring(const struct model *m)
{
    return m->cut.is_ring && m->cut.cp > 1;
}

static size_t keys_bytes(const struct model *m)
{
    return (size_t)m->rows * m->kv_width * m->element;
}

/* The set of buffers of a layer for keys and values from a ring. */
static uint32_t set_of(const struct model *m, uint32_t layer)
{
    return model_has_ring(m) ? layer % 2 : 0;
}

static void *take_full(struct model *m, uint32_t layer, uint32_t i)
{
    return model_take_bytes(m, full_names[i], set_of(m, layer), m->cut.cp * keys_bytes(m));
}

int context_take_keys(struct model *m, const struct slot *s, uint32_t layer, void *out[2])
{
    const struct context_width of = {passing_name, m->kv_blocks, m->kv_width / m->kv_blocks,
                                     m->dtype};
    void *const own[] = {s->layers[layer].saved[SAVED_K], s->layers[layer].saved[SAVED_V]};
    for (uint32_t i = 0; i < 2; i++)
        out[i] = model_has_ring(m) ? m->ring[layer % 2].full[i] : take_full(m, layer, i);
    for (uint32_t i = 0; i < 2 && !model_has_ring(m); i++)
        ERR_TRY(context_gather(m, out[i], own[i], &of, s->is_active));
    return 0;
}

void context_give_keys(struct model *m, uint32_t layer)
{
    model_give(m, full_names[0], set_of(m, layer));
    model_give(m, full_names[1], set_of(m, layer));
}

/* ---- around a ring ---- */

static uint32_t num_passing(const struct model *m)
{
    return m->cut.cp > 2 ? 2 : 1;
}

void model_ring_take(struct model *m, uint32_t block)
{
    uint32_t set = (block - 1) % 2;
    for (uint32_t i = 0; i < 2; i++)
        m->ring[set].full[i] = take_full(m, block - 1, i);
    for (uint32_t i = 0; i < num_passing(m); i++)
        m->ring[set].passing[i] = model_take_bytes(m, passing_name, 2 * set + i, keys_bytes(m));
}

void model_ring_give(struct model *m, uint32_t block)
{
    for (uint32_t i = 0; i < num_passing(m); i++)
        model_give(m, passing_name, 2 * ((block - 1) % 2) + i);
}

/* Copies the rows received in round `round` to their place: the rows of the rank `round` places
 * before. */
static void place_rows(const struct model *m, struct lane *lane, void *full, void *from,
                       uint32_t round)
{
    uint32_t cp = m->cut.cp, of = (m->cut.cp_place + cp - round) % cp;
    struct context_rows rows = {.lane = lane,
                                .full = full,
                                .by_rank = from,
                                .blocks = m->kv_blocks,
                                .width = m->kv_width / m->kv_blocks,
                                .dtype = m->dtype};
    for (uint32_t block = 0; block < rows.blocks; block++)
        move_block(m, &rows, of, 0, block, true);
}

/* In each of cp - 1 rounds the rank sends the rows that it received last to the next rank and
 * copies them to their place meanwhile. Received rows replace them. */
static int pass_around(const struct model *m, struct lane *lane, struct comm *comm, void *full,
                       void *own, void *const passing[2])
{
    uint32_t cp = m->cut.cp, me = m->cut.cp_place;
    void *last = own;
    for (uint32_t round = 0; round + 1 < cp; round++) {
        struct comm_request request = {0};
        void *next = passing[round % 2];
        ERR_TRY(comm_send(comm, (me + 1) % cp, COMM_TAG_RING, last, keys_bytes(m), &request));
        place_rows(m, lane, full, last, round);
        ERR_TRY(comm_receive(comm, (me + cp - 1) % cp, COMM_TAG_RING, next, keys_bytes(m)));
        ERR_TRY(comm_wait(comm, &request));
        last = next;
    }
    place_rows(m, lane, full, last, cp - 1);
    return 0;
}

int model_ring_run(const struct model *m, struct lane *lane, struct comm *comm, uint32_t slot,
                   uint32_t block)
{
    void *const *saved = m->slots[slot].layers[block - 1].saved;
    uint32_t set = (block - 1) % 2;
    if (!m->slots[slot].is_active)
        return 0;
    for (uint32_t i = 0; i < 2; i++)
        ERR_TRY(pass_around(m, lane, comm, m->ring[set].full[i], saved[i == 0 ? SAVED_K : SAVED_V],
                            m->ring[set].passing));
    return 0;
}

/* ---- gradients of keys and values, to the ranks that have the rows ---- */

int context_reduce(struct model *m, void *const own[2], float *partial, uint32_t width,
                   bool is_active)
{
    static const char *const name = "partial rows of context ranks";
    uint32_t cp = m->cut.cp;
    size_t count = (size_t)m->rows * width, both = 2 * count;
    struct context_rows rows = {
        .lane = m->lane, .full = partial, .blocks = 2, .width = width, .dtype = KERNEL_F32};
    float *sum = rows.by_rank = model_take_bytes(m, name, 0, cp * both * sizeof(*sum));
    int rc = 0;
    if (cp > 1)
        sum = model_take_bytes(m, name, 1, cp * both * sizeof(*sum));
    if (is_active)
        context_move_rows(m, &rows, false);
    if (is_active && cp > 1) {
        struct comm *comm = m->cut.cp_group;
        size_t *bytes = m->lists, *at = m->lists + cp;
        model_set_lists(m, cp, both * sizeof(*sum));
        rc = comm_all_to_all_v(comm, rows.by_rank, bytes, at, sum, bytes, at);
        if (rc == 0)
            tree_in_place(m, sum, cp, both, both);
    }
    for (int i = 0; i < 2 && is_active && rc == 0; i++)
        kernel_convert(m->kernels, m->lane,
                       &(struct kernel_convert){.out = own[i],
                                                .in = sum + (size_t)i * count,
                                                .count = count,
                                                .out_dtype = m->dtype});
    model_give(m, name, 0);
    if (cp > 1)
        model_give(m, name, 1);
    return rc;
}
