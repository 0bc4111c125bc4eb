"""The command line: one module per verb, which parses, calls and prints; `main` chooses the verb."""

PROGRAM = "hf-vanilla-transformer"
