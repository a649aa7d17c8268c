/* settings.c - settings of buckets from the environment: AWS's variables, and one for each option
 * of STORAGE_BUCKET_OPTIONS: "HOLDFAST_S3_" and its name in capitals. */
#include "proto/base/options.h"
#include "storage/bucket/bucket.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE_PREFIX "HOLDFAST_S3_"
#define VARIABLE_BYTES 64u

/* clang-format off */
static const struct option table[] = {
    STORAGE_BUCKET_OPTIONS(struct storage_bucket, , ""),
    OPTION_END,
};
/* clang-format on */

/* AWS's variables, of which the first that is set counts; used if ours is not set. */
static const struct {
    const char *variable;
    size_t offset, size;
} aws[] = {
#define FIELD(name) offsetof(struct storage_bucket, name), sizeof((struct storage_bucket *)0)->name
    {"AWS_ENDPOINT_URL_S3", FIELD(endpoint)},
    {"AWS_ENDPOINT_URL", FIELD(endpoint)},
    {"AWS_REGION", FIELD(region)},
    {"AWS_DEFAULT_REGION", FIELD(region)},
    {"AWS_CA_BUNDLE", FIELD(authorities)},
    {"AWS_PROFILE", FIELD(profile)},
    {"AWS_SHARED_CREDENTIALS_FILE", FIELD(credentials_file)},
    {"AWS_ROLE_ARN", FIELD(role)},
    {"AWS_WEB_IDENTITY_TOKEN_FILE", FIELD(token_file)},
    {"AWS_ENDPOINT_URL_STS", FIELD(sts_endpoint)},
    {"AWS_EC2_METADATA_SERVICE_ENDPOINT", FIELD(instance_endpoint)},
#undef FIELD
};

static void name_variable(char out[VARIABLE_BYTES], const struct option *option)
{
    size_t at = (size_t)snprintf(out, VARIABLE_BYTES, VARIABLE_PREFIX "%s", option->key);
    CHECK(at < VARIABLE_BYTES);
    for (char *c = out; *c != '\0'; c++)
        *c = (char)toupper((unsigned char)*c);
}

/* Fills the texts that are still empty. */
static void fill_from_aws(struct storage_bucket *settings)
{
    for (size_t i = 0; i < sizeof aws / sizeof aws[0]; i++) {
        char *field = (char *)settings + aws[i].offset;
        const char *value = getenv(aws[i].variable);
        if (field[0] == '\0' && value != NULL && strlen(value) < aws[i].size)
            strcpy(field, value);
    }
}

int storage_bucket_environment(struct storage_bucket *out)
{
    struct options options = {.table = table, .config = out};
    char variable[VARIABLE_BYTES];
    memset(out, 0, sizeof *out);
    int error = options_defaults(&options);
    for (const struct option *option = table; option->key != NULL && error == 0; option++) {
        name_variable(variable, option);
        const char *value = getenv(variable);
        if (value != NULL && value[0] != '\0')
            error = options_set(&options, option->key, value, variable);
    }
    if (error == 0)
        fill_from_aws(out);
    return error;
}

/* A program's own settings leave texts empty that the user did not give. */
void settings_complete(struct storage_bucket *settings)
{
    for (const struct option *option = table; option->key != NULL; option++) {
        char variable[VARIABLE_BYTES], *field = (char *)settings + option->offset;
        name_variable(variable, option);
        const char *value = getenv(variable);
        if (option->type == OPTION_TYPE_STRING && field[0] == '\0' && value != NULL &&
            strlen(value) < option->size)
            strcpy(field, value);
    }
    fill_from_aws(settings);
}

void storage_bucket_print_help(FILE *out)
{
    char variable[VARIABLE_BYTES];
    for (const struct option *option = table; option->key != NULL; option++) {
        if (option->type == OPTION_TYPE_GONE)
            continue;
        name_variable(variable, option);
        fprintf(out, "  %-30s %s%s%s%s\n", variable, option->help,
                option->text_default[0] ? " (" : "", option->text_default,
                option->text_default[0] ? ")" : "");
    }
    fprintf(out, "  If one of these is not set, AWS's variable applies:\n");
    for (size_t i = 0; i < sizeof aws / sizeof aws[0]; i++)
        fprintf(out, "  %s\n", aws[i].variable);
}
