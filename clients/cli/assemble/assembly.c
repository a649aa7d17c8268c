/* assembly.c - assembles the 1 MiB blocks of an output from the shards of a checkpoint.
 *
 * The assembly walks the outputs from front to back. For each output block, wants.c finds the
 * needed blocks of the shards, and scan.c reads them. Workers copy and convert a read block,
 * element by element, into every output block of the next ASSEMBLY_SPAN that contains a part of it.
 * An output block with nothing missing is complete.
 *
 * So a block is read again only for outputs beyond the span: never when tensors are cut by rows or
 * not at all; once per span when a slice is cut by columns.
 *
 * At most ASSEMBLY_BLOCKS (fewer with two sides) output blocks are open at a time: the oldest one
 * that is not yet released, and those after it. A read begins only when every block that it may
 * fill is open. Memory for a block is taken when its first byte arrives and reused last in, first
 * out, so unneeded memory is never touched.
 *
 * The caller's thread owns the walk and opens blocks; workers fill them, counting down the missing
 * bytes; the lock guards the free rooms and the count of open blocks. */
#include "clients/cli/assemble/wants.h"
#include "clients/cli/engine/scan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct assembly {
    struct checkpoint *sides;
    uint32_t num_sides, num_blocks, span; /* open at a time; a read fills at most `span` */
    const struct assembly_hooks *hooks;
    struct scan *scan;
    /* The walk. */
    struct output_file *file;
    uint64_t at, opened; /* in the file: the present block; blocks that are open or released */
    struct wants wants;  /* of the present block */
    uint32_t next_wanted;
    bool is_last; /* there are no more files */
    /* By number among all files, modulo num_blocks. */
    struct output_block *blocks;
    unsigned char *memory;
    pthread_mutex_t lock;
    pthread_cond_t released;
    unsigned char **rooms; /* free ones */
    uint32_t num_rooms;
    uint64_t oldest, newest; /* numbers of open blocks: [oldest, newest) */
    uint64_t num_handed;     /* passed to complete(), and not yet released */
};

/* ---- rooms ---- */

static struct output_block *block_at(const struct assembly *assembly,
                                     const struct output_file *file, uint64_t index)
{
    return &assembly->blocks[(file->base + index) % assembly->num_blocks];
}

