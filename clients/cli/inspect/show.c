/* show.c - one checkpoint of a store or of a running ckptd: its summary, position, tags, lineage,
 * tensors and objects (objects.c). Reads only.
 *
 * The answer is the same from a directory (--store) and from a server (--server). A manifest from a
 * server is verified by its SHA-256 like one from a disk. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/format/flaw.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>

/* Copies a section without the space between its parts, as far as there is room. False: there is
 * more. */
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
        if (tensor_is_object(tensor))
            continue;
        const struct layout *layout = &table->layouts[table->layout_of[i]];
        char name[LAYOUT_NAME_MAX], shape[96];
        printf("%-48s %-5s %-20s %6llu  %016llx%016llx\n",
               text_safe(name, sizeof name, tensor->name), dtype_name(tensor->dtype),
               text_shape(shape, sizeof shape, tensor), (unsigned long long)layout_cells(layout),
               (unsigned long long)manifest->digests[i].sum[0],
               (unsigned long long)manifest->digests[i].sum[1]);
    }
}

/* Prints the steps that the run skipped or rolled back (trainer/record/broken.h), a line each. */
static void print_broken(const json_t *steps)
{
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        char kind[32], why[256];
        const char *policy = member_text(step, "policy");
        printf("%-12s step %llu, %s, samples %llu to %llu: %s\n",
               strcmp(policy, "roll_back") == 0 ? "rolled back" : "skipped",
               (unsigned long long)member_number(step, "step"),
               text_safe(kind, sizeof kind, member_text(step, "kind")),
               (unsigned long long)member_number(step, "first_sample"),
               (unsigned long long)member_number(step, "last_sample"),
               text_safe(why, sizeof why, member_text(step, "reason")));
    }
}

/* Prints where its data continue, how much the optimizer has seen, and which steps were left out,
 * from the trainer's state. */
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
    print_broken(json_object_get(state, "broken"));
    json_decref(state);
    return 0;
}

/* Splits a long member off an object: *out_apart is that member, or NULL; *out_rest the object
 * without it. The caller frees both. */
static int split_member(char **out_rest, char **out_apart, const char *text, const char *name)
{
    json_error_t reason;
    json_t *object;
    *out_rest = *out_apart = NULL;
    if (json_read(&object, text, strlen(text), &reason) == ERR_MEMORY)
        return ERR_MEMORY;
    json_begin();
    const json_t *member = json_object_get(object, name);
    char *apart = member != NULL ? json_dumps(member, JSON_COMPACT) : NULL;
    json_object_del(object, name);
    *out_rest = apart != NULL ? json_dumps(object, JSON_COMPACT | json_shortest(object)) : NULL;
    *out_apart = apart;
    json_decref(object);
    return json_end() ? 0 : report_error(ERR_MEMORY, NULL, "no memory for what a manifest says");
}

/* Prints a section, and its long environment in a separate line. Omits the losses of the run. */
static int print_apart(const char *name, const char *json, const char *member, bool is_printed)
{
    char *rest, *apart;
    const char *text = json != NULL ? json : "{}";
    int error = split_member(&rest, &apart, text, member);
    if (error == 0) {
        print_member(name, rest != NULL ? rest : text);
        if (is_printed)
            print_member(member, apart);
        else if (apart != NULL)
            printf("%-12s %zu bytes (--json shows them)\n", member, strlen(apart));
    }
    free(apart);
    free(rest);
    return error;
}

/* A checkpoint's manifest, and facts that only the store or the server knows. */
struct shown {
    const struct manifest *manifest;
    const char *text; /* of the manifest */
    size_t bytes;
    const char *durability, *damage; /* as in a list */
    const char *tiers;               /* likewise */
    const struct skipped *skipped;
    size_t num_skipped;
    bool is_read_back, is_pinned;
    struct objects objects;
    struct storage *store; /* for the result of a verify; NULL: it cannot be read */
    const char *pin_note;
};

/* Prints a one-line summary. */
static void print_headline(const struct shown *shown)
{
    const struct manifest *manifest = shown->manifest;
    const struct manifest_summary *summary = &manifest->summary;
    char size[32], text[160];
    printf("%s: %s, %s in %s of %s, %s",
           text_checkpoint(summary->run, summary->step, summary->attempt).text,
           text_count(manifest->table->num_tensors, "tensor").text,
           text_bytes(size, sizeof size, summary->bytes), text_count(summary->shards, "shard").text,
           text_count(summary->world_size, "rank").text,
           text_safe(text, sizeof text, shown->durability));
    printf("%s%s\n\n", shown->is_pinned ? ", pinned" : "",
           shown->is_read_back ? ", read back" : "");
}

