/* verified.c - the result of the last verify of a checkpoint. verify writes it if its user may, or,
 * through a ckptd over TLS, has ckptd write it, if the user is an operator. list and show print it.
 * proto/format/verified.h describes the file and its readers. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/format/retain.h"

#include <string.h>
#include <time.h>

static bool is_served(const struct cli *cli)
{
    return strncmp(cli->store, "peer:", strlen("peer:")) == 0;
}

/* For a checkpoint read through a ckptd of this node the result is in its directory, if that
 * exists. */
static int open_for_result(struct storage **out, const struct cli *cli,
                           const struct manifest_summary *summary)
{
    struct cli here = *cli;
    struct selection selection = {.step = (int64_t)summary->step, .attempt = summary->attempt};
    snprintf(selection.run, sizeof selection.run, "%s", summary->run);
    if (is_served(cli))
        ERR_TRY(server_find_store(&here));
    ERR_TRY(store_open_writable(out, &here));
    return is_served(cli) && store_need_checkpoint(*out, &selection) != 0
               ? report_error(ERR_DENIED, NULL, "only other tiers have it")
               : 0;
}

/* Replaces the previous result. */
static int write_result(const struct cli *cli, const struct manifest_summary *summary,
                        const struct verified *result)
{
    struct storage *store = NULL;
    struct verified noted;
    int error = open_for_result(&store, cli, summary);
    if (error == 0)
        error = store_put_verified(&noted, store, summary, result);
    storage_close(store);
    return error;
}

void verified_keep(const struct cli *cli, const struct manifest_summary *summary,
                   const struct verified *result)
{
    bool is_far = is_served(cli) && strncmp(cli->server, "unix:", strlen("unix:")) != 0;
    int error =
        is_far ? server_keep_verified(cli, summary, result) : write_result(cli, summary, result);
    /* Otherwise ckptd gets the report. */
    bool is_needed = result->damages > 0 && cli->server[0] == '\0';
    bool may_not = error == ERR_DENIED || error == ERR_SPACE ||
                   (is_far && (error == ERR_NOT_FOUND || error == ERR_VERSION));
    if (may_not && !is_needed)
        log_debug("verify", "the result is not kept: %s", report_line());
    else if (error != 0)
        log_warn("verify", "the result is not kept: %s", report_line());
}

void verified_report_to_server(const struct cli *cli, const struct manifest_summary *summary)
{
    const char *run = summary->run;
    bool is_elsewhere = false;
    if (server_scrub(&is_elsewhere, cli, false, run, summary) != 0)
        log_warn("verify",
                 "ckptd was not notified: %s; an operator can: ckpt-cli server scrub start %s",
                 report_line(), run);
    else if (!cli->is_json && is_elsewhere)
        printf("ckptd was notified, but its own store has no copy to verify: it verifies those in "
               "the far tier once in scrub.period_s, and a peer verifies its own\n");
    else if (!cli->is_json)
        printf("ckptd was notified: it verifies this one at once, then run %s, and quarantines "
               "damaged ones\n",
               run);
}

void verified_report(const struct cli *cli, const struct checkpoint *checkpoint)
{
    struct report_text before;
    uint64_t blocks = 0;
    if (!checkpoint_has_damage(checkpoint))
        return;
    report_keep(&before);
    for (uint32_t i = 0; i < checkpoint->manifest->summary.shards; i++)
        blocks += checkpoint->shards[i].stored.geometry.num_blocks;
    /* A block was read, or a header; a result of no percentage is invalid
     * (proto/format/verified.h). */
    verified_keep(
        cli, &checkpoint->manifest->summary,
        &(struct verified){.percent = 100.0 / (double)(blocks > 0 ? blocks : 1), .damages = 1});
    if (cli->server[0] != '\0' && checkpoint->quarantine[0] == '\0')
        verified_report_to_server(cli, &checkpoint->manifest->summary);
    report_restore(&before, 0);
}

int verified_release(const struct cli *cli, const struct manifest_summary *summary)
{
    struct storage *store = NULL;
    char prefix[STORAGE_KEY_MAX];
    if (cli->server[0] != '\0')
        return server_release(cli, summary);
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    ERR_TRY(store_open_writable(&store, cli));
    int error = store_remove_note(store, STORE_QUARANTINE, prefix);
    storage_close(store);
    return error;
}

bool verified_find(struct verified *out, struct storage *store,
                   const struct manifest_summary *summary)
{
    struct report_text before; /* the caller's error text is kept */
    *out = (struct verified){0};
    report_keep(&before);
    int error = store != NULL ? store_read_verified(out, store, summary) : ERR_NOT_FOUND;
    report_restore(&before, 0);
    return error == 0;
}

/* "2 h" for seconds, in the largest unit of which there are at least two. */
static const char *format_age(char *out, size_t size, int64_t seconds)
{
    static const struct {
        const char *name;
        int64_t seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    size_t unit = 0;
    seconds = seconds > 0 ? seconds : 0;
    while (unit + 1 < sizeof units / sizeof *units && seconds < 2 * units[unit].seconds)
        unit++;
    snprintf(out, size, "%lld %s", (long long)(seconds / units[unit].seconds), units[unit].name);
    return out;
}

const char *verified_text(char *out, size_t size, const struct verified *verified)
{
    char age[32], part[32] = "verified";
    format_age(age, sizeof age, time(NULL) - retain_time(verified->time));
    if (verified->percent < 100)
        snprintf(part, sizeof part, "%g%% verified", verified->percent);
    snprintf(out, size, "%s %s ago, %s", part, age,
             verified->known == VERIFIED_DAMAGED ? "DAMAGED"
             : verified->percent < 100           ? "no damage found"
                                                 : "whole");
    return out;
}

json_t *verified_json(const struct verified *verified)
{
    return json_pack("{ss sf sI sI ss}", "time", verified->time, "percent", verified->percent,
                     "seed", (json_int_t)verified->seed, "damages", (json_int_t)verified->damages,
                     "known", verified_known_name(verified->known));
}

struct storage *verified_store(const struct cli *cli)
{
    struct cli here = *cli;
    struct storage *store = NULL;
    struct report_text text;
    report_keep(&text);
    if ((here.store[0] == '\0' && server_find_store(&here) != 0) || store_open(&store, &here) != 0)
        store = NULL;
    report_restore(&text, 0);
    return store;
}
