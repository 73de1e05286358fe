"""What the machine offers: files and locks, compilers and profilers, git, the options of a run, errors."""
