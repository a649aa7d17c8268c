/* advise.c - how often a run should save, how many checkpoints to keep, and where to copy them.
 *
 * measure.c has the figures and what follows from them. Each section is an object of the output,
 * and ends with the settings to write: checkpoint.* are keys of the trainer, all others of ckptd.
 * Text and --json have the same settings. */
#include "clients/cli/advise/advise.h"

#include "proto/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INTERVAL_MAX 1e9   /* of checkpoint.interval */
#define SIZE_MAX_TOLD 1e19 /* bytes; fits into 64 bits */

/* "8.1 s", "3.2 days": span_text(seconds).text, valid within the expression. */
struct span_text {
    char text[40];
};

static struct span_text span_text(double seconds)
{
    struct span_text out;
    if (seconds < 120)
        snprintf(out.text, sizeof out.text, "%.3g s", seconds);
    else if (seconds < 7200)
        snprintf(out.text, sizeof out.text, "%.1f min", seconds / 60);
    else if (seconds < 172800)
        snprintf(out.text, sizeof out.text, "%.1f h", seconds / 3600);
    else
        snprintf(out.text, sizeof out.text, "%.1f days", seconds / 86400);
    return out;
}

static struct span_text size_text(double bytes)
{
    struct span_text out;
    text_bytes(out.text, sizeof out.text, (uint64_t)fmin(fmax(bytes, 0), SIZE_MAX_TOLD));
    return out;
}

/* A number, or null for one that is unknown. */
static json_t *known(double value, bool is_known)
{
    return is_known ? json_real(value) : json_null();
}

static json_t *whole(double value, bool is_known)
{
    return is_known && value < 1e18 ? json_integer((json_int_t)value) : json_null();
}

/* Prints the members, texts and integers, as lines of a configuration. */
static void print_settings(const char *name, const json_t *set)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)set, key, value)
    {
        printf("%-12s %s = ", name, key);
        if (json_is_string(value))
            printf("\"%s\"\n", json_string_value(value));
        else
            printf("%lld\n", (long long)json_integer_value(value));
        name = "";
    }
}

/* ---- interval ---- */

/* For checkpoint.mtbf, with an error of at most a percent. */
static struct span_text mtbf_setting(double seconds)
{
    static const double units[] = {86400, 3600, 60, 1};
    struct span_text out;
    int i = 0;
    while (i < 3 && fabs(round(seconds / units[i]) * units[i] - seconds) > 0.01 * seconds)
        i++;
    snprintf(out.text, sizeof out.text, "%.0f%c", fmax(round(seconds / units[i]), 1), "dhms"[i]);
    return out;
}

/* With "auto" the trainer needs only the failures. */
static json_t *interval_settings(const struct figures *figures, bool is_auto)
{
    double value =
        figures->is_in_seconds ? fmax(round(figures->best.seconds), 1) : figures->best.steps;
    if (is_auto)
        return json_pack("{ss ss}", "checkpoint.interval", "auto", "checkpoint.mtbf",
                         mtbf_setting(figures->daly.failures).text);
    return json_pack("{sI}", "checkpoint.interval", (json_int_t)fmin(value, INTERVAL_MAX));
}

/* The formula with its numbers. */
static void write_formula(char *out, size_t size, const struct figures *figures)
{
    double wait = figures->daly.wait, failures = figures->daly.failures;
    double part = wait / (2 * failures), seconds = daly_interval(&figures->daly);
    double least = figures->daly.durable - wait;
    char late[96] = "";
    if (seconds <= least)
        snprintf(late, sizeof late, "; raised to the %.4g s until a save is durable", least);
    if (wait >= 2 * failures)
        snprintf(out, size, "t = M = %.6g s, as D = %.4g s >= 2M%s", failures, wait, late);
    else
        snprintf(out, size,
                 "t = sqrt(2 D M) (1 + sqrt(D/2M)/3 + (D/2M)/9) - D = sqrt(2 * %.4g * %.6g) * (1 + "
                 "%.3g + %.3g) - %.4g = %.4g s%s",
                 wait, failures, sqrt(part) / 3, part / 9, wait, seconds, late);
}

