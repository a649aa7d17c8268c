/* catalog.c - which checkpoints exist. There is no database: the store is the truth, read at start.
 *
 * A directory "<run>/step-00001000-a0003" with a manifest is a committed checkpoint. The summary in
 * the manifest's first 4 KiB, the names and the sizes of the shards are checked; what does not fit
 * is damage: the checkpoint is quarantined, which means named, kept, and never served. What is
 * proven, here or by a later read, is noted durably beside the checkpoint, so that it is so for
 * every later start and every tool. An error of a read is no proof: the next start looks again.
 * Without a manifest it is rubbish of a save that a crash cut short, whatever state that was in
 * (commit.c): this daemon is the store's one writer and its coordinator, so nobody else can still
 * commit it, and its shards are removed; unless somebody leases it, who is a tool that still
 * writes it. Files of other names are never touched.
 *
 * What cannot be looked into is kept as it is: a directory of a step is listed as damaged, without
 * a note, and a run whose own directories cannot be read is refused by name (run_find), as nobody
 * knows its newest attempt or whether it has a checkpoint; neither is pruned or collected. The
 * other ones are served. Without the root there is no start.
 *
 * The names of the newest checkpoints are made durable before any is served.
 *
 * Order: a run's list is newest first, by attempt, then by step. A run that was rolled back goes on
 * in a higher attempt at lower steps, so the highest step is not the newest.
 *
 * A start looks at the directories of a run with up to LOOK_THREADS_MAX threads besides its own,
 * and then goes through what they found alone, in order.
 *
 * Limits: limits.runs, limits.checkpoints: no run or save begins beyond them, and a store with more
 * is refused at start (ERR_BUSY). */
#include "ckptd/keep/keep.h"
#include "proto/array.h"
#include "proto/retain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_THREADS_MAX 15u /* as many reads a disk answers at once; they mostly wait */
#define LOOKS_PER_THREAD 64u /* fewer are not worth a thread */

/* ---- lists of names ---- */

struct name {
    char text[256];
    bool is_dir;
    uint64_t bytes;
};
struct names {
    struct name *list;
    uint32_t count, room;
};

static int visit_name(void *user, const struct storage_entry *entry)
{
    struct names *names = user;
    ERR_TRY(array_reserve(&names->list, &names->room, names->count, sizeof *names->list));
    struct name *name = &names->list[names->count];
    if (strlen(entry->name) >= sizeof name->text)
        return 0; /* no name of ours is that long */
    snprintf(name->text, sizeof name->text, "%s", entry->name);
    name->is_dir = entry->is_dir;
    name->bytes = entry->bytes;
    names->count++;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

/* Sorted. Free names->list. */
static int list_names(struct names *out, struct storage *storage, const char *prefix)
{
    memset(out, 0, sizeof *out);
    int error = storage_list(storage, prefix, visit_name, out);
    if (error != 0) {
        free(out->list);
        memset(out, 0, sizeof *out);
        return error;
    }
    if (out->count > 0)
        qsort(out->list, out->count, sizeof *out->list, compare_names);
    return 0;
}

static const struct name *find_name(const struct names *names, const char *text)
{
    struct name key;
    snprintf(key.text, sizeof key.text, "%s", text);
    return names->count ? bsearch(&key, names->list, names->count, sizeof key, compare_names)
                        : NULL;
}

/* ---- runs ---- */

bool run_name_valid(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > RUN_NAME_MAX || name[0] == '.')
        return false;
    return strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
           length;
}

/* Nothing of it is in the store or in work: what began it came to nothing. Nobody has it but who
 * looks for it by its name. */
static bool is_vacant(const struct run *run)
{
    return !run->checkpoints && !run->saves && !run->attempt && run->newest_attempt == 0 &&
           run->adopting == 0 && run->unreadable.code == 0 && !run->opening.call &&
           !run->take.busy && !run->describing && !run->pruning;
}

