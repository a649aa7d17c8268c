/* timeouts.c - the limits of a rank's waits for other ranks (see timeouts.h). */
#include "trainer/run/timeouts.h"
#include "trainer/config/hooks.h"

#define DURABLE_SECONDS 600 /* limit for a save to become durable (save/final.c) */

static const char init_key[] = "comm.init_timeout_seconds";
static const char train_key[] = "comm.train_timeout_seconds";

void timeouts_set(struct flight *flight, const struct config *config, enum timeouts phase)
{
    int64_t train = config->comm_timeout, seconds = 0;
    bool is_init = phase == TIMEOUT_INIT;
    if (is_init)
        seconds = config->comm_init_timeout;
    else if (phase == TIMEOUT_TRAIN)
        seconds = train;
    else if (phase == TIMEOUT_SERVER && train > 0)
        seconds = train + config->busy_wait_seconds + config->final_seconds + DURABLE_SECONDS;
    if (hooks_wait(config))
        seconds = 0;
    flight_set_limit(flight, seconds, is_init ? init_key : train_key);
}