static json_t *interval_json(const struct figures *figures)
{
    static const char *const sources[] = {"given", "measured", "assumed"};
    const struct plan_failures *failures = &figures->failures;
    char formula[320];
    write_formula(formula, sizeof formula, figures);
    return json_pack(
        "{ss so sI sI sI ss ss so so}", "failures_from", sources[figures->mtbf], "trained_seconds",
        known(failures->trained, figures->mtbf != MTBF_GIVEN), "starts",
        (json_int_t)failures->starts, "starts_lost", (json_int_t)failures->lost,
        "starts_unexplained", (json_int_t)failures->unexplained, "formula", formula, "source",
        "J. T. Daly 2006, equation 37", "set", interval_settings(figures, figures->is_auto),
        "set_auto", interval_settings(figures, true));
}

static void print_cost(const char *name, const struct daly_cost *cost, const char *by)
{
    printf("%-12s every %s, %.1f s%s: %.3f %% of the time is lost (%.3f %% to saves)\n", name,
           text_count((uint64_t)cost->steps, "step").text, cost->seconds, by, 100 * cost->overhead,
           100 * cost->saves);
}

static void print_failures(const struct figures *figures)
{
    const struct plan_failures *failures = &figures->failures;
    const bool is_long = failures->trained >= PLAN_FAILURE_MIN;
    printf("%-12s one in %s, restarts %.0f s later", "failures",
           span_text(figures->daly.failures).text, figures->daly.restart);
    if (figures->mtbf == MTBF_MEASURED)
        printf("; %s in %s of training: %llu with lost ranks, %llu without a stop or last save",
               text_count(failures->lost + failures->unexplained, "failure").text,
               span_text(failures->trained).text, (unsigned long long)failures->lost,
               (unsigned long long)failures->unexplained);
    else if (figures->mtbf == MTBF_ASSUMED)
        printf("; assumed%s: no failure in %s of training%s",
               is_long ? "" : ", as checkpoint.mtbf by default", span_text(failures->trained).text,
               is_long ? ", so at least that" : "");
    printf("\n");
}

static void print_interval(const struct figures *figures, const json_t *section)
{
    printf("%-12s %s, %s\n", "of", figures->checkpoint, size_text((double)figures->bytes).text);
    printf("%-12s %.3f s\n%-12s %.3f s that training waits", "step", figures->daly.step, "save",
           figures->daly.wait);
    if (figures->daly.durable > 0)
        printf(", durable after %.1f s", figures->daly.durable);
    printf("\n");
    print_failures(figures);
    if (figures->now > 0)
        print_cost("now", &figures->present, figures->is_auto ? " (auto)" : "");
    print_cost("advised", &figures->best, "");
    printf("%-12s %s (%s)\n", "formula", member_text(section, "formula"),
           member_text(section, "source"));
    print_settings("set", json_object_get(section, "set"));
    if (!figures->is_auto)
        print_settings("or", json_object_get(section, "set_auto"));
}

/* ---- retention ---- */

static json_t *retention_json(const struct figures *figures)
{
    const struct plan_disk *disk = &figures->disk;
    const struct plan_retention *plan = &figures->retention;
    json_t *set = json_pack("{sI}", "retention.keep_last", (json_int_t)plan->keep_last);
    if (disk->trash > 0 && plan->trash >= 1)
        json_object_set_new(set, "retention.trash_s", json_integer((json_int_t)plan->trash));
    return json_pack(
        "{so so so so sb so sf so sb so so}", "room_bytes", whole(disk->room, plan->is_limited),
        "held_bytes", whole(disk->held, true), "trash_bytes", whole(disk->trash, true), "fit",
        whole((double)plan->fit, plan->is_limited), "has_space", (int)plan->has_space,
        "missing_bytes", whole(ceil(plan->missing), true), "reach_seconds", plan->reach,
        "hours_to_full", known(figures->full / 3600, figures->full >= 0),
        "hours_to_full_is_measured", (int)(figures->growth != GROWTH_UNKNOWN),
        "hours_to_full_advised", known(plan->full / 3600, plan->full >= 0), "set", set);
}

