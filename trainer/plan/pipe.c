/* pipe.c - schedules of a pipeline (see pipe.h).
 *
 * The simulation counts time in units. done[stage][leaf] is when an action has ended; an action can
 * begin when its inputs have ended. A forward needs the previous stage's forward, a backward the
 * next stage's backward and its own forward. A weight's half needs its input's half. Each rank runs
 * one action at a time. The order of a file is replayed in the same simulation, which finds out
 * whether it can be run. */
#include "trainer/plan/pipe.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES (1u << 20)
#define NEVER UINT64_MAX

struct simulation {
    struct pipe *pipe;
    const struct pipe_options *options;
    uint32_t stages;
    uint64_t *done[3]; /* of forward, input, weight: [stage][leaf]; NEVER: not yet */
    uint64_t *free_at; /* per rank */
    uint32_t *next[3]; /* per rank: how many forwards, inputs, weights it has begun */
};

/* True if the gradients of weights are deferred. */
static bool splits(const struct pipe_options *o)
{
    return o->schedule == PIPE_ZBH1 || o->schedule == PIPE_INTERLEAVED_ZERO;
}

static bool is_forwards_first(const struct pipe_options *o)
{
    return o->schedule == PIPE_GPIPE || o->schedule == PIPE_LOOPED;
}

static uint32_t duration_of(enum pipe_kind kind)
{
    return kind == PIPE_BACKWARD ? 2 : 1;
}

static uint64_t *done_of(const struct simulation *s, uint32_t part, uint32_t stage, uint32_t leaf)
{
    return &s->done[part][(size_t)stage * s->options->num_leaves + leaf];
}

/* The n-th forward (or backward) of a rank: rounds of num_ranks leaves, chunk after chunk. */
static struct pipe_action nth_action(const struct simulation *s, uint32_t rank, uint32_t n,
                                     bool is_forward)
{
    const struct pipe_options *o = s->options;
    uint32_t round = is_forwards_first(o) ? o->num_leaves : o->num_ranks;
    uint32_t whole = round * o->chunks, first = n / whole * round, within = n % whole;
    uint32_t left = o->num_leaves - first, size = left < round ? left : round;
    uint32_t chunk = within / size;
    if (!is_forward)
        chunk = o->chunks - 1 - chunk;
    return (struct pipe_action){.stage = chunk * o->num_ranks + rank,
                                .leaf = first + within % size,
                                .kind = is_forward ? PIPE_FORWARD : PIPE_BACKWARD};
}

/* The most leaves (of any chunk) that a rank may have between forward and backward. */
static uint32_t limit_of(const struct pipe_options *o, uint32_t rank)
{
    uint32_t all = o->num_leaves * o->chunks, later = o->num_ranks - 1 - rank, limit;
    switch (o->schedule) {
    case PIPE_INTERLEAVED:
    case PIPE_INTERLEAVED_ZERO:
        limit = o->chunks == 1 ? later + 1 : (o->chunks - 1) * o->num_ranks + 2 * later + 1;
        break;
    case PIPE_GPIPE:
    case PIPE_LOOPED:
    case PIPE_FILE:
        limit = all;
        break;
    default:
        limit = later + 1 + (o->chunks - 1) * o->num_ranks;
        break;
    }
    return limit < all ? limit : all;
}

/* The time at which an action can begin. NEVER: an action that it needs has not begun. */
static uint64_t ready_at(const struct simulation *s, const struct pipe_action *a)
{
    uint64_t at = 0, needs[2] = {0, 0};
    if (a->kind == PIPE_FORWARD) {
        needs[0] = a->stage > 0 ? *done_of(s, PIPE_FORWARD, a->stage - 1, a->leaf) : 0;
    } else if (a->kind == PIPE_WEIGHT) {
        needs[0] = *done_of(s, 1, a->stage, a->leaf);
    } else {
        needs[0] = *done_of(s, 0, a->stage, a->leaf);
        needs[1] = a->stage + 1 < s->stages ? *done_of(s, 1, a->stage + 1, a->leaf) : 0;
    }
    for (int i = 0; i < 2; i++)
        at = needs[i] > at ? needs[i] : at;
    return at;
}

