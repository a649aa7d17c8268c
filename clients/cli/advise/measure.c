/* measure.c - the measured figures of a run.
 *
 * The trainer stores in a checkpoint how long a step takes and how long training waits for a save
 * (state.metrics: step_seconds, save_wait_seconds). Its interval is in the configuration. ckptd
 * reports how long the run's last save took until it was durable, the room on its disk and how fast
 * that shrinks, and the copies in other tiers. Of a directory only its disk is known. Failures are
 * counted in the run's journal. An option overrides any figure. */
#include "clients/cli/advise/advise.h"

#include "proto/base/json.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"

#include <string.h>

#define USABLE_FRACTION 0.8 /* the default of storage.usable_fraction */

static double number_at(const json_t *object, const char *name)
{
    double value = json_number_value(json_object_get(object, name));
    return value > 0 && value < 1e18 ? value : 0;
}

/* ---- a checkpoint ---- */

static int read_manifest(struct figures *out, const struct manifest *manifest,
                         const struct cli *cli)
{
    const struct manifest_summary *summary = &manifest->summary;
    json_t *state = NULL, *config = NULL;
    int error = json_read_object(&state, manifest->state_json, "state");
    if (error == 0)
        error = json_read_object(&config, manifest->config_json, "config");
    if (error == 0) {
        const json_t *metrics = json_object_get(state, "metrics");
        const json_t *section = json_object_get(config, "checkpoint");
        strcpy(out->checkpoint,
               text_checkpoint(summary->run, summary->step, summary->attempt).text);
        out->bytes = summary->bytes;
        out->step = summary->step;
        out->daly.step = cli->step_time > 0 ? cli->step_time : number_at(metrics, "step_seconds");
        out->daly.wait =
            cli->save_time > 0 ? cli->save_time : number_at(metrics, "save_wait_seconds");
        double chosen = number_at(metrics, "save_interval_steps"); /* by "auto" */
        out->is_auto = chosen > 0;
        out->is_in_seconds = strcmp(member_text(section, "interval_type"), "seconds") == 0;
        out->now = (out->is_auto ? chosen : number_at(section, "interval")) *
                   (out->is_in_seconds && !out->is_auto ? 1 : out->daly.step);
    }
    json_decref(state);
    json_decref(config);
    return error;
}

/* ---- a directory ---- */

static int read_disk(struct figures *out, struct storage *store)
{
    struct storage_space space;
    struct store_list list;
    ERR_TRY(storage_space(store, &space));
    ERR_TRY(store_list_read(&list, store, out->run));
    for (uint32_t i = 0; i < list.count; i++)
        out->disk.held += (double)list.entries[i].summary.bytes;
    store_list_free(&list);
    double used = (double)space.bytes_total - (double)space.bytes_free;
    double room = USABLE_FRACTION * (double)space.bytes_total - used;
    out->is_bucket = space.bytes_total == 0;
    out->disk.room = out->is_bucket ? -1 : room > 0 ? room : 0;
    return 0;
}

static int read_store(struct figures *out, const struct cli *cli)
{
    struct storage *store = NULL;
    struct checkpoint checkpoint = {0};
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&checkpoint, store, cli->args[0]);
    if (error == 0)
        error = read_manifest(out, checkpoint.manifest, cli);
    if (error == 0)
        error = read_disk(out, store);
    checkpoint_close(&checkpoint);
    storage_close(store);
    return error;
}

/* ---- a ckptd ---- */

static void take_disk(struct figures *out, const json_t *disk)
{
    const json_t *hours = json_object_get(disk, "hours_to_full");
    out->disk.room = number_at(disk, "bytes_total") > 0 ? number_at(disk, "bytes_left") : -1;
    out->disk.trash = number_at(disk, "bytes_trash");
    if (json_is_number(hours)) {
        out->growth = GROWTH_MEASURED;
        out->full = 3600 * json_number_value(hours);
    } else if (json_is_true(json_object_get(disk, "growth_known"))) {
        out->growth = GROWTH_NEVER_FULL;
    }
}

/* The object of an array whose member `name` is that text; NULL: there is none. */
static const json_t *find_named(const json_t *list, const char *name, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(member_text(json_array_get(list, i), name), text) == 0)
            return json_array_get(list, i);
    return NULL;
}

/* The mean time of the tier's copies, or that of this checkpoint at the rate of the last one. */
static double copy_seconds(const json_t *status, const char *name, double rate, uint64_t bytes)
{
    const json_t *seconds =
        json_object_get(find_named(json_object_get(status, "drains"), "tier", name), "seconds");
    double count = number_at(seconds, "count");
    if (count > 0)
        return number_at(seconds, "sum") / count;
    return rate > 0 ? (double)bytes / rate : 0;
}

static void take_far(struct figures *out, const json_t *status, const json_t *run)
{
    const json_t *tier = json_object_get(status, "tier");
    const json_t *age = json_object_get(run, "far_age_seconds");
    out->copying.far.is_there = json_is_object(tier);
    out->far.rate = number_at(tier, "bytes_per_second");
    out->far.behind = json_is_number(age) ? json_number_value(age) : -1;
    out->copying.far.copy = copy_seconds(status, "far", out->far.rate, out->bytes);
}

