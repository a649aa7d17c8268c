/* config_trainer.c - fuzz target: the trainer's configuration file. */
#include "tests/fuzz/fuzz.h"

#include "trainer/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    char *argv[] = {"trainer", "--job.config_file", path, NULL};
    static struct config config;
    int fd = fuzz_file(path, sizeof path, data, bytes);
    trainer_config_load(&config, 3, argv);
    close(fd);
    return 0;
}
