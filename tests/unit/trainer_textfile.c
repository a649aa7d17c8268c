/* trainer_textfile.c - a run's numbers in a file for Prometheus.
 *
 * Goal: the file is text as Prometheus reads it, is never partial, and a failed write is an error
 * that leaves the old file. Method: files in a folder of the test, one of them in a missing folder,
 * and one whose next version cannot be made. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/observe/textfile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/textfile-XXXXXX", path[sizeof(folder) + 8];

static const char *content(void)
{
    static char text[1024];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

TEST(test_textfile__has_help_type_and_label_of_each_number)
{
    const struct textfile_value values[] = {{"loss", "Of the step.", 2.5},
                                            {"tokens_total", "Trained on.", 1e12},
                                            {"grad_norm", "Before clipping.", NAN},
                                            {"mfu_ratio", "Of the peak.", INFINITY}};
    assert_int_equal(textfile_write(path, "mine", values, 4), 0);
    assert_string_equal(content(), "# HELP holdfast_trainer_loss Of the step.\n"
                                   "# TYPE holdfast_trainer_loss gauge\n"
                                   "holdfast_trainer_loss{run=\"mine\"} 2.5\n"
                                   "# HELP holdfast_trainer_tokens_total Trained on.\n"
                                   "# TYPE holdfast_trainer_tokens_total counter\n"
                                   "holdfast_trainer_tokens_total{run=\"mine\"} 1000000000000\n"
                                   "# HELP holdfast_trainer_grad_norm Before clipping.\n"
                                   "# TYPE holdfast_trainer_grad_norm gauge\n"
                                   "holdfast_trainer_grad_norm{run=\"mine\"} NaN\n"
                                   "# HELP holdfast_trainer_mfu_ratio Of the peak.\n"
                                   "# TYPE holdfast_trainer_mfu_ratio gauge\n"
                                   "holdfast_trainer_mfu_ratio{run=\"mine\"} +Inf\n");
}

TEST(test_textfile__what_cannot_be_written_leaves_the_old_file)
{
    const struct textfile_value one = {"loss", "Of the step.", 1};
    char next[sizeof(path) + 8];
    assert_int_equal(textfile_write(path, "mine", &one, 1), 0);
    snprintf(next, sizeof(next), "%s.next", path);
    assert_int_equal(mkdir(next, 0700), 0);
    assert_int_equal(textfile_write(path, "mine", NULL, 0), ERR_IO);
    assert_non_null(strstr(report_message(), "metrics.prometheus_file"));
    assert_non_null(strstr(content(), "} 1\n"));
    assert_int_equal(rmdir(next), 0);
    snprintf(next, sizeof(next), "%s/none/x", folder);
    assert_int_equal(textfile_write(next, "mine", &one, 1), ERR_IO);
}

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/a.prom", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

SUITE(make_folder, remove_folder)