/* A new one, or at the limit a vacant one, in no list. ERR_BUSY. */
static int find_room(struct run **out, struct service *service)
{
    if (service->num_runs < service->config->limit_runs) {
        *out = calloc(1, sizeof **out);
        if (!*out)
            return report_error(ERR_MEMORY, NULL, "no memory for a run");
        **out = (struct run){.service = service, .tag = ++service->num_runs};
        return 0;
    }
    struct run **at = &service->runs;
    while (*at && !is_vacant(*at))
        at = &(*at)->next;
    *out = *at;
    if (!*out)
        return report_error(ERR_BUSY, "raise limits.runs", "the store holds %u runs already",
                            service->num_runs);
    *at = (*out)->next;
    return 0;
}

/* By name, as tools list those of a directory. */
static void enter_run(struct service *service, struct run *run)
{
    struct run **at = &service->runs;
    while (*at && strcmp((*at)->name, run->name) < 0)
        at = &(*at)->next;
    run->next = *at;
    *at = run;
}

int run_find(struct run **out, struct service *service, const char *name, bool create)
{
    struct run *run = service->runs;
    while (run && strcmp(run->name, name) != 0)
        run = run->next;
    if (!run && create) {
        if (!run_name_valid(name))
            return report_error(ERR_INVALID, "use letters, digits, '.', '_' and '-', at most 100",
                                "\"%.120s\" cannot name a run", name);
        int error = find_room(&run, service);
        if (error != 0)
            return error;
        snprintf(run->name, sizeof run->name, "%s", name);
        commit_init(&run->machine, 0);
        enter_run(service, run);
    }
    if (!run)
        return report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "there is no run \"%.120s\"",
                            name);
    *out = run;
    return fault_raise(&run->unreadable);
}

/* ---- checkpoints ---- */

/* Where the checkpoint stands in the run's list, or would. At once for the newest of all, which is
 * what saves and waits ask for. */
static struct checkpoint **find_place(struct run *run, uint64_t step, uint64_t attempt)
{
    struct checkpoint **at = &run->checkpoints;
    while (*at && ((*at)->summary.attempt > attempt ||
                   ((*at)->summary.attempt == attempt && (*at)->summary.step > step)))
        at = &(*at)->next;
    return at;
}

int catalog_check_room(const struct service *service)
{
    int64_t count = service->num_checkpoints;
    for (const struct run *run = service->runs; run; run = run->next)
        count += commit_num_saves(&run->machine);
    if (count < service->config->limit_checkpoints)
        return 0;
    return report_error(ERR_BUSY, "raise limits.checkpoints, or remove checkpoints",
                        "the store holds %u checkpoints already", service->num_checkpoints);
}

int catalog_new(struct checkpoint **out, struct run *run)
{
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    *out = checkpoint;
    if (!checkpoint)
        return report_error(ERR_MEMORY, NULL, "no memory for a checkpoint");
    checkpoint->run = run;
    return 0;
}

void catalog_drop(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    manifest_free(checkpoint->manifest);
    free(checkpoint->pin_note);
    free(checkpoint);
}

void catalog_enter(struct checkpoint *checkpoint, const struct manifest_summary *summary)
{
    struct run *run = checkpoint->run;
    struct checkpoint **at = find_place(run, summary->step, summary->attempt);
    checkpoint->summary = *summary;
    checkpoint->next = *at;
    *at = checkpoint;
    run->service->num_checkpoints++;
}

int catalog_add(struct checkpoint **out, struct run *run, const struct manifest_summary *summary)
{
    struct service *service = run->service;
    if (service->num_checkpoints >= service->config->limit_checkpoints)
        return report_error(ERR_BUSY, "raise limits.checkpoints, or remove checkpoints",
                            "the store holds %u checkpoints already", service->num_checkpoints);
    int error = catalog_new(out, run);
    if (error == 0)
        catalog_enter(*out, summary);
    return error;
}

static bool is_at(const struct checkpoint *checkpoint, uint64_t step, uint64_t attempt)
{
    return checkpoint && checkpoint->summary.step == step && checkpoint->summary.attempt == attempt;
}

struct checkpoint *catalog_find(struct run *run, uint64_t step, uint64_t attempt)
{
    struct checkpoint *found = *find_place(run, step, attempt);
    return is_at(found, step, attempt) ? found : NULL;
}

