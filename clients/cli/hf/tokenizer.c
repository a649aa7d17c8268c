/* tokenizer.c - converts a tokenizer's file for Hugging Face's loaders (see hf.h).
 *
 * tokenizer.json is the whole tokenizer: split the text into pieces, write each byte of a piece as
 * one printable character, join neighbours in the order of `merges`. tiktoken's file has no merges:
 * it joins any neighbours whose bytes together are a token, the lowest rank first. So the merges
 * are all cuts of every token into two tokens, in the order of the ranks. A piece that is a token
 * as a whole becomes that token at once ("ignore_merges").
 *
 * If two cuts of one token compete for the same bytes, tiktoken takes the leftmost. Here the first
 * of the list counts: the cut with the lowest rank on its left. No list can express tiktoken's
 * order exactly. */
#include "clients/cli/engine/cli.h"
#include "clients/cli/hf/hf.h"
#include "proto/base/json.h"
#include "proto/base/memfile.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TOKEN_BYTES_MAX 4096u /* limits the time for the cuts of a hostile token */

/* ---- the file ---- */

/* The name by which loaders read a file unchanged; NULL: tiktoken's. */
static const char *name_of(const char *text, size_t bytes)
{
    static const char *const names[] = {[VOCAB_FILE_RANKS] = NULL,
                                        [VOCAB_FILE_JSON] = HF_TOKENIZER,
                                        [VOCAB_FILE_SENTENCEPIECE] = HF_SENTENCEPIECE};
    return names[vocab_file_of(text, bytes)];
}

static int read_ranks(struct hf_tokenizer *out, const char *path)
{
    int error = vocab_parse(&out->vocab, path, out->text, out->bytes);
    if (error == 0)
        out->num_special = vocab_num_special(&out->vocab);
    if (error == 0 && out->vocab.longest > TOKEN_BYTES_MAX)
        error = report_error(ERR_INVALID, NULL, "%s has a token of %zu bytes, over %u", path,
                             out->vocab.longest, TOKEN_BYTES_MAX);
    return error;
}

int hf_tokenizer_open(struct hf_tokenizer *out, const char *path, const char *sha256)
{
    char have[CHECKSUM_SHA256_HEX];
    struct stat status;
    int error = 0;
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "rbe");
    if (file == NULL || fstat(fileno(file), &status) != 0)
        error = report_errno(ERR_IO, "could not read the tokenizer", path);
    else if (!S_ISREG(status.st_mode) || status.st_size > VOCAB_FILE_BYTES_MAX)
        error = report_error(ERR_INVALID, NULL, "%s is not a file of at most %u MiB", path,
                             VOCAB_FILE_BYTES_MAX >> 20);
    else if ((out->text = malloc((size_t)status.st_size + 1)) == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory for the tokenizer");
    if (error == 0) {
        out->bytes = fread(out->text, 1, (size_t)status.st_size, file);
        if (ferror(file))
            error = report_errno(ERR_IO, "could not read the tokenizer", path);
    }
    if (error == 0)
        error = checksum_sha256_hex(have, out->text, out->bytes);
    if (error == 0 && sha256 != NULL && strcmp(sha256, have) != 0)
        error = report_error(ERR_MISMATCH, "name the tokenizer that the run was trained with",
                             "%s is not the tokenizer that the checkpoint names", path);
    if (error == 0)
        out->name = name_of(out->text, out->bytes);
    if (error == 0 && out->name == NULL)
        error = read_ranks(out, path);
    if (file != NULL)
        fclose(file);
    if (error != 0)
        hf_tokenizer_close(out);
    return error;
}

void hf_tokenizer_close(struct hf_tokenizer *tokenizer)
{
    vocab_deinit(&tokenizer->vocab);
    free(tokenizer->text);
    tokenizer->text = NULL;
}

/* ---- tokenizer.json ---- */

struct printer {
    FILE *out;
    const struct vocab *vocab;
    uint16_t characters[256]; /* of every byte */
};

/* GPT-2's alphabet: printable characters of Latin-1 stand for themselves, the other bytes in turn
 * for the characters from U+0100 on. */
static void make_alphabet(uint16_t out[256])
{
    uint16_t next = 256;
    for (uint16_t byte = 0; byte < 256; byte++) {
        bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        out[byte] = is_printable ? byte : next++;
    }
}