/* False in quarantine, whatever was read before. */
static bool is_read_back(const struct shown *shown, const struct verified *verified)
{
    return shown->damage[0] == '\0' && verified_is_read_back(verified, shown->is_read_back);
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

/* Prints "first", which ckptd has written (ckptd/attempt/replicas.c). */
static void print_difference(const json_t *entry)
{
    char name[LAYOUT_NAME_MAX];
    const char *tensor = json_string_value(json_object_get(entry, "tensor"));
    const json_t *ranks = json_object_get(entry, "differ");
    const json_t *first = json_object_get(entry, "first_byte");
    json_int_t all = json_integer_value(json_object_get(entry, "num_differ"));
    if (tensor == NULL)
        return;
    printf("%-12s %s: rank %lld's copy was kept; others on rank", "DIFFERS",
           text_safe(name, sizeof name, tensor),
           (long long)json_integer_value(json_object_get(entry, "kept")));
    for (size_t i = 0; i < json_array_size(ranks); i++)
        printf("%s %lld", i > 0 ? "," : "",
               (long long)json_integer_value(json_array_get(ranks, i)));
    if (all > (json_int_t)json_array_size(ranks))
        printf(" and %lld more", (long long)all - (long long)json_array_size(ranks));
    if (json_is_integer(first))
        printf(", first found in the %lld bytes from %lld of it",
               (long long)json_integer_value(json_object_get(entry, "bytes")),
               (long long)json_integer_value(first));
    printf("\n");
}

/* Prints the mesh, and the replicas that differed when they were saved. */
static int print_mesh(const char *mesh_json)
{
    const char *text = mesh_json != NULL ? mesh_json : "{}";
    char *rest, *apart;
    json_error_t reason;
    json_t *found = NULL;
    int error = split_member(&rest, &apart, text, "replicas_differ");
    if (error == 0 && apart != NULL &&
        json_read(&found, apart, strlen(apart), &reason) == ERR_MEMORY)
        error = ERR_MEMORY;
    if (error == 0)
        print_member("mesh", rest != NULL ? rest : text);
    const json_t *list = json_object_get(found, "first");
    size_t count = json_array_size(list);
    json_int_t all = json_integer_value(json_object_get(found, "slices"));
    for (size_t i = 0; i < count; i++)
        print_difference(json_array_get(list, i));
    if (all > (json_int_t)count)
        printf("%-12s %lld more\n", "DIFFERS", (long long)all - (long long)count);
    json_decref(found);
    free(apart);
    free(rest);
    return error;
}

static int print_manifest(const struct shown *shown, const struct lineage *lineage)
{
    const struct manifest *manifest = shown->manifest;
    const struct manifest_summary *summary = &manifest->summary;
    struct verified verified;
    char size[32], text[512];
    print_headline(shown);
    printf("%-12s %s\n", "checkpoint",
           text_checkpoint(summary->run, summary->step, summary->attempt).text);
    if (summary->origin[0] != '\0')
        printf("%-12s run %s\n", "saved in", summary->origin);
    printf("%-12s %s\n", "nonce", text_safe(text, sizeof text, summary->nonce));
    printf("%-12s %s\n", "time", text_safe(text, sizeof text, summary->time));
    printf("%-12s %s in %s\n", "size", text_bytes(size, sizeof size, summary->bytes),
           text_count(summary->shards, "shard").text);
    printf("%-12s %u\n", "ranks", summary->world_size);
    printf("%-12s %s\n", "durability",
           text_safe(text, sizeof text, tiers_level(shown->durability, shown->tiers)));
    if (tiers_have_copies(shown->tiers))
        printf("%-12s %s\n", "copies", text_safe(text, sizeof text, shown->tiers));
    bool is_verified = verified_find(&verified, shown->store, summary);
    printf("%-12s %s\n", "read back", is_read_back(shown, &verified) ? "yes" : "not yet");
    print_tags(shown);
    if (is_verified)
        printf("%-12s %s\n", "verify", verified_text(text, sizeof text, &verified));
    if (shown->is_pinned)
        printf("%-12s yes%s%s\n", "pinned", shown->pin_note[0] != '\0' ? ": " : "",
               text_safe(text, sizeof text, shown->pin_note));
    lineage_print(lineage);
    if (manifest->converted_from[0] != '\0')
        printf("%-12s nonce %s\n", "made from",
               text_safe(text, sizeof text, manifest->converted_from));
    ERR_TRY(print_position(manifest->state_json));
    if (manifest->code_version[0] != '\0')
        printf("%-12s %s\n", "code", text_safe(text, sizeof text, manifest->code_version));
    ERR_TRY(print_mesh(manifest->mesh_json));
    ERR_TRY(print_apart("identity", manifest->identity_json, "environment", true));
    print_member("data", manifest->data_json);
    ERR_TRY(print_apart("state", manifest->state_json, "history", false));
    print_member("config", manifest->config_json);
    print_tensors(manifest);
    objects_print(&shown->objects);
    printf("\n%-40s %14s\n", "SHARD", "BYTES");
    for (uint32_t i = 0; i < summary->shards; i++)
        printf("shard-%05u-of-%05u.safetensors%10s %14llu\n", i + 1, summary->shards, "",
               (unsigned long long)manifest->shards[i].bytes);
    if (shown->damage[0] != '\0')
        printf("\n%s: %s\n",
               strcmp(shown->durability, FLAW_MOVED) == 0    ? "MOVED"
               : strcmp(shown->durability, FLAW_UNREAD) == 0 ? "UNREADABLE"
                                                             : "IN QUARANTINE",
               text_safe(text, sizeof text, shown->damage));
    return 0;
}

/* An array as in a list, of the same run. */
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
    if (summary->origin[0] != '\0') { /* the manifest's text still has the original name */
        json_object_set_new(root, "run", json_string(summary->run));
        json_object_set_new(root, "origin", json_string(summary->origin));
    }
    json_object_set_new(root, "durability",
                        json_string(text_safe(safe, sizeof safe, shown->durability)));
    if (shown->damage[0] != '\0')
        json_object_set_new(root, "damage",
                            json_string(text_safe(safe, sizeof safe, shown->damage)));
    if (tiers_have_copies(shown->tiers))
        json_object_set_new(root, "tiers", json_string(text_safe(safe, sizeof safe, shown->tiers)));
    bool is_verified = verified_find(&verified, shown->store, summary);
    json_object_set_new(root, "read_back", json_boolean(is_read_back(shown, &verified)));
    if (is_verified)
        json_object_set_new(root, "verified", verified_json(&verified));
    json_object_set_new(root, "pinned", json_boolean(shown->is_pinned));
    if (shown->is_pinned)
        json_object_set_new(root, "pin_note", json_string(shown->pin_note));
    objects_add_json(root, &shown->objects);
    if (shown->num_skipped > 0)
        json_object_set_new(root, "skipped", skipped_json(shown));
    return json_end() ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the checkpoint's state");
}

