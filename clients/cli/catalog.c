/* catalog.c - list and show: which checkpoints a store or a running ckptd has. Reads only.
 *
 * list and show give the same answer from a directory (--store) and from a server (--server), which
 * adds what only it knows: whether a checkpoint lies in memory. What was read back since it was
 * committed the cursor tells that ckptd's scrub leaves in the run. A manifest from a server is
 * proved by its SHA-256 like one from a disk. */
#include "clients/cli/cli.h"

#include "proto/ckpt.pb-c.h"
#include "proto/json.h"
#include "proto/origin.h"
#include "proto/presence.h"
#include "proto/retain.h"
#include "proto/rpc.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PIN_NOTE_COLUMNS 40u /* of a list */

/* One line of a list, from either side. */
struct row {
    const char *run, *origin, *nonce, *time, *durability, *damage, *pin_note;
    const char *tiers; /* that have it, of a server; NULL: not known */
    uint64_t step, attempt, bytes;
    uint32_t world_size;
    bool in_memory, is_pinned, is_read_back;
    struct storage *store; /* with the results of verify; NULL: it cannot be read */
    const struct tags *tags;
    bool begins_run; /* the row before is of another run */
};

/* Has another tier than the local one a copy? */
static bool has_copies(const char *tiers)
{
    return tiers && tiers[0] != '\0' && strcmp(tiers, "local") != 0;
}

/* ---- list ---- */

/* Nothing is wrong with it but that it lies in another run's directory. */
static bool is_moved(const struct row *row)
{
    return strcmp(row->durability, CLI_MOVED) == 0;
}

static bool find_verified(struct verified *out, const struct row *row)
{
    struct manifest_summary summary = {.step = row->step, .attempt = row->attempt};
    snprintf(summary.run, sizeof summary.run, "%s", row->run);
    snprintf(summary.nonce, sizeof summary.nonce, "%s", row->nonce);
    return verified_find(out, row->store, &summary);
}

