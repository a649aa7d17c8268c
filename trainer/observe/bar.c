/* bar.c - the progress bar (see bar.h). */
#include "trainer/observe/bar.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CELLS 20
#define SECONDS_BETWEEN 0.2

/* "45 s", "12 min", "7.5 h", "3.2 days" */
static void print_duration(char out[24], double seconds)
{
    if (seconds < 90)
        snprintf(out, 24, "%.0f s", seconds);
    else if (seconds < 90 * 60)
        snprintf(out, 24, "%.0f min", seconds / 60);
    else if (seconds < 48 * 3600)
        snprintf(out, 24, "%.1f h", seconds / 3600);
    else
        snprintf(out, 24, "%.1f days", seconds / 86400);
}

void bar_print(char out[BAR_TEXT_MAX], int64_t step, int64_t steps, double step_seconds)
{
    char cells[CELLS + 1], left[24];
    double part = (double)step / (double)steps;
    memset(cells, '.', CELLS);
    memset(cells, '#', (size_t)(part * CELLS));
    cells[CELLS] = '\0';
    print_duration(left, (double)(steps - step) * step_seconds);
    snprintf(out, BAR_TEXT_MAX,
             "step %" PRId64 " of %" PRId64 " [%s] %.0f %%, %.2f s a step, %s left", step, steps,
             cells, 100 * part, step_seconds, left);
}

void bar_show(double *shown_at, int64_t step, int64_t steps, double step_seconds)
{
    char text[BAR_TEXT_MAX];
    double now = clock_seconds();
    if (!log_has_terminal() || (now - *shown_at < SECONDS_BETWEEN && step < steps))
        return;
    *shown_at = now;
    bar_print(text, step, steps, step_seconds);
    log_show(text);
}
