/* offline.c - the catalog of a store's directory, read without ckptd.
 *
 * A checkpoint is a directory with a manifest; what cannot be read, lies under another run's name,
 * or was put into quarantine is listed with the reason and never the newest that is meant. Nothing
 * is written, no lock is taken and no lease: what ckptd removes meanwhile ends a load with
 * ERR_CORRUPT. Keys are made of names that were checked (shard_run_is_valid, parsed numbers), so
 * none leads out of the directory. */
#include "clients/offline.h"

#include "proto/array.h"
#include "proto/origin.h"
#include "proto/report.h"
#include "proto/retain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_BYTES 512u

static const char *root_of(const struct ckpt *ckpt)
{
    return ckpt->server + strlen(OFFLINE_PREFIX);
}

int offline_open(const struct ckpt *ckpt)
{
    struct stat status;
    if (stat(root_of(ckpt), &status) != 0 || !S_ISDIR(status.st_mode))
        return report_error(ERR_NOT_FOUND, "give dir: and the path of a store",
                            "there is no directory %s", root_of(ckpt));
    return 0;
}

static int join(char out[4096], const char *root, const char *key)
{
    if (snprintf(out, 4096, "%s/%s", root, key) >= 4096)
        return report_error(ERR_INVALID, NULL, "the path of the store is too long: %.64s...", root);
    return 0;
}

static int read_all(int fd, char *data, uint64_t bytes, const char *key)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t now = pread(fd, data + done, bytes - done, (off_t)done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0)
            return report_errno(ERR_IO, "could not read a file of the store", key);
        done += (uint64_t)now;
    }
    return 0;
}

/* storage_fetch() on a directory: the handle stands for the storage. */
static int fetch(struct storage *handle, const char *key, void *data, size_t size,
                 uint64_t *out_bytes)
{
    const struct ckpt *ckpt = (const struct ckpt *)(const void *)handle;
    char path[4096];
    struct stat status;
    ERR_TRY(join(path, root_of(ckpt), key));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return report_error(ERR_NOT_FOUND, NULL, "there is no %s", key);
    if (fd < 0)
        return report_errno(errno == EACCES ? ERR_DENIED : ERR_IO, "could not open a file", key);
    int error = fstat(fd, &status) != 0 ? report_errno(ERR_IO, "could not look at a file", key) : 0;
    if (error == 0 && !S_ISREG(status.st_mode))
        error = report_error(ERR_CORRUPT, NULL, "%s is not a file", key);
    if (error == 0) {
        *out_bytes = (uint64_t)status.st_size;
        error = read_all(fd, data, size < *out_bytes ? size : *out_bytes, key);
    }
    close(fd);
    return error;
}

static struct storage *as_storage(const struct ckpt *ckpt)
{
    return (struct storage *)(uintptr_t)(const void *)ckpt;
}

/* ---- what there is ---- */

/* "<run>/pins/<name>" and its like; the text of a note goes to `out`, as far as there is room. */
static bool has_note(char *out, size_t size, const struct ckpt *ckpt, const char *folder,
                     const struct manifest_summary *summary)
{
    char dir[KEY_BYTES], key[KEY_BYTES + 32];
    uint64_t bytes = 0;
    if (shard_dir_key(dir, sizeof dir, summary->run, summary->step, summary->attempt) != 0)
        return false;
    snprintf(key, sizeof key, "%s/%s/%s", summary->run, folder, strrchr(dir, '/') + 1);
    if (fetch(as_storage(ckpt), key, out, size - 1, &bytes) != 0)
        return false;
    out[bytes < size ? bytes : size - 1] = '\0';
    report_make_printable(out);
    return true;
}

