"""Train a Transformer: `hf-vanilla-transformer train`, from a checkout."""

from hf_vanilla_transformer.cli.train import main


if __name__ == "__main__":
    main()
