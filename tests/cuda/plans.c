/* plans.c - does cuDNN take the graphs of attention for a named GPU, which is not there?
 *
 *     plans PROPERTIES.json BATCH,SEQ,HEADS,KV_HEADS,HEAD_DIM...
 *
 * A line for each shape and direction: scratch in bytes, or why it was refused (status 1). Without
 * cuDNN: one line, status 78. */
#include <stdio.h>

#include "kernels/cuda/library/dnn.h"
#include "proto/base/report.h"

static const char *read_properties(const char *path)
{
    static char text[4096];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = 0;
    return bytes > 0 ? text : NULL;
}

static int plan(struct cuda_dnn *dnn, const char *text, bool is_backward)
{
    struct kernel_shapes s = {.dtype = KERNEL_BF16};
    size_t bytes = 0;
    if (sscanf(text, "%u,%u,%u,%u,%u", &s.batch, &s.seq, &s.heads, &s.kv_heads, &s.head_dim) != 5)
        return report_error(ERR_INVALID, NULL, "no shape: %s", text);
    int error = cuda_dnn_plan(dnn, &s, is_backward, &bytes);
    printf("%s %s: ", text, is_backward ? "backward" : "forward");
    if (error == 0)
        printf("accepted, %zu bytes\n", bytes);
    else
        printf("%s\n", report_line());
    return error;
}

int main(int argc, char **argv)
{
    struct cuda_dnn *dnn = NULL;
    const char *properties = argc > 1 ? read_properties(argv[1]) : NULL;
    int num_refused = 0;
    if (!properties) {
        fprintf(stderr, "plans: no properties of a device\n");
        return 2;
    }
    if (cuda_dnn_open_for(&dnn, properties) != 0) {
        fprintf(stderr, "plans: %s\n", report_line());
        return 78;
    }
    printf("%s\n", cuda_dnn_describe(dnn));
    for (int i = 0; i < 2 * (argc - 2); i++)
        num_refused += plan(dnn, argv[2 + i / 2], i % 2 != 0) != 0;
    cuda_dnn_close(dnn);
    return num_refused > 0;
}