static void print_token(const struct printer *printer, uint32_t rank)
{
    const struct vocab *vocab = printer->vocab;
    for (size_t i = vocab->start[rank]; i < vocab->start[rank + 1]; i++) {
        uint16_t character = printer->characters[vocab->bytes[i]];
        if (character == '"' || character == '\\')
            fputc('\\', printer->out);
        if (character < 0x80) {
            fputc(character, printer->out);
        } else {
            fputc(0xc0 | character >> 6, printer->out);
            fputc(0x80 | (character & 0x3f), printer->out);
        }
    }
}

static void print_vocab(const struct printer *printer)
{
    fputs("{", printer->out);
    for (uint32_t rank = 0; rank < printer->vocab->num_tokens; rank++) {
        fputs(rank > 0 ? ",\n\"" : "\n\"", printer->out);
        print_token(printer, rank);
        fprintf(printer->out, "\": %u", rank);
    }
    fputs("}", printer->out);
}

struct cut {
    uint32_t left, right; /* ranks */
};

static int compare_cuts(const void *left, const void *right)
{
    const struct cut *a = left, *b = right;
    if (a->left != b->left)
        return a->left < b->left ? -1 : 1;
    return (a->right > b->right) - (a->right < b->right);
}

static uint32_t find_cuts(struct cut out[TOKEN_BYTES_MAX], const struct vocab *vocab, uint32_t rank)
{
    const unsigned char *bytes = vocab->bytes + vocab->start[rank];
    size_t length = vocab->start[rank + 1] - vocab->start[rank];
    uint32_t count = 0;
    for (size_t at = 1; at < length; at++) {
        uint32_t left = vocab_find(vocab, bytes, at);
        uint32_t right = left != VOCAB_NONE ? vocab_find(vocab, bytes + at, length - at) : left;
        if (right != VOCAB_NONE)
            out[count++] = (struct cut){left, right};
    }
    qsort(out, count, sizeof *out, compare_cuts);
    return count;
}

static void print_merges(const struct printer *printer)
{
    struct cut cuts[TOKEN_BYTES_MAX];
    bool is_first = true;
    fputs("[", printer->out);
    for (uint32_t rank = 0; rank < printer->vocab->num_tokens; rank++) {
        uint32_t count = find_cuts(cuts, printer->vocab, rank);
        for (uint32_t i = 0; i < count; i++) {
            fputs(is_first ? "\n\"" : ",\n\"", printer->out);
            print_token(printer, cuts[i].left);
            fputc(' ', printer->out);
            print_token(printer, cuts[i].right);
            fputc('"', printer->out);
            is_first = false;
        }
    }
    fputs("]", printer->out);
}