/* What is wrong with a row that has a damage. A ckptd that tells no more calls it damaged. */
static const char *flaw_of(const struct row *row)
{
    static const char *const others[] = {FLAW_MOVED, FLAW_ASIDE, FLAW_NEWER};
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

static void print_row_json(const struct row *row, bool is_first)
{
    struct verified result;
    char tags[256];
    printf("%s\n  {\"run\": ", is_first ? "" : ",");
    text_json(stdout, row->run);
    printf(", \"step\": %llu, \"attempt\": %llu", (unsigned long long)row->step,
           (unsigned long long)row->attempt);
    if (row->origin[0] != '\0') {
        printf(", \"%s\": ", is_moved(row) ? "moved_from" : "origin");
        text_json(stdout, row->origin);
    }
    if (row->damage[0] != '\0') {
        printf(", \"flaw\": \"%s\", \"damage\": ", flaw_of(row));
        text_json(stdout, row->damage);
        printf("}");
        return;
    }
    printf(", \"nonce\": ");
    text_json(stdout, row->nonce);
    printf(", \"bytes\": %llu, \"world_size\": %u, \"time\": ", (unsigned long long)row->bytes,
           row->world_size);
    text_json(stdout, row->time);
    printf(", \"durability\": ");
    text_json(stdout, row->durability);
    if (has_copies(row->tiers)) {
        printf(", \"tiers\": ");
        text_json(stdout, row->tiers);
    }
    printf(", \"in_memory\": %s, \"read_back\": %s, \"pinned\": %s",
           row->in_memory ? "true" : "false", row->is_read_back ? "true" : "false",
           row->is_pinned ? "true" : "false");
    if (tags_text(tags, sizeof tags, row->tags, row->step, row->attempt)[0] != '\0')
        printf(", \"tags\": \"%s\"", tags);
    if (find_verified(&result, row)) {
        json_t *verified = verified_json(&result);
        printf(", \"verified\": ");
        text_json_value(stdout, verified, 0);
        json_decref(verified);
    }
    if (row->is_pinned) {
        printf(", \"pin_note\": ");
        text_json(stdout, row->pin_note);
    }
    printf("}");
}

/* ", pinned (best so far)"; of a long note the beginning, show tells all of it. */
static void print_pin(const struct row *row)
{
    char note[PIN_NOTE_COLUMNS + 1];
    bool is_cut = strlen(row->pin_note) > PIN_NOTE_COLUMNS;
    if (row->is_pinned && row->pin_note[0] != '\0')
        printf(", pinned (%s%s)", text_safe(note, sizeof note, row->pin_note), is_cut ? "..." : "");
    else if (row->is_pinned)
        printf(", pinned");
}

static void print_row_text(const struct row *row, bool is_first)
{
    char name[200], safe[200], size[32], text[160], time[40], flaw[16];
    if (is_first)
        printf("%-32s %6s  %11s  %-20s  %s\n", "CHECKPOINT", "RANKS", "SIZE", "TIME", "STATE");
    if (row->attempt == 0) /* the whole run cannot be read */
        snprintf(name, sizeof name, "%s", row->run);
    else
        snprintf(name, sizeof name, "%s@%llu-a%llu", row->run, (unsigned long long)row->step,
                 (unsigned long long)row->attempt);
    text_safe(safe, sizeof safe, name);
    text_safe(text, sizeof text, row->damage[0] != '\0' ? row->damage : row->durability);
    if (row->damage[0] != '\0') {
        printf("%-32s %s: %s\n", safe, shout(flaw, sizeof flaw, flaw_of(row)), text);
        return;
    }
    struct verified verified;
    bool is_verified = find_verified(&verified, row);
    printf("%-32s %6u  %11s  %-20s  %s%s%s", safe, row->world_size,
           text_bytes(size, sizeof size, row->bytes), text_safe(time, sizeof time, row->time), text,
           is_verified || row->is_read_back ? "" : ", not read back",
           row->in_memory ? ", in memory" : "");
    if (tags_text(name, sizeof name, row->tags, row->step, row->attempt)[0] != '\0')
        printf(", tag %s", name);
    if (is_verified)
        printf(", %s", verified_text(text, sizeof text, &verified));
    print_pin(row);
    printf("\n");
}

static void print_name(const struct cli *cli, const char *name)
{
    char safe[200];
    if (strncmp(name, cli->typed, strlen(cli->typed)) == 0)
        printf("%s\n", text_safe(safe, sizeof safe, name));
}

/* RUN, once, and RUN@STEP-aATTEMPT, each if it begins as what was typed. */
static void print_row_names(const struct cli *cli, const struct row *row)
{
    char name[200];
    if (row->begins_run)
        print_name(cli, row->run);
    snprintf(name, sizeof name, "%s@%llu-a%llu", row->run, (unsigned long long)row->step,
             (unsigned long long)row->attempt);
    if (row->attempt != 0 && !cli->is_run_typed)
        print_name(cli, name);
}

/* Has some run nothing but damage? One that was moved has none. The rows of a run follow each
 * other. */
struct tally {
    struct tags tags;          /* of the run of the last row */
    bool is_lost, is_run_lost; /* some run before; the run of the last row, so far */
};

static void tally_row(struct tally *tally, const struct row *row)
{
    if (row->begins_run) {
        tally->is_lost |= tally->is_run_lost;
        tally->is_run_lost = true;
    }
    tally->is_run_lost &= row->damage[0] != '\0' && strcmp(flaw_of(row), FLAW_DAMAGED) == 0;
}

static int tally_code(const struct tally *tally)
{
    return tally->is_lost || tally->is_run_lost ? CLI_DIFFERS : 0;
}

static void print_row(const struct cli *cli, struct tally *tally, const struct row *row,
                      bool is_first)
{
    struct row tagged = *row;
    tally_row(tally, row);
    if (row->begins_run && cli->typed == NULL)
        tags_read(&tally->tags, row->store, row->run);
    tagged.tags = &tally->tags;
    if (cli->typed != NULL)
        print_row_names(cli, row);
    else
        (cli->is_json ? print_row_json : print_row_text)(&tagged, is_first);
}

static void print_rows_begin(const struct cli *cli)
{
    if (cli->is_json)
        printf("[");
}

static void print_rows_end(const struct cli *cli, size_t count)
{
    if (cli->is_json)
        printf("%s]\n", count > 0 ? "\n" : "");
    else if (count == 0 && cli->typed == NULL)
        printf("no checkpoints\n");
}

struct pin {
    bool is_there;
    char note[256];
};

/* One that cannot be read holds all the same. ERR_MEMORY. */
static int read_pin(struct pin *out, struct storage *store, const struct manifest_summary *summary)
{
    char prefix[STORAGE_KEY_MAX];
    out->note[0] = '\0';
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error == 0)
        error = storage_group_find_pin(store, &out->is_there, prefix, out->note, sizeof out->note);
    if (error == 0 || error == ERR_MEMORY)
        return error;
    snprintf(out->note, sizeof out->note, "its note could not be read");
    return 0;
}

