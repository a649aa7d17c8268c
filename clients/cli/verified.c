/* verified.c - the result of the last verify of a checkpoint: a small file beside its manifest.
 *
 * verify leaves it where this user may write; list and show tell it. It says when, how much was
 * read, and what was found, of the checkpoint with that nonce. It goes with the checkpoint. It is
 * a memory and no proof: nothing is decided by it. */
#include "clients/cli/cli.h"

#include "proto/json.h"
#include "proto/origin.h"
#include "proto/retain.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOTE_BYTES_MAX 512u

static int note_key(char *out, size_t size, const struct manifest_summary *summary)
{
    char directory[STORAGE_KEY_MAX];
    ERR_TRY(
        shard_dir_key(directory, sizeof directory, summary->run, summary->step, summary->attempt));
    return snprintf(out, size, "%s/" VERIFIED_NAME, directory) < (int)size
               ? 0
               : report_error(ERR_INVALID, NULL, "the key of a note in %s is too long", directory);
}

/* Replaces the one before. */
static int put_note(const struct cli *cli, const struct manifest_summary *summary, const char *text)
{
    char key[STORAGE_KEY_MAX + 32];
    struct storage *store = NULL;
    ERR_TRY(note_key(key, sizeof key, summary));
    int error = store_open_writable(&store, cli);
    if (error == 0)
        error = storage_remove(store, key);
    if (error == 0 || error == ERR_NOT_FOUND)
        error = storage_publish(store, key, text, strlen(text));
    if (store != NULL)
        storage_close(store);
    return error;
}

void verified_keep(const struct cli *cli, const struct manifest_summary *summary,
                   const struct verified *result)
{
    char text[NOTE_BYTES_MAX], now[32];
    manifest_now(now);
    snprintf(
        text, sizeof text,
        "{\"nonce\":\"%s\",\"time\":\"%s\",\"percent\":%.17g,\"seed\":%lld,\"damages\":%llu}\n",
        summary->nonce, now, result->percent, (long long)result->seed,
        (unsigned long long)result->damages);
    int error = put_note(cli, summary, text);
    if (error == ERR_DENIED || error == ERR_SPACE) /* of one who only reads: no harm */
        log_debug("verify", "the result is not kept: %s", report_line());
    else if (error != 0)
        log_warn("verify", "the result is not kept: %s", report_line());
}

static bool parse_note(struct verified *out, const char *text, size_t bytes,
                       const struct manifest_summary *summary)
{
    json_error_t reason;
    json_t *root = NULL;
    if (json_read(&root, text, bytes, &reason) != 0)
        return false;
    const char *nonce = json_string_value(json_object_get(root, "nonce"));
    const char *time_text = json_string_value(json_object_get(root, "time"));
    bool is_it = nonce != NULL && time_text != NULL && strcmp(nonce, summary->nonce) == 0 &&
                 strlen(time_text) < sizeof out->time;
    if (is_it) {
        strcpy(out->time, time_text);
        out->percent = json_number_value(json_object_get(root, "percent"));
        out->seed = json_integer_value(json_object_get(root, "seed"));
        out->damages = (uint64_t)json_integer_value(json_object_get(root, "damages"));
    }
    json_decref(root);
    return is_it && out->percent > 0 && out->percent <= 100 && retain_time(out->time) > 0;
}

bool verified_find(struct verified *out, struct storage *store,
                   const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 32], text[NOTE_BYTES_MAX];
    uint64_t bytes = 0;
    struct report_text before; /* of what the caller has to say */
    *out = (struct verified){0};
    report_keep(&before);
    bool is_it = store != NULL && note_key(key, sizeof key, summary) == 0 &&
                 storage_fetch(store, key, text, sizeof text, &bytes) == 0 &&
                 parse_note(out, text, bytes < sizeof text ? bytes : sizeof text, summary);
    report_restore(&before, 0);
    if (!is_it)
        *out = (struct verified){0};
    return is_it;
}

/* "2 h": of seconds, in the largest unit of which there are two. */
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
             verified->damages > 0     ? "DAMAGED"
             : verified->percent < 100 ? "no damage found"
                                       : "whole");
    return out;
}

json_t *verified_json(const struct verified *verified)
{
    return json_pack("{ss sf sI sI}", "time", verified->time, "percent", verified->percent, "seed",
                     (json_int_t)verified->seed, "damages", (json_int_t)verified->damages);
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
