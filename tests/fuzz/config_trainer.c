/* config_trainer.c - fuzz target: the trainer's configuration file. */
#include "tests/fuzz/fuzz.h"

#include "trainer/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    char *argv[] = {"trainer", "--training.dataset_path", "/nowhere", "--job.config_file", path,
                    NULL};
    static struct config config;
    int fd = fuzz_file(path, sizeof path, data, bytes);
    fuzz_taken = trainer_config_load(&config, 5, argv) == 0;
    close(fd);
    return 0;
}
