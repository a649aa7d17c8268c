/* settings.c - the settings of the simulation: devices, seed, and calls that fail (simgpu.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/cuda/lanes.h"
#include "tests/simgpu/private.h"

struct simgpu simgpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void set_fail(const char *value)
{
    char sign = '\0';
    unsigned long long at = 0;
    CHECK(sscanf(value, "%47[A-Za-z_]:%llu%c", simgpu.fail_call, &at, &sign) >= 2 && at > 0);
    simgpu.fail_at = at;
    simgpu.fails_for_ever = sign == '+';
}

static void set_one(char *setting)
{
    char *value = strchr(setting, '=');
    CHECK(value != NULL);
    *value++ = '\0';
    unsigned long long number = strtoull(value, NULL, 10);
    if (strcmp(setting, "seed") == 0)
        simgpu.seed = number;
    else if (strcmp(setting, "devices") == 0)
        simgpu.num_devices = (int)number;
    else if (strcmp(setting, "memory") == 0)
        simgpu.memory_bytes = number;
    else if (strcmp(setting, "node") == 0)
        simgpu.node = (int)number;
    else if (strcmp(setting, "capability") == 0)
        simgpu.capability = (int)number;
    else if (strcmp(setting, "peers") == 0)
        simgpu.has_no_peers = number == 0;
    else if (strcmp(setting, "readonly") == 0)
        simgpu.registers_read_only = number != 0;
    else if (strcmp(setting, "algorithm") == 0)
        simgpu.algorithm = number;
    else if (strcmp(setting, "dropped") == 0)
        simgpu.dropped = number;
    else if (strcmp(setting, "driver") == 0)
        simgpu.driver = (int)number;
    else if (strcmp(setting, "fail") == 0)
        set_fail(value);
    else if (strcmp(setting, "sick") == 0)
        snprintf(simgpu.sick, sizeof(simgpu.sick), "%s", value);
    else if (strcmp(setting, "folder") == 0)
        simgpu_begin_processes(value);
    else if (strcmp(setting, "flip") == 0)
        CHECK(sscanf(value, "%zu:%u", &simgpu.flip.bytes, &simgpu.flip.at) == 2);
    else if (strcmp(setting, "torn") == 0)
        CHECK(sscanf(value, "%zu:%u", &simgpu.torn.bytes, &simgpu.torn.at) == 2);
    else
        CHECK(!"a setting of simgpu.h");
}

static void set_all(const char *settings)
{
    char text[256], *rest = NULL;
    CHECK(strlen(settings) < sizeof(text));
    memcpy(text, settings, strlen(settings) + 1);
    simgpu.is_set = true;
    simgpu.driver = CUDART_VERSION;
    simgpu.seed = 0;
    simgpu.num_devices = 1;
    simgpu.capability = 90;
    simgpu.node = 0;
    simgpu.memory_bytes = (size_t)80 << 30;
    simgpu.algorithm = simgpu.dropped = 0;
    simgpu.has_no_peers = simgpu.registers_read_only = false;
    simgpu.fail_at = simgpu.fail_calls = 0;
    simgpu.sick[0] = '\0';
    simgpu.flip.at = simgpu.torn.at = 0;
    memset(simgpu.lost, 0, sizeof(simgpu.lost));
    for (char *one = strtok_r(text, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest))
        set_one(one);
    CHECK(simgpu.num_devices >= 0 && simgpu.num_devices <= SIMGPU_DEVICES_MAX);
    simgpu.random = simgpu.seed;
    lanes_seed(simgpu.seed);
}

void simgpu_set(const char *settings)
{
    (void)cudaGetLastError(); /* of before */
    pthread_mutex_lock(&simgpu.lock);
    for (const struct CUstream_st *s = simgpu.streams; s != NULL; s = s->next)
        CHECK(s->first == NULL);
    set_all(settings);
    simgpu_unlock();
}

void simgpu_first_call(void)
{
    const char *settings = getenv("SIMGPU");
    if (!simgpu.is_set)
        set_all(settings != NULL ? settings : "");
}

bool simgpu_fails_locked(const char *call)
{
    if (simgpu.fail_at == 0 || strcmp(call, simgpu.fail_call) != 0)
        return false;
    simgpu.fail_calls++;
    bool fails = simgpu.fail_calls == simgpu.fail_at ||
                 (simgpu.fails_for_ever && simgpu.fail_calls > simgpu.fail_at);
    simgpu.counts.failures += fails;
    return fails;
}

bool simgpu_fails(const char *call)
{
    pthread_mutex_lock(&simgpu.lock);
    simgpu_first_call();
    bool fails = simgpu_fails_locked(call);
    simgpu_unlock();
    return fails;
}

/* splitmix64 */
uint64_t simgpu_draw(void)
{
    uint64_t z = simgpu.random += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

struct simgpu_counts simgpu_counts(void)
{
    pthread_mutex_lock(&simgpu.lock);
    struct simgpu_counts counts = simgpu.counts;
    simgpu_unlock();
    return counts;
}
