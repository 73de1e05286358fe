"""What plugs into the engine, and without which the engine works as well. Each extra is a folder or a module here.

- A command: an entry of COMMANDS, and of ANYWHERE if it needs no project.
- A device, a further way of launching cells: a subclass of `plan.devices.Device`, which a project's problem names in
  its `devices`, and a suite for it.
"""

# By command: its module, and what it does.
COMMANDS = {
    "truth": ("kernelwatch.extras.nsight.truth", "compare the harness with Nsight Compute's durations"),
    "mcp": ("kernelwatch.extras.mcp", "offer verdicts to agents by the Model Context Protocol"),
}
ANYWHERE = ("mcp",)
