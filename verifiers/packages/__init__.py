"""Environment packages: what a wheel says, new projects, building and installing."""
