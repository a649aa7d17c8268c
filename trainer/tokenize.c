/* tokenize.c - the program `tokenizer`: makes a vocabulary from text, and the tokens that training
 * reads.
 *
 *     tokenizer train  --vocab 4096 --out tokenizer.model book.txt ...
 *     tokenizer tokens --tokenizer tokenizer.model --out data.tokens book.txt ...
 *     tokenizer encode --tokenizer tokenizer.model [text file]
 *     tokenizer decode --tokenizer tokenizer.model [file of numbers]
 *
 * Results go to standard output, everything else to standard error. On a terminal a bar shows the
 * progress. Exit codes are those of report.h. */
#include "proto/base/clock.h"
#include "proto/base/options.h"
#include "proto/base/report.h"
#include "trainer/corpus/corpus.h"
#include "trainer/tokenizer/text.h"
#include "trainer/tokenizer/tokenizer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define BAR_WIDTH 40
#define FIELD_BYTES 256

struct settings {
    int64_t vocab;
    char tokenizer[PATH_BYTES];
    char out[PATH_BYTES];
    char field[FIELD_BYTES], prompt[FIELD_BYTES], answer[FIELD_BYTES];
    int64_t threads;
    double bad_line_share;
    bool special, skip_bad_lines, json, help;
};

static const struct option table[] = {
    OPTION_INT(struct settings, vocab, "vocab", 4096, 258, 1 << 22,
               "train: tokens of the vocabulary, with the two special ones"),
    OPTION_STRING(struct settings, tokenizer, "tokenizer", "",
                  "tokens, encode, decode: tokenizer.model or tokenizer.json, or its folder"),
    OPTION_STRING(struct settings, out, "out", "", "train, tokens: file to write"),
    OPTION_STRING(struct settings, field, "field", "text",
                  "tokens: JSON member with the text; A,B: both, joined by a line break"),
    OPTION_STRING(struct settings, prompt, "prompt_field", "",
                  "tokens: JSON member with a prompt, whose tokens are not trained on"),
    OPTION_STRING(struct settings, answer, "answer_field", "",
                  "tokens: JSON member with the answer to the prompt"),
    OPTION_INT(struct settings, threads, "threads", 0, 0, CORPUS_THREADS_MAX,
               "tokens: threads that encode; 0: one per CPU; does not change the file"),
    OPTION_DOUBLE(
        struct settings, bad_line_share, "bad_line_share", 0.001, 0, 1,
        "tokens: fraction of JSON lines that may be bad, or 10 lines: the tokenizer skips "
        "and names them, and fails if there are more; 0: if there is one"),
    OPTION_BOOL(struct settings, skip_bad_lines, "skip_bad_lines", "false",
                "tokens: skip any number of them, as bad_line_share = 1"),
    OPTION_BOOL(struct settings, special, "special", "false",
                "tokens, encode: special tokens in the text become tokens"),
    OPTION_BOOL(struct settings, json, "json", "false", "tokens: print the result as JSON"),
    OPTION_BOOL(struct settings, help, "help", "false", "print this text"),
    OPTION_END,
};

struct command {
    const char *name, *arguments, *summary, *example;
    int (*run)(const struct settings *settings, int num_files, char **files);
    bool needs_tokenizer, needs_out, needs_files;
};

/* ---- progress on a terminal ---- */

static void draw_bar(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)user;
    double part = total == 0 ? 0 : done >= total ? 1 : (double)done / (double)total;
    int filled = (int)(part * BAR_WIDTH);
    fprintf(stderr, "\r\033[K%-9s [", what);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %3d%%", (int)(part * 100));
}

static const struct tokenizer_progress bar = {draw_bar, NULL};

static const struct tokenizer_progress *terminal_bar(void)
{
    return isatty(STDERR_FILENO) ? &bar : NULL;
}

