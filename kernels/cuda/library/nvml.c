/* nvml.c - see nvml.h.
 *
 * Names, arguments and numbers are those of the NVML API Reference (R550). CUDA's toolkit has
 * nvml.h, but `make deps-cuda` does not, so they are declared here. All these functions are in
 * every driver since R450. */
#include "kernels/cuda/library/nvml.h"
#include "kernels/cuda/library/lookup.h"

#include <dlfcn.h>

#define SUCCESS 0          /* nvmlReturn_t */
#define UNCORRECTED 1      /* nvmlMemoryErrorType_t */
#define SINCE_DRIVER 0     /* nvmlEccCounterType_t: volatile */
#define SENSOR_GPU 0       /* nvmlTemperatureSensors_t */
#define LINKS_MAX 18u      /* NVML_NVLINK_MAX_LINKS */
#define REASON_HARDWARE 8u /* nvmlClocksThrottleReason*: Hw, SwThermal, HwThermal, HwPowerBrake */
#define REASON_HEAT (0x20u | 0x40u)
#define REASON_POWER 0x80u

typedef void *nvml_device;

/* In the order of `names`. */
struct calls {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, nvml_device *out);
    int (*ecc_errors)(nvml_device, int type, int counter, unsigned long long *out);
    int (*remapped_rows)(nvml_device, unsigned *corrected, unsigned *uncorrected,
                         unsigned *is_pending, unsigned *has_failed);
    int (*bus_width)(nvml_device, unsigned *out);
    int (*bus_width_max)(nvml_device, unsigned *out);
    int (*bus_generation)(nvml_device, unsigned *out);
    int (*bus_generation_max)(nvml_device, unsigned *out);
    int (*driver)(char *out, unsigned size);
    int (*link_state)(nvml_device, unsigned link, int *is_up);
    int (*temperature)(nvml_device, int sensor, unsigned *out);
    int (*slow_reasons)(nvml_device, unsigned long long *out);
};
static const char *const names[] = {
    "nvmlInit_v2",
    "nvmlShutdown",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
};
#define NUM_CALLS (sizeof(names) / sizeof(names[0]))
_Static_assert(sizeof(struct calls) == NUM_CALLS * sizeof(void *), "a name for each");

static void look_at_memory(struct device_health *out, const struct calls *calls, nvml_device device)
{
    unsigned long long errors;
    unsigned corrected, uncorrected, is_pending, has_failed;
    if (calls->ecc_errors(device, UNCORRECTED, SINCE_DRIVER, &errors) == SUCCESS)
        out->memory_errors = (int64_t)errors;
    int rc = calls->remapped_rows(device, &corrected, &uncorrected, &is_pending, &has_failed);
    if (rc != SUCCESS)
        return;
    out->rows_pending = is_pending != 0;
    out->rows_failed = has_failed != 0;
}

static void look_at_bus(struct device_health *out, const struct calls *calls, nvml_device device)
{
    unsigned found;
    if (calls->bus_width(device, &found) == SUCCESS)
        out->bus_width = found;
    if (calls->bus_width_max(device, &found) == SUCCESS)
        out->bus_width_max = found;
    if (calls->bus_generation(device, &found) == SUCCESS)
        out->bus_generation = found;
    if (calls->bus_generation_max(device, &found) == SUCCESS)
        out->bus_generation_max = found;
}

/* A missing link is an error of the library. */
static void look_at_links(struct device_health *out, const struct calls *calls, nvml_device device)
{
    out->links = out->links_max = 0;
    for (unsigned link = 0; link < LINKS_MAX; link++) {
        int is_up = 0;
        if (calls->link_state(device, link, &is_up) != SUCCESS)
            continue;
        out->links_max++;
        out->links += is_up == 1;
    }
}

static void look_at_clocks(struct device_health *out, const struct calls *calls, nvml_device device)
{
    unsigned celsius;
    unsigned long long reasons;
    if (calls->temperature(device, SENSOR_GPU, &celsius) == SUCCESS)
        out->celsius = celsius;
    if (calls->slow_reasons(device, &reasons) == SUCCESS)
        out->slowed = (reasons & REASON_HEAT ? DEVICE_SLOWED_HEAT : 0) |
                      (reasons & REASON_POWER ? DEVICE_SLOWED_POWER : 0) |
                      (reasons & REASON_HARDWARE ? DEVICE_SLOWED_HARDWARE : 0);
}

void nvml_look(struct device_health *out, const char *uuid)
{
    struct calls calls;
    void *library;
    nvml_device device;
    if (!cuda_lookup(&library, &calls, names, NUM_CALLS, "libnvidia-ml.so.1"))
        return;
    if (calls.init() == SUCCESS) {
        if (calls.find(uuid, &device) == SUCCESS) {
            look_at_memory(out, &calls, device);
            look_at_bus(out, &calls, device);
            look_at_links(out, &calls, device);
            look_at_clocks(out, &calls, device);
            if (calls.driver(out->driver, sizeof out->driver) != SUCCESS)
                out->driver[0] = '\0';
        }
        (void)calls.shutdown();
    }
    if (library)
        dlclose(library);
}
