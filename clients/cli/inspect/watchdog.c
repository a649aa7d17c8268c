/* watchdog.c - checks once, for cron, whether a run is being trained, or waits in a queue.
 *
 * It reports ckptd's Status: the connected ranks, and how long the most silent of them has done
 * nothing. The launcher and the scheduler may have died with their reports. So the watchdog asks
 * neither, except by the user's own command. */
#include "clients/cli/engine/cli.h"
#include "proto/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define ALARM_BYTES 1200

static const json_t *find_run(const json_t *status, const char *name)
{
    size_t index;
    const json_t *run;
    json_array_foreach(json_object_get(status, "runs"), index, run)
    {
        if (strcmp(member_text(run, "run"), name) == 0)
            return run;
    }
    return NULL;
}

/* ERR_INTERNAL: the shell did not start, or the command failed: the state is unknown. */
static int run_queue_command(bool *out, const char *command)
{
    char first;
    *out = false;
    if (command[0] == '\0')
        return 0;
    FILE *pipe = popen(command, "r");
    if (pipe == NULL)
        return report_error(ERR_INTERNAL, NULL, "--queued cannot be run: %s", command);
    while (fread(&first, 1, 1, pipe) == 1)
        *out |= first > ' ';
    int status = pclose(pipe);
    if (status == 0)
        return 0;
    return report_error(ERR_INTERNAL, "try it in a shell", "--queued ended with %d: %s",
                        WIFEXITED(status) ? WEXITSTATUS(status) : -1, command);
}

static json_int_t number(const json_t *run, const char *name)
{
    return json_integer_value(json_object_get(run, name));
}

/* Checks a run that is trained here. True: `alarm` names the fault. */
static bool check_ranks(char *alarm, const struct cli *cli, const json_t *status, const json_t *run)
{
    const json_t *health = json_object_get(status, "health");
    const json_t *age = json_object_get(run, "newest_age_seconds");
    const char *name = cli->args[0], *reason = json_string_value(json_object_get(health, "reason"));
    char safe[768];
    if (number(run, "silent_seconds") > cli->silent_s)
        snprintf(alarm, ALARM_BYTES, "run %s hangs: a rank has done nothing for %lld s", name,
                 (long long)number(run, "silent_seconds"));
    else if (json_is_false(json_object_get(health, "saving")))
        snprintf(alarm, ALARM_BYTES, "run %s cannot save: %s", name,
                 text_safe(safe, sizeof safe, reason != NULL ? reason : "?"));
    else if (cli->age_s > 0 && (!json_is_integer(age) || json_integer_value(age) > cli->age_s))
        snprintf(alarm, ALARM_BYTES, "run %s: no checkpoint for %s", name,
                 json_is_integer(age) ? text_count((uint64_t)json_integer_value(age), "second").text
                                      : "ever");
    return alarm[0] != '\0';
}

/* The state in a word, and the alarm: "" for none. */
static int read_state(const char **state, char *alarm, const struct cli *cli)
{
    json_t *status = NULL;
    bool is_queued = false;
    int error = cli_call_status(&status, cli);
    const json_t *run = error == 0 ? find_run(status, cli->args[0]) : NULL;
    *state = "trains";
    alarm[0] = '\0';
    if (run != NULL && number(run, "ranks") > 0) {
        *state = check_ranks(alarm, cli, status, run) ? "alarm" : "trains";
        json_decref(status);
        return 0;
    }
    json_decref(status);
    if (error != 0 && error != ERR_UNAVAILABLE && error != ERR_TIMEOUT)
        return error; /* refused, or no memory: tells nothing about the run */
    if (error != 0)
        snprintf(alarm, ALARM_BYTES, "run %s: %s", cli->args[0], report_line());
    else
        snprintf(alarm, ALARM_BYTES, "run %s: no rank is connected%s", cli->args[0],
                 cli->queued[0] != '\0' ? ", and it is not queued" : "");
    ERR_TRY(run_queue_command(&is_queued, cli->queued));
    *state = is_queued ? "queued" : "alarm";
    if (is_queued)
        alarm[0] = '\0';
    return 0;
}

static int run_on_alarm(const struct cli *cli, const char *alarm)
{
    if (cli->on_alarm[0] == '\0')
        return 0;
    fflush(stdout);
    if (setenv("HOLDFAST_ALARM", alarm, 1) != 0)
        return report_error(ERR_MEMORY, NULL, "no memory for an alarm");
    int status = system(cli->on_alarm); /* NOLINT: the user's own */
    return status == 0 ? 0
                       : report_error(ERR_IO, "try it in a shell", "--on-alarm ended with %d: %s",
                                      WIFEXITED(status) ? WEXITSTATUS(status) : -1, cli->on_alarm);
}

int cli_watchdog(const struct cli *cli)
{
    char alarm[ALARM_BYTES];
    const char *state;
    int error = read_state(&state, alarm, cli);
    if (error != 0)
        return error;
    if (cli->is_json)
        error = text_pack("{ss ss ss}", "run", cli->args[0], "state", state, "alarm", alarm);
    else
        printf("%s\n", alarm[0] != '\0' ? alarm : state);
    if (error == 0 && alarm[0] != '\0')
        error = run_on_alarm(cli, alarm);
    return error != 0 ? error : alarm[0] != '\0' ? CLI_DIFFERS : 0;
}