/* The rows of a catalog. */
static int print_catalog(const struct cli *cli, struct tally *tally, struct storage *store,
                         const struct catalog *catalog)
{
    struct scrub_cursor scrubbed = {0}; /* of the row's run */
    int error = 0;
    for (uint32_t i = 0; i < catalog->count && error == 0; i++) {
        const struct catalog_entry *entry = &catalog->entries[i];
        const struct manifest_summary *from = &entry->summary;
        struct pin pin = {0};
        bool begins_run = i == 0 || strcmp(from->run, catalog->entries[i - 1].summary.run) != 0;
        bool is_run = from->attempt == 0; /* that could not be read */
        if (begins_run && !is_run)
            error = store_read_cursor(&scrubbed, store, from->run);
        if (error == 0 && !is_run)
            error = read_pin(&pin, store, from);
        if (error != 0)
            break;
        const struct row row = {
            .run = from->run,
            .nonce = from->nonce,
            .time = from->time,
            .origin = from->origin,
            .durability = entry->flaw ? entry->flaw : store_durability(cli->store),
            .damage = entry->damage != NULL ? entry->damage : "",
            .step = from->step,
            .attempt = from->attempt,
            .bytes = from->bytes,
            .world_size = from->world_size,
            .is_read_back = scrub_has_proven(&scrubbed, from->step, from->attempt),
            .is_pinned = pin.is_there,
            .pin_note = pin.note,
            .store = store,
            .begins_run = begins_run};
        print_row(cli, tally, &row, i == 0);
    }
    return error;
}

static int list_store(const struct cli *cli)
{
    struct storage *store = NULL;
    struct catalog catalog = {0};
    struct tally tally = {0};
    int error = store_open(&store, cli);
    if (error == 0 && cli->num_args > 0)
        error = store_need_run(store, cli->args[0]);
    if (error == 0)
        error = catalog_read(&catalog, store, cli->num_args > 0 ? cli->args[0] : "");
    if (error == 0)
        print_rows_begin(cli);
    if (error == 0)
        error = print_catalog(cli, &tally, store, &catalog);
    if (error == 0)
        print_rows_end(cli, catalog.count);
    catalog_free(&catalog);
    if (store != NULL)
        storage_close(store);
    tags_free(&tally.tags);
    return error == 0 ? tally_code(&tally) : error;
}

/* `run_before`: of the row before the page, or "". */
static void print_page(struct storage *store, const struct cli *cli, struct tally *tally,
                       const Holdfast__V1__ListReply *page, const char *run_before)
{
    for (size_t i = 0; i < page->n_checkpoints; i++) {
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
            .store = store,
            .begins_run =
                strcmp(i == 0 ? run_before : page->checkpoints[i - 1]->run, from->run) != 0};
        print_row(cli, tally, &row, i == 0 && run_before[0] == '\0');
    }
}