/* The manifest is JSON already. It is printed only after jansson, which escapes unprintable
 * characters, has read and written it, so that its bytes cannot reach the terminal unchanged. */
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

/* `read` as in lineage_read(). */
static int print_shown(const struct cli *cli, struct shown *shown,
                       int (*read)(void *user, struct manifest **out,
                                   const struct selection *selection),
                       void *user)
{
    struct lineage lineage;
    ERR_TRY(lineage_read(&lineage, shown->manifest, read, user));
    int error = objects_read(&shown->objects, cli, shown->manifest);
    if (error == 0)
        error =
            cli->is_json ? print_manifest_json(shown, &lineage) : print_manifest(shown, &lineage);
    objects_free(&shown->objects);
    lineage_free(&lineage);
    return error;
}

static int read_stored(void *user, struct manifest **out, const struct selection *selection)
{
    return checkpoint_manifest(out, user, selection);
}

static int find_read_back(bool *out, struct storage *store, const struct checkpoint *checkpoint)
{
    const struct manifest_summary *summary = &checkpoint->manifest->summary;
    struct scrub_cursor scrubbed;
    int error = store_read_cursor(&scrubbed, store, summary->run);
    *out = error == 0 && scrub_has_proven(&scrubbed, summary->step, summary->attempt);
    return error;
}

static int show_store(const struct cli *cli, const struct selection *selection)
{
    struct storage *store = NULL;
    struct checkpoint checkpoint = {0};
    struct store_pin pin = {0};
    bool is_read_back = false;
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open_selected(&checkpoint, store, selection);
    if (error == 0)
        error = store_read_pin(&pin, store, &checkpoint.manifest->summary);
    if (error == 0)
        error = find_read_back(&is_read_back, store, &checkpoint);
    struct shown shown = {.manifest = checkpoint.manifest,
                          .text = checkpoint.text,
                          .bytes = checkpoint.text_bytes,
                          .durability = checkpoint.quarantine[0] != '\0'
                                            ? FLAW_DAMAGED
                                            : store_durability(cli->store),
                          .damage = checkpoint.quarantine,
                          .skipped = checkpoint.skipped,
                          .num_skipped = checkpoint.num_skipped,
                          .is_read_back = is_read_back,
                          .store = store,
                          .is_pinned = pin.is_there,
                          .pin_note = pin.note};
    if (error == 0)
        error = print_shown(cli, &shown, read_stored, store);
    checkpoint_close(&checkpoint);
    storage_close(store);
    return error;
}

static int read_served(void *user, struct manifest **out, const struct selection *selection)
{
    return server_manifest(out, NULL, user, selection);
}

static int read_skipped(struct skipped **out, const Holdfast__V1__ShowReply *reply)
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

static int show_server(const struct cli *cli, const struct selection *selection)
{
    ProtobufCMessage *answer = NULL;
    struct manifest *manifest = NULL;
    struct skipped *skipped = NULL;
    ERR_TRY(server_manifest(&manifest, &answer, cli, selection));
    const Holdfast__V1__ShowReply *reply = (const Holdfast__V1__ShowReply *)answer;
    int error = read_skipped(&skipped, reply);
    struct shown shown = {.manifest = manifest,
                          .text = reply->manifest_json,
                          .bytes = strlen(reply->manifest_json),
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
    storage_close(shown.store);
    free(skipped);
    manifest_free(manifest);
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

int cli_show(const struct cli *cli)
{
    struct selection selection;
    if (cli->object[0] != '\0')
        return objects_write_one(cli);
    ERR_TRY(selection_parse(&selection, cli->args[0]));
    return (cli->store[0] != '\0' ? show_store : show_server)(cli, &selection);
}
