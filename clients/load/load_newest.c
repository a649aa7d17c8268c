/* load_newest.c - the load calls, and the fallback from a damaged newest checkpoint.
 *
 * A load that finds damage ends with ERR_CORRUPT, and ckptd has quarantined the checkpoint. A load
 * of the newest, which names no step, is then opened again and gets the previous one. The answer
 * names the skipped checkpoints and the reasons (ckpt_loaded.skipped). Without ckptd there is no
 * quarantine: the load skips damaged checkpoints of the list, and adds their lines here.
 *
 * All ranks must continue from the same checkpoint. When all of them load the newest into their
 * described tensors, ckptd lets none continue before it has word of the others
 * (ckptd/restore/together.c), and all go back together. In every other load by one of several ranks
 * damage is an error with a hint. So is damage after ckptd restarted meanwhile.
 *
 * Bounds: each skipped checkpoint is older than the one before. The load waits at most TOGETHER_MS
 * for the other ranks; ckptd ends the load of an idle one sooner. */
#include "clients/load/load.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOGETHER_MS 3600000u
#define PAUSE_MS_MIN 1 /* doubles up to the next */
#define PAUSE_MS_MAX 200

/* ---- one load ---- */

/* Waits until every rank of a load together has the checkpoint. ERR_CORRUPT: none may continue from
 * it. */
static int wait_for_others(struct load *load)
{
    Holdfast__V1__CloseLoadRequest request = HOLDFAST__V1__CLOSE_LOAD_REQUEST__INIT;
    uint64_t end = clock_ns() + TOGETHER_MS * 1000000ull;
    long pause_ms = PAUSE_MS_MIN;
    int error = ERR_BUSY;
    request.load = load->id;
    request.is_loaded = true;
    while (error == ERR_BUSY && clock_ns() < end) {
        error = session_send(load->ckpt, &request.base, SESSION_CALL_MS);
        if (error == ERR_BUSY)
            clock_sleep_ms((uint64_t)pause_ms);
        pause_ms = 2 * pause_ms < PAUSE_MS_MAX ? 2 * pause_ms : PAUSE_MS_MAX;
    }
    load->is_closed = error == 0 || error == ERR_CORRUPT;
    return error;
}

/* Loads the step in `options`, or the newest. */
static int load_one(struct load *load, const struct ckpt_load_options *options,
                    struct ckpt_loaded **out)
{
    int error = load_run(load, options, out);
    if (error != 0 || !load->is_together)
        return error;
    error = wait_for_others(load);
    return error == 0 || load->is_closed ? error : load_open_again(load, error);
}

/* ---- the fallback ---- */

/* The skipped checkpoints. */
struct passing {
    struct load_mark last;
    struct report_text why; /* of the last one */
    char *lines;            /* without ckptd: a line for each */
};

static int add_line(struct passing *passing)
{
    char *lines = NULL;
    if (asprintf(&lines, "%sstep %llu, attempt %llu: %s\n",
                 passing->lines != NULL ? passing->lines : "",
                 (unsigned long long)passing->last.step, (unsigned long long)passing->last.attempt,
                 passing->why.message) < 0)
        return report_error(ERR_MEMORY, NULL, "no memory for the result of a load");
    free(passing->lines);
    passing->lines = lines;
    return 0;
}

static bool is_older(const struct load *load, const struct load_mark *than)
{
    const struct ckpt_info *found = &load->loaded->info;
    if (than->attempt == 0 || found->attempt == 0) /* as none has attempt 0 */
        return found->attempt != 0;
    return found->attempt < than->attempt ||
           (found->attempt == than->attempt && found->step < than->step);
}

static int skip_damaged(struct passing *passing, const struct load *load)
{
    const struct ckpt_info *found = &load->loaded->info;
    report_keep(&passing->why);
    passing->last = (struct load_mark){found->step, found->attempt};
    return offline_is(load->ckpt) ? add_line(passing) : 0;
}

/* Puts the lines before the present ones. */
static int prepend_lines(struct ckpt_loaded *loaded, const struct passing *passing)
{
    char *skipped = NULL;
    if (passing->lines == NULL)
        return 0;
    if (asprintf(&skipped, "%s%s", passing->lines, loaded->skipped) < 0)
        return report_error(ERR_MEMORY, NULL, "no memory for the result of a load");
    free(loaded->skipped);
    loaded->skipped = skipped;
    return 0;
}

