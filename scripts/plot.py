"""Draw validation curves: `hf-vanilla-transformer plot`, from a checkout."""

from hf_vanilla_transformer.cli.plot import main


if __name__ == "__main__":
    main()