static void begin_action(struct simulation *s, uint32_t rank, const struct pipe_action *a,
                         uint64_t now)
{
    struct pipe *p = s->pipe;
    uint64_t end = now + duration_of(a->kind);
    p->actions[rank][p->num_actions[rank]++] = *a;
    s->free_at[rank] = end;
    if (a->kind == PIPE_FORWARD)
        *done_of(s, 0, a->stage, a->leaf) = end;
    if (a->kind == PIPE_BACKWARD || a->kind == PIPE_INPUT) /* the previous stage waits for this */
        *done_of(s, 1, a->stage, a->leaf) = end;
    if (a->kind == PIPE_BACKWARD || a->kind == PIPE_WEIGHT)
        *done_of(s, 2, a->stage, a->leaf) = end;
}

/* Chooses the action that a rank begins at `now` by the rules of its schedule; false: none. */
static bool choose_action(struct simulation *s, uint32_t rank, uint64_t now,
                          struct pipe_action *out)
{
    const struct pipe_options *o = s->options;
    uint32_t all = o->num_leaves * o->chunks, *f = &s->next[0][rank], *b = &s->next[1][rank];
    uint32_t *w = &s->next[2][rank];
    bool is_split = splits(o);
    /* Activations live until the weights' half: at most as many as the first rank has without a
     * split. */
    bool has_room = !is_split || *f - *w < limit_of(o, 0);
    bool may_forward = *f < all && *f - *b < limit_of(o, rank) && has_room;
    bool may_backward = *b < *f && (!is_forwards_first(o) || *f == all);
    struct pipe_action forward = nth_action(s, rank, may_forward ? *f : 0, true);
    struct pipe_action backward = nth_action(s, rank, may_backward ? *b : 0, false);
    backward.kind = is_split ? PIPE_INPUT : PIPE_BACKWARD;
    may_forward = may_forward && ready_at(s, &forward) <= now;
    may_backward = may_backward && ready_at(s, &backward) <= now;
    /* Taking a backward first starves later stages where there are chunks, and where weights'
     * halves fill the time before a later backward. */
    if (may_forward && (!may_backward || o->chunks > 1 || is_split)) {
        (*f)++;
        *out = forward;
        return true;
    }
    if (may_backward) {
        (*b)++;
        *out = backward;
        return true;
    }
    if (!is_split || *w >= *b)
        return false;
    *out = nth_action(s, rank, *w, false);
    out->kind = PIPE_WEIGHT;
    (*w)++;
    return true;
}

static bool is_over(const struct simulation *s, uint32_t rank)
{
    const struct pipe_options *o = s->options;
    uint32_t all = o->num_leaves * o->chunks;
    return s->next[1][rank] == all && (!splits(o) || s->next[2][rank] == all);
}

static void note_bubble(struct simulation *s)
{
    struct pipe *p = s->pipe;
    uint64_t end = 0, busy = 0;
    for (uint32_t r = 0; r < p->num_ranks; r++) {
        end = s->free_at[r] > end ? s->free_at[r] : end;
        for (uint32_t i = 0; i < p->num_actions[r]; i++)
            busy += duration_of(p->actions[r][i].kind);
    }
    p->bubble = end > 0 ? 1.0 - (double)busy / ((double)end * p->num_ranks) : 0;
}

static void simulate(struct simulation *s)
{
    uint32_t over = 0;
    for (uint64_t now = 0; over < s->pipe->num_ranks; now++) {
        over = 0;
        for (uint32_t r = 0; r < s->pipe->num_ranks; r++) {
            struct pipe_action action;
            if (s->free_at[r] <= now && choose_action(s, r, now, &action))
                begin_action(s, r, &action, now);
            over += is_over(s, r);
        }
    }
    note_bubble(s);
}

/* ---- a file ---- */

