/* tool.c - see tool.h.
 *
 * ckpt-cli is looked for beside the trainer's own program, then in PATH. Its words go to the
 * trainer's stderr. A run of another store goes through Hugging Face's form in fp32, which keeps
 * every bit of the weights, in a folder below job.dump_folder that is removed afterwards. */
#include "trainer/save/tool.h"

#include "proto/report.h"

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
#include <time.h>
#include <unistd.h>

#define ARGUMENTS_MAX 16
#define POLL_NS 20000000L   /* between two looks at the child */
#define EXIT_UNAVAILABLE 69 /* of ckpt-cli */

extern char **environ;

/* ---- running it ---- */

static void find_program(char out[PATH_MAX])
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

/* Its wait status. Asked to stop, the child gets SIGTERM once. */
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
        nanosleep(&(struct timespec){0, POLL_NS}, NULL);
    }
}

/* `arguments` begin with the command and end with NULL. */
static int run_tool(const char *const *arguments, const volatile sig_atomic_t *want_stop)
{
    char program[PATH_MAX];
    const char *argv[ARGUMENTS_MAX + 1];
    size_t count = 1;
    find_program(program);
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
    int error = posix_spawnp(&child, program, &actions, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        return report_error(ERR_INVALID, "install it beside the trainer, or add it to PATH",
                            "%s could not be started: %s", program, strerror(error));
    int status = await(child, want_stop);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (want_stop != NULL && *want_stop != 0)
        return report_error(ERR_ABORTED, NULL, "ckpt-cli %s was stopped", arguments[0]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNAVAILABLE)
        return report_error(ERR_UNAVAILABLE, NULL, "ckpt-cli %s did not reach ckptd", arguments[0]);
    return report_error(ERR_INVALID, "ckpt-cli said why above", "ckpt-cli %s %s failed: exit %d",
                        arguments[0], arguments[1], WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* ---- in ---- */

static bool is_model_folder(const char *path)
{
    char file[PATH_MAX];
    return snprintf(file, sizeof(file), "%s/config.json", path) < (int)sizeof(file) &&
           access(file, F_OK) == 0;
}

bool tool_must_import(const struct config *config)
{
    const char *path = config->initial_load_path;
    return strchr(path, '/') != NULL || strchr(path, ':') != NULL || is_model_folder(path);
}

static int import_folder(const struct config *config, const char *folder,
                         const volatile sig_atomic_t *want_stop)
{
    const char *const arguments[] = {
        "import", folder, "--run", config->run, "--server", config->ckptd_address, NULL};
    log_info("checkpoint", "run %s has no checkpoint: its step 0 is made of %s", config->run,
             config->initial_load_path);
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
static int import_from_store(const struct config *config, const volatile sig_atomic_t *want_stop)
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
        rc = import_folder(config, model, want_stop);
    struct report_text text;
    report_keep(&text);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    report_restore(&text, rc);
    return rc;
}

int tool_import(const struct config *config, const volatile sig_atomic_t *want_stop)
{
    const char *path = config->initial_load_path;
    bool is_folder = is_model_folder(path);
    if (!is_folder && (config->initial_load_in_hf || strrchr(path, ':') == NULL))
        return report_error(ERR_INVALID,
                            "name a folder of Hugging Face, RUN[@STEP], or STORE:RUN[@STEP]",
                            "checkpoint.initial_load_path = \"%s\": there is no config.json", path);
    if (!config->initial_load_model_only)
        return report_error(ERR_INVALID,
                            is_folder ? "such a folder has weights alone: set it to true"
                                      : "copy the checkpoint with `ckpt-cli cp`, then start",
                            "checkpoint.initial_load_model_only = false with %s", path);
    return is_folder ? import_folder(config, path, want_stop)
                     : import_from_store(config, want_stop);
}

/* ---- out ---- */

static const char *dtype_name(const char *dtype)
{
    static const char *const names[][2] = {
        {"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i][0], dtype) == 0)
            return names[i][1];
    report_check_failed(__FILE__, __LINE__, dtype);
}

int tool_export(const struct config *config, int64_t step, const volatile sig_atomic_t *want_stop)
{
    char checkpoint[CONFIG_TEXT_MAX + 32], folder[PATH_MAX];
    bool has_folder = config->export_folder[0] != 0;
    snprintf(folder, sizeof(folder), "%s%s",
             has_folder ? config->export_folder : config->dump_folder, has_folder ? "" : "/hf");
    if (is_model_folder(folder))
        return 0;
    if (!has_folder)
        mkdir(config->dump_folder, 0777);
    snprintf(checkpoint, sizeof(checkpoint), "%s@%lld", config->run, (long long)step);
    bool has_tokenizer = config->tokenizer_path[0] != 0;
    const char *const arguments[] = {"export",
                                     checkpoint,
                                     "--server",
                                     config->ckptd_address,
                                     "--output",
                                     folder,
                                     "--dtype",
                                     dtype_name(config->export_dtype),
                                     "--format",
                                     "hf",
                                     "--weights-only",
                                     has_tokenizer ? "--tokenizer" : NULL,
                                     config->tokenizer_path,
                                     NULL};
    int rc = run_tool(arguments, want_stop);
    if (rc == 0)
        log_info("checkpoint", "the weights of step %lld are in %s, as Hugging Face has them",
                 (long long)step, folder);
    return rc;
}
