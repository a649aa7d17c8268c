/* advise.c - how often a run should save: the cheapest interval, from measured times.
 *
 * The trainer stores in a checkpoint how long a step takes and how long training waits for a save
 * (state.metrics: step_seconds, save_wait_seconds). Its interval is in the configuration. ckptd
 * reports how long the run's last save took until it was durable. The failure rate of nodes is not
 * measured, so the user gives it. An option overrides any figure. proto/base/daly.h derives the
 * interval and its cost. */
#include "clients/cli/engine/cli.h"

#include "proto/base/daly.h"
#include "proto/base/json.h"
#include "proto/wire/ckpt.pb-c.h"

#include <string.h>

/* 0: unknown. */
struct figures {
    char checkpoint[200];
    uint64_t bytes;
    struct daly daly;
    double now; /* the configured interval, in seconds */
};

/* ---- figures ---- */

static double number_at(const json_t *object, const char *name)
{
    double value = json_number_value(json_object_get(object, name));
    return value > 0 && value < 1e12 ? value : 0;
}

/* The interval in seconds: the one that "auto" selected, or that of the trainer's configuration. */
static double interval_set(const json_t *config, const json_t *metrics, double step)
{
    const json_t *section = json_object_get(config, "checkpoint");
    double chosen = number_at(metrics, "save_interval_steps");
    if (chosen > 0)
        return chosen * step;
    double interval = number_at(section, "interval");
    return strcmp(member_text(section, "interval_type"), "seconds") == 0 ? interval
                                                                         : interval * step;
}

static int read_figures(struct figures *out, const struct manifest *manifest, const struct cli *cli)
{
    const struct manifest_summary *summary = &manifest->summary;
    json_t *state = NULL, *config = NULL;
    int error = json_read_object(&state, manifest->state_json, "state");
    if (error == 0)
        error = json_read_object(&config, manifest->config_json, "config");
    if (error == 0) {
        const json_t *metrics = json_object_get(state, "metrics");
        strcpy(out->checkpoint,
               text_checkpoint(summary->run, summary->step, summary->attempt).text);
        out->bytes = summary->bytes;
        out->daly.step = cli->step_time > 0 ? cli->step_time : number_at(metrics, "step_seconds");
        out->daly.wait =
            cli->save_time > 0 ? cli->save_time : number_at(metrics, "save_wait_seconds");
        out->now = interval_set(config, metrics, out->daly.step);
    }
    json_decref(state);
    json_decref(config);
    return error;
}

static int read_store(struct figures *out, const struct cli *cli)
{
    struct storage *store = NULL;
    struct checkpoint checkpoint = {0};
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&checkpoint, store, cli->args[0]);
    if (error == 0)
        error = read_figures(out, checkpoint.manifest, cli);
    checkpoint_close(&checkpoint);
    storage_close(store);
    return error;
}

/* The run's last save, if it is also the last of this ckptd. */
static int read_commit_seconds(struct figures *out, const struct cli *cli, const char *run)
{
    json_t *status = NULL;
    ERR_TRY(cli_call_status(&status, cli));
    const json_t *commit = json_object_get(status, "last_commit");
    if (strcmp(member_text(commit, "run"), run) == 0)
        out->daly.durable = number_at(commit, "seconds");
    json_decref(status);
    return 0;
}

static int read_server(struct figures *out, const struct cli *cli,
                       const struct selection *selection)
{
    struct manifest *manifest = NULL;
    ERR_TRY(server_manifest(&manifest, NULL, cli, selection));
    int error = read_figures(out, manifest, cli);
    if (error == 0)
        error = read_commit_seconds(out, cli, selection->run);
    manifest_free(manifest);
    return error;
}