static unsigned char *take_room(struct output_block *block, uint32_t side)
{
    struct assembly *assembly = block->assembly;
    pthread_mutex_lock(&assembly->lock);
    if (block->data[side] == NULL) {
        CHECK(assembly->num_rooms > 0);
        unsigned char *room = assembly->rooms[--assembly->num_rooms];
        memset(room + block->bytes, 0, SCAN_BLOCK - block->bytes);
        __atomic_store_n(&block->data[side], room, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&assembly->lock);
    return block->data[side];
}

static unsigned char *room_of(struct output_block *block, uint32_t side)
{
    unsigned char *room = __atomic_load_n(&block->data[side], __ATOMIC_ACQUIRE);
    return room != NULL ? room : take_room(block, side);
}

void assembly_release(struct output_block *block)
{
    struct assembly *assembly = block->assembly;
    pthread_mutex_lock(&assembly->lock);
    for (uint32_t side = 0; side < assembly->num_sides; side++) {
        if (block->data[side] != NULL)
            assembly->rooms[assembly->num_rooms++] = block->data[side];
        block->data[side] = NULL;
    }
    block->is_free = true;
    while (assembly->oldest < assembly->newest &&
           assembly->blocks[assembly->oldest % assembly->num_blocks].is_free)
        assembly->oldest++;
    if (--assembly->num_handed == 0)
        pthread_cond_signal(&assembly->released);
    scan_wake(assembly->scan);
    pthread_mutex_unlock(&assembly->lock);
}

static int hand_over(struct assembly *assembly, uint32_t worker, struct output_block *block)
{
    pthread_mutex_lock(&assembly->lock);
    assembly->num_handed++;
    pthread_mutex_unlock(&assembly->lock);
    return assembly->hooks->complete(assembly->hooks->user, worker, block);
}

/* ---- writing ---- */

static void block_written(struct storage_request *request)
{
    struct output_block *block =
        (struct output_block *)((char *)request - offsetof(struct output_block, request));
    if (request->error != 0)
        scan_fail(block->assembly->scan,
                  report_error(request->error, NULL, "could not write the output: %s",
                               request->error_number != 0 ? strerror(request->error_number)
                                                          : err_text(request->error)));
    ((void (*)(struct output_block *))request->user)(block);
}

void assembly_write(struct output_block *block, struct storage *store,
                    struct storage_object *object, void (*written)(struct output_block *block))
{
    uint64_t align = storage_align(store);
    uint64_t bytes = (block->bytes + align - 1) / align * align;
    block->request = (struct storage_request){.op = STORAGE_WRITE,
                                              .object = object,
                                              .offset = block->start,
                                              .data = block->data[0],
                                              .bytes = (uint32_t)bytes,
                                              .buffer = -1,
                                              .done = block_written,
                                              .user = (void *)written};
    storage_submit(store, &block->request);
}

/* ---- filling ---- */

struct filling {
    struct assembly *assembly;
    const struct scan_read *read;
    uint32_t worker;
    uint64_t end; /* index after the last output block that this read fills */
    const struct output_tensor *tensor;
    const struct tensor_meta *meta; /* of the whole tensor */
    struct box part;                /* if joined: the box in it that has the elements */
    enum dtype from;
    const unsigned char *data; /* the present elements */
    int error;
};

/* Copies `count` elements, from element `element` of the data, to element `place` of the output
 * tensor. */
static void fill_elements(struct filling *filling, uint64_t place, uint64_t count, uint64_t element)
{
    struct output_file *file = filling->read->output;
    const struct output_tensor *tensor = filling->tensor;
    uint32_t size = dtype_bytes(tensor->dtype), size_from = dtype_bytes(filling->from);
    uint64_t byte = tensor->start + place * size;
    const unsigned char *data = filling->data + element * size_from;
    while (count > 0 && filling->error == 0 && byte / SCAN_BLOCK < filling->end) {
        uint64_t inside = byte % SCAN_BLOCK, now = (SCAN_BLOCK - inside) / size;
        now = now < count ? now : count;
        if (byte / SCAN_BLOCK >= filling->read->first) {
            struct output_block *block = block_at(filling->assembly, file, byte / SCAN_BLOCK);
            convert_elements(room_of(block, filling->read->side) + inside, tensor->dtype, data,
                             filling->from, now);
            if (atomic_fetch_sub(&block->missing, now * size) == now * size)
                filling->error = hand_over(filling->assembly, filling->worker, block);
        }
        byte += now * size;
        data += now * size_from;
        count -= now;
    }
}

/* The position of element `global` of a tensor in the row-major order of a box, and how many
 * elements from there on are contiguous in both. False: it is not in the box, and nor are the next
 * *out_count. */
static bool find_place(uint64_t *out_place, uint64_t *out_count, const struct box *box,
                       const struct tensor_meta *meta, uint64_t global)
{
    uint64_t inner = 1, place = 0, above = global;
    uint32_t last = meta->dims; /* dimensions from here on are whole in the box */
    *out_place = 0;
    *out_count = 1;
    while (last > 0 && box->extent[last - 1] == meta->shape[last - 1])
        inner *= meta->shape[--last];
    if (last == 0) {
        *out_place = global;
        *out_count = inner - global;
        return true;
    }
    uint64_t index[LAYOUT_DIMS_MAX] = {0}, within = above % inner;
    above /= inner;
    for (uint32_t d = last; d-- > 0; above /= meta->shape[d])
        index[d] = above % meta->shape[d];
    bool is_inside = true;
    for (uint32_t d = 0; d + 1 < last; d++) {
        is_inside =
            is_inside && index[d] >= box->offset[d] && index[d] < box->offset[d] + box->extent[d];
        place = place * box->extent[d] + (index[d] - box->offset[d]);
    }
    uint64_t at = index[last - 1], begin = box->offset[last - 1];
    uint64_t end = begin + box->extent[last - 1];
    if (!is_inside || at < begin || at >= end) {
        end = is_inside && at < begin ? begin : meta->shape[last - 1];
        *out_count = (end - at) * inner - within;
        return false;
    }
    *out_place = (place * box->extent[last - 1] + at - begin) * inner + within;
    *out_count = (end - at) * inner - within;
    return true;
}

/* Fills a run of the global order, as box_runs() gives it. */
static void fill_run(void *user, uint64_t global, uint64_t count, uint64_t element)
{
    struct filling *filling = user;
    const struct output_tensor *tensor = filling->tensor;
    uint64_t width = filling->meta->shape[1];
    while (count > 0 && filling->error == 0) {
        uint64_t place, now, to = global, most = count;
        if (tensor->head_rows != 0) { /* row by row */
            to = heads_to_halves(global / width, tensor->head_rows) * width + global % width;
            most = width - global % width < count ? width - global % width : count;
        }
        bool is_inside = find_place(&place, &now, &tensor->box, filling->meta, to);
        now = now < most ? now : most;
        if (is_inside)
            fill_elements(filling, place, now, element);
        global += now;
        element += now;
        count -= now;
    }
}

/* The same for a part of a joined tensor. */
static void fill_part(void *user, uint64_t place, uint64_t count, uint64_t element)
{
    struct filling *filling = user, part = *filling;
    part.data += element * dtype_bytes(filling->from);
    box_runs(&filling->part, filling->meta, place, count, fill_run, &part);
    filling->error = part.error;
}

static int process_block(void *user, uint32_t worker, const struct scan_read *read,
                         const void *data)
{
    struct assembly *assembly = user;
    const struct shard_file *shard = read->file;
    const struct layout_table *table = assembly->sides[read->side].manifest->table;
    uint64_t start, bytes;
    struct filling filling = {.assembly = assembly, .read = read, .worker = worker};
    shard_block(&start, &bytes, &shard->stored.geometry, read->block);
    filling.end = read->first + assembly->span;
    if (filling.end > read->output->num_blocks)
        filling.end = read->output->num_blocks;
    for (uint32_t i = shard_tensor_at(shard, start); i < shard->num_tensors; i++) {
        const struct shard_tensor *tensor = &shard->tensors[i];
        uint64_t begin = shard->stored.geometry.data_start + tensor->data_byte;
        uint32_t place = read->output->place_of[read->side][tensor->tensor];
        if (begin >= start + bytes || filling.error != 0)
            break;
        if (place == NONE)
            continue;
        uint64_t from = begin > start ? begin : start, end = begin + tensor->bytes;
        end = end < start + bytes ? end : start + bytes;
        const struct tensor_meta *meta = &table->tensors[tensor->tensor];
        uint32_t size = dtype_bytes(meta->dtype);
        filling.tensor = &read->output->tensors[place];
        filling.meta = meta;
        filling.from = meta->dtype;
        filling.data = (const unsigned char *)data + (from - start);
        uint64_t first = (from - begin) / size, count = (end - from) / size;
        if (filling.tensor->joined != NULL) {
            filling.meta = filling.tensor->joined;
            layout_joined_box(&filling.part, meta);
            box_runs(&tensor->box, meta, first, count, fill_part, &filling);
        } else if (filling.tensor->head_rows == 0 &&
                   box_equal(&tensor->box, &filling.tensor->box, meta->dims))
            fill_elements(&filling, first, count, 0);
        else
            box_runs(&tensor->box, meta, first, count, fill_run, &filling);
    }
    atomic_fetch_sub(&read->output->num_reads, 1);
    return filling.error;
}

static int process_damaged(void *user, const struct scan_read *read, int error_number)
{
    const struct assembly *assembly = user;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &read->file->stored.geometry, read->block);
    if (error_number != 0)
        return report_error(ERR_IO, DAMAGE_HINT, "%s: shard %u: could not read block %llu: %s",
                            assembly->sides[read->side].name, read->file->stored.shard + 1,
                            (unsigned long long)read->block, strerror(error_number));
    atomic_store(&read->file->has_bad_block, true);
    return report_error(ERR_CORRUPT, DAMAGE_HINT,
                        "%s: shard %u: block %llu (bytes %llu to %llu) is damaged",
                        assembly->sides[read->side].name, read->file->stored.shard + 1,
                        (unsigned long long)read->block, (unsigned long long)start,
                        (unsigned long long)(start + bytes));
}

