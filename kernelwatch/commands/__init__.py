"""The commands, each a module with `main(project, prog, arguments)`; `arguments` and `watching` serve them."""