/* *store: opened with the first page, for the caller to close. */
static int list_pages(struct storage **store, struct tally *tally, const struct cli *cli)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    char page[STORAGE_KEY_MAX] = "", run_before[STORAGE_KEY_MAX] = "";
    size_t count = 0;
    bool more = true;
    request.run = (char *)(cli->num_args > 0 ? cli->args[0] : "");
    request.page = page;
    while (more) {
        int error = cli_call(&answer, cli, "/holdfast.v1.Checkpoint/List", &request.base,
                             &holdfast__v1__list_reply__descriptor, CLI_CALL_MS);
        if (error != 0)
            return error;
        const Holdfast__V1__ListReply *reply = (const Holdfast__V1__ListReply *)answer;
        if (count == 0) {
            *store = cli->typed == NULL ? verified_store(cli) : NULL;
            print_rows_begin(cli);
        }
        print_page(*store, cli, tally, reply, run_before);
        count += reply->n_checkpoints;
        if (reply->n_checkpoints > 0)
            snprintf(run_before, sizeof run_before, "%s",
                     reply->checkpoints[reply->n_checkpoints - 1]->run);
        more = reply->next[0] != '\0' && reply->n_checkpoints > 0;
        snprintf(page, sizeof page, "%s", reply->next);
        protobuf_c_message_free_unpacked(answer, NULL);
    }
    print_rows_end(cli, count);
    return tally_code(tally);
}

static int list_server(const struct cli *cli)
{
    struct storage *store = NULL;
    struct tally tally = {0};
    int error = list_pages(&store, &tally, cli);
    tags_free(&tally.tags);
    if (store != NULL)
        storage_close(store);
    return error;
}

int cli_list(const struct cli *cli)
{
    struct selection selection;
    if (cli->num_args > 0) {
        int error = selection_parse(&selection, cli->args[0]);
        if (error == 0 && selection.step >= 0)
            error = report_error(ERR_INVALID, "use `ckpt-cli show` for one checkpoint",
                                 "list takes a run, not a step");
        if (error != 0)
            return error;
    }
    return cli->store[0] != '\0' ? list_store(cli) : list_server(cli);
}

/* ---- show ---- */

/* Sections are as their writers laid them out: without the space between their parts, as far as
 * there is room. False: there is more. */
static bool lay_flat(char *out, size_t size, const char *json)
{
    size_t at = 0, bytes = strlen(json), used = 0;
    while (at < bytes) {
        size_t next = json[at] == '"' ? json_skip_string(json, at, bytes) : at + 1;
        if (strchr(" \n\t\r", json[at]) == NULL) {
            size_t now = next - at < size - 1 - used ? next - at : size - 1 - used;
            memcpy(out + used, json + at, now);
            used += now;
            if (at + now < next)
                break;
        }
        at = next;
    }
    out[used] = '\0';
    return at == bytes;
}

static void print_member(const char *name, const char *json)
{
    char flat[2048], safe[sizeof flat];
    if (json == NULL || strcmp(json, "{}") == 0)
        return;
    bool is_whole = lay_flat(flat, sizeof flat, json);
    printf("%-12s %s%s\n", name, text_safe(safe, sizeof safe, flat),
           is_whole ? "" : "... (--json shows all)");
}

static void print_tensors(const struct manifest *manifest)
{
    const struct layout_table *table = manifest->table;
    printf("\n%-48s %-5s %-20s %6s  %s\n", "TENSOR", "DTYPE", "SHAPE", "PIECES", "DIGEST");
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *tensor = &table->tensors[i];
        const struct layout *layout = &table->layouts[table->layout_of[i]];
        char name[LAYOUT_NAME_MAX], shape[96];
        printf("%-48s %-5s %-20s %6llu  %016llx%016llx\n",
               text_safe(name, sizeof name, tensor->name), dtype_name(tensor->dtype),
               text_shape(shape, sizeof shape, tensor), (unsigned long long)layout_cells(layout),
               (unsigned long long)manifest->digests[i].sum[0],
               (unsigned long long)manifest->digests[i].sum[1]);
    }
}

/* Where its data go on, and what the optimizer has seen, as the trainer says it. */
static int print_position(const char *state_json)
{
    const char *text = state_json != NULL ? state_json : "{}";
    json_error_t reason;
    json_t *state;
    if (json_read(&state, text, strlen(text), &reason) == ERR_MEMORY)
        return ERR_MEMORY;
    const json_t *sample = json_object_get(json_object_get(state, "data"), "next_sample");
    const json_t *update = json_object_get(json_object_get(state, "optimizer"), "step");
    if (json_is_integer(sample))
        printf("%-12s sample %lld\n", "data at", (long long)json_integer_value(sample));
    if (json_is_integer(update))
        printf("%-12s %lld\n", "updates", (long long)json_integer_value(update));
    json_decref(state);
    return 0;
}

