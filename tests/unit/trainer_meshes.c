/* trainer_meshes.c - pipelines and other axes than those of data: the same bits on every mesh.
 *
 * Goal: losses, gradient norms, parameters and moments do not depend on the number of stages, on
 * the schedule, on what is computed again, nor on where a run goes on. Method: see parallel_bed.h.
 */
#include "tests/unit/parallel_bed.h"

/* ---- pipelines ---- */

/* A schedule of two stages in which each micro-batch's weights wait for the next one's forward. */
static void write_schedule(const char *path, int leaves)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int stage = 0; stage < 2; stage++) {
        for (int i = 0; i < leaves; i++) {
            fprintf(file, "%dF%d,%dI%d,", stage, i, stage, i);
            if (i > 0)
                fprintf(file, "%dW%d,", stage, i - 1);
        }
        fprintf(file, "%dW%d\n", stage, leaves - 1);
    }
    fclose(file);
}

static void want_same_in_pipelines(const char *schedule, const char *value, struct place place,
                                   int way)
{
    static const char *const modes[] = {"none", "full", "selective", "memory_budget"};
    const char *extra[] = {"--activation_checkpoint.mode",
                           "none",
                           "--training.mixed_precision_param",
                           way % 2 == 0 ? "float32" : "bfloat16",
                           "--model.tied_embeddings",
                           way % 3 == 0 ? "true" : "false",
                           "--activation_checkpoint.selective_ac_option",
                           way % 2 == 0 ? "op" : "2",
                           "--parallelism.fsdp_reshard_after_forward",
                           way % 5 == 0 ? "always" : "default",
                           schedule,
                           value};
    struct outcome *reference = new_outcome(), *outcome = new_outcome();
    run_on(reference, alone, 0, 2, extra, 10);
    extra[1] = modes[way % 4];
    run_on(outcome, place, 0, 2, extra, 12);
    want_same(reference, outcome, place);
    free_outcome(outcome);
    free_outcome(reference);
}

static void test_meshes__every_pipeline_gives_the_same_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"GPipe", "1F1B", "Interleaved1F1B", "ZBH1"};
    static const struct place pipes[] = {{1, 1, 1, 2, 0, 0}, {1, 1, 2, 4, 0, 0},
                                         {1, 2, 1, 2, 0, 0}, {2, 1, 1, 2, 0, 0},
                                         {1, 3, 1, 2, 0, 0}, {2, 2, 1, 2, 0, 0}};
    const char *key = "--parallelism.pipeline_parallel_schedule";
    int way = 0;
    for (size_t i = 0; i < sizeof(pipes) / sizeof(pipes[0]); i += place_stride())
        for (size_t n = 0; n < 4; n++)
            if (n != 2 || pipes[i].pp == 2) /* four stages are as many as two layers make */
                want_same_in_pipelines(key, names[n], pipes[i], way++);
}

static void test_meshes__a_schedule_from_a_file_gives_the_same_bits(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof(path), "%s/schedule", folder);
    write_schedule(path, 11);
    want_same_in_pipelines("--parallelism.pipeline_parallel_schedule_csv", path,
                           (struct place){1, 1, 1, 2, 0, 0}, 1);
    unlink(path);
}

static void test_meshes__a_run_moves_between_pipelines_on_a_ramp(void **state)
{
    (void)state;
    const char *extra[] = {"--training.batch_ramp", "0:2,1:5,2:11"};
    static const struct place moves[] = {
        {1, 1, 1, 4, 0, 0}, {2, 1, 1, 2, 0, 0}, {1, 2, 1, 0, 0, 0}, {1, 2, 1, 4, 0, 0}};
    struct outcome *reference = new_outcome(), *moving = new_outcome();
    run_on(reference, alone, 0, 4, extra, 2);
    for (int64_t step = 0; step < 4; step++)
        run_on(moving, moves[step], step, step + 1, extra, 2);
    want_same(reference, moving, alone);
    free_outcome(reference);
    free_outcome(moving);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meshes__every_pipeline_gives_the_same_bits),
        cmocka_unit_test(test_meshes__a_schedule_from_a_file_gives_the_same_bits),
        cmocka_unit_test(test_meshes__a_run_moves_between_pipelines_on_a_ramp),
    };
    return cmocka_run_group_tests(tests, make_tokens, remove_tokens);
}
