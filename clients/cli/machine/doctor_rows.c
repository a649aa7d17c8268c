/* doctor_rows.c - of doctor: the rows of its table, kept as JSON and printed at the end. Makes
 * texts of a server printable. */
#include "clients/cli/machine/doctor.h"

#include "proto/base/json.h"

#include <stdarg.h>

#define FOUND_BYTES 1400u

static const char *const verdicts[] = {
    [DOCTOR_OK] = "ok", [DOCTOR_WARN] = "warn", [DOCTOR_BAD] = "bad"};

void doctor_say(struct doctor *doctor, enum verdict verdict, const char *check, const char *advice,
                const char *format, ...)
{
    char found[FOUND_BYTES], advised[FOUND_BYTES];
    va_list values;
    va_start(values, format);
    vsnprintf(found, sizeof found, format, values);
    va_end(values);
    snprintf(advised, sizeof advised, "%s", verdict == DOCTOR_OK ? "" : advice);
    report_make_printable(found);
    report_make_printable(advised);
    json_array_append_new(doctor->found,
                          json_pack("{ss ss ss ss}", "check", check, "verdict", verdicts[verdict],
                                    "found", found, "advice", advised));
    if (verdict > doctor->worst)
        doctor->worst = verdict;
}

void doctor_say_error(struct doctor *doctor, enum verdict verdict, const char *check,
                      const char *otherwise)
{
    bool has_detail = report_detail()[0] != '\0', has_hint = report_hint()[0] != '\0';
    doctor_say(doctor, verdict, check, has_hint ? report_hint() : otherwise, "%s%s%s",
               report_message(), has_detail ? ": " : "", report_detail());
}

const char *doctor_need(char *out, size_t size, const struct doctor *doctor)
{
    char rate[32];
    out[0] = '\0';
    if (doctor->need_rate > 0)
        snprintf(out, size, "; saves here need %s/s",
                 text_bytes(rate, sizeof rate, (uint64_t)doctor->need_rate));
    return out;
}

static void print_table(const json_t *found)
{
    char text[FOUND_BYTES];
    const json_t *row;
    size_t index;
    json_array_foreach(found, index, row)
    {
        printf("%-4s  %-13s %s\n", member_text(row, "verdict"), member_text(row, "check"),
               text_safe(text, sizeof text, member_text(row, "found")));
        if (member_text(row, "advice")[0] != '\0')
            printf("%19s -> %s\n", "", text_safe(text, sizeof text, member_text(row, "advice")));
    }
}

int doctor_print(const struct doctor *doctor)
{
    char server[280];
    if (doctor->cli->is_json)
        return text_pack("{ss ss sO}", "server",
                         text_safe(server, sizeof server, doctor->cli->server), "verdict",
                         verdicts[doctor->worst], "checks", doctor->found);
    print_table(doctor->found);
    return 0;
}
