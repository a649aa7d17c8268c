/* switches.c - switch files and clocks (see switches.h). */
#include "trainer/run/switches.h"
#include "proto/report.h"
#include "trainer/clock.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

void switches_open(struct switches *out, const struct config *config)
{
    *out = (struct switches){.config = config, .opened_at = clock_seconds()};
    switches_saved(out);
}

void switches_saved(struct switches *switches)
{
    switches->saved_at = clock_seconds();
}

static bool is_there(const char *path)
{
    return path[0] != '\0' && access(path, F_OK) == 0;
}

bool switches_is_killed(const struct config *config)
{
    return is_there(config->kill_switch);
}

/* A switch that stays would ask for a save behind every step. */
static bool take_save_switch(struct switches *switches)
{
    const char *path = switches->config->save_switch;
    if (switches->is_save_broken || !is_there(path))
        return false;
    if (unlink(path) == 0) {
        log_info("checkpoint", "the save switch %s was seen and removed", path);
        return true;
    }
    report_errno(ERR_IO, "could not remove the save switch", path);
    log_warn("checkpoint", "%s; it is ignored from here on", report_line());
    switches->is_save_broken = true;
    return true;
}

static bool interval_is_over(const struct switches *switches)
{
    const struct config *config = switches->config;
    return strcmp(config->interval_type, "seconds") == 0 &&
           clock_seconds() - switches->saved_at >= (double)config->interval;
}

static bool duration_is_over(const struct switches *switches)
{
    double minutes = switches->config->exit_minutes;
    return minutes > 0 && clock_seconds() - switches->opened_at >= 60 * minutes;
}

unsigned switches_look(struct switches *switches)
{
    unsigned seen = 0;
    if (take_save_switch(switches) || interval_is_over(switches))
        seen |= SWITCH_SAVE;
    if (switches_is_killed(switches->config)) {
        log_warn("train", "the kill switch %s is there", switches->config->kill_switch);
        seen |= SWITCH_KILL;
    }
    if (duration_is_over(switches)) {
        log_info("train", "training.exit_duration_in_mins = %g are over",
                 switches->config->exit_minutes);
        seen |= SWITCH_DURATION;
    }
    return seen;
}

int switches_exit_code(unsigned seen)
{
    if (seen & SWITCH_KILL)
        return EXIT_DO_NOT_RETRY;
    return seen & SWITCH_DURATION ? EXIT_TIME_IS_OVER : EXIT_RUN_AGAIN;
}