static void print_full(const struct figures *figures)
{
    bool is_measured = figures->growth == GROWTH_MEASURED;
    printf("%-12s ", "full");
    if (figures->growth == GROWTH_NEVER_FULL)
        printf("never at the present rate, ");
    else if (figures->full >= 0)
        printf("in %s %s, ", span_text(figures->full).text,
               is_measured ? "at the present rate" : "with the present interval");
    printf("in %s with the advised interval, if nothing is removed\n",
           span_text(figures->retention.full).text);
}

static void print_retention(const struct figures *figures, const json_t *section)
{
    const struct plan_disk *disk = &figures->disk;
    const struct plan_retention *plan = &figures->retention;
    printf("\n%-12s ", "retention");
    if (!plan->is_limited)
        printf("the store has no known limit\n");
    else
        printf("%s fit: %s left for saves, %s of this run's%s%s\n",
               text_count(plan->fit, "checkpoint").text, size_text(disk->room).text,
               size_text(disk->held).text, disk->trash > 0 ? ", in the trash " : "",
               disk->trash > 0 ? size_text(disk->trash).text : "");
    if (!plan->has_space)
        printf("%-12s two checkpoints and one that is being saved do not fit: %s are missing\n",
               "too little", size_text(plan->missing).text);
    printf("%-12s %s back with %s\n", "reach", span_text(plan->reach).text,
           text_count(plan->keep_last, "checkpoint").text);
    if (plan->is_limited)
        print_full(figures);
    print_settings("set", json_object_get(section, "set"));
}

/* ---- copies ---- */

static const struct {
    const char *name, *text, *durability;
} places[] = {[PLAN_LOCAL] = {"local", "this disk alone", "local"},
              [PLAN_PEER] = {"peer", "a peer", "replicated"},
              [PLAN_FAR] = {"bucket", "the far tier", "bucket"}};

static json_t *copies_settings(const struct plan_copies *plan, bool has_far)
{
    json_t *set = json_object();
    if (plan->place == PLAN_PEER && !plan->is_there)
        json_object_set_new(set, "nodes.peers", json_string("NAME@DOMAIN=HOST:PORT"));
    if (plan->place == PLAN_PEER)
        json_object_set_new(set, "nodes.replicas", json_integer(plan->replicas));
    if (plan->place == PLAN_FAR && !plan->is_there)
        json_object_set_new(set, "tier.store", json_string("s3://BUCKET/PREFIX"));
    if (has_far || plan->place == PLAN_FAR)
        json_object_set_new(set, "tier.every", json_integer(plan->is_every));
    json_object_set_new(set, "checkpoint.durability", json_string(places[plan->place].durability));
    return set;
}

static json_t *tier_json(const char *name, const struct plan_tier *tier,
                         const struct figures_copies *copies, double lost)
{
    if (!tier->is_there)
        return json_null();
    return json_pack("{ss so so so sf}", "name", name, "copy_seconds",
                     known(tier->copy, tier->copy > 0), "bytes_per_second",
                     whole(copies->rate, copies->rate > 0), "behind_seconds",
                     known(copies->behind, copies->behind >= 0), "lost_seconds", lost);
}

/* A bucket outlives the node by itself. */
static json_t *copies_json(const struct figures *figures)
{
    const struct plan_copying *copying = &figures->copying;
    const struct plan_copies *plan = &figures->copies;
    if (figures->is_bucket)
        return json_pack("{ss sb s{ss}}", "advised", "bucket", "is_configured", 1, "set",
                         "checkpoint.durability", "bucket");
    return json_pack("{ss sb sb sb sf so so so}", "advised", places[plan->place].name,
                     "is_configured", (int)plan->is_there, "is_slow", (int)plan->is_slow,
                     "tiers_known", (int)figures->knows_others, "lost_seconds_local",
                     plan->lost[PLAN_LOCAL], "peer",
                     tier_json("peer", &copying->peer, &figures->peer, plan->lost[PLAN_PEER]),
                     "far", tier_json("far", &copying->far, &figures->far, plan->lost[PLAN_FAR]),
                     "set", copies_settings(plan, copying->far.is_there));
}