static void clear_bar(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* ---- commands ---- */

static int run_train(const struct settings *settings, int num_files, char **files)
{
    double start = clock_seconds();
    int result = tokenizer_train(settings->out, (uint32_t)settings->vocab,
                                 (const char *const *)files, (uint32_t)num_files, terminal_bar());
    clear_bar();
    ERR_TRY(result);
    printf("%s: %lld tokens, trained in %.1f s\n", settings->out, (long long)settings->vocab,
           clock_seconds() - start);
    return 0;
}

static void print_result(const struct settings *settings, const struct corpus_result *result,
                         double seconds)
{
    const struct tokens_header *header = &result->header;
    unsigned long long tokens = header->num_tokens, documents = header->num_documents,
                       trained = header->num_trained, files = result->num_files,
                       skipped = result->lines.bad;
    if (settings->json) {
        printf("{\"tokens\": %llu, \"trained_tokens\": %llu, \"documents\": %llu, "
               "\"files\": %llu, \"left_out_files\": %llu, \"text_bytes\": %llu, "
               "\"skipped_lines\": %llu, \"mended_lines\": %llu, "
               "\"vocabulary\": %u, \"hash\": \"%016llx\", \"seconds\": %.3f}\n",
               tokens, trained, documents, files, (unsigned long long)result->left_out.count,
               (unsigned long long)result->text_bytes, skipped,
               (unsigned long long)result->lines.mended, header->vocab,
               (unsigned long long)header->hash, seconds);
        return;
    }
    printf("%s: %llu tokens of a vocabulary of %u, %llu documents of %llu files, written in %.1f s",
           settings->out, tokens, header->vocab, documents, files, seconds);
    if (trained < tokens)
        printf("; %llu tokens are trained on", trained);
    if (skipped > 0)
        printf("; %llu lines were skipped", skipped);
    printf("\n");
}

static int run_tokens(const struct settings *settings, int num_files, char **files)
{
    struct tokenizer *tokenizer;
    struct corpus_result made;
    double start = clock_seconds();
    ERR_TRY(tokenizer_open(&tokenizer, settings->tokenizer));
    struct corpus_options options = {
        .tokenizer = tokenizer,
        .paths = (const char *const *)files,
        .num_paths = (uint32_t)num_files,
        .threads = (uint32_t)settings->threads,
        .fields = {settings->field, settings->prompt, settings->answer},
        .finds_special = settings->special,
        .bad_line_share = settings->skip_bad_lines ? 1 : settings->bad_line_share,
        .progress = terminal_bar()};
    int result = corpus_write(settings->out, &options, &made);
    clear_bar();
    if (result == 0) {
        corpus_log_left_out(&made.left_out);
        corpus_log_lines(&made.lines);
        print_result(settings, &made, clock_seconds() - start);
    }
    tokenizer_close(tokenizer);
    return result;
}

static int print_tokens(const struct tokenizer *tokenizer, const struct text *text, uint32_t flags)
{
    struct encoder *encoder;
    const int32_t *tokens;
    size_t count;
    ERR_TRY(encoder_open(&encoder, tokenizer));
    int result = encoder_run(encoder, text->data, text->bytes, flags, &tokens, &count);
    for (size_t i = 0; result == 0 && i < count; i++)
        printf("%s%d", i > 0 ? " " : "", tokens[i]);
    printf("\n");
    encoder_close(encoder);
    return result;
}

static int run_encode(const struct settings *settings, int num_files, char **files)
{
    struct tokenizer *tokenizer;
    struct text text;
    ERR_TRY(tokenizer_open(&tokenizer, settings->tokenizer));
    int result = text_open(&text, num_files > 0 ? files[0] : "-");
    if (result == 0) {
        result = print_tokens(tokenizer, &text, settings->special ? ENCODE_SPECIAL : 0);
        text_close(&text);
    }
    tokenizer_close(tokenizer);
    return result;
}

/* Reads one decimal number; *at moves after it. Returns false at the end, or if there is no
 * number. */
static bool read_number(int32_t *out, const struct text *text, size_t *at)
{
    int64_t value = 0;
    while (*at < text->bytes && isspace((unsigned char)text->data[*at]))
        (*at)++;
    size_t first = *at;
    for (; *at < text->bytes && isdigit((unsigned char)text->data[*at]); (*at)++)
        value = value > INT32_MAX ? value : value * 10 + (text->data[*at] - '0');
    *out = value > INT32_MAX ? INT32_MAX : (int32_t)value;
    return *at > first;
}

static int read_numbers(int32_t *out, size_t *out_count, const struct text *text)
{
    size_t at = 0;
    *out_count = 0;
    while (read_number(&out[*out_count], text, &at))
        (*out_count)++;
    if (at < text->bytes)
        return report_error(ERR_INVALID, "give decimal token numbers between spaces",
                            "byte %zu of the input is not part of a number", at);
    return 0;
}

static int decode_text(const struct tokenizer *tokenizer, const struct text *text)
{
    char *bytes = NULL;
    size_t count = 0, num_bytes = 0;
    /* A number takes a digit and a space. */
    int32_t *tokens = malloc((text->bytes / 2 + 2) * sizeof *tokens);
    int result = tokens == NULL ? report_error(ERR_MEMORY, NULL, "no memory for the numbers")
                                : read_numbers(tokens, &count, text);
    if (result == 0)
        result = tokenizer_decode(tokenizer, tokens, count, &bytes, &num_bytes);
    if (result == 0)
        fwrite(bytes, 1, num_bytes, stdout);
    free(bytes);
    free(tokens);
    return result;
}

static int run_decode(const struct settings *settings, int num_files, char **files)
{
    struct tokenizer *tokenizer;
    struct text text;
    ERR_TRY(tokenizer_open(&tokenizer, settings->tokenizer));
    int result = text_open(&text, num_files > 0 ? files[0] : "-");
    if (result == 0) {
        result = decode_text(tokenizer, &text);
        text_close(&text);
    }
    tokenizer_close(tokenizer);
    return result;
}

/* ---- main ---- */

static const struct command commands[] = {
    {"train", "--vocab N --out FILE TEXT...", "learn a vocabulary from text files",
     "tokenizer train --vocab 4096 --out tokenizer.model book.txt", run_train, false, true, true},
    {"tokens", "--tokenizer FILE --out FILE INPUT...",
     "write the tokens file for training from text, JSON lines (.jsonl, .ndjson), other JSON "
     "(.json), also compressed (.gz, .zst), and folders of them",
     "tokenizer tokens --tokenizer tokenizer.model --out data.tokens book.txt c4/", run_tokens,
     true, true, true},
    {"encode", "--tokenizer FILE [TEXT]",
     "print the tokens of a text file (none, or -: standard input)",
     "echo hello | tokenizer encode --tokenizer tokenizer.model", run_encode, true, false, false},
    {"decode", "--tokenizer FILE [NUMBERS]", "print the text of a file of token numbers (likewise)",
     "echo 104 105 | tokenizer decode --tokenizer tokenizer.model", run_decode, true, false, false},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static void print_help(FILE *out, const struct command *only)
{
    if (only != NULL) {
        fprintf(out, "usage: tokenizer %s %s\n%s\nexample: %s\n\n", only->name, only->arguments,
                only->summary, only->example);
    } else {
        fprintf(out, "usage: tokenizer COMMAND [OPTION...] [FILE...]\n\n");
        for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
            fprintf(out, "  %-7s %-38s %s\n", commands[i].name, commands[i].arguments,
                    commands[i].summary);
        fprintf(out, "\n");
    }
    options_print_help(&(struct options){.table = table}, out);
}

static int check_arguments(const struct command *command, const struct settings *settings,
                           int num_files)
{
    const char *hint = command->example;
    if (command->needs_tokenizer && settings->tokenizer[0] == '\0')
        return report_error(ERR_INVALID, hint, "%s needs --tokenizer FILE", command->name);
    if (command->needs_out && settings->out[0] == '\0')
        return report_error(ERR_INVALID, hint, "%s needs --out FILE", command->name);
    if (command->needs_files && num_files == 0)
        return report_error(ERR_INVALID, hint, "%s needs at least one file", command->name);
    if (!command->needs_files && num_files > 1)
        return report_error(ERR_INVALID, hint, "%s takes one file", command->name);
    return 0;
}

static int run(int argc, char **argv)
{
    struct settings settings;
    struct options options = {.table = table, .config = &settings};
    ERR_TRY(options_defaults(&options));
    ERR_TRY(options_read_args(&options, &argc, argv, NULL));
    const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
    if (settings.help) {
        print_help(stdout, command);
        return 0;
    }
    if (command == NULL)
        return report_error(ERR_INVALID, "commands: train, tokens, encode, decode; see --help",
                            argc > 1 ? "unknown command %s" : "no command was given%s",
                            argc > 1 ? argv[1] : "");
    ERR_TRY(check_arguments(command, &settings, argc - 2));
    if (command->needs_tokenizer) {
        char named[PATH_BYTES];
        memcpy(named, settings.tokenizer, sizeof named);
        ERR_TRY(tokenizer_find(settings.tokenizer, sizeof settings.tokenizer, named));
    }
    ERR_TRY(command->run(&settings, argc - 2, argv + 2));
    if (fflush(stdout) != 0)
        return report_errno(ERR_IO, "could not write the result", "standard output");
    return 0;
}

int main(int argc, char **argv)
{
    if (report_print_version("tokenizer", argc, argv))
        return EXIT_DONE;
    log_setup("tokenizer", NULL);
    int result = run(argc, argv);
    if (result == 0)
        return EXIT_DONE;
    fprintf(stderr, "tokenizer: %s\n", report_line());
    return err_retry(result) ? EXIT_RUN_AGAIN : EXIT_DO_NOT_RETRY;
}