struct checkpoint *catalog_behind(struct run *run, uint64_t step, uint64_t attempt)
{
    struct checkpoint *found = *find_place(run, step, attempt);
    return is_at(found, step, attempt) ? found->next : found;
}

bool catalog_take_out(struct checkpoint *checkpoint)
{
    struct run *run = checkpoint->run;
    struct checkpoint **at = &run->checkpoints;
    if (catalog_in_use(checkpoint))
        return false;
    while (*at != checkpoint)
        at = &(*at)->next;
    *at = checkpoint->next;
    for (uint32_t i = 0; i < checkpoint->summary.shards && checkpoint->num_images > 0; i++) {
        struct image *image = catalog_image(checkpoint, i);
        if (!image)
            continue;
        CHECK(image->readers == 0 && image->busy == 0); /* loads and passes have leased it */
        image_leave_checkpoint(image);
    }
    run->service->num_checkpoints--;
    return true;
}

struct checkpoint *catalog_newest(struct run *run)
{
    struct checkpoint *checkpoint = run->checkpoints;
    while (checkpoint && checkpoint->damaged)
        checkpoint = checkpoint->next;
    return checkpoint;
}

/* ---- quarantine ---- */

static void quarantine(struct checkpoint *checkpoint, const char *text, bool is_proven)
{
    snprintf(checkpoint->damage, sizeof checkpoint->damage, "%s", text);
    checkpoint->damaged = true;
    checkpoint->damage_is_proven = is_proven;
    log_error("catalog", "run %s, step %llu, attempt %llu is damaged and quarantined: %s",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt, checkpoint->damage);
}

/* A file that was not found may be one that could not be looked for: the next start lists it. */
static bool is_proof(const struct fault *fault)
{
    return fault->code == ERR_CORRUPT;
}

/* The durable note on a damaged checkpoint, made by a worker. */
struct noting {
    struct storage *storage;
    char prefix[STORAGE_KEY_MAX];
    char text[sizeof((struct checkpoint *)0)->damage];
    struct job job;
};

static void write_note(struct storage *storage, const char *prefix, const char *text)
{
    int error = storage_group_note(storage, STORAGE_QUARANTINE, prefix, text);
    if (error != 0 && error != ERR_EXISTS)
        log_warn("catalog", "%s is quarantined until the next start only: %s", prefix,
                 report_line());
}

static void work_note(struct job *job)
{
    struct noting *noting = CONTAINER_OF(job, struct noting, job);
    write_note(noting->storage, noting->prefix, noting->text);
}

static void noted(struct event *event)
{
    free(CONTAINER_OF(event, struct noting, job.done));
}

static void damage_text(char *out, size_t size, const struct fault *fault)
{
    snprintf(out, size, "%s%s%s", fault->message, fault->detail[0] ? ": " : "", fault->detail);
}

void catalog_damage(struct checkpoint *checkpoint, const struct fault *fault)
{
    struct service *service = checkpoint->run->service;
    char text[sizeof checkpoint->damage];
    damage_text(text, sizeof text, fault);
    quarantine(checkpoint, text, is_proof(fault));
    struct noting *noting = is_proof(fault) ? calloc(1, sizeof *noting) : NULL;
    if (!noting)
        return;
    noting->storage = service->storage;
    memcpy(noting->text, text, sizeof text);
    shard_dir_key(noting->prefix, sizeof noting->prefix, checkpoint->run->name,
                  checkpoint->summary.step, checkpoint->summary.attempt);
    noting->job = (struct job){.work = work_note, .done.run = noted};
    loop_work(service->loop, &noting->job);
}

struct image *catalog_image(const struct checkpoint *checkpoint, uint32_t shard)
{
    return checkpoint->images ? checkpoint->images[shard] : NULL;
}

bool catalog_in_memory(const struct checkpoint *checkpoint)
{
    if (checkpoint->num_images < checkpoint->summary.shards)
        return false;
    for (uint32_t i = 0; i < checkpoint->summary.shards; i++)
        if (checkpoint->images[i]->state != IMAGE_RESIDENT || checkpoint->images[i]->num_missing)
            return false;
    return checkpoint->summary.shards > 0;
}

