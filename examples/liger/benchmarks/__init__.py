"""The suites of Liger-Kernel's ops."""
