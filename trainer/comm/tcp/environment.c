/* environment.c - reads the launcher's variables, as torchrun sets them (see tcp.h). */
#include "proto/base/report.h"
#include "trainer/comm/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number_of(uint32_t *out, const char *name, uint32_t least, uint32_t below)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long number = text != NULL ? strtoul(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || number < least || number >= below)
        return report_error(ERR_INVALID,
                            "start the processes with torchrun, or set the variables that it sets",
                            "%s is \"%s\", not a number from %u to %u", name,
                            text != NULL ? text : "", least, below - 1);
    *out = (uint32_t)number;
    return 0;
}

int tcp_options_of_environment(struct tcp_options *out)
{
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const char *run = getenv("TORCHELASTIC_RUN_ID"), *start = getenv("TORCHELASTIC_RESTART_COUNT");
    *out = (struct tcp_options){.host = getenv("MASTER_ADDR"), .port = getenv("MASTER_PORT")};
    ERR_TRY(number_of(&out->size, "WORLD_SIZE", 1, TCP_RANKS_MAX + 1));
    ERR_TRY(number_of(&out->rank, "RANK", 0, out->size));
    if (out->host == NULL || out->host[0] == '\0' || out->port == NULL)
        return report_error(ERR_INVALID,
                            "start the processes with torchrun, or set the variables that it sets",
                            "MASTER_ADDR or MASTER_PORT is missing");
    if (agent != NULL && strcmp(agent, "True") == 0)
        snprintf(out->store_key, sizeof(out->store_key), "holdfast/%.80s/%.16s/port",
                 run != NULL ? run : "", start != NULL ? start : "0");
    return 0;
}