void catalog_summary(Holdfast__V1__CheckpointSummary *out, struct checkpoint *checkpoint)
{
    holdfast__v1__checkpoint_summary__init(out);
    out->run = checkpoint->run->name;
    out->step = checkpoint->summary.step;
    out->attempt = checkpoint->summary.attempt;
    out->nonce = checkpoint->summary.nonce;
    out->bytes = checkpoint->summary.bytes;
    out->time = checkpoint->summary.time;
    out->world_size = checkpoint->summary.world_size;
    out->durability = checkpoint->damaged ? "damaged" : DURABILITY_LOCAL;
    out->in_memory = catalog_in_memory(checkpoint);
    out->pinned = checkpoint->pinned;
    out->pin_note = checkpoint->pin_note ? checkpoint->pin_note : "";
    out->damage = checkpoint->damage;
    out->read_back = scrub_has_read(checkpoint);
}

int catalog_read_manifest(struct manifest **out, struct storage *storage,
                          const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1];
    void *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    int error = manifest_key(key, sizeof key, summary);
    if (error == 0)
        error = storage_fetch_all(storage, key, MANIFEST_BYTES_MAX, &text, &bytes);
    if (error == 0)
        error = manifest_read(out, text, bytes);
    free(text);
    if (error == 0 && summary->nonce[0] && !manifest_summary_equal(&(*out)->summary, summary))
        error = report_error(ERR_CORRUPT, NULL, "its manifest was exchanged since ckptd started");
    if (error != 0) {
        manifest_free(*out);
        *out = NULL;
    }
    return error;
}

/* ---- reading the store ---- */

/* The directory of a step, and what a look into it found. */
struct step {
    uint64_t attempt, step;
    bool committed; /* it has a manifest */
    struct manifest_summary summary;
    uint32_t num_ours, num_others; /* names in it: shards, and what else there is */
    int error;                     /* of the checkpoint, or without a manifest of the look */
    struct fault *fault;           /* its text, owned; NULL also for want of memory */
};

struct scan {
    struct service *service;
    struct run *run;
    struct step *steps;
    size_t num_steps;
    atomic_size_t next; /* the step that is looked at next */
    uint32_t num_removed;
};

static int step_dir(char *out, size_t size, const struct scan *scan, const struct step *step)
{
    return shard_dir_key(out, size, scan->run->name, step->step, step->attempt);
}

/* Do the names and sizes in the directory fit the summary? ERR_CORRUPT. */
static int check_files(const struct scan *scan, const struct step *step, const struct names *names)
{
    const struct manifest_summary *summary = &step->summary;
    struct shard_identity identity;
    uint64_t bytes = 0;
    if (strcmp(summary->run, scan->run->name) != 0 || summary->step != step->step ||
        summary->attempt != step->attempt)
        return report_error(
            ERR_CORRUPT, NULL, "its manifest belongs to %s, step %llu, attempt %llu", summary->run,
            (unsigned long long)summary->step, (unsigned long long)summary->attempt);
    for (uint32_t i = 0; i < summary->shards; i++) {
        char key[STORAGE_KEY_MAX];
        manifest_identity(&identity, summary, i);
        int error = shard_key(key, sizeof key, &identity);
        if (error != 0)
            return error;
        const struct name *name = find_name(names, strrchr(key, '/') + 1);
        if (!name || name->is_dir)
            return report_error(ERR_CORRUPT, NULL, "%s is missing", strrchr(key, '/') + 1);
        bytes += name->bytes;
    }
    if (bytes != summary->bytes)
        return report_error(ERR_CORRUPT, NULL, "its shards have %llu bytes instead of %llu",
                            (unsigned long long)bytes, (unsigned long long)summary->bytes);
    return 0;
}

