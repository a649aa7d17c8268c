/* bar.h - a run's progress on the terminal of rank 0 (report.h, log_show). */
#ifndef HOLDFAST_TRAINER_OBSERVE_BAR_H
#define HOLDFAST_TRAINER_OBSERVE_BAR_H

#include <stdint.h>

#define BAR_TEXT_MAX 128u

/* "step 30 of 100 [######..............] 30 %, 2.91 s a step, 3 min left" */
void bar_print(char out[BAR_TEXT_MAX], int64_t step, int64_t steps, double step_seconds);

/* Call after each step; shows at most 5 bars a second, and the last step. *shown_at: 0 at first. */
void bar_show(double *shown_at, int64_t step, int64_t steps, double step_seconds);

#endif
