/* agree.c - exchanges the result of a call between all ranks (see parallel.h). */
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/parallel/parallel.h"

#include <stdlib.h>

int parallel_agree_quietly(struct comm *world, int rc, uint32_t *out_first)
{
    uint32_t size = world->size, first = 0;
    int64_t *codes = calloc(size, sizeof(*codes));
    *out_first = world->rank;
    if (codes == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u codes", size);
    codes[world->rank] = rc;
    struct report_text text;
    report_keep(&text);
    int agreed = comm_all_reduce_i64(world, codes, size);
    if (agreed != 0) {
        free(codes);
        return rc != 0 ? report_restore(&text, rc) : agreed; /* its own error comes first */
    }
    while (first < size && codes[first] == 0)
        first++;
    if (first < size)
        agreed = (int)codes[first];
    *out_first = first;
    free(codes);
    return agreed;
}

int parallel_agree(struct comm *world, int rc)
{
    uint32_t first = 0;
    int agreed = parallel_agree_quietly(world, rc, &first);
    if (agreed != 0 && first != world->rank && first < world->size)
        report_clear();
    return agreed;
}