/* 0, or what is wrong with the checkpoint. Of its manifest the summary is read and no more. */
static int read_checkpoint(const struct scan *scan, struct step *step, const char *dir,
                           const struct names *names)
{
    char key[STORAGE_KEY_MAX + 32], text[MANIFEST_SUMMARY_BYTES] = "";
    uint64_t bytes = 0;
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    int damage = storage_fetch(scan->service->storage, key, text, sizeof text, &bytes);
    if (damage == 0)
        damage =
            manifest_read_summary(&step->summary, text, bytes < sizeof text ? bytes : sizeof text);
    if (damage == 0)
        damage = check_files(scan, step, names);
    else
        memset(&step->summary, 0, sizeof step->summary);
    if (damage != 0)
        step->summary.shards = 0; /* a number that nothing vouches for */
    return damage;
}

/* On any thread; touches the step and nothing else. */
static void look_at_step(const struct scan *scan, struct step *step)
{
    char dir[STORAGE_KEY_MAX];
    struct names names = {0};
    int error = step_dir(dir, sizeof dir, scan, step);
    if (error == 0)
        error = list_names(&names, scan->service->storage, dir);
    for (size_t i = 0; i < names.count; i++) {
        bool is_ours = !names.list[i].is_dir && shard_is_file_name(names.list[i].text);
        *(is_ours ? &step->num_ours : &step->num_others) += 1;
    }
    if (error == 0 && find_name(&names, MANIFEST_NAME)) {
        step->committed = true;
        error = read_checkpoint(scan, step, dir, &names);
    }
    free(names.list);
    step->error = error;
    if (error != 0)
        step->fault = calloc(1, sizeof *step->fault);
    if (step->fault)
        fault_take(step->fault, error);
}

int catalog_look(struct manifest_summary *out, struct run *run, uint64_t step, uint64_t attempt)
{
    struct scan scan = {.service = run->service, .run = run};
    struct step found = {.step = step, .attempt = attempt};
    look_at_step(&scan, &found);
    int error = found.error;
    if (error != 0 && found.fault)
        error = fault_raise(found.fault);
    free(found.fault);
    *out = found.summary;
    if (error == 0 && !found.committed)
        error = report_error(ERR_NOT_FOUND, "see ckpt-cli list", "it has no manifest");
    return error;
}

static void *look_at_steps(void *argument)
{
    struct scan *scan = argument;
    size_t i;
    while ((i = atomic_fetch_add(&scan->next, 1)) < scan->num_steps)
        look_at_step(scan, &scan->steps[i]);
    return NULL;
}

/* A look is a few reads one after the other, which a cold disk answers late: many at once. */
static void look_at_all(struct scan *scan)
{
    pthread_t threads[LOOK_THREADS_MAX];
    uint32_t count = 0;
    atomic_store(&scan->next, 0);
    while (count < LOOK_THREADS_MAX && count < scan->num_steps / LOOKS_PER_THREAD &&
           pthread_create(&threads[count], NULL, look_at_steps, scan) == 0)
        count++;
    look_at_steps(scan);
    while (count > 0)
        pthread_join(threads[--count], NULL);
}

static int add_checkpoint(struct scan *scan, struct step *step)
{
    struct checkpoint *checkpoint;
    snprintf(step->summary.run, sizeof step->summary.run, "%s", scan->run->name);
    step->summary.step = step->step; /* in the list it stands where its directory does */
    step->summary.attempt = step->attempt;
    int error = catalog_add(&checkpoint, scan->run, &step->summary);
    if (error != 0 || !step->fault)
        return error;
    char dir[STORAGE_KEY_MAX], text[sizeof checkpoint->damage];
    damage_text(text, sizeof text, step->fault);
    quarantine(checkpoint, text, is_proof(step->fault));
    if (is_proof(step->fault) && step_dir(dir, sizeof dir, scan, step) == 0)
        write_note(scan->service->storage, dir, text);
    return 0;
}

static int remove_rubbish(struct scan *scan, const struct step *step)
{
    char dir[STORAGE_KEY_MAX];
    int error = step_dir(dir, sizeof dir, scan, step);
    if (error != 0)
        return error;
    error = storage_group_clear(scan->service->storage, &checkpoint_kind, dir);
    if (error == ERR_DENIED)
        log_info("catalog", "%s has no manifest, and stays: %s", dir, report_line());
    else if (error != 0)
        log_warn("catalog", "%s has no manifest, and not all of it could be removed: %s", dir,
                 report_line());
    else if (step->num_others > 0)
        log_warn("catalog", "%s has no manifest, but files that are not ours to remove", dir);
    scan->num_removed += error == 0 ? step->num_ours : 0;
    return 0;
}

