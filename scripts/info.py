"""Print versions, the machine and its fast paths: `hf-vanilla-transformer info`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["info", *sys.argv[1:]])
