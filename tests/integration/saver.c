/* saver.c - saves and loads by libckpt for the tests in other languages; every byte is compared.
 *
 * saver save|load SERVER WORLD SEED STEP: ranks as threads save a step, or load it, in the layout
 * that follows from the seed (clients_bed.h).
 * saver read SERVER STEP CONNECT_MS [RUN]: one handle loads all of it, as a reader without an
 * attempt.
 * Exit status 0: correct; 2: not available; 1: damaged, or other bytes than were saved. */
#include "tests/unit/clients_bed.h"

static int work(char **argv)
{
    struct group group = {.server = argv[2],
                          .world = (uint32_t)atoi(argv[3]),
                          .seed = (uint64_t)atoll(argv[4]),
                          .step = (uint64_t)atoll(argv[5]),
                          .work = strcmp(argv[1], "load") == 0 ? work_load : work_save};
    return group.world >= 1 && group.world <= RANKS_MAX && run_group(&group) == 0 ? 0 : 1;
}

static int read_all(char **argv)
{
    struct group group = {.server = argv[2], .world = 1};
    struct ckpt_tensor tensors[TENSORS];
    for (uint32_t i = 0; i < TENSORS; i++) {
        place(&tensors[i], i, 1, 0, 1);
        tensors[i].data = malloc(tensor_elements(&tensors[i]) * model[i].bytes + 1);
    }
    int error = load_alone(&group, tensors, argv[5] != NULL ? argv[5] : RUN,
                           (uint64_t)atoll(argv[3]), (uint32_t)atoi(argv[4]));
    if (error != 0)
        fprintf(stderr, "# %s\n", ckpt_error());
    for (uint32_t i = 0; i < TENSORS; i++)
        free(tensors[i].data);
    if (group.failures > 0 || error == CKPT_CORRUPT || error == CKPT_MISMATCH)
        return 1;
    return error == 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
    if (argc == 6 && (strcmp(argv[1], "save") == 0 || strcmp(argv[1], "load") == 0))
        return work(argv);
    if ((argc == 5 || argc == 6) && strcmp(argv[1], "read") == 0)
        return read_all(argv);
    fprintf(stderr, "saver: save|load SERVER WORLD SEED STEP, read SERVER STEP CONNECT_MS [RUN]\n");
    return 64;
}