/* A checkpoint's manifest, and what only the store or the server knows. */
struct shown {
    const struct manifest *manifest;
    const char *text; /* the manifest's */
    size_t bytes;
    const char *durability, *damage; /* as of list */
    const char *tiers;               /* likewise */
    const struct skipped *skipped;
    size_t num_skipped;
    bool is_read_back, is_pinned;
    struct storage *store; /* with the result of a verify; NULL: it cannot be read */
    const char *pin_note;
};

/* In one line what the rest tells at length. */
static void print_headline(const struct shown *shown)
{
    const struct manifest *manifest = shown->manifest;
    const struct manifest_summary *summary = &manifest->summary;
    char size[32], text[160];
    printf("%s@%llu-a%llu: %s, %s in %s of %s, %s", summary->run, (unsigned long long)summary->step,
           (unsigned long long)summary->attempt,
           text_count(manifest->table->num_tensors, "tensor").text,
           text_bytes(size, sizeof size, summary->bytes), text_count(summary->shards, "shard").text,
           text_count(summary->world_size, "rank").text,
           text_safe(text, sizeof text, shown->durability));
    printf("%s%s\n\n", shown->is_pinned ? ", pinned" : "",
           shown->is_read_back ? ", read back" : "");
}

static void print_tags(const struct shown *shown)
{
    const struct manifest_summary *summary = &shown->manifest->summary;
    struct tags tags = {0};
    char text[256];
    tags_read(&tags, shown->store, summary->run);
    if (tags_text(text, sizeof text, &tags, summary->step, summary->attempt)[0] != '\0')
        printf("%-12s %s\n", "tags", text);
    tags_free(&tags);
}

static int print_manifest(const struct shown *shown, const struct lineage *lineage)
{
    const struct manifest *manifest = shown->manifest;
    const struct manifest_summary *summary = &manifest->summary;
    struct verified verified;
    char size[32], text[512];
    print_headline(shown);
    printf("%-12s %s@%llu-a%llu\n", "checkpoint", summary->run, (unsigned long long)summary->step,
           (unsigned long long)summary->attempt);
    if (summary->origin[0] != '\0')
        printf("%-12s run %s\n", "saved in", summary->origin);
    printf("%-12s %s\n", "nonce", text_safe(text, sizeof text, summary->nonce));
    printf("%-12s %s\n", "time", text_safe(text, sizeof text, summary->time));
    printf("%-12s %s in %s\n", "size", text_bytes(size, sizeof size, summary->bytes),
           text_count(summary->shards, "shard").text);
    printf("%-12s %u\n", "ranks", summary->world_size);
    printf("%-12s %s\n", "durability", text_safe(text, sizeof text, shown->durability));
    if (has_copies(shown->tiers))
        printf("%-12s %s\n", "copies", text_safe(text, sizeof text, shown->tiers));
    printf("%-12s %s\n", "read back", shown->is_read_back ? "yes" : "not yet");
    print_tags(shown);
    if (verified_find(&verified, shown->store, summary))
        printf("%-12s %s\n", "verify", verified_text(text, sizeof text, &verified));
    if (shown->is_pinned)
        printf("%-12s yes%s%s\n", "pinned", shown->pin_note[0] != '\0' ? ": " : "",
               text_safe(text, sizeof text, shown->pin_note));
    lineage_print(lineage);
    if (manifest->converted_from[0] != '\0')
        printf("%-12s nonce %s\n", "made from",
               text_safe(text, sizeof text, manifest->converted_from));
    int error = print_position(manifest->state_json);
    if (error != 0)
        return error;
    if (manifest->code_version[0] != '\0')
        printf("%-12s %s\n", "code", text_safe(text, sizeof text, manifest->code_version));
    print_member("mesh", manifest->mesh_json);
    print_member("identity", manifest->identity_json);
    print_member("data", manifest->data_json);
    print_member("state", manifest->state_json);
    print_member("config", manifest->config_json);
    print_tensors(manifest);
    printf("\n%-40s %14s\n", "SHARD", "BYTES");
    for (uint32_t i = 0; i < summary->shards; i++)
        printf("shard-%05u-of-%05u.safetensors%10s %14llu\n", i + 1, summary->shards, "",
               (unsigned long long)manifest->shards[i].bytes);
    if (shown->damage[0] != '\0')
        printf("\n%s: %s\n", strcmp(shown->durability, CLI_MOVED) == 0 ? "MOVED" : "IN QUARANTINE",
               text_safe(text, sizeof text, shown->damage));
    return 0;
}

