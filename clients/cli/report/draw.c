/* draw.c - draws a chart of curves over steps, as SVG within a page (see report.h).
 *
 * All charts of a page have the same steps from left to right. The vertical axis is linear. It is
 * logarithmic if the chart allows that, all values are above 0, and the largest is SPREAD times the
 * least. Starts are vertical lines with the attempt, spikes are circles. The page's style sheet
 * sets the colours. */
#include "clients/cli/report/report.h"

#include <math.h>
#include <string.h>

#define WIDTH 960.0
#define HEIGHT 250.0
#define LEFT 70.0
#define RIGHT 14.0
#define TOP 34.0
#define BOTTOM 32.0
#define LABEL_ROOM 30.0 /* of an attempt's name */
#define TICKS 6.0       /* about this many, */
#define TICKS_MAX 16    /* and never more */
#define SPREAD 50.0
#define VALUE_MAX 1e100

struct axes {
    double first, last; /* steps */
    double least, most; /* values; on a logarithmic axis their logarithms */
    bool is_log;
};

static double x_of(const struct axes *axes, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (step - axes->first) / (axes->last - axes->first);
}

static double y_of(const struct axes *axes, double value)
{
    double at = axes->is_log ? log10(value) : value;
    return HEIGHT - BOTTOM -
           (HEIGHT - TOP - BOTTOM) * (at - axes->least) / (axes->most - axes->least);
}

/* ---- the curves ---- */

static const json_t *curve_of(const json_t *root, const struct chart *chart, int i)
{
    const char *name = chart->curves[i];
    return name != NULL ? json_object_get(json_object_get(root, "curves"), name) : NULL;
}

/* NaN: a gap. */
static double value_at(const json_t *curve, size_t i)
{
    const json_t *value = json_array_get(json_object_get(curve, "values"), i);
    double number = json_number_value(value);
    return json_is_number(value) && fabs(number) < VALUE_MAX ? number : (double)NAN;
}

static double step_at(const json_t *curve, size_t i)
{
    return json_number_value(json_array_get(json_object_get(curve, "steps"), i));
}

static size_t points_of(const json_t *curve)
{
    return json_array_size(json_object_get(curve, "steps"));
}

static double number_of(const json_t *of, const char *name)
{
    return json_number_value(json_object_get(of, name));
}

/* The steps of all curves, and the values of this chart's. False: there is nothing to draw. */
static bool find_axes(struct axes *axes, const json_t *root, const struct chart *chart)
{
    const char *name;
    json_t *curve;
    double least = INFINITY, most = -INFINITY;
    axes->first = INFINITY;
    axes->last = -INFINITY;
    json_object_foreach(json_object_get(root, "curves"), name, curve)
    {
        bool is_drawn = curve == curve_of(root, chart, 0) || curve == curve_of(root, chart, 1);
        for (size_t i = 0; i < points_of(curve); i++) {
            double value = is_drawn ? value_at(curve, i) : (double)NAN; /* which has no effect */
            axes->first = fmin(axes->first, step_at(curve, i));
            axes->last = fmax(axes->last, step_at(curve, i));
            least = fmin(least, value);
            most = fmax(most, value);
        }
    }
    if (least > most)
        return false;
    axes->last = fmax(axes->last, axes->first + 1);
    axes->is_log = !chart->is_linear && least > 0 && most > SPREAD * least;
    axes->least = axes->is_log ? log10(least) : least;
    axes->most = axes->is_log ? log10(most) : most;
    double margin = 0.04 * (axes->most - axes->least);
    if (margin == 0)
        margin = axes->most != 0 ? 0.1 * fabs(axes->most) : 1;
    axes->most += margin;
    axes->least -= margin;
    if (!axes->is_log && least >= 0 && axes->least < 0)
        axes->least = 0;
    return true;
}

/* ---- axes ---- */

/* The distance of ticks: 1, 2 or 5 times a power of ten. */
static double tick_distance(double range)
{
    double raw = range / TICKS, power = pow(10, floor(log10(raw)));
    return power * (raw > 5 * power ? 10 : raw > 2 * power ? 5 : raw > power ? 2 : 1);
}

static void draw_level(FILE *out, const struct axes *axes, double value)
{
    double y = y_of(axes, value);
    if (y < TOP - 0.5 || y > HEIGHT - BOTTOM + 0.5)
        return;
    fprintf(out,
            "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>"
            "<text class=\"level\" x=\"%.1f\" y=\"%.1f\">%g</text>\n",
            LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, value);
}

static void draw_levels(FILE *out, const struct axes *axes)
{
    double range = axes->most - axes->least, distance = tick_distance(range);
    double first = ceil(axes->least / distance);
    for (int i = 0; i < TICKS_MAX && !axes->is_log; i++) { /* for any size: 1e17 + 1 is 1e17 */
        double value = (first + i) * distance;
        if (value <= axes->most)
            draw_level(out, axes, first + i == 0 ? 0 : value);
    }
    if (!axes->is_log)
        return;
    double every = ceil(range / TICKS); /* decades */
    for (double power = floor(axes->least); power <= axes->most; power += every) {
        draw_level(out, axes, pow(10, power));
        if (range < 3) {
            draw_level(out, axes, 2 * pow(10, power));
            draw_level(out, axes, 5 * pow(10, power));
        }
    }
}

