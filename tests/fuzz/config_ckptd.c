/* config_ckptd.c - fuzz target: ckptd's configuration file. */
#include "tests/fuzz/fuzz.h"

#include "ckptd/core/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    char *argv[] = {"ckptd", "--store", "/nowhere", "--config", path, NULL};
    static struct config config;
    bool help;
    int fd = fuzz_file(path, sizeof path, data, bytes);
    fuzz_taken = config_load(&config, 5, argv, &help) == 0;
    close(fd);
    return 0;
}
