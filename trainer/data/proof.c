/* proof.c - hashes whole tokens files in the background (see proof.h). */
#include "trainer/data/proof.h"

#include "proto/base/report.h"
#include "trainer/data/data.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

struct proof {
    pthread_t thread;
    const struct tokens_file *files[DATA_SOURCES_MAX];
    uint32_t num;
    struct report_text text; /* written before `result` */
    atomic_int result;
    atomic_bool is_closing;
};

static bool go_on(void *user, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)bytes_done;
    (void)bytes_total;
    struct proof *proof = user;
    return !atomic_load(&proof->is_closing);
}

static void *thread_main(void *user)
{
    struct proof *proof = user;
    int rc = 0;
    for (uint32_t i = 0; i < proof->num && rc == 0; i++)
        rc = tokens_file_verify(proof->files[i], &(struct tokens_watch){go_on, proof});
    if (rc == 0)
        log_info("data", "%u tokens file%s of format 1 %s verified in full", proof->num,
                 proof->num == 1 ? "" : "s", proof->num == 1 ? "is" : "are");
    if (rc != 0)
        report_keep(&proof->text);
    if (rc != ERR_ABORTED)
        atomic_store(&proof->result, rc);
    return NULL;
}

int proof_open(struct proof **out, const struct tokens_file *const *files, uint32_t num)
{
    struct proof *proof = calloc(1, sizeof *proof);
    if (proof == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to check the tokens");
    for (uint32_t i = 0; i < num; i++)
        proof->files[i] = files[i];
    proof->num = num;
    if (pthread_create(&proof->thread, NULL, thread_main, proof) != 0) {
        free(proof);
        return report_error(ERR_MEMORY, "raise the limit of threads (ulimit -u)",
                            "the thread that checks the tokens could not be started");
    }
    pthread_setname_np(proof->thread, "data-proof");
    pthread_setschedparam(proof->thread, SCHED_IDLE, &(struct sched_param){0});
    *out = proof;
    return 0;
}

void proof_close(struct proof *proof)
{
    if (proof == NULL)
        return;
    atomic_store(&proof->is_closing, true);
    pthread_join(proof->thread, NULL);
    free(proof);
}

int proof_result(struct proof *proof)
{
    int rc = proof != NULL ? atomic_load(&proof->result) : 0;
    return rc == 0 ? 0 : report_restore(&proof->text, rc);
}