/* The summary of a directory that has a manifest, or what is wrong with that. */
static int read_entry(struct offline_entry *out, const struct ckpt *ckpt, const char *run,
                      uint64_t step, uint64_t attempt)
{
    char dir[KEY_BYTES], key[KEY_BYTES + 32], text[MANIFEST_SUMMARY_BYTES];
    uint64_t bytes = 0;
    memset(out, 0, sizeof *out);
    ERR_TRY(shard_dir_key(dir, sizeof dir, run, step, attempt));
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    ERR_TRY(fetch(as_storage(ckpt), key, text, sizeof text, &bytes));
    int error =
        manifest_read_summary(&out->summary, text, bytes < sizeof text ? bytes : sizeof text);
    if (error == 0)
        error = origin_settle(&out->summary,
                              &(struct origin_place){run, step, attempt, fetch, as_storage(ckpt)});
    if (error != 0 && error != ERR_MEMORY) {
        snprintf(out->damage, sizeof out->damage, "%s", report_message());
        snprintf(out->summary.run, sizeof out->summary.run, "%s", run);
        out->summary.step = step;
        out->summary.attempt = attempt;
        error = 0;
    }
    if (error == 0 && out->damage[0] == '\0' &&
        has_note(out->damage, sizeof out->damage, ckpt, "quarantine", &out->summary) &&
        out->damage[0] == '\0')
        snprintf(out->damage, sizeof out->damage, "no reason was noted");
    char note[OFFLINE_DAMAGE_BYTES];
    out->pinned = error == 0 && has_note(note, sizeof note, ckpt, "pins", &out->summary);
    return error;
}

static int compare_entries(const void *left, const void *right)
{
    const struct manifest_summary *a = &((const struct offline_entry *)left)->summary;
    const struct manifest_summary *b = &((const struct offline_entry *)right)->summary;
    if (a->attempt != b->attempt)
        return a->attempt > b->attempt ? -1 : 1;
    return (a->step < b->step) - (a->step > b->step);
}

static int open_folder(DIR **out, const struct ckpt *ckpt, const char *key)
{
    char path[4096];
    ERR_TRY(join(path, root_of(ckpt), key));
    *out = opendir(path);
    if (*out == NULL && (errno == ENOENT || errno == ENOTDIR))
        return report_error(ERR_NOT_FOUND, "see `ckpt-cli list --store`",
                            "the store %s has no run '%s'", root_of(ckpt), key);
    return *out != NULL ? 0 : report_errno(ERR_IO, "could not list a directory", path);
}

int offline_entries(struct offline_entry **out, uint32_t *out_count, const struct ckpt *ckpt,
                    const char *run)
{
    struct offline_entry *entries = NULL, *larger;
    uint32_t count = 0, room = 0;
    uint64_t step, attempt;
    DIR *folder = NULL;
    int error = open_folder(&folder, ckpt, run);
    for (struct dirent *name; error == 0 && (name = readdir(folder)) != NULL;) {
        if (!retain_parse(name->d_name, &step, &attempt))
            continue;
        if (count == room) {
            room = room == 0 ? 16 : 2 * room;
            larger = realloc(entries, room * sizeof *entries);
            error = larger != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a list");
            entries = larger != NULL ? larger : entries;
        }
        if (error == 0)
            error = read_entry(&entries[count], ckpt, run, step, attempt);
        count += error == 0;
        error = error == ERR_NOT_FOUND ? 0 : error; /* not committed */
    }
    if (folder != NULL)
        closedir(folder);
    if (error != 0) {
        free(entries);
        return error;
    }
    if (count > 0)
        qsort(entries, count, sizeof *entries, compare_entries);
    *out = entries;
    *out_count = count;
    return 0;
}

