"""Analysis of binaries and launches: cubins, SASS, occupancy, counted accesses."""
