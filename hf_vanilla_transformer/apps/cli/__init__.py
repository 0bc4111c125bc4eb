"""The command line, `hf-vanilla-transformer VERB`.

Each verb, such as `train`, has a module that parses its arguments, calls the package, and prints the result.
"""

PROGRAM = "hf-vanilla-transformer"
