/* moved.c - the commands of earlier versions. ckpt-cli refuses one with the present command line,
 * built from the user's words. */
#include "clients/cli/commands.h"

#include "proto/base/report.h"

#include <string.h>

static const struct moved {
    const char *old, *now;
    /* The option that its second argument has become; NULL: still an argument. */
    const char *second;
} moved[] = {
    {"reshard", "convert", NULL},
    {"watch", "status --watch", NULL},
    {"history", "server history", NULL},
    {"scrub", "server scrub", NULL},
    {"rescan", "server rescan", NULL},
    {"reload", "server reload", NULL},
    {"attempt", "server attempt", NULL},
    {"from-dcp", "import --format dcp", "--run"},
    {"to-dcp", "export --format dcp", "--output"},
    {"from-safetensors", "import --format safetensors-folder", "--run"},
    {"to-safetensors", "export --format safetensors-folder", "--output"},
};

struct line {
    char text[REPORT_TEXT_MAX];
    size_t length;
};

static void add_char(struct line *line, char c)
{
    if (line->length + 1 < sizeof line->text)
        line->text[line->length++] = c;
}

static void add_text(struct line *line, const char *text)
{
    for (; *text != '\0'; text++)
        add_char(line, *text);
}

/* Appends a word, quoted for a shell. */
static void add_word(struct line *line, const char *word)
{
    static const char special[] = " \t\n\"'\\$`*?[]{}()<>|&;!#~";
    bool is_plain = word[0] != '\0' && strpbrk(word, special) == NULL;
    add_text(line, is_plain ? " " : " '");
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            add_text(line, "'\\''");
        else
            add_char(line, *word);
    }
    add_text(line, is_plain ? "" : "'");
}

int command_check_moved(char **words, int num_words)
{
    struct line line = {"ckpt-cli ", strlen("ckpt-cli ")};
    const struct moved *found = NULL;
    for (size_t i = 0; i < sizeof moved / sizeof *moved && found == NULL; i++)
        found = strcmp(moved[i].old, words[0]) == 0 ? &moved[i] : NULL;
    if (found == NULL)
        return 0;
    add_text(&line, found->now);
    for (int i = 1, num_arguments = 0; i < num_words; i++) {
        bool is_argument = words[i][0] != '-' && command_find_valued(words[i - 1]) < 0;
        num_arguments += is_argument;
        if (is_argument && num_arguments == 2 && found->second != NULL)
            add_word(&line, found->second);
        add_word(&line, words[i]);
    }
    return report_error(ERR_INVALID, line.text, "%s is %s now", found->old, found->now);
}
