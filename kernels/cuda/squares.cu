/* squares.cu - the exact sum of the squares of rows of many tensors (kernels.h, cpu/exact.c): two
 * launches for any number of tensors.
 *
 * A row's squares are added in double in sixteen lanes, as on the CPU: a block reads a row piece by
 * piece into shared memory, sixteen of its threads add. Sums over rows are exact: a double is cut
 * into digits of 32 bits, which are added as integers in any order. So the sum's bits are those of
 * the CPU, and no atomics are needed: a block adds its rows, and one block adds the blocks. */
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/values.h"

#define THREADS 128
#define PART 1024 /* values of a row in shared memory, twice; a multiple of SUM_LANES */
#define LIMBS KERNEL_EXACT_LIMBS
#define LIMB_INFINITY (LIMBS - 2)
#define LIMB_NAN (LIMBS - 1)
#define ADD_THREADS 512
#define AT_ONCE 16u                     /* loads of a thread under way */
#define ADD_PARTS (ADD_THREADS / LIMBS) /* of the blocks' sums, in parallel */
static_assert(THREADS >= LIMBS, "a thread a limb");

struct squares_args {
    struct kernel_sum_squares a;
    int64_t *partial; /* [blocks,LIMBS] */
    uint32_t blocks;
};

/* exact_add of cpu/exact.c. Values are squares: not negative. */
DEVICE void add_value(int64_t *limbs, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    unsigned exponent = (unsigned)(bits >> 52) & 0x7ff;
    uint64_t mantissa = bits & (((uint64_t)1 << 52) - 1);
    if (exponent == 0x7ff) {
        limbs[mantissa != 0 ? LIMB_NAN : LIMB_INFINITY] += 1;
        return;
    }
    if (exponent > 0)
        mantissa |= (uint64_t)1 << 52;
    unsigned shift = exponent > 0 ? exponent - 1 : 0, digit = shift / 32, up = shift % 32;
    uint64_t low = mantissa << up, high = mantissa >> 1 >> (63 - up);
    limbs[digit] += (int64_t)(uint32_t)low;
    limbs[digit + 1] += (int64_t)(low >> 32);
    limbs[digit + 2] += (int64_t)high;
}

/* `count` values from element `at` on, by all threads. */
template <bool BF16, unsigned N>
DEVICE void read_part(float *out, const void *x, size_t at, uint32_t count)
{
    float read[N];
    IN_GLOBAL_MEMORY(x);
    for (uint32_t c = threadIdx.x * N; c < count; c += THREADS * N) {
        load<BF16>(read, x, at + c);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            out[c + j] = read[j];
    }
}

/* The sum of the row at element `at`; the result is in thread 0. *turn is the half of `parts` that
 * is filled next. */
template <bool BF16>
DEVICE double row_sum(const struct kernel_squares_piece &a, size_t at, float *parts, unsigned *turn)
{
    double sum = 0;
    bool is_wide = a.width % wide<BF16> == 0;
    for (uint64_t first = 0; first < a.width; first += PART, *turn ^= 1) {
        uint32_t count = (uint32_t)(a.width - first < PART ? a.width - first : PART);
        float *part = parts + *turn * PART;
        if (is_wide)
            read_part<BF16, wide<BF16>>(part, a.x, at + first, count);
        else
            read_part<BF16, 1>(part, a.x, at + first, count);
        BARRIER();
        if (threadIdx.x < SUM_LANES) {
#pragma unroll 8
            for (uint32_t c = threadIdx.x; c < count; c += SUM_LANES) {
                double wide_x = (double)part[c];
                sum = sum + wide_x * wide_x;
            }
        }
    }
    return sum_tree(sum);
}

/* A block handles its rows in the order of the pieces. */
template <bool BF16> KERNEL(THREADS, 8) void row_squares(struct squares_args s)
{
    SHARED(float[2 * PART], parts);
    SHARED(int64_t[LIMBS], limbs);
    uint32_t at = 0;
    unsigned turn = 0;
    if (threadIdx.x < LIMBS)
        limbs[threadIdx.x] = 0;
    BARRIER();
    for (uint64_t row = blockIdx.x; row < s.a.rows; row += s.blocks) {
        while (row >= s.a.pieces[at].end)
            at++;
        const struct kernel_squares_piece piece = s.a.pieces[at];
        uint64_t before = at > 0 ? s.a.pieces[at - 1].end : 0;
        double sum = row_sum<BF16>(piece, (row - before) * piece.width, parts, &turn);
        if (threadIdx.x == 0)
            add_value(limbs, sum);
    }
    BARRIER();
    if (threadIdx.x < LIMBS)
        s.partial[blockIdx.x * LIMBS + threadIdx.x] = limbs[threadIdx.x];
}

KERNEL(ADD_THREADS, 1) void add_limbs(struct squares_args s)
{
    SHARED(int64_t[ADD_PARTS * LIMBS], parts);
    uint32_t limb = threadIdx.x % LIMBS, part = threadIdx.x / LIMBS;
    int64_t sum = 0;
    if (part < ADD_PARTS) {
        for (uint32_t b = part; b < s.blocks; b += AT_ONCE * ADD_PARTS) {
            int64_t read[AT_ONCE];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                uint32_t at = b + i * ADD_PARTS;
                read[i] = at < s.blocks ? s.partial[at * LIMBS + limb] : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                sum += read[i];
        }
        parts[part * LIMBS + limb] = sum;
    }
    BARRIER();
    if (threadIdx.x >= LIMBS)
        return;
    for (uint32_t i = 1; i < ADD_PARTS; i++)
        sum += parts[i * LIMBS + limb];
    s.a.sum->limb[limb] += sum;
}

extern "C" int cuda_sum_squares(const struct cuda_call *call, const void *args)
{
    struct squares_args s = {};
    s.a = *(const struct kernel_sum_squares *)args;
    s.partial = (int64_t *)call->scratch;
    s.blocks = (uint32_t)(s.a.rows < SCRATCH_SQUARES_BLOCKS ? s.a.rows : SCRATCH_SQUARES_BLOCKS);
    if (s.blocks == 0)
        return 0;
    int error = s.a.dtype == KERNEL_BF16
                    ? LAUNCH(call->stream, s.blocks, THREADS, 0, row_squares<true>, s)
                    : LAUNCH(call->stream, s.blocks, THREADS, 0, row_squares<false>, s);
    return error != 0 ? error : LAUNCH(call->stream, 1, ADD_THREADS, 0, add_limbs, s);
}