int offline_runs(char **out, const struct ckpt *ckpt)
{
    size_t bytes = 1;
    char *names = calloc(1, 1), *larger;
    DIR *folder = NULL;
    int error = open_folder(&folder, ckpt, ".");
    if (error == 0 && names == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory for a list");
    for (struct dirent *name; error == 0 && (name = readdir(folder)) != NULL;) {
        size_t length = strlen(name->d_name) + 1;
        if (name->d_name[0] == '.' || !shard_run_is_valid(name->d_name) || name->d_type == DT_REG)
            continue;
        larger = realloc(names, bytes + length);
        error = larger != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a list");
        if (error != 0)
            break;
        names = larger;
        memcpy(names + bytes - 1, name->d_name, length);
        bytes += length;
        names[bytes - 1] = '\0';
    }
    if (folder != NULL)
        closedir(folder);
    if (error != 0)
        free(names);
    else
        *out = names;
    return error;
}

/* ---- one of them ---- */

static const struct offline_entry *choose(const struct offline_entry *entries, uint32_t count,
                                          const struct offline_choice *choice, bool *out_damaged)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct offline_entry *entry = &entries[i];
        const uint64_t step = entry->summary.step;
        bool fits = choice->step >= 0
                        ? step == (uint64_t)choice->step
                        : choice->below_step <= 0 || step < (uint64_t)choice->below_step;
        fits = fits && (choice->attempt == 0 || entry->summary.attempt == choice->attempt);
        if (fits && (choice->step >= 0 || entry->damage[0] == '\0'))
            return entry;
        *out_damaged = *out_damaged || fits;
    }
    return NULL;
}

static int read_manifest(struct manifest **out, const struct ckpt *ckpt,
                         const struct manifest_summary *summary)
{
    char dir[KEY_BYTES], key[KEY_BYTES + 32];
    uint64_t bytes = 0, now = 0;
    ERR_TRY(shard_dir_key(dir, sizeof dir, summary->run, summary->step, summary->attempt));
    snprintf(key, sizeof key, "%s/%s", dir, MANIFEST_NAME);
    ERR_TRY(fetch(as_storage(ckpt), key, NULL, 0, &bytes));
    if (bytes > MANIFEST_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "%s has %llu bytes", key, (unsigned long long)bytes);
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", key);
    int error = fetch(as_storage(ckpt), key, text, bytes, &now);
    if (error == 0 && now != bytes)
        error = report_error(ERR_CORRUPT, NULL, "%s changes while it is read", key);
    if (error == 0)
        error = manifest_read(out, text, bytes);
    free(text);
    if (error == 0)
        error = origin_settle(&(*out)->summary,
                              &(struct origin_place){summary->run, summary->step, summary->attempt,
                                                     fetch, as_storage(ckpt)});
    return error;
}

int offline_manifest(struct manifest **out, char out_damage[OFFLINE_DAMAGE_BYTES],
                     const struct ckpt *ckpt, const struct offline_choice *choice)
{
    struct offline_entry *entries = NULL;
    uint32_t count = 0;
    bool any_damaged = false;
    *out = NULL;
    ERR_TRY(offline_entries(&entries, &count, ckpt, ckpt->run));
    const struct offline_entry *entry = choose(entries, count, choice, &any_damaged);
    int error = 0;
    if (entry == NULL && any_damaged)
        error = report_error(ERR_CORRUPT, "name a step to look at it all the same",
                             "every checkpoint of run '%s' is damaged", ckpt->run);
    else if (entry == NULL)
        error = report_error(ERR_NOT_FOUND, "see `ckpt-cli list --store`",
                             "run '%s' of the store %s has no such checkpoint", ckpt->run,
                             root_of(ckpt));
    if (error == 0 && out_damage != NULL)
        memcpy(out_damage, entry->damage, OFFLINE_DAMAGE_BYTES);
    else if (error == 0 && entry->damage[0] != '\0')
        error = report_error(ERR_CORRUPT, "see `ckpt-cli show`", "%s@%llu-a%llu is damaged: %s",
                             ckpt->run, (unsigned long long)entry->summary.step,
                             (unsigned long long)entry->summary.attempt, entry->damage);
    if (error == 0)
        error = read_manifest(out, ckpt, &entry->summary);
    free(entries);
    if (error != 0) {
        manifest_free(*out);
        *out = NULL;
    }
    return error;
}
