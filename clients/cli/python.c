/* python.c - runs the Python package `holdfast` for import and export with --format dcp and
 * safetensors-folder.
 *
 * This process becomes $HOLDFAST_PYTHON (default python3) -m holdfast, so that signals, the
 * terminal and the exit code are the command's own. Before that it imports the package once, so
 * that a missing Python, package or NumPy becomes an error of ckpt-cli (ERR_UNAVAILABLE). Python
 * does not load modules from the current directory (PYTHONSAFEPATH, since Python 3.11). */
#include "clients/cli/engine/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MAX 16
#define NO_PYTHON 127 /* as from a shell */

static const char *python(void)
{
    const char *named = getenv("HOLDFAST_PYTHON");
    return named != NULL && named[0] != '\0' ? named : "python3";
}

/* Reads the last line written to `fd`: the exception of a traceback. */
static void read_last_line(char *out, size_t size, int fd)
{
    char text[512];
    size_t length = 0, kept = 0;
    for (ssize_t got; (got = read(fd, text, sizeof text)) > 0;) {
        for (ssize_t i = 0; i < got; i++) {
            if (text[i] != '\n' && kept != 0)
                length = kept = 0;
            if (text[i] == '\n')
                kept = length;
            else if (length + 1 < size)
                out[length++] = text[i];
        }
    }
    out[length] = '\0';
    report_make_printable(out);
}

/* Imports the package in a separate process; 0, or its exit code and the reason. */
static int import_package(char *reason, size_t size)
{
    int ends[2], status = 0;
    reason[0] = '\0';
    if (pipe(ends) != 0)
        return errno;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execlp(python(), python(), "-c", "import holdfast", (char *)NULL);
        _exit(NO_PYTHON);
    }
    close(ends[1]);
    read_last_line(reason, size, ends[0]);
    close(ends[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child < 0 ? errno : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int check_package(void)
{
    char reason[256];
    int code = import_package(reason, sizeof reason);
    if (code == NO_PYTHON)
        return report_error(ERR_UNAVAILABLE, "install Python 3.10, or set HOLDFAST_PYTHON",
                            "this command needs Python: %s cannot be run", python());
    if (code != 0)
        return report_error(ERR_UNAVAILABLE,
                            "pip install the wheel of `make python`, or set HOLDFAST_PYTHON to a "
                            "Python that has it",
                            "this command needs the Python package holdfast, which %s cannot "
                            "import: %s",
                            python(), reason);
    return 0;
}

/* `direction`: "from" or "to". Returns only after a failure. */
static int exec_python(const struct cli *cli, const char *direction, const char *source,
                       const char *target)
{
    const char *args[ARGS_MAX] = {python(), "-m", "holdfast"};
    char name[24];
    int count = 3;
    if (cli->store[0] != '\0') {
        args[count++] = "--store";
        args[count++] = cli->store;
    } else {
        args[count++] = "--server";
        args[count++] = cli->server;
    }
    if (cli->is_json)
        args[count++] = "--json";
    snprintf(name, sizeof name, "%s-%s", direction,
             strcmp(cli->format, "dcp") == 0 ? "dcp" : "safetensors");
    args[count++] = name;
    if (cli->is_weights_only)
        args[count++] = "--weights-only";
    if (strcmp(cli->dtype, "keep") != 0) {
        args[count++] = "--dtype";
        args[count++] = cli->dtype;
    }
    args[count++] = source;
    args[count++] = target;
    CHECK(count < ARGS_MAX);
    setenv("PYTHONSAFEPATH", "1", 1);
    ERR_TRY(check_package());
    execvp(args[0], (char *const *)args);
    return report_errno(ERR_UNAVAILABLE, "could not run Python", python());
}

int cli_import_python(const struct cli *cli)
{
    return cli->run[0] != '\0'
               ? exec_python(cli, "from", cli->args[0], cli->run)
               : report_error(ERR_INVALID, "add --run RUN@STEP", "the new checkpoint has no name");
}

int cli_export_python(const struct cli *cli)
{
    return cli->output[0] != '\0'
               ? exec_python(cli, "to", cli->args[0], cli->output)
               : report_error(ERR_INVALID, "add --output FOLDER", "no output was named");
}
