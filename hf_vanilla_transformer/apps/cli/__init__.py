"""The command line. Each verb has a module that parses its arguments, calls the package, and prints the result."""

PROGRAM = "hf-vanilla-transformer"
