/* list.c - lists the checkpoints of a store or a running ckptd. Reads only.
 *
 * The list is the same from a directory (--store) and from a server (--server). The server adds
 * whether a checkpoint is in memory. The cursor of ckptd's scrub in the run, and the last verify,
 * show which checkpoints were read back since their commit. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/base/memfile.h"
#include "proto/format/flaw.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PIN_NOTE_COLUMNS 40u /* columns of a note in a list */
#define ROWS_AT_ONCE 1024u   /* rows that are read before the first of them is printed */

/* One line of a list, from either side. */
struct row {
    const char *run, *origin, *nonce, *time, *durability, *damage, *pin_note;
    const char *tiers; /* tiers that have it, from a server; NULL: unknown */
    uint64_t step, attempt, bytes;
    uint32_t world_size;
    bool in_memory, is_pinned, is_read_back;
    const struct tags *tags;
    bool begins_run;    /* the previous row is of another run */
    bool may_be_pinned; /* its pin must be read from the store before it is printed */
    struct store_pin pin;
    bool is_verified;
    struct verified verified;
};

/* Is its only flaw that it is in another run's directory? */
static bool is_moved(const struct row *row)
{
    return strcmp(row->durability, FLAW_MOVED) == 0;
}

/* The flaw of a row that has a damage. If ckptd sends no more, it is "damaged". */
static const char *flaw_of(const struct row *row)
{
    static const char *const others[] = {FLAW_UNREAD, FLAW_MOVED, FLAW_ASIDE, FLAW_NEWER,
                                         FLAW_IN_DOUBT};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(row->durability, others[i]) == 0)
            return others[i];
    return FLAW_DAMAGED;
}

static const char *shout(char *out, size_t size, const char *word)
{
    size_t length = 0;
    for (; word[length] != '\0' && length + 1 < size; length++)
        out[length] = (char)toupper((unsigned char)word[length]);
    out[length] = '\0';
    return out;
}

static void print_row_json(FILE *out, const struct row *row, bool is_first)
{
    char tags[256];
    fprintf(out, "%s\n  {\"run\": ", is_first ? "" : ",");
    text_json(out, row->run);
    fprintf(out, ", \"step\": %llu, \"attempt\": %llu", (unsigned long long)row->step,
            (unsigned long long)row->attempt);
    if (row->origin[0] != '\0') {
        fprintf(out, ", \"%s\": ", is_moved(row) ? "moved_from" : "origin");
        text_json(out, row->origin);
    }
    if (row->damage[0] != '\0') {
        fprintf(out, ", \"flaw\": \"%s\", \"damage\": ", flaw_of(row));
        text_json(out, row->damage);
        fprintf(out, "}");
        return;
    }
    fprintf(out, ", \"nonce\": ");
    text_json(out, row->nonce);
    fprintf(out,
            ", \"bytes\": %llu, \"world_size\": %u, \"time\": ", (unsigned long long)row->bytes,
            row->world_size);
    text_json(out, row->time);
    fprintf(out, ", \"durability\": ");
    text_json(out, row->durability);
    if (tiers_have_copies(row->tiers)) {
        fprintf(out, ", \"tiers\": ");
        text_json(out, row->tiers);
    }
    fprintf(out, ", \"in_memory\": %s, \"read_back\": %s, \"pinned\": %s",
            row->in_memory ? "true" : "false", row->is_read_back ? "true" : "false",
            row->is_pinned ? "true" : "false");
    if (tags_text(tags, sizeof tags, row->tags, row->step, row->attempt)[0] != '\0')
        fprintf(out, ", \"tags\": \"%s\"", tags);
    if (row->is_verified) {
        json_t *verified = verified_json(&row->verified);
        fprintf(out, ", \"verified\": ");
        text_json_value(out, verified, 0);
        json_decref(verified);
    }
    if (row->is_pinned) {
        fprintf(out, ", \"pin_note\": ");
        text_json(out, row->pin_note);
    }
    fprintf(out, "}");
}

