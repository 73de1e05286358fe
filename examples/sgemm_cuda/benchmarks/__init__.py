"""The suites of SGEMM_CUDA's kernels."""