/* An array as of list, of the same run. */
static json_t *skipped_json(const struct shown *shown)
{
    char safe[512];
    json_t *list = json_array();
    for (size_t i = 0; i < shown->num_skipped; i++) {
        const struct skipped *skipped = &shown->skipped[i];
        json_array_append_new(list, json_pack("{sI sI ss}", "step", (json_int_t)skipped->step,
                                              "attempt", (json_int_t)skipped->attempt, "damage",
                                              text_safe(safe, sizeof safe, skipped->damage)));
    }
    return list;
}

static int add_state(json_t *root, const struct shown *shown)
{
    char safe[512];
    struct verified verified;
    json_begin();
    const struct manifest_summary *summary = &shown->manifest->summary;
    if (summary->origin[0] != '\0') { /* the manifest's text still has that name */
        json_object_set_new(root, "run", json_string(summary->run));
        json_object_set_new(root, "origin", json_string(summary->origin));
    }
    json_object_set_new(root, "durability",
                        json_string(text_safe(safe, sizeof safe, shown->durability)));
    if (shown->damage[0] != '\0')
        json_object_set_new(root, "damage",
                            json_string(text_safe(safe, sizeof safe, shown->damage)));
    if (has_copies(shown->tiers))
        json_object_set_new(root, "tiers", json_string(text_safe(safe, sizeof safe, shown->tiers)));
    json_object_set_new(root, "read_back", json_boolean(shown->is_read_back));
    if (verified_find(&verified, shown->store, summary))
        json_object_set_new(root, "verified", verified_json(&verified));
    json_object_set_new(root, "pinned", json_boolean(shown->is_pinned));
    if (shown->is_pinned)
        json_object_set_new(root, "pin_note", json_string(shown->pin_note));
    if (shown->num_skipped > 0)
        json_object_set_new(root, "skipped", skipped_json(shown));
    return json_end() ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the checkpoint's state");
}

/* The manifest itself is JSON already. Its bytes reach the terminal as they are, so only when
 * jansson, which escapes what is not printable, has read and written them. */
static int print_manifest_json(const struct shown *shown, const struct lineage *lineage)
{
    json_error_t reason;
    json_t *root;
    int error = json_read(&root, shown->text, shown->bytes, &reason);
    if (error == ERR_CORRUPT)
        return report_error(ERR_CORRUPT, NULL, "the manifest is not JSON");
    if (error == 0 && (lineage->count > 0 || lineage->is_cut))
        error = lineage_add_json(root, lineage);
    if (error == 0)
        error = add_state(root, shown);
    if (error == 0)
        error = text_document(root);
    json_decref(root);
    return error;
}

/* `read` as for lineage_read. */
static int print_shown(const struct cli *cli, const struct shown *shown,
                       int (*read)(void *user, struct manifest **out,
                                   const struct selection *selection),
                       void *user)
{
    struct lineage lineage;
    int error = lineage_read(&lineage, shown->manifest, read, user);
    if (error != 0)
        return error;
    error = cli->is_json ? print_manifest_json(shown, &lineage) : print_manifest(shown, &lineage);
    lineage_free(&lineage);
    return error;
}

static int read_stored(void *user, struct manifest **out, const struct selection *selection)
{
    return checkpoint_manifest(out, user, selection);
}

