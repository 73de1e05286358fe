"""Programs that test the engine on known cases, and write the figures in README.md and docs/."""