/* Peers of this node's failure domain get no copies. The slowest peer that got some counts. */
static void take_peers(struct figures *out, const json_t *status)
{
    const json_t *nodes = json_object_get(status, "nodes"), *peer;
    const json_t *run = find_named(json_object_get(nodes, "runs"), "run", out->run);
    size_t index;
    out->copying.replicas = (int64_t)member_number(nodes, "replicas");
    out->peer.behind = json_is_integer(json_object_get(run, "replicated_step"))
                           ? number_at(run, "lag_seconds")
                           : -1;
    json_array_foreach(json_object_get(nodes, "peers"), index, peer)
    {
        if (strcmp(member_text(peer, "domain"), member_text(nodes, "domain")) == 0)
            continue;
        out->copying.peer.is_there = true;
        double rate = number_at(peer, "bytes_per_second");
        double copy = copy_seconds(status, member_text(peer, "name"), rate, out->bytes);
        if (copy > out->copying.peer.copy) {
            out->copying.peer.copy = copy;
            out->peer.rate = rate;
        }
    }
}

static int read_status(struct figures *out, const struct cli *cli)
{
    json_t *status = NULL;
    ERR_TRY(cli_call_status(&status, cli));
    const json_t *commit = json_object_get(status, "last_commit");
    const json_t *run = find_named(json_object_get(status, "runs"), "run", out->run);
    /* The run's last save, if it is also the last of this ckptd. */
    if (strcmp(member_text(commit, "run"), out->run) == 0)
        out->daly.durable = number_at(commit, "seconds");
    out->disk.held = number_at(run, "bytes");
    out->knows_others = true;
    take_disk(out, json_object_get(status, "disk"));
    take_far(out, status, run);
    take_peers(out, status);
    json_decref(status);
    return 0;
}

static int read_server(struct figures *out, const struct cli *cli,
                       const struct selection *selection)
{
    struct manifest *manifest = NULL;
    ERR_TRY(server_manifest(&manifest, NULL, cli, selection));
    int error = read_manifest(out, manifest, cli);
    if (error == 0)
        error = read_status(out, cli);
    manifest_free(manifest);
    return error;
}

/* ---- failures ---- */

static enum plan_event event_of(const json_t *line)
{
    static const struct {
        const char *name;
        enum plan_event event;
    } events[] = {{"attempt", PLAN_START},  {"commit", PLAN_SAVE}, {"drain", PLAN_COPY},
                  {"replicate", PLAN_COPY}, {"lost", PLAN_LOST},   {"stop", PLAN_STOP},
                  {"end", PLAN_END}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (strcmp(member_text(line, "event"), events[i].name) == 0)
            return events[i].event;
    return PLAN_OTHER;
}

static int read_failures(struct figures *out, const struct cli *cli, uint64_t mtbf)
{
    json_t *journal = NULL, *line;
    bool is_assumed;
    size_t index;
    out->mtbf = MTBF_GIVEN;
    out->daly.failures = (double)mtbf / (double)cli->nodes;
    if (mtbf > 0)
        return 0;
    ERR_TRY(journal_read(&journal, cli, out->run));
    json_array_foreach(journal, index, line)
        plan_failures_note(&out->failures, event_of(line), retain_time(member_text(line, "time")));
    json_decref(journal);
    plan_failures_end(&out->failures);
    out->daly.failures = plan_failures_mean(&out->failures, &is_assumed);
    out->mtbf = is_assumed ? MTBF_ASSUMED : MTBF_MEASURED;
    return 0;
}

/* ---- all ---- */

/* ERR_INVALID names the option for a figure that is not measured. */
static int check_figures(const struct figures *figures)
{
    if (figures->daly.failures <= 0)
        return report_error(ERR_INVALID,
                            "give --mtbf 30d of one node and --nodes N, or --mtbf of the whole job",
                            "the mean time between failures is not known: the journal of run '%s' "
                            "has no time of training",
                            figures->run);
    bool has_step = figures->daly.step > 0;
    if (has_step && figures->daly.wait > 0)
        return 0;
    return report_error(ERR_INVALID,
                        has_step ? "name another one, RUN@STEP, or give --save-time SECONDS"
                                 : "name another one, RUN@STEP, or give --step-time SECONDS",
                        "%s does not record %s; a trainer's second save does", figures->checkpoint,
                        has_step ? "how long training waits for a save" : "the time of a step");
}

static void decide(struct figures *out)
{
    out->best = daly_best(&out->daly);
    out->present = daly_cost(&out->daly, out->now);
    out->disk.bytes = out->bytes > 0 ? (double)out->bytes : 1;
    out->disk.interval = out->copying.interval = out->best.seconds + out->daly.wait;
    out->copying.failures = out->daly.failures;
    out->copying.trained = (double)out->step * out->daly.step;
    if (out->growth == GROWTH_UNKNOWN && out->now > 0)
        out->full = plan_full(&out->disk, out->now + out->daly.wait);
    out->retention = plan_retention(&out->disk);
    out->copies = plan_copies(&out->copying);
}

int figures_read(struct figures *out, const struct cli *cli)
{
    struct selection selection;
    uint64_t mtbf, restart;
    *out = (struct figures){.full = -1};
    ERR_TRY(span_parse(&mtbf, "mtbf", cli->mtbf));
    if (cli->mtbf[0] != '\0' && mtbf == 0)
        return report_error(ERR_INVALID, "such as 30d, 12h", "--mtbf must be above 0");
    ERR_TRY(span_parse(&restart, "restart-time", cli->restart_time));
    ERR_TRY(selection_parse(&selection, cli->args[0]));
    strcpy(out->run, selection.run);
    ERR_TRY(cli->store[0] != '\0' ? read_store(out, cli) : read_server(out, cli, &selection));
    ERR_TRY(read_failures(out, cli, mtbf));
    out->daly.restart = (double)restart;
    ERR_TRY(check_figures(out));
    out->copying.has_nodes = cli->nodes > 1 || out->copying.peer.is_there;
    decide(out);
    return 0;
}