/* One of several ranks found damage in a load of its own. */
static int error_for_one_rank(const struct load *load)
{
    struct report_text text;
    report_keep(&text);
    return report_set(ERR_CORRUPT, text.message, text.detail,
                      offline_is(load->ckpt)
                          ? "name an older step, the same one on every rank: without ckptd ranks "
                            "cannot agree on it"
                          : "load the newest again on every rank: it is now an older one");
}

/* *out_again: it found damage, and an older checkpoint may be intact. */
static int load_and_close(bool *out_again, struct passing *passing, struct load *load,
                          const struct ckpt_load_options *options, struct ckpt_loaded **out)
{
    int error = load_one(load, options, out);
    bool is_newest = error == ERR_CORRUPT && options->step < 0 && load->loaded != NULL;
    bool may_pass = load->ckpt->world_size == 1 || load->is_together;
    *out_again = is_newest && may_pass && is_older(load, &passing->last);
    if (*out_again && skip_damaged(passing, load) != 0) {
        *out_again = false;
        error = ERR_MEMORY;
    }
    if (is_newest && !may_pass)
        error = error_for_one_rank(load);
    load_close(load);
    if (error == 0)
        error = prepend_lines(*out, passing);
    if (error != 0) {
        ckpt_loaded_free(*out);
        *out = NULL;
    }
    return error;
}

/* Loads `tensors`, which stay the caller's. */
static int load_tensors(struct ckpt *ckpt, const struct session_tensors *tensors,
                        const struct ckpt_load_options *options, struct ckpt_loaded **out)
{
    struct passing passing = {.lines = NULL};
    bool is_plain = options->step < 0 && options->attempt == 0 && options->below_step <= 0;
    bool is_described = tensors == &ckpt->tensors;
    bool goes_back = true;
    int error = 0;
    while (goes_back) {
        struct load load = {.ckpt = ckpt,
                            .link = {-1, 0},
                            .tensors = *tensors,
                            .asks_together = is_plain && is_described && ckpt->world_size > 1,
                            .passed = passing.last};
        *out = NULL;
        error = load_and_close(&goes_back, &passing, &load, options, out);
    }
    if (error == ERR_NOT_FOUND && passing.last.attempt != 0) /* none of them is intact */
        error = report_restore(&passing.why, ERR_CORRUPT);
    free(passing.lines);
    return error;
}

/* ---- the calls ---- */

int ckpt_load(struct ckpt *ckpt, const struct ckpt_load_options *options, struct ckpt_loaded **out)
{
    ERR_TRY(session_handle_check(ckpt));
    struct session_tensors wanted;
    *out = NULL;
    if (options->tensors == NULL && ckpt->attempt == 0)
        return report_error(ERR_INVALID, "give tensors, or describe first",
                            "a load was requested before ckpt_describe");
    if (options->tensors == NULL)
        return load_tensors(ckpt, &ckpt->tensors, options, out);
    ERR_TRY(session_tensors_copy(&wanted, options->tensors, options->num_tensors));
    int error = load_tensors(ckpt, &wanted, options, out);
    session_tensors_free(&wanted);
    return error;
}

int ckpt_load_arrays(struct ckpt *ckpt, const struct ckpt_load_request *request,
                     struct ckpt_loaded **out)
{
    ERR_TRY(session_handle_check(ckpt));
    struct session_tensors wanted;
    *out = NULL;
    if (request->size != sizeof *request)
        return report_error(ERR_INVALID, "set it to sizeof(struct ckpt_load_request)",
                            "the size of a ckpt_load_request is %zu, and %u was given",
                            sizeof *request, request->size);
    const struct ckpt_load_options options = {
        .step = request->step, .attempt = request->attempt, .below_step = request->below_step};
    ERR_TRY(session_arrays_copy(&wanted, request->arrays, request->num_arrays, true));
    int error = load_tensors(ckpt, &wanted, &options, out);
    session_tensors_free(&wanted);
    return error;
}
