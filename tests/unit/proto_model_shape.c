/* proto_model_shape.c - the shape of a Llama.
 *
 * Goal: named flavors have the published numbers of parameters, and the table of tensors has them
 * too. A shape survives config.json and the identity. A difference is named with both values;
 * models that are no supported Llama are refused. Method: published counts; texts as transformers
 * writes them, broken in one member at a time; frequencies against values that transformers
 * computed. */
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/model/model_shape.h"
#include "tests/unit/suite.h"
#include "trainer/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LLAMA31                                                                              \
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":32,"               \
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":14336,"      \
    "\"vocab_size\":128256,\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"rope_scaling\":" \
    "{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                      \
    "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"                   \
    "\"max_position_embeddings\":131072,\"tie_word_embeddings\":false}"

static int read_config(struct model_shape *out, const char *text)
{
    json_t *config = json_loads(text, 0, NULL);
    assert_non_null(config);
    int error = model_shape_of_config(out, config);
    json_decref(config);
    return error;
}

static uint64_t table_parameters(const struct model_shape *shape)
{
    struct model_table *table;
    uint64_t sum = 0;
    assert_int_equal(model_table_new(&table, shape), 0);
    for (uint32_t i = 0; i < table->num_tensors; i++)
        sum += table->tensors[i].rows * table->tensors[i].width;
    model_table_free(table);
    return sum;
}

TEST(test_model_shape__flavors_have_the_published_numbers_of_parameters)
{
    static const struct {
        const char *flavor;
        uint64_t count;
    } published[] = {
        {"llama2-7B", 6738415616},     {"llama2-13B", 13015864320}, {"llama2-70B", 68976648192},
        {"llama3-8B", 8030261248},     {"llama3-70B", 70553706496}, {"llama3.1-8B", 8030261248},
        {"llama3.1-70B", 70553706496}, {"llama3.2-1B", 1235814400}, {"llama3.1-405B", 405853388800},
        {"llama3.2-3B", 3212749824},   {"8B", 8030261248},          {"tinyllama-1.1B", 1100048384},
        {"70B", 70553706496},          {"405B", 405853388800},      {"110M", 110512896},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct model_shape shape;
        assert_int_equal(model_shape_of_flavor(&shape, published[i].flavor, 0), 0);
        assert_int_equal(model_shape_parameters(&shape), published[i].count);
        assert_int_equal(table_parameters(&shape), published[i].count);
    }
}

TEST(test_model_shape__only_flavors_without_a_release_take_the_tokens_vocabulary)
{
    struct model_shape shape;
    assert_int_equal(model_shape_of_flavor(&shape, "8B", 4096), 0);
    assert_int_equal(shape.vocab, 4096);
    assert_int_equal(model_shape_of_flavor(&shape, "llama3-8B", 4096), 0);
    assert_int_equal(shape.vocab, 128256);
    assert_int_equal(model_shape_of_flavor(&shape, "9B", 0), ERR_INVALID);
    assert_non_null(strstr(report_hint(), "llama3.2-1B"));
}

TEST(test_model_shape__a_published_config_is_its_flavor)
{
    struct model_shape shape, flavor;
    struct model_difference difference;
    assert_int_equal(read_config(&shape, LLAMA31), 0);
    assert_int_equal(model_shape_of_flavor(&flavor, "llama3.1-8B", 0), 0);
    assert_false(model_shape_differs(&difference, &shape, &flavor));
    assert_int_equal(shape.positions, flavor.positions);
    assert_int_equal(model_shape_of_flavor(&flavor, "llama3-8B", 0), 0);
    assert_true(model_shape_differs(&difference, &shape, &flavor));
    assert_string_equal(difference.field, "rope_scaling");
    assert_string_equal(difference.ours, "llama3");
    assert_string_equal(difference.theirs, "default");
}

/* Transformers 5 has the parts of the rotary embedding in one object. */
TEST(test_model_shape__the_first_llama_and_the_newest_form_are_read)
{
    struct model_shape shape;
    assert_int_equal(read_config(&shape, "{\"model_type\":\"llama\",\"hidden_size\":96,"
                                         "\"num_hidden_layers\":2,\"num_attention_heads\":6,"
                                         "\"intermediate_size\":256,\"vocab_size\":320,"
                                         "\"head_dim\":null,\"tie_word_embeddings\":true,"
                                         "\"rope_parameters\":{\"rope_theta\":20000.0,"
                                         "\"rope_type\":\"linear\",\"factor\":2.5}}"),
                     0);
    assert_int_equal(shape.kv_heads, 6);
    assert_int_equal(shape.head_dim, 16);
    assert_true(shape.norm_eps == 1e-6 && shape.rope_theta == 20000.0 && shape.is_tied);
    assert_true(shape.rope == MODEL_ROPE_LINEAR && shape.rope_factor == 2.5);
}

/* The result of transformers 5.24.0 for both spellings in one file. */
TEST(test_model_shape__parts_of_the_rotary_embedding_are_found_where_they_are)
{
#define SIZES                                                               \
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"intermediate_size\":256,\"vocab_size\":320,\"rope_theta\":5e5,"
    struct model_shape shape;
    assert_int_equal(read_config(&shape, SIZES "\"rope_parameters\":{\"rope_type\":\"default\"}}"),
                     0);
    assert_true(shape.rope_theta == 5e5 && shape.rope == MODEL_ROPE_PLAIN);
    assert_int_equal(read_config(&shape,
                                 SIZES "\"rope_scaling\":{\"type\":\"linear\",\"factor\":3.0},"
                                       "\"rope_parameters\":{\"rope_theta\":7.0}}"),
                     0);
    assert_true(shape.rope_theta == 5e5 && shape.rope_factor == 3.0);
    assert_int_equal(read_config(&shape, SIZES
                                 "\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":7.0,"
                                 "\"partial_rotary_factor\":0.5}}"),
                     ERR_INVALID);
#undef SIZES
}

