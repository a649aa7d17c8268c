/* trainer_shape - the shape that a configuration asks for.
 *
 * Goal: keys win over the flavor and over config.json, one by one; a value that makes no Llama, or
 * that would be ignored silently, is refused by its name. Method: configurations as
 * trainer_config_load() leaves them, with one key changed. */
#include "tests/unit/suite.h"
#include "trainer/model/shape.h"

#include "proto/base/options.h"
#include "proto/base/report.h"
#include "trainer/config/table.h"

#include <stdlib.h>
#include <string.h>

static struct config tiny(void)
{
    struct config config = {0};
    struct options options = {.table = config_table(), .config = &config, .quiet = true};
    assert_int_equal(options_defaults(&options), 0);
    strcpy(config.model_flavor, "tiny");
    return config;
}

static void refused(const struct config *config, const char *what)
{
    struct model_shape shape;
    assert_int_equal(shape_of_settings(&shape, config, 0), ERR_INVALID);
    if (strstr(report_message(), what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", report_message(), what);
}

TEST(test_shape__a_key_wins_over_the_flavor_alone)
{
    struct model_shape shape;
    struct config config = tiny();
    config.model_layers = 3;
    config.norm_eps = 1e-6;
    assert_int_equal(shape_of_settings(&shape, &config, 300), 0);
    assert_true(shape.layers == 3 && shape.norm_eps == 1e-6);
    assert_true(shape.dim == 64 && shape.vocab == 300 && shape.rope_theta == 500000.0);
}

TEST(test_shape__the_width_of_heads_follows_dim_and_heads)
{
    struct model_shape shape;
    struct config config = tiny();
    config.model_heads = 8;
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_int_equal(shape.head_dim, 8);
    config.model_head_dim = 24;
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_int_equal(shape.head_dim, 24);
}

TEST(test_shape__nought_and_less_are_refused_by_name)
{
    struct config none[5] = {tiny(), tiny(), tiny(), tiny(), tiny()};
    static const char *const names[] = {"layers = 0", "heads = 0", "vocab = 0", "norm_eps -0.5",
                                        "rope_theta 0"};
    none[0].model_layers = 0;
    none[1].model_heads = 0;
    none[2].model_vocab = 0;
    none[3].norm_eps = -0.5;
    none[4].rope_theta = 0;
    for (int i = 0; i < 5; i++)
        refused(&none[i], names[i]);
}

TEST(test_shape__numbers_of_a_scaling_that_is_not_there_are_refused)
{
    struct model_shape shape;
    struct config config = tiny();
    config.rope_factor = 4;
    refused(&config, "model.rope_factor = 4 does not apply to this model");
    config.rope_scaling = ROPE_LINEAR;
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_true(shape.rope == MODEL_ROPE_LINEAR && shape.rope_factor == 4);
    config.rope_high_freq_factor = 4;
    refused(&config, "model.rope_high_freq_factor = 4 does not apply to this model");
    config.rope_scaling = ROPE_LLAMA3;
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_true(shape.rope_positions == 8192 && shape.rope_high_factor == 4);
    config.rope_scaling = ROPE_NONE;
    refused(&config, "model.rope_factor = 4 does not apply to this model");
}

TEST(test_shape__sizes_of_llama_2_are_found_below_their_family)
{
    struct model_shape shape;
    struct config config = tiny();
    strcpy(config.model_flavor, "70B");
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_int_equal(shape.vocab, 128256);
    config.model_family = FAMILY_LLAMA2;
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_int_equal(model_shape_parameters(&shape), 68976648192);
    strcpy(config.model_flavor, "7B");
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_int_equal(model_shape_parameters(&shape), 6738415616);
    strcpy(config.model_flavor, "debugmodel");
    assert_int_equal(shape_of_settings(&shape, &config, 300), 0);
    assert_int_equal(shape.vocab, 300);
}

/* The count of torchtitan's llama3 debugmodel: 2 x 2048 x 256, and for each of 6 layers four
 * matrices of 256 x 256, three of 256 x 768, two norms; one norm. */
TEST(test_shape__torchtitans_debug_model_has_a_name_of_its_own)
{
    struct model_shape shape;
    struct config config = tiny();
    strcpy(config.model_flavor, "torchtitan-debugmodel");
    assert_int_equal(shape_of_settings(&shape, &config, 0), 0);
    assert_int_equal(model_shape_parameters(&shape),
                     2 * 2048 * 256 + 6 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 256);
    assert_int_equal(shape.rope_factor, 8);
}

TEST(test_shape__tokens_beyond_the_models_vocabulary_are_refused)
{
    struct model_shape shape;
    struct config config = tiny();
    strcpy(config.model_flavor, "llama2-7B");
    strcpy(config.dataset_path, "some.tokens");
    assert_int_equal(shape_of_settings(&shape, &config, 512), 0);
    assert_int_equal(shape.vocab, 32000);
    assert_int_equal(shape_of_settings(&shape, &config, 32001), ERR_INVALID);
    assert_non_null(strstr(report_message(), "some.tokens have a vocabulary of 32001"));
}

SUITE(NULL, NULL)
