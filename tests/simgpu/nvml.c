/* nvml.c - the part of NVIDIA's management library that a preflight asks (kernels/cuda/library).
 *
 * Every GPU is healthy except the last one, by the setting "sick" (simgpu.h). A GPU has 18 links,
 * the most that the library counts. */
#include <stdlib.h>
#include <string.h>

#include "tests/simgpu/private.h"

#define SUCCESS 0
#define INVALID 2
#define NOT_FOUND 6
#define LINKS 18u
#define UUID_LAST 0xf0 /* of device 0 (runtime.c) */

static bool is_sick(const void *device, const char *of)
{
    pthread_mutex_lock(&simgpu.lock);
    simgpu_first_call();
    bool is_last = device == &simgpu.lost[simgpu.num_devices - 1];
    bool is = is_last && strcmp(simgpu.sick, of) == 0;
    pthread_mutex_unlock(&simgpu.lock);
    return is;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return SUCCESS;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    const char *last = strlen(uuid) > 2 ? uuid + strlen(uuid) - 2 : "";
    long device = strtol(last, NULL, 16) - UUID_LAST;
    if (strncmp(uuid, "GPU-", 4) != 0 || device < 0 || device >= SIMGPU_DEVICES_MAX)
        return NOT_FOUND;
    *out = &simgpu.lost[device]; /* a distinct address */
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *out);
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *out)
{
    bool is_asked = type == 1 && counter == 0; /* uncorrected, since the driver was loaded */
    *out = is_asked && is_sick(device, "errors") ? 3 : 0;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *is_pending, unsigned *has_failed);
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *is_pending, unsigned *has_failed)
{
    *corrected = *uncorrected = 1;
    *is_pending = is_sick(device, "pending");
    *has_failed = is_sick(device, "rows");
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out);
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out)
{
    *out = is_sick(device, "bus") ? 8 : 16;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out);
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out)
{
    (void)device;
    *out = 16;
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out);
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out)
{
    *out = is_sick(device, "generation") ? 3 : 5;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out);
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out)
{
    (void)device;
    *out = 5;
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size);
int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    static const char version[] = "550.54.15";
    if (size < sizeof version)
        return INVALID;
    memcpy(out, version, sizeof version);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *is_up);
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *is_up)
{
    if (link >= LINKS)
        return INVALID;
    *is_up = link > 0 || !is_sick(device, "links");
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out)
{
    if (sensor != 0)
        return INVALID;
    *out = is_sick(device, "heat") ? 93 : 45;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out)
{
    *out = 4; /* the power cap, at which a GPU works */
    if (is_sick(device, "heat"))
        *out |= 0x40;
    return SUCCESS;
}