/* "3F17" */
static int parse_action(struct pipe_action *out, const char *text, const struct simulation *s,
                        uint32_t rank)
{
    static const char letters[] = "FBIW";
    int length = 0;
    char letter;
    bool is_action = sscanf(text, " %u%c%u %n", &out->stage, &letter, &out->leaf, &length) == 3 &&
                     text[length] == '\0' && strchr(letters, letter) != NULL;
    if (is_action)
        out->kind = (enum pipe_kind)(strchr(letters, letter) - letters);
    if (!is_action || out->stage >= s->stages || out->leaf >= s->options->num_leaves ||
        out->stage % s->options->num_ranks != rank)
        return report_error(ERR_INVALID, "write stage, one of F B I W, and micro-batch, as in 1F0",
                            "%s: action \"%s\" of line %u: %u stages, %u ranks, %u micro-batches",
                            s->options->file, text, rank + 1, s->stages, s->options->num_ranks,
                            s->options->num_leaves);
    return 0;
}

static int parse_line(struct simulation *s, char *line, uint32_t rank, struct pipe_action *out,
                      uint32_t *out_num)
{
    uint32_t most = 3 * s->options->num_leaves * s->options->chunks;
    char *rest = line, *text;
    *out_num = 0;
    line[strcspn(line, "\r\n")] = '\0';
    while ((text = strsep(&rest, ",")) != NULL) {
        text += strspn(text, " ");
        if (*text == '\0')
            continue;
        if (*out_num == most)
            return report_error(ERR_INVALID, "name each action once",
                                "%s: line %u has more than %u actions", s->options->file, rank + 1,
                                most);
        ERR_TRY(parse_action(&out[(*out_num)++], text, s, rank));
    }
    return 0;
}

/* Each action comes once, and backwards in the order of leaves: C4 of exchange/reduce.c. */
static int check_begun(const struct simulation *s, const struct pipe_action *a)
{
    bool is_again = false, is_early = false;
    for (uint32_t part = 0; part < 3; part++) {
        bool is_in = part == 0   ? a->kind == PIPE_FORWARD
                     : part == 1 ? a->kind == PIPE_BACKWARD || a->kind == PIPE_INPUT
                                 : a->kind == PIPE_BACKWARD || a->kind == PIPE_WEIGHT;
        is_again = is_again || (is_in && *done_of(s, part, a->stage, a->leaf) != NEVER);
        is_early = is_early || (is_in && part > 0 && a->leaf > 0 &&
                                *done_of(s, part, a->stage, a->leaf - 1) == NEVER);
    }
    if (!is_again && !is_early)
        return 0;
    return report_error(ERR_INVALID, "backwards of a stage go in the order of micro-batches",
                        "%s: %u%c%u %s", s->options->file, a->stage, "FBIW"[a->kind], a -> leaf,
                        is_again ? "comes twice" : "comes before that of the micro-batch in front");
}

static int replay(struct simulation *s, struct pipe_action **lists, const uint32_t *num)
{
    struct pipe *p = s->pipe;
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        for (uint32_t r = 0; r < p->num_ranks; r++) {
            if (p->num_actions[r] == num[r])
                continue;
            const struct pipe_action *a = &lists[r][p->num_actions[r]];
            uint64_t at = ready_at(s, a);
            if (at == NEVER)
                continue;
            ERR_TRY(check_begun(s, a));
            begin_action(s, r, a, at > s->free_at[r] ? at : s->free_at[r]);
            has_moved = true;
        }
    }
    for (uint32_t r = 0; r < p->num_ranks; r++)
        if (p->num_actions[r] < num[r])
            return report_error(ERR_INVALID, "order it so that each action finds what it needs",
                                "%s: the schedule never gets to %u%c%u of line %u",
                                s->options->file, lists[r][p->num_actions[r]].stage,
                                "FBIW"[lists[r][p->num_actions[r]].kind],
                                lists[r][p->num_actions[r]].leaf, r + 1);
    for (uint32_t part = 0; part < 3; part++)
        for (uint32_t i = 0; i < s->stages * s->options->num_leaves; i++)
            if (s->done[part][i] == NEVER)
                return report_error(ERR_INVALID, "name each action once",
                                    "%s: %s of stage %u for micro-batch %u is missing",
                                    s->options->file, part == 0 ? "the forward" : "the backward",
                                    i / s->options->num_leaves, i % s->options->num_leaves);
    note_bubble(s);
    return 0;
}