/* In quarantine it is not, whatever was read before. */
static int find_read_back(bool *out, struct storage *store, const struct checkpoint *checkpoint)
{
    const struct manifest_summary *summary = &checkpoint->manifest->summary;
    struct scrub_cursor scrubbed;
    int error = store_read_cursor(&scrubbed, store, summary->run);
    *out = error == 0 && checkpoint->quarantine[0] == '\0' &&
           scrub_has_proven(&scrubbed, summary->step, summary->attempt);
    return error;
}

static int show_store(const struct cli *cli)
{
    struct storage *store = NULL;
    struct checkpoint checkpoint = {0};
    struct pin pin = {0};
    bool is_read_back = false;
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&checkpoint, store, cli->args[0]);
    if (error == 0)
        error = read_pin(&pin, store, &checkpoint.manifest->summary);
    if (error == 0)
        error = find_read_back(&is_read_back, store, &checkpoint);
    const struct shown shown = {
        .manifest = checkpoint.manifest,
        .text = checkpoint.text,
        .bytes = checkpoint.text_bytes,
        .durability = checkpoint.quarantine[0] != '\0' ? CLI_DAMAGED : store_durability(cli->store),
        .damage = checkpoint.quarantine,
        .skipped = checkpoint.skipped,
        .num_skipped = checkpoint.num_skipped,
        .is_read_back = is_read_back,
        .store = store,
        .is_pinned = pin.is_there,
        .pin_note = pin.note};
    if (error == 0)
        error = print_shown(cli, &shown, read_stored, store);
    if (checkpoint.store != NULL)
        checkpoint_close(&checkpoint);
    if (store != NULL)
        storage_close(store);
    return error;
}

static int read_served(void *user, struct manifest **out, const struct selection *selection)
{
    ProtobufCMessage *answer = NULL;
    int error = server_show(&answer, user, selection);
    if (error != 0)
        return error;
    const char *text = ((const Holdfast__V1__ShowReply *)answer)->manifest_json;
    error = manifest_read(out, text, strlen(text));
    if (error == 0)
        origin_rename(&(*out)->summary, selection->run);
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

static int take_skipped(struct skipped **out, const Holdfast__V1__ShowReply *reply)
{
    *out = calloc(reply->n_skipped + 1, sizeof **out);
    if (*out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for what was passed over");
    for (size_t i = 0; i < reply->n_skipped; i++) {
        const Holdfast__V1__SkippedCheckpoint *from = reply->skipped[i];
        (*out)[i] = (struct skipped){.step = from->step, .attempt = from->attempt};
        snprintf((*out)[i].damage, sizeof(*out)[i].damage, "%s", from->damage);
    }
    return 0;
}

static int show_server(const struct cli *cli)
{
    ProtobufCMessage *answer = NULL;
    struct selection selection;
    struct manifest *manifest = NULL;
    struct skipped *skipped = NULL;
    int error = selection_parse(&selection, cli->args[0]);
    if (error == 0)
        error = server_show(&answer, cli, &selection);
    if (error != 0)
        return error;
    const Holdfast__V1__ShowReply *reply = (const Holdfast__V1__ShowReply *)answer;
    size_t bytes = strlen(reply->manifest_json);
    error = manifest_read(&manifest, reply->manifest_json, bytes);
    if (error == 0)
        origin_rename(&manifest->summary, selection.run);
    if (error == 0)
        error = take_skipped(&skipped, reply);
    const struct shown shown = {.manifest = manifest,
                                .text = reply->manifest_json,
                                .bytes = bytes,
                                .durability = reply->durability,
                                .tiers = reply->tiers,
                                .damage = reply->damage,
                                .skipped = skipped,
                                .num_skipped = reply->n_skipped,
                                .is_read_back = reply->read_back,
                                .store = verified_store(cli),
                                .is_pinned = reply->pinned,
                                .pin_note = reply->pin_note};
    if (error == 0)
        error = print_shown(cli, &shown, read_served, (void *)(uintptr_t)cli);
    if (shown.store != NULL)
        storage_close(shown.store);
    free(skipped);
    manifest_free(manifest);
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

int cli_show(const struct cli *cli)
{
    return cli->store[0] != '\0' ? show_store(cli) : show_server(cli);
}
