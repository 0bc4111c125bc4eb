"""`python -m hf_vanilla_transformer VERB ...`: the command line, see [`hf_vanilla_transformer.apps.cli`].

Unlike `hf-vanilla-transformer`, it does not limit the spinning of OpenMP's threads. Python imports the package, and
torch with it, before it runs this module, and OpenMP reads its variable when torch is imported. Starting Python a
second time would double the CPU time of a start.
"""

import sys

from hf_vanilla_transformer_launcher import avoid_cudnn_attention


if __name__ == "__main__":
    # torch reads this variable when it first computes attention, so it can still be set.
    avoid_cudnn_attention(sys.argv[1:])
    from .apps.cli.main import main

    main()