void output_tensor_whole(struct output_tensor *tensor, const struct tensor_meta *meta)
{
    tensor->bytes = tensor_elements(meta) * dtype_bytes(tensor->dtype);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        tensor->box.offset[d] = 0;
        tensor->box.extent[d] = d < meta->dims ? meta->shape[d] : 1;
    }
}

uint32_t output_tensor_after(const struct output_file *file, uint64_t byte)
{
    uint32_t low = 0, high = file->num_tensors;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (file->tensors[middle].start + file->tensors[middle].bytes <= byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- the walk ---- */

void output_file_deinit(struct output_file *file)
{
    for (uint32_t side = 0; side < ASSEMBLY_SIDES_MAX; side++) {
        free(file->place_of[side]);
        file->place_of[side] = NULL;
    }
}

static int open_file(struct assembly *assembly)
{
    const struct assembly_hooks *hooks = assembly->hooks;
    struct output_file *file = assembly->file == NULL ? hooks->file : NULL;
    int error = hooks->file != NULL ? 0 : hooks->open(hooks->user, &file);
    assembly->file = file;
    assembly->is_last = file == NULL;
    if (error != 0 || file == NULL)
        return error;
    file->num_blocks = (file->bytes + SCAN_BLOCK - 1) / SCAN_BLOCK;
    file->base = assembly->newest;
    assembly->at = assembly->opened = 0;
    for (uint32_t side = 0; side < assembly->num_sides; side++) {
        uint32_t count = assembly->sides[side].manifest->table->num_tensors;
        uint32_t *place_of = file->place_of[side] = malloc((count + 1) * sizeof *place_of);
        if (place_of == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for %s",
                                text_count(count, "tensor").text);
        for (uint32_t i = 0; i < count; i++)
            place_of[i] = NONE;
        for (uint32_t i = 0; i < file->num_tensors; i++)
            for (uint32_t part = 0; part == 0 || part < file->tensors[i].num_parts; part++)
                place_of[file->tensors[i].tensor[side] + part] = i;
    }
    return 0;
}

/* Bytes of tensors in a block. */
static uint64_t bytes_of_tensors(const struct output_file *file, const struct output_block *block)
{
    uint64_t sum = 0, end = block->start + block->bytes;
    for (uint32_t i = output_tensor_after(file, block->start);
         i < file->num_tensors && file->tensors[i].start < end; i++) {
        uint64_t to = file->tensors[i].start + file->tensors[i].bytes;
        uint64_t from = file->tensors[i].start;
        from = from > block->start ? from : block->start;
        sum += (to < end ? to : end) - from;
    }
    return sum;
}

/* Opens the next block of the file; its place is free. */
static int open_block(struct assembly *assembly)
{
    struct output_file *file = assembly->file;
    struct output_block *block = block_at(assembly, file, assembly->opened);
    uint64_t start = assembly->opened * SCAN_BLOCK, left = file->bytes - start;
    pthread_mutex_lock(&assembly->lock);
    block->file = file;
    block->index = assembly->opened;
    block->start = start;
    block->bytes = left < SCAN_BLOCK ? left : SCAN_BLOCK;
    block->is_free = false;
    atomic_store(&block->missing, bytes_of_tensors(file, block) * assembly->num_sides);
    assembly->newest++;
    assembly->opened++;
    pthread_mutex_unlock(&assembly->lock);
    if (start < file->head_bytes) {
        uint64_t bytes = file->head_bytes - start;
        memcpy(room_of(block, 0), (const char *)file->head + start,
               bytes < block->bytes ? bytes : block->bytes);
    }
    if (atomic_load(&block->missing) > 0)
        return 0;
    room_of(block, 0);
    return hand_over(assembly, scan_workers(), block);
}

/* Opens all blocks that a read for the present one may fill. SCAN_READ: they are open. */
static int open_span(struct assembly *assembly)
{
    uint64_t end = assembly->at + assembly->span;
    if (end > assembly->file->num_blocks)
        end = assembly->file->num_blocks;
    while (assembly->opened < end) {
        pthread_mutex_lock(&assembly->lock);
        bool is_full = assembly->newest - assembly->oldest == assembly->num_blocks;
        pthread_mutex_unlock(&assembly->lock);
        if (is_full)
            return SCAN_WAIT;
        int error = open_block(assembly);
        if (error != 0)
            return error;
    }
    return SCAN_READ;
}

/* Nothing more to read: waits until every block is released. */
static int wait_for_release(struct assembly *assembly)
{
    pthread_mutex_lock(&assembly->lock);
    bool is_done = assembly->oldest == assembly->newest;
    pthread_mutex_unlock(&assembly->lock);
    return is_done ? SCAN_END : SCAN_WAIT;
}

static int next_read(void *user, struct scan_read *out)
{
    struct assembly *assembly = user;
    int result = 0;
    while (assembly->next_wanted == assembly->wants.count && result == 0) {
        assembly->wants.count = assembly->next_wanted = 0;
        if (assembly->is_last)
            return wait_for_release(assembly);
        if (assembly->file == NULL || assembly->at == assembly->file->num_blocks) {
            result = open_file(assembly);
            continue;
        }
        result = open_span(assembly);
        if (result != SCAN_READ)
            return result;
        result = wants_add(&assembly->wants, block_at(assembly, assembly->file, assembly->at));
        assembly->at++;
    }
    if (result != 0)
        return result;
    const struct wanted *wanted = &assembly->wants.list[assembly->next_wanted++];
    *out = (struct scan_read){.block = wanted->block,
                              .side = wanted->side,
                              .output = assembly->file,
                              .first = assembly->at - 1};
    result = shard_take(&out->file, &assembly->sides[wanted->side], wanted->shard);
    if (result == 0)
        atomic_fetch_add(&assembly->file->num_reads, 1);
    return result != 0 ? result : SCAN_READ;
}

/* ---- begin and end ---- */

static int prepare(struct assembly *assembly)
{
    uint32_t rooms = assembly->num_blocks * assembly->num_sides;
    int error = scan_open(&assembly->scan, assembly->sides[0].store);
    assembly->blocks = calloc(assembly->num_blocks, sizeof *assembly->blocks);
    assembly->rooms = calloc(rooms, sizeof *assembly->rooms);
    assembly->memory = scan_memory((size_t)rooms * SCAN_BLOCK);
    if (error == 0 &&
        (assembly->blocks == NULL || assembly->rooms == NULL || assembly->memory == NULL))
        error = report_error(ERR_MEMORY, NULL, "no memory to write with");
    for (uint32_t i = 0; i < assembly->num_blocks && error == 0; i++)
        assembly->blocks[i].assembly = assembly;
    for (uint32_t i = rooms; i-- > 0 && error == 0;)
        assembly->rooms[assembly->num_rooms++] = assembly->memory + (size_t)i * SCAN_BLOCK;
    return error;
}

/* After an error: blocks that are being written still use our memory. */
static void wait_for_handed(struct assembly *assembly)
{
    pthread_mutex_lock(&assembly->lock);
    while (assembly->num_handed > 0)
        pthread_cond_wait(&assembly->released, &assembly->lock);
    pthread_mutex_unlock(&assembly->lock);
}

int assembly_run(struct checkpoint *sides, uint32_t num_sides, const struct assembly_hooks *hooks)
{
    uint32_t num_blocks = hooks->num_blocks != 0 ? hooks->num_blocks : ASSEMBLY_BLOCKS / num_sides;
    struct assembly assembly = {.sides = sides,
                                .num_sides = num_sides,
                                .num_blocks = num_blocks,
                                .span = num_blocks / 2,
                                .hooks = hooks};
    assembly.wants = (struct wants){.sides = sides, .num_sides = num_sides, .span = assembly.span};
    CHECK(num_blocks >= 2 && num_sides >= 1 && num_sides <= ASSEMBLY_SIDES_MAX);
    const struct scan_hooks scan_hooks = {.user = &assembly,
                                          .next = next_read,
                                          .take = process_block,
                                          .damaged = process_damaged,
                                          .progress = hooks->progress};
    pthread_mutex_init(&assembly.lock, NULL);
    pthread_cond_init(&assembly.released, NULL);
    int error = prepare(&assembly);
    if (error == 0) {
        error = scan_run(assembly.scan, &scan_hooks);
        wait_for_handed(&assembly);
    }
    scan_close(assembly.scan);
    pthread_cond_destroy(&assembly.released);
    pthread_mutex_destroy(&assembly.lock);
    free(assembly.memory);
    free(assembly.rooms);
    free(assembly.blocks);
    free(assembly.wants.list);
    return error;
}

int assembly_run_whole(struct checkpoint *checkpoint, const struct assembly_hooks *hooks,
                       const struct cli *cli, const char *verb, uint64_t bytes)
{
    struct progress progress;
    struct assembly_hooks shown = *hooks;
    shown.progress = &progress;
    ERR_TRY(checkpoint_load(checkpoint, LOAD_HEADERS));
    ERR_TRY(checkpoint_need_whole(checkpoint));
    progress_begin(&progress, cli, verb, bytes);
    int error = assembly_run(checkpoint, 1, &shown);
    progress_end(&progress);
    return error;
}