static void print_tier(const char *name, const struct plan_tier *tier,
                       const struct figures_copies *copies, double lost)
{
    if (!tier->is_there)
        return;
    if (tier->copy > 0)
        printf("%-12s a copy takes %s", name, span_text(tier->copy).text);
    else
        printf("%-12s no copy was measured yet", name);
    if (copies->rate > 0)
        printf(" (the last at %s/s)", size_text(copies->rate).text);
    printf(": a lost disk costs at most %s of training", span_text(lost).text);
    if (copies->behind >= 0)
        printf("; the newest copy is %s behind\n", span_text(copies->behind).text);
    else
        printf("; nothing of this run is there\n");
}

static void print_choice(const struct figures *figures)
{
    const struct plan_copies *plan = &figures->copies;
    double interval = figures->copying.interval;
    printf("%-12s %s", "advised", places[plan->place].text);
    if (plan->is_slow)
        printf(": no copy is complete between two failures; that takes %s/s",
               size_text((double)figures->bytes / fmin(interval, figures->daly.failures)).text);
    else if (!plan->is_there)
        printf(", which must be set up: then at most %s and the time of a copy is lost",
               span_text(interval).text);
    else if (plan->place == PLAN_LOCAL)
        printf(": less than an interval was trained so far");
    else if (plan->place == PLAN_FAR && !plan->is_every)
        printf(": of the newest only, as a copy takes longer than an interval");
    printf("\n");
}

static void print_copies(const struct figures *figures, const json_t *section)
{
    const struct plan_copying *copying = &figures->copying;
    const double *lost = figures->copies.lost;
    if (figures->is_bucket) {
        printf("\n%-12s the store is a bucket: the loss of a node's disk costs no checkpoint\n",
               "replication");
    } else {
        printf("\n%-12s without a copy a lost disk costs all %s of training%s\n", "replication",
               span_text(copying->trained).text,
               figures->knows_others ? "" : "; a directory does not tell of copies, --server does");
        print_tier("peer", &copying->peer, &figures->peer, lost[PLAN_PEER]);
        print_tier("far", &copying->far, &figures->far, lost[PLAN_FAR]);
        print_choice(figures);
    }
    print_settings("set", json_object_get(section, "set"));
}

/* ---- all ---- */

static json_t *cost_json(const struct daly_cost *cost)
{
    return json_pack("{sI sf sf sf}", "steps", (json_int_t)cost->steps, "seconds", cost->seconds,
                     "overhead", cost->overhead, "saves", cost->saves);
}

static json_t *advice_json(const struct figures *figures, const char *run)
{
    return json_pack("{ss ss sI sf sf so sf sf so so so so so}", "run", run, "checkpoint",
                     figures->checkpoint, "bytes", (json_int_t)figures->bytes, "step_seconds",
                     figures->daly.step, "save_wait_seconds", figures->daly.wait, "durable_seconds",
                     known(figures->daly.durable, figures->daly.durable > 0), "failure_seconds",
                     figures->daly.failures, "restart_seconds", figures->daly.restart, "now",
                     figures->now > 0 ? cost_json(&figures->present) : json_null(), "advised",
                     cost_json(&figures->best), "interval", interval_json(figures), "retention",
                     retention_json(figures), "replication", copies_json(figures));
}

int cli_advise(const struct cli *cli)
{
    struct figures figures;
    ERR_TRY(figures_read(&figures, cli));
    json_begin();
    json_t *advice = advice_json(&figures, cli->args[0]);
    int error =
        json_end() && advice != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for advice");
    if (error == 0 && cli->is_json) {
        error = text_document(advice);
    } else if (error == 0) {
        print_interval(&figures, json_object_get(advice, "interval"));
        print_retention(&figures, json_object_get(advice, "retention"));
        print_copies(&figures, json_object_get(advice, "replication"));
    }
    json_decref(advice);
    return error;
}
