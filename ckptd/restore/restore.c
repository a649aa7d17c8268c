/* restore.c - opens and closes the table of loads, and retries calls when memory is freed. */
#include "ckptd/restore/restore.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/pool.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/pump.h"
#include "ckptd/restore/shard.h"
#include "proto/base/report.h"

#include <stdlib.h>

static const struct pass_events events = {
    .grew = shard_grew, .verified = shard_verified, .failed = shard_failed};

static void try_again(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, retry_loads);
    shard_retry_starved(service);
    pump_read_ahead(service);
}

int restore_open(struct service *service)
{
    struct load_table *table = calloc(1, sizeof *table);
    service->loads = table;
    if (table)
        table->rows = calloc((size_t)service->config->limit_sessions, sizeof *table->rows);
    if (!table || !table->rows)
        return report_error(ERR_MEMORY, NULL, "no memory for the table of loads");
    table->events = &events;
    read_plan_init(&table->plan, (uint32_t)service->config->queue_depth,
                   pool_segment_bytes(service->pool));
    service->retry_loads.run = try_again;
    return 0;
}

void restore_close(struct service *service)
{
    struct load_table *table = service->loads;
    if (!table)
        return;
    for (int64_t i = 0; table->rows && i < service->config->limit_sessions; i++)
        if (table->rows[i].number != 0)
            load_end(&table->rows[i]);
    shard_fail_starved(service);
    CHECK(table->plan.num_asked == 0); /* the loop ends when it is idle */
    while (table->together) {
        struct together *together = table->together;
        table->together = together->next;
        free(together);
    }
    free(table->rows);
    free(table);
    service->loads = NULL;
}