static void print_special(FILE *out, const struct hf_tokenizer *tokenizer)
{
    for (uint32_t i = 0; i < tokenizer->num_special; i++) {
        char name[VOCAB_SPECIAL_BYTES];
        vocab_special_name(name, &tokenizer->vocab, i);
        fprintf(out,
                "%s{\"id\": %u, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                i > 0 ? ",\n" : "", tokenizer->vocab.num_tokens + i, name);
    }
}

/* A text begins with the token that begins a document for our trainer, as with Llama 3. */
static void print_frame(FILE *out, const struct hf_tokenizer *tokenizer)
{
    uint32_t begin = tokenizer->vocab.num_tokens;
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                     "\"trim_offsets\": false, \"use_regex\": false}";
    static const char first[] =
        "{\"SpecialToken\": {\"id\": \"" VOCAB_BEGIN "\", \"type_id\": %d}}, "
        "{\"Sequence\": {\"id\": \"%s\", \"type_id\": %d}}";
    fputs("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": [\n",
          out);
    print_special(out, tokenizer);
    fputs("],\n\"normalizer\": null,\n\"pre_tokenizer\": {\"type\": \"Sequence\", "
          "\"pretokenizers\": [\n{\"type\": \"Split\", \"pattern\": {\"Regex\": ",
          out);
    text_json(out, VOCAB_PIECES);
    fprintf(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n%s]},\n", byte_level);
    fprintf(out,
            "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [\n%s,\n"
            "{\"type\": \"TemplateProcessing\", \"single\": [",
            byte_level);
    fprintf(out, first, 0, "A", 0);
    fputs("],\n\"pair\": [", out);
    fprintf(out, first, 0, "A", 0);
    fputs(", ", out);
    fprintf(out, first, 1, "B", 1);
    fprintf(out,
            "],\n\"special_tokens\": {\"" VOCAB_BEGIN "\": {\"id\": \"" VOCAB_BEGIN
            "\", \"ids\": [%u], \"tokens\": [\"" VOCAB_BEGIN "\"]}}}]},\n\"decoder\": %s,\n",
            begin, byte_level);
}

int hf_tokenizer_json(char **out, size_t *out_bytes, const struct hf_tokenizer *tokenizer)
{
    struct printer printer = {.vocab = &tokenizer->vocab};
    printer.out = memfile_open(out, out_bytes);
    if (printer.out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", HF_TOKENIZER);
    make_alphabet(printer.characters);
    print_frame(printer.out, tokenizer);
    fputs("\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
          "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
          "\"byte_fallback\": false, \"ignore_merges\": true,\n\"vocab\": ",
          printer.out);
    print_vocab(&printer);
    fputs(",\n\"merges\": ", printer.out);
    print_merges(&printer);
    fputs("}}\n", printer.out);
    if (memfile_close(printer.out))
        return 0;
    free(*out);
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory for %s", HF_TOKENIZER);
}

/* ---- is a folder's tokenizer the named one? ---- */

static bool find_member(struct json_member *inout, const char *name)
{
    struct json_member object = *inout;
    size_t at = json_first_member(object.value, object.value_bytes);
    while (json_next_member(inout, object.value, &at, object.value_bytes))
        if (json_member_is(inout, name))
            return true;
    return false;
}

/* For a folder made from tiktoken's file: has its tokenizer.json the same tokens? */
static int compare_vocab(bool *out_is, const struct hf_tokenizer *tokenizer, const char *text,
                         size_t bytes)
{
    struct printer printer = {.vocab = &tokenizer->vocab};
    struct json_member vocab = {.value = text, .value_bytes = bytes};
    json_t *ours = NULL, *theirs = NULL;
    json_error_t reason;
    char *own = NULL;
    size_t own_bytes = 0;
    if (!find_member(&vocab, "model") || !find_member(&vocab, "vocab") ||
        json_count(vocab.value, vocab.value_bytes).commas + 1 != tokenizer->vocab.num_tokens)
        return 0;
    printer.out = memfile_open(&own, &own_bytes);
    make_alphabet(printer.characters);
    if (printer.out != NULL)
        print_vocab(&printer);
    int error = printer.out != NULL && memfile_close(printer.out)
                    ? json_read(&ours, own, own_bytes, &reason)
                    : ERR_MEMORY;
    if (error == 0 && json_read(&theirs, vocab.value, vocab.value_bytes, &reason) == ERR_MEMORY)
        error = ERR_MEMORY;
    *out_is = error == 0 && json_equal(ours, theirs);
    json_decref(ours);
    json_decref(theirs);
    free(own);
    return error == 0 ? 0 : report_error(ERR_MEMORY, NULL, "no memory for %s", HF_TOKENIZER);
}

int hf_tokenizer_compare(bool *out_is, const struct hf_tokenizer *tokenizer, const char *name,
                         const void *data, size_t bytes)
{
    const char *same_name = tokenizer->name != NULL ? tokenizer->name : HF_TOKENIZER_FILE;
    *out_is = false;
    if (tokenizer->name == NULL && strcmp(name, HF_TOKENIZER) == 0)
        return compare_vocab(out_is, tokenizer, data, bytes);
    *out_is = strcmp(name, same_name) == 0 && bytes == tokenizer->bytes &&
              memcmp(data, tokenizer->text, bytes) == 0;
    return 0;
}

/* ---- tokenizer_config.json ---- */

static json_t *special_token(const char *content)
{
    return json_pack("{ss sb sb sb sb sb}", "content", content, "lstrip", 0, "normalized", 0,
                     "rstrip", 0, "single_word", 0, "special", 1);
}

static json_t *special_tokens(const struct hf_tokenizer *tokenizer)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < tokenizer->num_special; i++) {
        char number[16], name[VOCAB_SPECIAL_BYTES];
        snprintf(number, sizeof number, "%u", tokenizer->vocab.num_tokens + i);
        vocab_special_name(name, &tokenizer->vocab, i);
        json_object_set_new(all, number, special_token(name));
    }
    return all;
}

/* Versions 4 and 5 of transformers both use this class with any tokenizer.json; Llama's own class
 * replaces it by that of Llama 2. */
int hf_tokenizer_config(json_t **out, const struct hf_tokenizer *tokenizer)
{
    json_begin();
    json_t *config = json_pack(
        "{ss ss ss sb s[ss] so}", "tokenizer_class", "PreTrainedTokenizerFast", "bos_token",
        VOCAB_BEGIN, "eos_token", VOCAB_END, "clean_up_tokenization_spaces", 0, "model_input_names",
        "input_ids", "attention_mask", "added_tokens_decoder", special_tokens(tokenizer));
    return hf_hand_out(out, config, json_end());
}
