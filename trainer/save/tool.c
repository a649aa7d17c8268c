/* tool.c - see tool.h.
 *
 * The trainer searches for ckpt-cli in the folder of its program, then in PATH. ckpt-cli's output
 * goes to the trainer's stderr. A run of another store is exported in Hugging Face's form in fp32,
 * which keeps every bit of the weights. The folder is below job.dump_folder and is removed
 * afterwards.
 *
 * An export records its run and step (__metadata__ of its safetensors). So a start knows whether
 * the folder has its weights already, or others. */
#include "trainer/save/tool.h"

#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/layout/safetensors.h"
#include "trainer/record/partial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGUMENTS_MAX 16
#define POLL_NS 20000000L   /* between two checks of the child */
#define EXIT_UNAVAILABLE 69 /* of ckpt-cli */
#define METADATA_BYTES 4096 /* of a file's beginning, where an export has its metadata */

extern char **environ;

/* ---- running it ---- */

void tool_find(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 16);
    char *slash = NULL;
    if (length > 0) {
        out[length] = 0;
        slash = strrchr(out, '/');
    }
    if (slash != NULL)
        strcpy(slash, "/ckpt-cli");
    if (slash == NULL || access(out, X_OK) != 0)
        strcpy(out, "ckpt-cli");
}

/* Waits for the child and returns its wait status. On a request to stop, the child gets SIGTERM
 * once. */
static int await(pid_t child, const volatile sig_atomic_t *want_stop)
{
    bool told = false;
    int status = 0;
    for (;;) {
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR))
            return status;
        if (!told && want_stop != NULL && *want_stop != 0)
            told = kill(child, SIGTERM) == 0;
        clock_sleep_ns(POLL_NS);
    }
}

