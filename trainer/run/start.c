/* start.c - the part of a start before ranks exist (see start.h). */
#include "trainer/run/start.h"
#include "proto/base/report.h"
#include "trainer/comm/flight_compare.h"
#include "trainer/config/switches.h"
#include "trainer/run/rank.h"
#include "trainer/run/signals.h"
#include "trainer/save/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* trainer --flight FOLDER [PREFIX]: compares dumps after a run hung. */
static int compare_dumps(int argc, char **argv)
{
    int rc = argc < 3 ? report_error(ERR_INVALID, "name the folder of comm.save_traces_folder",
                                     "--flight needs a folder of flight recorders")
                      : flight_compare(argv[2], argc > 3 ? argv[3] : "rank_", stdout);
    if (rc != 0)
        log_error("train", "%s", report_line());
    return rc == 0 ? EXIT_DONE : EXIT_DO_NOT_RETRY;
}

/* trainer --report RUN ...: `ckpt-cli report RUN ...`, which has all that a store and a file of
 * metrics tell. Returns only after an error. */
static int make_report(char **argv)
{
    static char command[] = "report";
    char program[PATH_MAX];
    tool_find(program);
    argv[0] = program;
    argv[1] = command;
    execvp(program, argv);
    log_error("train",
              "could not start %s: %s; install ckpt-cli in the trainer's folder, or add it to PATH",
              program, strerror(errno));
    return EXIT_DO_NOT_RETRY;
}

/* Handles options that print and end. Returns false if there is none. */
static bool prints(int argc, char **argv, int *out_exit)
{
    *out_exit = EXIT_DONE;
    if (argc > 1 && strcmp(argv[1], "--report") == 0) {
        *out_exit = make_report(argv);
        return true;
    }
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            trainer_config_print_help();
            return true;
        }
    if (argc < 2 || strcmp(argv[1], "--flight") != 0)
        return false;
    *out_exit = compare_dumps(argc, argv);
    return true;
}

bool start_prepare(struct config *out, int argc, char **argv, volatile sig_atomic_t *want_stop,
                   int *out_exit)
{
    char name[CONFIG_NAME_MAX];
    *out_exit = EXIT_DONE;
    if (report_print_version("trainer", argc, argv))
        return false;
    log_setup("trainer", getenv("HOLDFAST_LOG"));
    if (config_name_process(name))
        log_set_origin(name);
    if (prints(argc, argv, out_exit))
        return false;
    int rc = trainer_config_load(out, argc, argv);
    if (rc == 0 && out->estimate)
        rc = rank_estimate(out);
    if (rc == 0 && out->estimate)
        return false;
    *out_exit = EXIT_DO_NOT_RETRY;
    if (rc == 0 && switches_is_killed(out)) {
        if (config_is_first_process())
            log_warn("train", "the kill switch %s exists: nothing is started", out->kill_switch);
        return false;
    }
    if (rc == 0) {
        *out_exit = EXIT_RUN_AGAIN;
        rc = signals_start(want_stop);
    }
    if (rc != 0)
        log_error("train", "%s", report_line());
    return rc == 0;
}
