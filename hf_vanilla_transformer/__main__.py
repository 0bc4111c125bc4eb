"""Run the command line with `python -m hf_vanilla_transformer VERB ...`; see [`hf_vanilla_transformer.apps.cli`].

Unlike `hf-vanilla-transformer`, this command does not limit how long waiting OpenMP threads spin. OpenMP reads its
environment variable when PyTorch is imported. Python imports the package, and PyTorch with it, before it runs this
module, so the variable would be set too late. Starting Python a second time would double the CPU time of a start.
"""

import sys

from hf_vanilla_transformer_launcher import avoid_cudnn_attention


if __name__ == "__main__":
    # torch reads this variable when it first computes attention, so it is not too late to set it.
    avoid_cudnn_attention(sys.argv[1:])
    from .apps.cli.main import main

    main()