/* False: not a name that we write. */
static bool parse_step(struct step *out, const struct scan *scan, const char *name)
{
    unsigned long long step, attempt;
    char dir[STORAGE_KEY_MAX];
    if (sscanf(name, "step-%llu-a%llu", &step, &attempt) != 2)
        return false;
    *out = (struct step){.attempt = attempt, .step = step};
    return step_dir(dir, sizeof dir, scan, out) == 0 && strcmp(strrchr(dir, '/') + 1, name) == 0;
}

/* Oldest first: then each has its place at the head of the list. */
static int compare_steps(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    if (x->attempt != y->attempt)
        return x->attempt < y->attempt ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

static int list_steps(struct scan *scan)
{
    struct names names;
    scan->num_steps = 0;
    int error = list_names(&names, scan->service->storage, scan->run->name);
    if (error != 0)
        return error;
    scan->steps = calloc(names.count + 1, sizeof *scan->steps);
    if (!scan->steps)
        error = report_error(ERR_MEMORY, NULL, "no memory for a list of %u steps", names.count);
    for (size_t i = 0; error == 0 && i < names.count; i++)
        if (names.list[i].is_dir &&
            parse_step(&scan->steps[scan->num_steps], scan, names.list[i].text))
            scan->num_steps++;
    free(names.list);
    if (error == 0)
        qsort(scan->steps, scan->num_steps, sizeof *scan->steps, compare_steps);
    return error;
}

/* Does it say something about the store? What this process lacks does not. */
static bool is_of_store(int error)
{
    return error != 0 && error != ERR_MEMORY && error != ERR_BUSY;
}

static int scan_steps(struct scan *scan)
{
    int error = list_steps(scan);
    if (error == 0)
        look_at_all(scan);
    for (size_t i = 0; i < scan->num_steps; i++) {
        struct step *step = &scan->steps[i];
        if (error == 0 && step->error != 0 && !step->fault)
            error = report_error(ERR_MEMORY, NULL, "no memory to read the store");
        else if (error == 0 && (step->committed || is_of_store(step->error)))
            error = add_checkpoint(scan, step);
        else if (error == 0)
            error = step->error != 0 ? fault_raise(step->fault) : remove_rubbish(scan, step);
        free(step->fault);
    }
    free(scan->steps);
    scan->steps = NULL;
    return error;
}

static int scan_attempts(struct scan *scan)
{
    char prefix[STORAGE_KEY_MAX];
    struct names names;
    snprintf(prefix, sizeof prefix, "%s/attempts", scan->run->name);
    int error = list_names(&names, scan->service->storage, prefix);
    for (size_t i = 0; error == 0 && i < names.count; i++) {
        char *end;
        unsigned long long number = strtoull(names.list[i].text, &end, 10);
        if (*end == 0 && number > scan->run->newest_attempt && number < UINT64_MAX)
            scan->run->newest_attempt = number;
    }
    free(names.list);
    return error;
}

/* What was found damaged before this start stays so until a person has looked (ckpt-cli verify
 * --release); its note's name says so, also when nobody can read why. */
static int keep_quarantined(struct checkpoint *checkpoint)
{
    const struct manifest_summary *summary = &checkpoint->summary;
    char prefix[STORAGE_KEY_MAX], text[sizeof checkpoint->damage];
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error == 0)
        error = storage_group_find_note(checkpoint->run->service->storage, STORAGE_QUARANTINE,
                                        prefix, text, sizeof text);
    if (error == ERR_MEMORY || error == ERR_NOT_FOUND) /* released meanwhile */
        return error == ERR_MEMORY ? error : 0;
    if (error != 0)
        snprintf(text, sizeof text, "the reason cannot be read: %.400s", report_line());
    quarantine(checkpoint, text[0] ? text : "no reason was noted", true);
    return 0;
}

