/* trainer_peaks.c - the peak rates that mfu is relative to.
 *
 * Goal: a GPU has the peak of its board, and an unknown one has none. Method: names as CUDA and
 * kernels_describe() give them, beside the data sheets' numbers. */
#include "tests/unit/suite.h"
#include "trainer/observe/peaks.h"

TEST(test_peaks__a_gpu_has_those_of_its_board)
{
    assert_true(peaks_find("NVIDIA H100 80GB HBM3, cuBLASLt 13.1, cuDNN 9.1", false) == 989);
    assert_true(peaks_find("NVIDIA H100 80GB HBM3, own products", true) == 67);
    assert_true(peaks_find("NVIDIA H100 PCIe, cuBLASLt", false) == 756);
    assert_true(peaks_find("NVIDIA H100 NVL, cuBLASLt", false) == 835);
    assert_true(peaks_find("NVIDIA H200, cuBLASLt", false) == 989);
    assert_true(peaks_find("NVIDIA B200, cuBLASLt", false) == 2250);
    assert_true(peaks_find("NVIDIA A100-SXM4-80GB, cuBLASLt", false) == 312);
    assert_true(peaks_find("NVIDIA A100-PCIE-40GB, cuBLASLt", true) == 19.5);
}

TEST(test_peaks__what_is_not_known_has_none)
{
    assert_true(peaks_find("avx512, products by oneDNN 3.7", false) == 0);
    assert_true(peaks_find("NVIDIA GeForce RTX 4090, cuBLASLt", false) == 0);
    assert_true(peaks_find("", true) == 0);
}

SUITE(NULL, NULL)