static void draw_steps(FILE *out, const struct axes *axes)
{
    double distance = fmax(tick_distance(axes->last - axes->first), 1);
    for (double i = ceil(axes->first / distance); i * distance <= axes->last; i++)
        fprintf(out,
                "<path class=\"tick\" d=\"M%.1f %.1fv5\"/>"
                "<text class=\"step\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n",
                x_of(axes, i * distance), HEIGHT - BOTTOM, x_of(axes, i * distance),
                HEIGHT - BOTTOM + 18, i * distance);
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", LEFT, TOP, HEIGHT - BOTTOM,
            WIDTH - RIGHT);
}

/* ---- curves and marks ---- */

static void draw_curve(FILE *out, const struct axes *axes, const json_t *curve, int place)
{
    bool is_drawing = false;
    fprintf(out, "<path class=\"curve c%d\" d=\"", place);
    for (size_t i = 0; i < points_of(curve); i++) {
        double value = value_at(curve, i);
        if (!isnan(value))
            fprintf(out, "%s%.1f %.1f%s", is_drawing ? "L" : "M", x_of(axes, step_at(curve, i)),
                    y_of(axes, value), is_drawing ? "" : "h0"); /* a single one is a dot */
        is_drawing = !isnan(value);
    }
    fputs("\"/>\n", out);
}

static void draw_names(FILE *out, const struct chart *chart, const json_t *root)
{
    double x = WIDTH - RIGHT;
    for (int i = 1; i >= 0; i--) {
        if (curve_of(root, chart, 1) == NULL || chart->names[i] == NULL)
            continue;
        fprintf(out, "<text class=\"name c%d\" x=\"%.1f\" y=\"14\">%s</text>\n", i, x,
                chart->names[i]);
        x -= 8.0 * (double)strlen(chart->names[i]) + 12;
    }
}

/* Omits a name that overlaps the previous one; the tooltip of the line has it. */
static void draw_starts(FILE *out, const struct axes *axes, const json_t *root)
{
    const json_t *starts = json_object_get(root, "starts");
    double free_from = LEFT;
    for (size_t i = 0; i < json_array_size(starts); i++) {
        const json_t *start = json_array_get(starts, i);
        double step = number_of(start, "step");
        unsigned long long attempt = member_number(start, "attempt");
        if (step < axes->first || step > axes->last || step == 0)
            continue;
        double x = x_of(axes, step);
        fprintf(out,
                "<g class=\"start\"><title>attempt %llu went on from step %.0f</title>"
                "<path d=\"M%.1f %.1fV%.1f\"/>",
                attempt, step, x, TOP, HEIGHT - BOTTOM);
        if (x >= free_from) {
            fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">a%llu</text>", x, TOP - 5, attempt);
            free_from = x + LABEL_ROOM;
        }
        fputs("</g>\n", out);
    }
}

static void draw_spikes(FILE *out, const struct axes *axes, const json_t *root)
{
    const json_t *spikes = json_object_get(root, "spikes");
    for (size_t i = 0; i < json_array_size(spikes); i++) {
        const json_t *spike = json_array_get(spikes, i);
        double step = number_of(spike, "step"), most = number_of(spike, "most");
        if (step < axes->first || step > axes->last)
            continue;
        double y = most > 0 || !axes->is_log ? y_of(axes, most) : HEIGHT - BOTTOM;
        fprintf(out, "<circle class=\"spike\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"><title>loss spike, ",
                x_of(axes, step), fmin(fmax(y, TOP), HEIGHT - BOTTOM));
        page_text(out, member_text(spike, "kind"));
        fprintf(out, ": from step %.0f, at most %.6g</title></circle>\n", step, most);
    }
}

void draw_chart(FILE *out, const struct chart *chart, const json_t *root)
{
    struct axes axes;
    if (!find_axes(&axes, root, chart))
        return;
    fprintf(out,
            "<div class=\"wide\"><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s by "
            "step\">\n<text class=\"title\" x=\"%.1f\" y=\"14\">%s%s</text>\n",
            WIDTH, HEIGHT, chart->title, 0.0, chart->title, axes.is_log ? " (log)" : "");
    draw_levels(out, &axes);
    draw_steps(out, &axes);
    draw_starts(out, &axes, root);
    for (int i = 0; i < 2; i++) {
        const json_t *curve = curve_of(root, chart, i);
        if (curve != NULL)
            draw_curve(out, &axes, curve, i);
    }
    if (chart->has_spikes)
        draw_spikes(out, &axes, root);
    draw_names(out, chart, root);
    fputs("</svg></div>\n", out);
}
