/* kernels_float8.h - cases of float8 operands, their products and codes: a part of kernels_cases.h,
 * whose bed they use. */
#ifndef HOLDFAST_TESTS_KERNELS_FLOAT8_H
#define HOLDFAST_TESTS_KERNELS_FLOAT8_H

/* An operand of float8 products, [rows,width]. */
static inline const void *float8_operand(KERNELS, size_t rows, uint32_t width,
                                         enum kernel_float8 format)
{
    size_t bytes = kernel_float8_bytes(rows, width, s->dtype);
    void *out = new_buffer(run, bytes / kernel_dtype_bytes(s->dtype), s->dtype);
    const void *x = random_buffer(run, rows * width, s->dtype);
    POST(k, lane, round_float8, .out = out, .x = x, .count = rows * width, .width = width,
         .format = format, .dtype = s->dtype);
    return out;
}
/* An operand that was coded with the largest value of another part of the tensor. */
static inline const void *coded(KERNELS, const void *x, size_t count, const void *other)
{
    void *out = new_buffer(run, kernel_coded_bytes(count) / sizeof(float), KERNEL_F32);
    uint32_t *largest = new_buffer(run, 1, KERNEL_F32);
    POST(k, lane, float8_largest, .out = largest, .x = other, .count = count, .dtype = s->dtype);
    POST(k, lane, float8_encode, .out = out, .x = x, .largest = largest, .count = count,
         .dtype = s->dtype);
    return out;
}
/* Rows of even widths: a GPU stores pairs. */
#define EVEN(x) (((x) + 1) / 2 * 2)
static inline void case_linear_float8(KERNELS)
{
    uint32_t in = EVEN(s->dim), out_dim = EVEN(s->hidden);
    void *out = new_buffer(run, ROWS * out_dim, s->dtype);
    run->num_outputs = 1;
    const void *x = float8_operand(k, lane, s, run, ROWS, in, KERNEL_E4M3);
    const void *w = float8_operand(k, lane, s, run, out_dim, in, KERNEL_E4M3);
    POST(k, lane, linear, .out = out, .x = x, .w = w, .rows = (uint32_t)ROWS, .in = in,
         .out_dim = out_dim, .dtype = s->dtype, .is_float8 = true);
}
/* The gradient of rows, added to dx, from one of their products and a weight [out_dim,in]. */
static inline void float8_dx(KERNELS, void *dx, const void *w, enum kernel_float8 format)
{
    uint32_t in = EVEN(s->dim), out_dim = EVEN(s->hidden);
    const void *dout = float8_operand(k, lane, s, run, ROWS, out_dim, format);
    POST(k, lane, linear_backward_input, .dx = dx, .dout = dout, .w = w, .rows = (uint32_t)ROWS,
         .in = in, .out_dim = out_dim, .accumulate = true, .dtype = s->dtype, .dout_format = format,
         .is_float8 = true);
}
static inline void dx_float8(KERNELS, enum kernel_float8 format)
{
    uint32_t in = EVEN(s->dim), out_dim = EVEN(s->hidden);
    void *dx = random_buffer(run, ROWS * in, s->dtype);
    run->num_outputs = 1;
    float8_dx(k, lane, s, run, dx, float8_operand(k, lane, s, run, out_dim, in, KERNEL_E4M3),
              format);
}
CASE(linear_dx_float8, dx_float8, KERNEL_E5M2)
CASE(linear_dx_e4m3, dx_float8, KERNEL_E4M3)
static inline void dw_float8(KERNELS, enum kernel_float8 format)
{
    uint32_t in = EVEN(s->dim), out_dim = EVEN(s->hidden);
    float *dw = new_buffer(run, (size_t)out_dim * in, KERNEL_F32);
    run->num_outputs = 1;
    const void *dout = float8_operand(k, lane, s, run, ROWS, out_dim, format);
    const void *x = float8_operand(k, lane, s, run, ROWS, in, KERNEL_E4M3);
    POST(k, lane, linear_backward_weight, .dw = dw, .dout = dout, .x = x, .rows = (uint32_t)ROWS,
         .in = in, .out_dim = out_dim, .dtype = s->dtype, .dout_format = format, .is_float8 = true);
}
CASE(linear_dw_float8, dw_float8, KERNEL_E5M2)
CASE(linear_dw_e4m3, dw_float8, KERNEL_E4M3)
/* Of a weight that comes as codes. */
static inline void case_linear_coded_float8(KERNELS)
{
    uint32_t in = EVEN(s->dim), out_dim = EVEN(s->hidden);
    size_t count = (size_t)out_dim * in, bytes = kernel_float8_bytes(out_dim, in, s->dtype);
    void *dx = random_buffer(run, ROWS * in, s->dtype);
    run->num_outputs = 1;
    void *w = new_buffer(run, bytes / kernel_dtype_bytes(s->dtype), s->dtype);
    const void *x = random_buffer(run, count, s->dtype);
    POST(k, lane, float8_decode, .out = w, .coded = coded(k, lane, s, run, x, count, x),
         .count = count, .width = in, .dtype = s->dtype);
    float8_dx(k, lane, s, run, dx, w, KERNEL_E5M2);
}
static inline void float8_with(KERNELS, enum kernel_float8 format, bool is_noted)
{
    size_t count = ROWS * s->dim;
    void *out = new_buffer(run, count, s->dtype), *x = random_buffer(run, count, s->dtype);
    run->num_outputs = 1;
    if (s->dtype == KERNEL_F32) /* the largest comes last */
        ((float *)x)[count - 1] = 37;
    else
        ((uint16_t *)x)[count - 1] = 0x4214;
    float *noted = is_noted ? new_buffer(run, 1, KERNEL_F32) : NULL;
    if (is_noted)
        *noted = 150; /* another than x has: the kernel does not search for it */
    POST(k, lane, round_float8, .out = out, .x = x, .largest = (uint32_t *)noted, .count = count,
         .format = format, .dtype = s->dtype);
}
CASE(e4m3, float8_with, KERNEL_E4M3, false)
CASE(e5m2, float8_with, KERNEL_E5M2, false)
CASE(e4m3_noted, float8_with, KERNEL_E4M3, true)
/* Codes, or their numbers. Values that round to zero are +0 here: on a GPU they keep their sign. */
static inline void coded_as(KERNELS, bool is_decoded)
{
    size_t count = ROWS * s->dim;
    float *out = new_buffer(run, count, KERNEL_F32);
    run->num_outputs = 1;
    void *x = random_buffer(run, count, s->dtype), *other = random_buffer(run, count, s->dtype);
    for (size_t i = 0; i < count; i++)
        if (s->dtype == KERNEL_F32)
            ((float *)x)[i] = fabsf(((float *)x)[i]) < 0x1p-11f ? 0 : ((float *)x)[i];
        else
            ((uint16_t *)x)[i] &= (((uint16_t *)x)[i] & 0x7fff) < 0x3a00 ? 0 : 0xffff;
    if (s->dtype == KERNEL_F32) /* the largest comes last */
        ((float *)other)[count - 1] = 37;
    else
        ((uint16_t *)other)[count - 1] = 0x4214;
    const uint8_t *codes = coded(k, lane, s, run, x, count, other);
    if (is_decoded)
        POST(k, lane, float8_decode, .out = out, .coded = codes, .count = count, .width = s->dim,
             .dtype = KERNEL_F32);
    assert_int_equal(lane_settle(lane), 0);
    for (size_t i = 0; i < count && !is_decoded; i++)
        out[i] = codes[KERNEL_CODES_AT + i];
}
CASE(encoded, coded_as, false)
CASE(coded, coded_as, true)
static inline void case_largest(KERNELS)
{
    size_t count = ROWS * s->dim;
    float *out = new_buffer(run, 1, KERNEL_F32);
    run->num_outputs = 1;
    POST(k, lane, float8_largest, .out = (uint32_t *)out, .x = random_buffer(run, count, s->dtype),
         .count = count, .dtype = s->dtype);
}

#endif
