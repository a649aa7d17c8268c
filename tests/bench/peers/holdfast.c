/* holdfast.c - libckpt for a rank in Python: tests/bench/peers/savers.py calls these functions
 * through ctypes. Scalars and pointers only, so that no struct is described twice.
 *
 * One rank per process. Tensors are F32 and two-dimensional, and cut on their rows; their memory is
 * the caller's (PyTorch's) and stays valid until bench_close. Functions return libckpt's result;
 * bench_error is the line that explains it, for the calling thread. */
#include "clients/ckpt.h"

#include <stddef.h>

#define TENSORS_MAX 256u
#define WAIT_MS 300000u

static struct {
    struct ckpt *ckpt;
    struct ckpt_tensor tensors[TENSORS_MAX];
    uint32_t num_tensors;
} self;

int bench_tensor(const char *name, const uint64_t *shape, uint64_t first_row, uint64_t num_rows,
                 void *data)
{
    if (self.num_tensors == TENSORS_MAX)
        return CKPT_INVALID;
    self.tensors[self.num_tensors++] = (struct ckpt_tensor){.name = name,
                                                            .dtype = "F32",
                                                            .dims = 2,
                                                            .shape = {shape[0], shape[1]},
                                                            .offset = {first_row, 0},
                                                            .extent = {num_rows, shape[1]},
                                                            .data = data};
    return 0;
}

int bench_open(const char *server, const char *run, uint32_t rank, uint32_t world_size)
{
    struct ckpt_options options = {
        .server = server, .run = run, .rank = rank, .world_size = world_size};
    return ckpt_open(&self.ckpt, &options);
}

/* Rank 0: a new attempt, and the step of the newest checkpoint. */
int bench_attempt(uint64_t *out_attempt, uint64_t *out_step)
{
    struct ckpt_info newest;
    int rc = ckpt_attempt_open(self.ckpt, out_attempt, &newest, NULL);
    *out_step = rc == 0 ? newest.step : 0;
    return rc;
}

int bench_describe(uint64_t attempt)
{
    return ckpt_describe(self.ckpt, attempt, self.tensors, self.num_tensors);
}

/* Returns when the tensors may change again. */
int bench_copy(uint64_t step)
{
    struct ckpt_save *save;
    int rc = ckpt_save_begin(self.ckpt, &save, step, "{}");
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < self.num_tensors; i++)
        (void)ckpt_save_copy(save, i); /* save_end returns the first failure */
    return ckpt_save_end(save);
}

int bench_wait(uint64_t step)
{
    return ckpt_save_wait(self.ckpt, step, WAIT_MS);
}

/* The newest checkpoint into the tensors; the bytes that came out of ckptd's memory. */
int bench_load(uint64_t *out_bytes_memory)
{
    struct ckpt_loaded *loaded;
    struct ckpt_load_options options = {
        .step = CKPT_NEWEST, .tensors = self.tensors, .num_tensors = self.num_tensors};
    int rc = ckpt_load(self.ckpt, &options, &loaded);
    if (rc != 0)
        return rc;
    *out_bytes_memory = loaded->bytes_memory;
    ckpt_loaded_free(loaded);
    return 0;
}

void bench_close(void)
{
    ckpt_close(self.ckpt);
    self.ckpt = NULL;
}

const char *bench_error(void)
{
    return ckpt_error();
}
