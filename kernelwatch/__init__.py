"""An engine that measures GPU kernels so quietly that a 1 % change shows, and finds the commits that changed them."""
