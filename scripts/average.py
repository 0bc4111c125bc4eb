"""Average checkpoints of one model: `hf-vanilla-transformer average`, from a checkout."""

from hf_vanilla_transformer.cli.average import main


if __name__ == "__main__":
    main()