static int read_quarantine(struct scan *scan)
{
    struct names names = {0};
    int error = storage_groups_noted(scan->service->storage, STORAGE_QUARANTINE, scan->run->name,
                                     visit_name, &names);
    for (size_t i = 0; i < names.count && error == 0; i++) {
        uint64_t step, attempt;
        struct checkpoint *checkpoint = retain_parse(names.list[i].text, &step, &attempt)
                                            ? catalog_find(scan->run, step, attempt)
                                            : NULL;
        if (checkpoint && !checkpoint->damaged)
            error = keep_quarantined(checkpoint);
    }
    free(names.list);
    return error;
}

/* A daemon that was killed after it had placed a manifest may not have made the name durable; this
 * one is about to call the checkpoint local. What was in work then is the newest now. */
static void sync_newest(struct run *run)
{
    struct checkpoint *checkpoint = run->checkpoints;
    for (uint32_t i = 0; checkpoint && i < COMMIT_SAVES_MAX; i++, checkpoint = checkpoint->next) {
        char dir[STORAGE_KEY_MAX];
        if (checkpoint->damaged)
            continue;
        int error = shard_dir_key(dir, sizeof dir, run->name, checkpoint->summary.step,
                                  checkpoint->summary.attempt);
        if (error == 0)
            error = storage_sync_names(run->service->storage, dir);
        if (error != 0)
            service_go_offline(run->service, report_line());
    }
}

static int read_run(struct scan *scan)
{
    struct run *run = scan->run;
    int error = scan_attempts(scan);
    if (error != 0)
        return error;
    /* Removals that were cut short come to their end, or are taken back. */
    if (storage_groups_recover(scan->service->storage, &checkpoint_kind, run->name) != 0)
        log_warn("catalog", "run %s: what a removal left stays: %s", run->name, report_line());
    error = scan_steps(scan);
    /* A checkpoint proves its attempt, whatever became of the attempt's file. */
    for (struct checkpoint *c = run->checkpoints; c; c = c->next)
        if (c->summary.attempt > run->newest_attempt)
            run->newest_attempt = c->summary.attempt;
    commit_init(&run->machine, run->newest_attempt);
    if (error == 0)
        error = retain_read_pins(run);
    if (error == 0)
        error = read_quarantine(scan);
    if (error == 0)
        sync_newest(run);
    return error;
}

static void forget_checkpoints(struct run *run)
{
    while (run->checkpoints) {
        struct checkpoint *checkpoint = run->checkpoints;
        run->checkpoints = checkpoint->next;
        run->service->num_checkpoints--;
        catalog_drop(checkpoint);
    }
}

/* Every call that names the run is answered with the reason: its newest checkpoint may be among
 * those that could not be read, and a load would resume from an older one. */
static void refuse_run(struct run *run, int error)
{
    forget_checkpoints(run);
    report_error(error, "mend the directory or its rights, then start ckptd again",
                 "the run %s could not be read when ckptd started: %s", run->name, report_line());
    log_error("catalog", "%s", report_line());
    fault_take(&run->unreadable, error);
}

static int scan_run(struct scan *scan, const char *name)
{
    if (!run_name_valid(name)) {
        log_warn("catalog", "the directory %s is not a run", name);
        return 0;
    }
    int error = run_find(&scan->run, scan->service, name, true);
    if (error != 0)
        return error;
    error = read_run(scan);
    if (!is_of_store(error))
        return error;
    refuse_run(scan->run, error);
    return 0;
}

int catalog_open(struct service *service)
{
    struct scan scan = {.service = service};
    struct names names;
    int error = list_names(&names, service->storage, "");
    for (size_t i = 0; error == 0 && i < names.count; i++)
        if (names.list[i].is_dir)
            error = scan_run(&scan, names.list[i].text);
    free(names.list);
    if (error == 0)
        log_info("catalog",
                 "%u runs, %u checkpoints; removed %u files of saves that were cut short",
                 service->num_runs, service->num_checkpoints, scan.num_removed);
    return error;
}

void catalog_close(struct service *service)
{
    while (service->runs) {
        struct run *run = service->runs;
        service->runs = run->next;
        forget_checkpoints(run);
        attempt_free(run->attempt);
        attempt_free(run->take.attempt);
        free(run);
    }
}
