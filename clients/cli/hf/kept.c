/* kept.c - the files of an imported folder, beside weights and config.json, that a run keeps (see
 * hf.h): its tokenizer, and its generation settings.
 *
 * Each file is a bytes object of every checkpoint of the run. So it is copied and verified with a
 * checkpoint, and outlives the imported one. A token needs some 130 bytes there, of tokenizer.json,
 * and at least 12 bytes for each column of the embedding. */
#include "clients/cli/engine/cli.h"
#include "clients/cli/hf/files.h"
#include "clients/cli/hf/hf.h"
#include "proto/base/json.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[HF_KEPT_FILES] = {
    "generation_config.json",  "chat_template.jinja", HF_TOKENIZER_CONFIG,
    "special_tokens_map.json", "added_tokens.json",   HF_TOKENIZER,
    HF_SENTENCEPIECE,          "vocab.json",          "merges.txt",
    HF_TOKENIZER_FILE,
};

const char *hf_kept_name(uint32_t index)
{
    return names[index];
}

bool hf_kept_is_tokenizer(const char *name)
{
    return strcmp(name, HF_TOKENIZER) == 0 || strcmp(name, HF_SENTENCEPIECE) == 0 ||
           strcmp(name, "vocab.json") == 0 || strcmp(name, HF_TOKENIZER_FILE) == 0;
}

/* Reads a file in the memory form of its object. ERR_NOT_FOUND. */
static int read_object(struct ckpt_object *object, const struct hf_folder *folder)
{
    struct hf_file file;
    char *text = NULL;
    int error = hf_file_open(&file, folder, object->name + strlen(LAYOUT_HF_OBJECT));
    if (error != 0)
        return error;
    if (file.bytes > HF_KEPT_BYTES_MAX)
        error = report_error(ERR_INVALID, "move it out of the folder to import the weights alone",
                             "%s has more than %u MiB", file.name, HF_KEPT_BYTES_MAX >> 20);
    object->room = LAYOUT_OBJECT_LENGTH_BYTES + file.bytes;
    if (error == 0) {
        text = malloc(file.bytes + 1);
        object->memory = malloc(object->room);
    }
    if (error == 0 && (text == NULL || object->memory == NULL))
        error = report_error(ERR_MEMORY, NULL, "no memory for %s", file.name);
    if (error == 0)
        error = hf_file_read(&file, text, 0, (uint32_t)file.bytes);
    if (error == 0)
        error = ckpt_object_set(object, text, file.bytes);
    free(text);
    hf_file_close(&file);
    return error;
}

int hf_kept_read(struct ckpt_object out[HF_KEPT_FILES], const struct hf_folder *folder)
{
    int error = 0;
    for (uint32_t i = 0; i < HF_KEPT_FILES && error == 0; i++) {
        out[i].size = sizeof out[i];
        snprintf(out[i].stored, sizeof out[i].stored, LAYOUT_OBJECT_PREFIX LAYOUT_HF_OBJECT "%s",
                 names[i]);
        out[i].name = out[i].stored + strlen(LAYOUT_OBJECT_PREFIX);
        error = read_object(&out[i], folder);
        if (error == ERR_NOT_FOUND) {
            report_clear();
            error = 0;
        }
    }
    return error;
}

void hf_kept_free(struct ckpt_object kept[HF_KEPT_FILES])
{
    for (uint32_t i = 0; i < HF_KEPT_FILES; i++)
        free(kept[i].memory);
}
