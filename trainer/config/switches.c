/* switches.c - switch files and clocks (see switches.h). */
#include "trainer/config/switches.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/base/memory_check.h"
#include "trainer/config/launched.h"

#include <string.h>
#include <unistd.h>

#define MEMORY_SECONDS 1.0 /* between two measurements */

#define LEAD_FACTOR 2.0 /* times the longest step and save so far */

static const double gib = 1 << 30;

void switches_open(struct switches *out, const struct config *config)
{
    *out = (struct switches){
        .config = config, .opened_at = clock_seconds(), .root = "", .job_end = launched_job_end()};
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

/* Removes the save switch; if it stays, it asks for a save after every step. */
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
    return config->interval_type == INTERVAL_SECONDS &&
           clock_seconds() - switches->saved_at >= (double)config->interval;
}

static bool duration_is_over(const struct switches *switches)
{
    double minutes = switches->config->exit_minutes;
    return minutes > 0 && clock_seconds() - switches->opened_at >= 60 * minutes;
}

/* The time before a limit at which a run has to end, in seconds. */
static double lead_of(struct switches *switches, double save_seconds)
{
    double now = clock_seconds(), lap = switches->polled_at > 0 ? now - switches->polled_at : 0;
    switches->polled_at = now;
    switches->longest_lap = lap > switches->longest_lap ? lap : switches->longest_lap;
    double lead = LEAD_FACTOR * (switches->longest_lap + save_seconds);
    if (save_seconds > 0 && lead > LEAD_FACTOR * switches->said_lead) {
        log_info(
            "train",
            "a stop takes up to %.1f s, twice the longest step of %.2f s and save of %.2f s: to "
            "stop this run before a time limit, send the signal at least that long before it",
            lead, switches->longest_lap, save_seconds);
        switches->said_lead = lead;
    }
    return lead;
}

static bool job_is_over(const struct switches *switches, double lead)
{
    double least = switches->config->exit_lead_seconds;
    if (switches->job_end <= 0 || least <= 0)
        return false;
    double left = switches->job_end - clock_wall_seconds();
    lead = lead > least ? lead : least;
    if (left > lead)
        return false;
    log_info("train", "the job ends in %.0f s, and a stop may take %.1f s", left, lead);
    return true;
}

unsigned switches_poll(struct switches *switches, double save_seconds)
{
    unsigned seen = job_is_over(switches, lead_of(switches, save_seconds)) ? SWITCH_DURATION : 0;
    if (take_save_switch(switches) || interval_is_over(switches))
        seen |= SWITCH_SAVE;
    if (switches_is_killed(switches->config)) {
        log_warn("train", "the kill switch %s exists", switches->config->kill_switch);
        seen |= SWITCH_KILL;
    }
    if (duration_is_over(switches)) {
        log_info("train", "training.exit_duration_in_mins = %g have passed",
                 switches->config->exit_minutes);
        seen |= SWITCH_DURATION;
    }
    return seen;
}

/* Logs a leak when it begins. True: it is so quick that the run should end. */
static bool leaks(struct switches *switches, uint64_t own)
{
    const struct leak *leak = &switches->leak;
    double limit = switches->config->exit_leak_gib;
    leak_note(&switches->leak, clock_ms(), own, 0);
    double rate = leak_rate(leak) / gib;
    bool is_quick = rate > 0 && limit > 0 && rate >= limit;
    if (rate > 0 && (is_quick || !switches->is_leak_said))
        log_warn("train",
                 "this process leaks: its private memory rose in each of the last %u half hours, "
                 "from %.3f to %.3f GiB, %.3f GiB an hour (training.exit_leak_gib_per_hour = %g)",
                 LEAK_WINDOWS, (double)leak->past[0].bytes / gib,
                 (double)leak->past[LEAK_WINDOWS - 1].bytes / gib, rate, limit);
    switches->is_leak_said = rate > 0;
    return is_quick;
}

bool switches_memory_is_short(struct switches *switches)
{
    const struct config *config = switches->config;
    double most = config->exit_memory_gib, least = config->exit_free_memory_gib;
    double now = clock_seconds();
    if (now - switches->memory_at < MEMORY_SECONDS)
        return false;
    switches->memory_at = now;
    uint64_t own_bytes = memory_check_taken(switches->root).own;
    double own = (double)own_bytes / gib;
    if (leaks(switches, own_bytes))
        return true;
    double available = (double)memory_check_available(switches->root) / gib;
    if (most > 0 && own >= most)
        log_warn("train",
                 "this process has %.2f GiB of private memory: training.exit_memory_gib = %g", own,
                 most);
    else if (least > 0 && available <= least)
        log_warn("train",
                 "this host has %.2f GiB of memory left: training.exit_free_memory_gib = %g; this "
                 "process has %.2f GiB of private memory",
                 available, least, own);
    else
        return false;
    return true;
}

void switches_log_stop(unsigned seen)
{
    if (seen & (SWITCH_STOP | SWITCH_STOP_UNSAVED))
        log_warn("train",
                 "ckptd was asked to stop the run%s; `ckpt-cli server history` says by whom",
                 seen & SWITCH_STOP_UNSAVED ? " without a save" : "");
}

int switches_exit_code(unsigned seen)
{
    if (seen & SWITCHES_FOR_GOOD)
        return EXIT_DO_NOT_RETRY;
    return seen & SWITCH_DURATION ? EXIT_TIME_IS_OVER : EXIT_RUN_AGAIN;
}