/* ERR_INVALID names the option for a figure that is not measured. */
static int check_figures(const struct figures *figures)
{
    if (figures->daly.failures <= 0)
        return report_error(ERR_INVALID,
                            "give --mtbf 30d of one node and --nodes N, or --mtbf of the whole job",
                            "the mean time between failures is not known");
    if (figures->daly.step <= 0)
        return report_error(ERR_INVALID, "name an older one, RUN@STEP, or give --step-time SECONDS",
                            "%s does not record the time of a step; a trainer's second save does",
                            figures->checkpoint);
    if (figures->daly.wait <= 0)
        return report_error(ERR_INVALID, "name an older one, RUN@STEP, or give --save-time SECONDS",
                            "%s does not record how long training waits for a save; a "
                            "trainer's second save does",
                            figures->checkpoint);
    return 0;
}

static int collect(struct figures *out, const struct cli *cli)
{
    struct selection selection;
    uint64_t mtbf, restart;
    *out = (struct figures){0};
    ERR_TRY(span_parse(&mtbf, "mtbf", cli->mtbf));
    if (cli->mtbf[0] != '\0' && mtbf == 0)
        return report_error(ERR_INVALID, "such as 30d, 12h", "--mtbf must be above 0");
    ERR_TRY(span_parse(&restart, "restart-time", cli->restart_time));
    ERR_TRY(selection_parse(&selection, cli->args[0]));
    ERR_TRY(cli->store[0] != '\0' ? read_store(out, cli) : read_server(out, cli, &selection));
    out->daly.failures = (double)mtbf / (double)cli->nodes;
    out->daly.restart = (double)restart;
    return check_figures(out);
}

/* ---- advice ---- */

static json_t *cost_json(const struct daly_cost *cost)
{
    return json_pack("{sI sf sf sf}", "steps", (json_int_t)cost->steps, "seconds", cost->seconds,
                     "overhead", cost->overhead, "saves", cost->saves);
}

static int print_json(const struct figures *figures, const char *run)
{
    struct daly_cost now = daly_cost(&figures->daly, figures->now),
                     best = daly_best(&figures->daly);
    return text_pack("{ss ss sI sf sf so sf sf so so}", "run", run, "checkpoint",
                     figures->checkpoint, "bytes", (json_int_t)figures->bytes, "step_seconds",
                     figures->daly.step, "save_wait_seconds", figures->daly.wait, "durable_seconds",
                     figures->daly.durable > 0 ? json_real(figures->daly.durable) : json_null(),
                     "failure_seconds", figures->daly.failures, "restart_seconds",
                     figures->daly.restart, "now", figures->now > 0 ? cost_json(&now) : json_null(),
                     "advised", cost_json(&best));
}

static void print_cost(const char *name, const struct daly_cost *cost)
{
    printf("%-12s every %s, %.1f s: %.3f %% of the time is lost (%.3f %% to saves)\n", name,
           text_count((uint64_t)cost->steps, "step").text, cost->seconds, 100 * cost->overhead,
           100 * cost->saves);
}

static void print_text(const struct figures *figures)
{
    struct daly_cost best = daly_best(&figures->daly);
    char bytes[32];
    printf("%-12s %s, %s\n", "of", figures->checkpoint,
           text_bytes(bytes, sizeof bytes, figures->bytes));
    printf("%-12s %.3f s\n%-12s %.3f s that training waits", "step", figures->daly.step, "save",
           figures->daly.wait);
    if (figures->daly.durable > 0)
        printf(", durable after %.1f s", figures->daly.durable);
    printf("\n%-12s one in %.1f h, restarts %.0f s later\n", "failures",
           figures->daly.failures / 3600, figures->daly.restart);
    if (figures->now > 0) {
        struct daly_cost now = daly_cost(&figures->daly, figures->now);
        print_cost("now", &now);
    }
    print_cost("advised", &best);
}

int cli_advise(const struct cli *cli)
{
    struct figures figures;
    ERR_TRY(collect(&figures, cli));
    if (cli->is_json)
        return print_json(&figures, cli->args[0]);
    print_text(&figures);
    return 0;
}