/* ", pinned (best so far)"; of a long note only the beginning, `show` prints all of it. */
static void print_pin(FILE *out, const struct row *row)
{
    char note[PIN_NOTE_COLUMNS + 1];
    bool is_cut = strlen(row->pin_note) > PIN_NOTE_COLUMNS;
    if (row->is_pinned && row->pin_note[0] != '\0')
        fprintf(out, ", pinned (%s%s)", text_safe(note, sizeof note, row->pin_note),
                is_cut ? "..." : "");
    else if (row->is_pinned)
        fprintf(out, ", pinned");
}

static void print_row_text(FILE *out, const struct row *row, bool is_first)
{
    char safe[200], size[32], text[160], time[40], flaw[16], state[160], tags[200];
    if (is_first)
        fprintf(out, "%-32s %6s  %11s  %-20s  %s\n", "CHECKPOINT", "RANKS", "SIZE", "TIME",
                "STATE");
    text_safe(safe, sizeof safe, /* attempt 0: the whole run cannot be read */
              row->attempt == 0 ? row->run
                                : text_checkpoint(row->run, row->step, row->attempt).text);
    snprintf(state, sizeof state, "%s (%s)", tiers_level(row->durability, row->tiers),
             row->tiers ? row->tiers : "");
    text_safe(text, sizeof text,
              row->damage[0] != '\0'          ? row->damage
              : tiers_have_copies(row->tiers) ? state
                                              : row->durability);
    if (row->damage[0] != '\0') {
        fprintf(out, "%-32s %s: %s\n", safe, shout(flaw, sizeof flaw, flaw_of(row)), text);
        return;
    }
    fprintf(out, "%-32s %6u  %11s  %-20s  %s%s%s", safe, row->world_size,
            text_bytes(size, sizeof size, row->bytes), text_safe(time, sizeof time, row->time),
            text, row->is_verified || row->is_read_back ? "" : ", not read back",
            row->in_memory ? ", in memory" : "");
    if (tags_text(tags, sizeof tags, row->tags, row->step, row->attempt)[0] != '\0')
        fprintf(out, ", tag %s", tags);
    if (row->is_verified)
        fprintf(out, ", %s", verified_text(text, sizeof text, &row->verified));
    print_pin(out, row);
    fprintf(out, "\n");
}

static void print_name(FILE *out, const struct cli *cli, const char *name)
{
    char safe[200];
    if (strncmp(name, cli->typed, strlen(cli->typed)) == 0)
        fprintf(out, "%s\n", text_safe(safe, sizeof safe, name));
}

/* Prints RUN, once, and RUN@STEP-aATTEMPT, each if it begins with the typed prefix. */
static void print_row_names(FILE *out, const struct cli *cli, const struct row *row)
{
    if (row->begins_run)
        print_name(out, cli, row->run);
    if (row->attempt != 0 && !cli->is_run_typed)
        print_name(out, cli, text_checkpoint(row->run, row->step, row->attempt).text);
}

/* Sums over all rows so far. */
struct tally {
    FILE *out;
    struct tags tags; /* of the run of the last row */
    bool has_damage;
};

/* One that could not be read may be. A checkpoint that was moved, set aside or written by a later
 * version is not damaged. */
static bool is_damaged(const struct row *row)
{
    const char *flaw = flaw_of(row);
    return row->damage[0] != '\0'
               ? strcmp(flaw, FLAW_DAMAGED) == 0 || strcmp(flaw, FLAW_UNREAD) == 0
               : row->verified.known == VERIFIED_DAMAGED;
}

static void print_row(const struct cli *cli, struct tally *tally, struct storage *store,
                      const struct row *row, bool is_first)
{
    struct row tagged = *row;
    tally->has_damage |= is_damaged(row);
    if (row->begins_run && cli->typed == NULL)
        tags_read(&tally->tags, store, row->run);
    tagged.tags = &tally->tags;
    if (cli->typed != NULL)
        print_row_names(tally->out, cli, row);
    else
        (cli->is_json ? print_row_json : print_row_text)(tally->out, &tagged, is_first);
}

static void print_rows_begin(FILE *out, const struct cli *cli)
{
    if (cli->is_json)
        fprintf(out, "[");
}