static int read_lists(struct simulation *s, struct pipe_action **lists, uint32_t *num)
{
    FILE *file = fopen(s->options->file, "r");
    char *line = malloc(LINE_BYTES);
    int rc = 0;
    if (file == NULL)
        rc = report_errno(ERR_INVALID, "could not open the pipeline's schedule", s->options->file);
    else if (line == NULL)
        rc = report_error(ERR_MEMORY, NULL, "no memory for a line");
    for (uint32_t r = 0; r < s->pipe->num_ranks && rc == 0; r++) {
        if (fgets(line, LINE_BYTES, file) == NULL)
            rc = report_error(ERR_INVALID, "write a line per rank of the pipeline",
                              "%s has %u lines, the pipeline %u ranks", s->options->file, r,
                              s->pipe->num_ranks);
        else
            rc = parse_line(s, line, r, lists[r], &num[r]);
    }
    if (file != NULL)
        fclose(file);
    free(line);
    return rc;
}

static int follow_file(struct simulation *s)
{
    uint32_t ranks = s->pipe->num_ranks;
    uint32_t most = 3 * s->options->num_leaves * s->options->chunks;
    struct pipe_action **lists = calloc(ranks, sizeof(*lists));
    uint32_t *num = calloc(ranks, sizeof(*num));
    bool is_short = lists == NULL || num == NULL;
    for (uint32_t r = 0; r < ranks && !is_short; r++) {
        lists[r] = calloc(most, sizeof(**lists));
        is_short = lists[r] == NULL;
    }
    int rc = is_short ? report_error(ERR_MEMORY, NULL, "no memory for a schedule")
                      : read_lists(s, lists, num);
    if (rc == 0)
        rc = replay(s, lists, num);
    for (uint32_t r = 0; r < ranks && lists != NULL; r++)
        free(lists[r]);
    free(lists);
    free(num);
    return rc;
}

/* ---- life ---- */

static bool allocate(struct simulation *s)
{
    const struct pipe_options *o = s->options;
    size_t most = 3 * (size_t)o->num_leaves * o->chunks, all = (size_t)s->stages * o->num_leaves;
    struct pipe *p = s->pipe;
    p->num_actions = calloc(p->num_ranks, sizeof(*p->num_actions));
    p->actions = calloc(p->num_ranks, sizeof(*p->actions));
    s->free_at = calloc(p->num_ranks, sizeof(*s->free_at));
    bool is_whole = p->num_actions != NULL && p->actions != NULL && s->free_at != NULL;
    for (uint32_t r = 0; r < p->num_ranks && is_whole; r++) {
        p->actions[r] = calloc(most, sizeof(**p->actions));
        is_whole = p->actions[r] != NULL;
    }
    for (uint32_t part = 0; part < 3 && is_whole; part++) {
        s->done[part] = malloc(all * sizeof(*s->done[part]));
        s->next[part] = calloc(p->num_ranks, sizeof(*s->next[part]));
        is_whole = s->done[part] != NULL && s->next[part] != NULL;
        for (size_t i = 0; i < all && is_whole; i++)
            s->done[part][i] = NEVER;
    }
    return is_whole;
}

int pipe_new(struct pipe **out, const struct pipe_options *options)
{
    CHECK(options->num_ranks > 0 && options->chunks > 0 && options->num_leaves > 0);
    struct pipe *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a schedule");
    p->num_ranks = options->num_ranks;
    p->chunks = options->chunks;
    p->num_leaves = options->num_leaves;
    struct simulation s = {
        .pipe = p, .options = options, .stages = options->num_ranks * options->chunks};
    int rc = 0;
    if (!allocate(&s))
        rc = report_error(ERR_MEMORY, NULL, "no memory for a schedule");
    else if (options->schedule == PIPE_FILE)
        rc = follow_file(&s);
    else
        simulate(&s);
    free(s.free_at);
    for (uint32_t part = 0; part < 3; part++) {
        free(s.done[part]);
        free(s.next[part]);
    }
    if (rc != 0) {
        pipe_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pipe_free(struct pipe *p)
{
    if (p == NULL)
        return;
    for (uint32_t r = 0; r < p->num_ranks && p->actions != NULL; r++)
        free(p->actions[r]);
    free(p->actions);
    free(p->num_actions);
    free(p);
}
