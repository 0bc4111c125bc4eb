"""Average checkpoints of one model: `hf-vanilla-transformer average`, from a checkout."""

import sys

from hf_vanilla_transformer_launcher import main


if __name__ == "__main__":
    main(["average", *sys.argv[1:]])