static void print_rows_end(FILE *out, const struct cli *cli, size_t count)
{
    if (cli->is_json)
        fprintf(out, "%s]\n", count > 0 ? "\n" : "");
    else if (count == 0 && cli->typed == NULL)
        fprintf(out, "no checkpoints\n");
}

/* ---- rows, several at once ---- */

struct batch {
    const struct cli *cli;
    struct tally *tally;
    struct storage *store; /* for the results of verify; NULL: it cannot be read */
    size_t count, num_printed;
    struct row rows[ROWS_AT_ONCE];
};

/* Reads the store's files beside the row's checkpoint. Runs on any thread. */
static int read_row(void *user, size_t index)
{
    struct batch *batch = user;
    struct row *row = &batch->rows[index];
    struct manifest_summary summary = {.step = row->step, .attempt = row->attempt};
    snprintf(summary.run, sizeof summary.run, "%s", row->run);
    snprintf(summary.nonce, sizeof summary.nonce, "%s", row->nonce);
    if (row->damage[0] != '\0') /* the only text about it */
        return 0;
    row->is_verified = verified_find(&row->verified, batch->store, &summary);
    row->is_read_back = verified_is_read_back(&row->verified, row->is_read_back);
    if (!row->may_be_pinned)
        return 0;
    int error = store_read_pin(&row->pin, batch->store, &summary);
    row->is_pinned = row->pin.is_there;
    row->pin_note = row->pin.note;
    return error;
}

static int print_batch(struct batch *batch)
{
    int error = batch->store != NULL && batch->cli->typed == NULL
                    ? storage_for_many(batch->store, batch->count, read_row, batch)
                    : 0;
    for (size_t i = 0; i < batch->count && error == 0; i++)
        print_row(batch->cli, batch->tally, batch->store, &batch->rows[i],
                  batch->num_printed++ == 0);
    batch->count = 0;
    return error;
}

static int add_row(struct batch *batch, const struct row *row)
{
    batch->rows[batch->count++] = *row;
    return batch->count == ROWS_AT_ONCE ? print_batch(batch) : 0;
}

/* ---- from a store ---- */

/* Prints the rows of a catalog. */
static int print_catalog(struct batch *batch, const struct store_list *catalog)
{
    struct scrub_cursor scrubbed = {0}; /* of the row's run */
    int error = 0;
    for (uint32_t i = 0; i < catalog->count && error == 0; i++) {
        const struct store_entry *entry = &catalog->entries[i];
        const struct manifest_summary *from = &entry->summary;
        bool begins_run = i == 0 || strcmp(from->run, catalog->entries[i - 1].summary.run) != 0;
        bool is_run = from->attempt == 0; /* a run that could not be read */
        if (begins_run && !is_run)
            ERR_TRY(store_read_cursor(&scrubbed, batch->store, from->run));
        const struct row row = {
            .run = from->run,
            .nonce = from->nonce,
            .time = from->time,
            .origin = from->origin,
            .durability = entry->flaw ? entry->flaw : store_durability(batch->cli->store),
            .damage = entry->damage != NULL ? entry->damage : "",
            .pin_note = "",
            .step = from->step,
            .attempt = from->attempt,
            .bytes = from->bytes,
            .world_size = from->world_size,
            .is_read_back = scrub_has_proven(&scrubbed, from->step, from->attempt),
            .may_be_pinned = entry->may_be_pinned,
            .begins_run = begins_run};
        error = add_row(batch, &row);
    }
    return error == 0 ? print_batch(batch) : error;
}

static int list_store(struct batch *batch, const struct cli *cli)
{
    const char *run = cli->num_args > 0 ? cli->args[0] : NULL;
    struct store_list catalog = {0};
    ERR_TRY(store_begin(&batch->store, cli, run, false));
    int error = store_list_read(&catalog, batch->store, run != NULL ? run : "");
    if (error == 0 && cli->typed == NULL)
        error = store_list_find_pins(&catalog, batch->store);
    if (error == 0)
        print_rows_begin(batch->tally->out, cli);
    if (error == 0)
        error = print_catalog(batch, &catalog);
    store_list_free(&catalog);
    return error;
}