TEST(test_model_shape__an_identity_brings_the_shape_back)
{
    static const char *const flavors[] = {"tiny", "llama3.1-8B", "llama3.2-1B", "llama2-7B"};
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++) {
        struct model_shape shape, back;
        struct model_difference difference;
        assert_int_equal(model_shape_of_flavor(&shape, flavors[i], 0), 0);
        json_t *identity = model_shape_identity(&shape);
        assert_int_equal(model_shape_of_identity(&back, identity), 0);
        json_decref(identity);
        assert_false(model_shape_differs(&difference, &shape, &back));
    }
}

/* Earlier versions compare a checkpoint's members one by one. */
TEST(test_model_shape__an_untied_plain_model_has_the_identity_of_earlier_versions)
{
    struct model_shape shape;
    assert_int_equal(model_shape_of_flavor(&shape, "tiny", 0), 0);
    json_t *identity = model_shape_identity(&shape);
    char *text = json_dumps(identity, JSON_COMPACT | JSON_REAL_PRECISION(9));
    assert_string_equal(text, "{\"dim\":64,\"layers\":2,\"heads\":4,\"kv_heads\":2,\"head_dim\":16,"
                              "\"hidden\":192,\"vocab\":256,\"rope_theta\":500000.0,"
                              "\"norm_eps\":1e-5}");
    free(text);
    json_decref(identity);
}

TEST(test_model_shape__the_first_field_that_differs_is_named_with_both_values)
{
    struct model_shape ours, theirs;
    struct model_difference difference;
    assert_int_equal(model_shape_of_flavor(&ours, "tiny", 0), 0);
    theirs = ours;
    theirs.norm_eps = 1e-6;
    theirs.kv_heads = 4;
    assert_true(model_shape_differs(&difference, &ours, &theirs));
    assert_string_equal(difference.field, "kv_heads");
    assert_string_equal(difference.ours, "2");
    assert_string_equal(difference.theirs, "4");
    theirs.kv_heads = 2;
    assert_true(model_shape_differs(&difference, &ours, &theirs));
    assert_string_equal(difference.field, "norm_eps");
    assert_string_equal(difference.ours, "1e-05");
    assert_string_equal(difference.theirs, "1e-06");
}

TEST(test_model_shape__what_is_no_llama_of_ours_is_refused)
{
    static const struct {
        const char *from, *to;
        int error;
        const char *message;
    } cases[] = {
        {"\"llama\"", "\"mistral\"", ERR_INVALID, "model_type"},
        {"4096,", "\"4096\",", ERR_CORRUPT, "hidden_size"},
        {"\"num_key_value_heads\":8", "\"num_key_value_heads\":5", ERR_CORRUPT, "5 key/value"},
        {"\"num_key_value_heads\":8", "\"head_dim\":127", ERR_CORRUPT, "head_dim = 127"},
        {"\"num_key_value_heads\":8", "\"mlp_bias\":true", ERR_INVALID, "mlp_bias"},
        {"\"num_key_value_heads\":8", "\"hidden_act\":\"gelu\"", ERR_INVALID, "hidden_act"},
        {"128256", "99999999", ERR_CORRUPT, "vocab_size"},
        {"500000.0", "-1", ERR_CORRUPT, "rope_theta"},
        {"\"llama3\"", "\"yarn\"", ERR_INVALID, "'yarn'"},
        {"\"factor\":8.0", "\"factor\":0.5", ERR_CORRUPT, "factor 0.5"},
        {"\"high_freq_factor\":4.0", "\"high_freq_factor\":1.0", ERR_CORRUPT, "high_freq_factor 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        const char *at = strstr(LLAMA31, cases[i].from);
        struct model_shape shape;
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - LLAMA31), LLAMA31, cases[i].to,
                 at + strlen(cases[i].from));
        assert_int_equal(read_config(&shape, text), cases[i].error);
        assert_non_null(strstr(report_message(), cases[i].message));
    }
}

/* inv_freq of transformers 5.23.0 for these settings, in float. */
TEST(test_model_shape__frequencies_are_those_of_transformers)
{
    struct model_shape shape;
    double got[64];
    assert_int_equal(model_shape_of_flavor(&shape, "llama3.1-8B", 0), 0);
    model_shape_frequencies(got, &shape);
    static const struct {
        uint32_t at;
        double value;
    } llama3[] = {{0, 1},
                  {1, 0.814617217},
                  {20, 0.0165604409},
                  {27, 0.00394227589},
                  {28, 0.00321144611},
                  {29, 0.00216657063},
                  {30, 0.00137189368},
                  {31, 0.00085675146},
                  {32, 0.000524846022},
                  {33, 0.00031269365},
                  {34, 0.000178507791},
                  {35, 9.55621217e-05},
                  {36, 7.78465546e-05},
                  {40, 3.42810235e-05},
                  {63, 3.06892588e-07}};
    for (size_t i = 0; i < sizeof llama3 / sizeof *llama3; i++)
        assert_true(fabs(got[llama3[i].at] / llama3[i].value - 1) < 1e-6);
    model_shape_rope_defaults(&shape, MODEL_ROPE_LINEAR);
    shape.rope_factor = 4;
    model_shape_frequencies(got, &shape);
    assert_true(got[0] == 0.25);
    assert_true(fabs(got[32] * 4 * sqrt(500000.0) - 1) < 1e-12);
}

SUITE(NULL, NULL)