/* `arguments`: the command, at least one more, then NULL. */
static int run_tool(const char *const *arguments, const volatile sig_atomic_t *want_stop)
{
    char program[PATH_MAX];
    const char *argv[ARGUMENTS_MAX + 1];
    size_t count = 1;
    tool_find(program);
    argv[0] = program;
    for (; arguments[count - 1] != NULL; count++) {
        CHECK(count < ARGUMENTS_MAX);
        argv[count] = arguments[count - 1];
    }
    argv[count] = NULL;
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawnattr_t attributes; /* the child does not inherit the blocked signals (signals.h) */
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int error =
        posix_spawnp(&child, program, &actions, &attributes, (char **)(uintptr_t)argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        return report_error(ERR_INVALID, "install it in the trainer's folder, or add it to PATH",
                            "%s could not be started: %s", program, strerror(error));
    int status = await(child, want_stop);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (want_stop != NULL && *want_stop != 0)
        return report_error(ERR_ABORTED, NULL, "ckpt-cli %s was stopped", arguments[0]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNAVAILABLE)
        return report_error(ERR_UNAVAILABLE, NULL, "ckpt-cli %s did not reach ckptd", arguments[0]);
    return report_error(ERR_INVALID, "see the message of ckpt-cli above",
                        "ckpt-cli %s %s failed: exit %d", arguments[0], arguments[1],
                        WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* Checks a program in the trainer's folder; one in PATH is just tried. */
static int check_program(void)
{
    char program[PATH_MAX];
    static const char *const arguments[] = {"--version", "export", NULL};
    tool_find(program);
    return strchr(program, '/') != NULL ? 0 : run_tool(arguments, NULL);
}

/* ---- imports ---- */

static bool is_model_folder(const char *path)
{
    char file[PATH_MAX];
    return snprintf(file, sizeof(file), "%s/config.json", path) < (int)sizeof(file) &&
           access(file, F_OK) == 0;
}

bool tool_must_import(const struct config *config)
{
    const char *path = config->initial_load_path;
    return config->initial_load_in_hf || strchr(path, '/') != NULL || strchr(path, ':') != NULL ||
           is_model_folder(path);
}

/* The name contains the whole path, since another path is another model. */
void tool_name_imported(char out[CONFIG_TEXT_MAX], const struct config *config)
{
    const char *path = config->initial_load_path;
    snprintf(out, CONFIG_TEXT_MAX, "%.*s", CONFIG_TEXT_MAX - 32, config->run);
    if (config->partial)
        snprintf(out + strlen(out), 32, ".initial-%08x",
                 (uint32_t)checksum_seeded(path, strlen(path), 0));
}

/* Call before the run has a step 0 that does not fit. */
static int check_shape(const struct config *config, const char *folder,
                       const struct model_shape *ours)
{
    struct model_shape theirs;
    char hint[REPORT_TEXT_MAX];
    ERR_TRY(model_shape_open(&theirs, folder));
    snprintf(hint, sizeof(hint), "set model.config = \"%s\"", config->initial_load_path);
    return partial_check_shape(config, ours, &theirs, config->initial_load_path,
                               folder == config->initial_load_path
                                   ? hint
                                   : "give the model settings that it was trained with");
}

static int import_folder(const struct config *config, const char *folder,
                         const struct model_shape *shape, const volatile sig_atomic_t *want_stop)
{
    char run[CONFIG_TEXT_MAX];
    ERR_TRY(check_shape(config, folder, shape));
    tool_name_imported(run, config);
    const char *const arguments[] = {
        "import", folder, "--run", run, "--server", config->ckptd_address, NULL};
    log_info("checkpoint", "run %s has no checkpoint: step 0 of run %s is made from %s",
             config->run, run, config->initial_load_path);
    return run_tool(arguments, want_stop);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

/* STORE:RUN[@STEP] */
static int import_from_store(const struct config *config, const struct model_shape *shape,
                             const volatile sig_atomic_t *want_stop)
{
    char store[CONFIG_TEXT_MAX], folder[PATH_MAX - 8], model[PATH_MAX];
    const char *colon = strrchr(config->initial_load_path, ':');
    snprintf(store, sizeof(store), "%.*s", (int)(colon - config->initial_load_path),
             config->initial_load_path);
    mkdir(config->dump_folder, 0777);
    snprintf(folder, sizeof(folder), "%s/initial-%s-XXXXXX", config->dump_folder, config->run);
    if (mkdtemp(folder) == NULL)
        return report_errno(ERR_IO, "could not make a folder below job.dump_folder", folder);
    snprintf(model, sizeof(model), "%s/model", folder);
    const char *const arguments[] = {"export",   colon + 1, "--store",        store,
                                     "--output", model,     "--dtype",        "fp32",
                                     "--format", "hf",      "--weights-only", NULL};
    int rc = run_tool(arguments, want_stop);
    if (rc == 0)
        rc = import_folder(config, model, shape, want_stop);
    struct report_text text;
    report_keep(&text);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    report_restore(&text, rc);
    return rc;
}

int tool_import(const struct config *config, const struct model_shape *shape,
                const volatile sig_atomic_t *want_stop)
{
    const char *path = config->initial_load_path;
    bool is_folder = is_model_folder(path);
    if (!is_folder && (config->initial_load_in_hf || strrchr(path, ':') == NULL))
        return report_error(ERR_INVALID,
                            "name a folder of Hugging Face, RUN[@STEP], or STORE:RUN[@STEP]",
                            "checkpoint.initial_load_path = \"%s\": there is no config.json", path);
    if (!config->initial_load_model_only)
        return report_error(ERR_INVALID,
                            is_folder ? "set it to true: such a folder has only weights"
                                      : "copy the checkpoint with `ckpt-cli cp`, then start",
                            "checkpoint.initial_load_model_only = false does not work with %s",
                            path);
    return is_folder ? import_folder(config, path, shape, want_stop)
                     : import_from_store(config, shape, want_stop);
}

/* ---- exports ---- */

/* The names of ckpt-cli. */
static const char *const dtype_names[] = {
    [DTYPE_FLOAT32] = "fp32", [DTYPE_BFLOAT16] = "bf16", [DTYPE_FLOAT16] = "fp16"};

static void name_folder(char out[PATH_MAX], const struct config *config, int64_t step)
{
    if (config->export_folder[0] != 0)
        snprintf(out, PATH_MAX, "%s", config->export_folder);
    else
        snprintf(out, PATH_MAX, "%s/hf/%s-step-%lld", config->dump_folder, config->run,
                 (long long)step);
}

/* Reads the beginning of the JSON of any safetensors file in the folder; returns the bytes read. */
static size_t read_header(char out[METADATA_BYTES], const char *folder)
{
    char path[PATH_MAX + 256] = "";
    char first[8];
    uint64_t length = 0;
    size_t bytes = 0;
    DIR *names = opendir(folder);
    for (struct dirent *entry; names != NULL && (entry = readdir(names)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot != NULL && strcmp(dot, ".safetensors") == 0)
            snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
    }
    if (names != NULL)
        closedir(names);
    FILE *file = path[0] != 0 ? fopen(path, "re") : NULL;
    if (file != NULL && fread(first, 1, sizeof(first), file) == sizeof(first) &&
        safetensors_length(&length, first, UINT64_MAX) == 0)
        bytes = fread(out, 1, length < METADATA_BYTES ? length : METADATA_BYTES, file);
    if (file != NULL)
        fclose(file);
    return bytes;
}

/* "RUN@STEP" of the weights in a folder, or "" if not recorded. */
static void name_exported(char out[CONFIG_TEXT_MAX], const char *folder)
{
    char text[METADATA_BYTES];
    size_t bytes = read_header(text, folder), at = json_first_member(text, bytes);
    struct json_member member;
    json_t *metadata = NULL;
    json_error_t reason;
    out[0] = 0;
    if (!json_next_member(&member, text, &at, bytes) || !json_member_is(&member, "__metadata__") ||
        json_read(&metadata, member.value, member.value_bytes, &reason) != 0)
        return;
    const char *run = json_string_value(json_object_get(metadata, "run"));
    const char *step = json_string_value(json_object_get(metadata, "step"));
    if (run != NULL && step != NULL)
        snprintf(out, CONFIG_TEXT_MAX, "%s@%s", run, step);
    json_decref(metadata);
}

/* A folder that the operator names must exist already; the default parent is created. */
static void make_parent(const struct config *config)
{
    char parent[PATH_MAX];
    if (config->export_folder[0] != 0)
        return;
    mkdir(config->dump_folder, 0777);
    snprintf(parent, sizeof(parent), "%s/hf", config->dump_folder);
    mkdir(parent, 0777);
}

/* Checks that the folder can be created. */
static int check_parent(const struct config *config, const char *folder)
{
    char parent[PATH_MAX];
    make_parent(config);
    snprintf(parent, sizeof(parent), "%s", folder);
    char *slash = strrchr(parent, '/');
    if (slash != NULL)
        slash[slash == parent] = 0;
    if (access(slash != NULL ? parent : ".", W_OK | X_OK) == 0)
        return 0;
    return report_error(ERR_INVALID, "make its parent, or name another folder",
                        "%s %s cannot be made: %s",
                        config->export_folder[0] != 0 ? "checkpoint.export_folder" : "the folder",
                        folder, strerror(errno));
}

/* Checks the folder for the export of `step`. *out_done: it has these weights already. */
static int check_folder(bool *out_done, const struct config *config, const char *folder,
                        const char *checkpoint)
{
    char there[CONFIG_TEXT_MAX];
    struct stat status;
    *out_done = false;
    if (lstat(folder, &status) != 0)
        return check_parent(config, folder);
    name_exported(there, folder);
    report_clear(); /* a folder without an export is not an error */
    *out_done = strcmp(there, checkpoint) == 0;
    return *out_done
               ? 0
               : report_error(ERR_INVALID, "name another checkpoint.export_folder, or move it away",
                              "the weights of %s cannot be written to %s: it holds %s", checkpoint,
                              folder, there[0] != 0 ? there : "something else");
}

static void name_checkpoint(char out[CONFIG_TEXT_MAX], const struct config *config, int64_t step)
{
    snprintf(out, CONFIG_TEXT_MAX, "%.200s@%lld", config->run, (long long)step);
}

int tool_check_export(const struct config *config, int64_t step)
{
    char checkpoint[CONFIG_TEXT_MAX], folder[PATH_MAX];
    bool is_done;
    name_folder(folder, config, step);
    name_checkpoint(checkpoint, config, step);
    ERR_TRY(check_folder(&is_done, config, folder, checkpoint));
    return is_done ? 0 : check_program();
}

int tool_export(const struct config *config, int64_t step, const volatile sig_atomic_t *want_stop)
{
    char checkpoint[CONFIG_TEXT_MAX], folder[PATH_MAX];
    bool is_done;
    name_folder(folder, config, step);
    name_checkpoint(checkpoint, config, step);
    ERR_TRY(check_folder(&is_done, config, folder, checkpoint));
    if (is_done)
        return 0;
    bool has_tokenizer = config->tokenizer_path[0] != 0;
    /* --force: removes files that a killed export left beside the folder. */
    const char *const arguments[] = {"export",
                                     checkpoint,
                                     "--server",
                                     config->ckptd_address,
                                     "--output",
                                     folder,
                                     "--dtype",
                                     dtype_names[config->export_dtype],
                                     "--format",
                                     "hf",
                                     "--weights-only",
                                     "--force",
                                     has_tokenizer ? "--tokenizer" : NULL,
                                     config->tokenizer_path,
                                     NULL};
    int rc = run_tool(arguments, want_stop);
    if (rc == 0)
        log_info("checkpoint", "the weights of step %lld are in %s, in Hugging Face's format",
                 (long long)step, folder);
    return rc;
}