/* ---- from a server ---- */

/* `run_before`: of the row before the page, or "". */
static int print_page(struct batch *batch, const Holdfast__V1__ListReply *page,
                      const char *run_before)
{
    int error = 0;
    for (size_t i = 0; i < page->n_checkpoints && error == 0; i++) {
        const Holdfast__V1__CheckpointSummary *from = page->checkpoints[i];
        const struct row row = {
            .run = from->run,
            .origin = from->origin,
            .nonce = from->nonce,
            .time = from->time,
            .durability = from->durability,
            .tiers = from->tiers,
            .damage = from->damage,
            .step = from->step,
            .attempt = from->attempt,
            .bytes = from->bytes,
            .world_size = from->world_size,
            .in_memory = from->in_memory,
            .is_read_back = from->read_back,
            .is_pinned = from->pinned,
            .pin_note = from->pin_note,
            .begins_run =
                strcmp(i == 0 ? run_before : page->checkpoints[i - 1]->run, from->run) != 0};
        error = add_row(batch, &row);
    }
    return error == 0 ? print_batch(batch) : error; /* the page is freed */
}

/* The first page opens the store, too. */
static int list_server(struct batch *batch, const struct cli *cli)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    char page[STORAGE_KEY_MAX] = "", run_before[STORAGE_KEY_MAX] = "";
    bool is_first = true, more = true;
    int error = 0;
    request.run = (char *)(cli->num_args > 0 ? cli->args[0] : "");
    request.page = page;
    for (; more && error == 0; is_first = false) {
        ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
        const Holdfast__V1__ListReply *reply = (const Holdfast__V1__ListReply *)answer;
        if (is_first) {
            batch->store = cli->typed == NULL ? verified_store(cli) : NULL;
            print_rows_begin(batch->tally->out, cli);
        }
        error = print_page(batch, reply, run_before);
        if (reply->n_checkpoints > 0)
            snprintf(run_before, sizeof run_before, "%s",
                     reply->checkpoints[reply->n_checkpoints - 1]->run);
        more = reply->next[0] != '\0' && reply->n_checkpoints > 0;
        snprintf(page, sizeof page, "%s", reply->next);
        protobuf_c_message_free_unpacked(answer, NULL);
    }
    return error;
}

static int write_list(FILE *out, bool *out_has_damage, const struct cli *cli)
{
    struct tally tally = {.out = out};
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list");
    batch->cli = cli;
    batch->tally = &tally;
    int error = (cli->store[0] != '\0' ? list_store : list_server)(batch, cli);
    if (error == 0)
        print_rows_end(out, cli, batch->num_printed);
    *out_has_damage = tally.has_damage;
    storage_close(batch->store);
    free(batch);
    tags_free(&tally.tags);
    return error;
}

int list_read(json_t **out, bool *out_has_damage, const struct cli *cli)
{
    struct cli *as_json = malloc(sizeof *as_json);
    char *text = NULL;
    size_t bytes = 0;
    json_error_t reason;
    FILE *file = as_json != NULL ? memfile_open(&text, &bytes) : NULL;
    int error = 0;
    *out = NULL;
    if (file != NULL) {
        *as_json = *cli;
        as_json->is_json = true;
        error = write_list(file, out_has_damage, as_json);
    }
    if ((file == NULL || !memfile_close(file)) && error == 0)
        error = report_error(ERR_MEMORY, NULL, "no memory for a list");
    if (error == 0)
        error = json_read(out, text, bytes, &reason);
    free(text);
    free(as_json);
    return error;
}

int cli_list(const struct cli *cli)
{
    struct selection selection = {.step = -1};
    bool has_damage = false;
    if (cli->num_args > 0)
        ERR_TRY(selection_parse(&selection, cli->args[0]));
    if (selection.step >= 0)
        return report_error(ERR_INVALID, "use `ckpt-cli show` for one checkpoint",
                            "list takes a run, not a step");
    int error = write_list(stdout, &has_damage, cli);
    return error != 0 ? error : has_damage ? CLI_DIFFERS : 0;
}
